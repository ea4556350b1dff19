"""Topics: which exist, with which partitions, schema and settings."""
