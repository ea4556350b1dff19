"""Compaction: merges small segments, cleans partitions by key, and replaces their segments."""
