"""Streaming queries: positions, micro-batches and their commits, the source and the sink."""
