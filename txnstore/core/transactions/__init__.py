"""Transactions: the coordinator's table, its rules, markers, fences, history."""
