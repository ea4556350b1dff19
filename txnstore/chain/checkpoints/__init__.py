"""Checkpoints: saved states of a chain, with index files for the batches of its logs."""
