"""Processes that share the entries of a chain: one of them, the committer, carries the commands of the others."""
