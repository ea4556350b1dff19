"""Random histories of a store, read in every way, and compared with a plain model (docs/internals/testing.md)."""
