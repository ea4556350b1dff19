"""Erases records that a key or a predicate chooses, from all objects of a store."""
