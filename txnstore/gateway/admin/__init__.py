"""Administration: topics, settings, partitions, transactions, groups and rules, for Kafka's admin clients."""
