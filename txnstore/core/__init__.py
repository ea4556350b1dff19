"""The pure core: values, events, rules. No I/O, no clock, no randomness."""
