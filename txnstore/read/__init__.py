"""Reading for scans and consumers: plans, fetching and decoding of segments, records."""
