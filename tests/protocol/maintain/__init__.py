"""Processes that maintain a store: what they do, when, and beside others."""
