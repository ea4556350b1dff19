"""Kafka's own programs in Java, and Spark, against gateways: tools, Streams, Connect."""
