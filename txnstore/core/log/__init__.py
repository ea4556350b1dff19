"""Partition logs: batches, sequences, offsets, visibility."""
