"""Real S3 servers, real Spark sessions, real processes."""
