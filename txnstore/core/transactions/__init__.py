"""Transactions: the coordinator's record of each, its state machine, its rules and its markers."""
