"""Batch writes: rows to segments in the tasks, one transaction on the driver."""
