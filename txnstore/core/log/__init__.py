"""Partition logs: batches, sequences, offsets and visibility."""
