"""Batch reads: the plan of a read, the Python reader, and Spark's own Parquet reader."""
