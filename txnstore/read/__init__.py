"""Inside scans and consumers: plans, fetching and decoding segments, records, positions."""
