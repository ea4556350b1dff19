"""Verification: checks every invariant that the objects of a store can show."""
