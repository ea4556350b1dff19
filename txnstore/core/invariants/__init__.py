"""Invariants: of a state, of a step from one entry to the next, and across chains."""
