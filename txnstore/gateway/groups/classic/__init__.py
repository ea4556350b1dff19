"""Groups of Kafka's classic protocol, whose members assign (KIP-62)."""
