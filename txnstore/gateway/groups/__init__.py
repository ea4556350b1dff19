"""Consumer groups of Kafka's clients: members, and offsets."""
