"""The pure core: values, commands, events and rules, by subject. No I/O, no clock, no randomness."""
