"""Administration with clients of Kafka."""
