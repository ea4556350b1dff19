"""The catalog: topics with their partitions, schemas and settings."""
