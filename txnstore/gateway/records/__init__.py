"""Record batches of Kafka's wire protocol and their rows: pure functions, without I/O."""
