"""Maintains a store: does round after round what it needs."""
