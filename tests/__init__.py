"""Tests in rings: unit, protocol scenarios, integration with real servers, Spark and processes."""
