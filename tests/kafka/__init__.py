"""What Kafka's own integration tests check, checked here: each test names the test of Kafka whose purpose it has.

The texts are our own. Where Kafka's test needs a broker to be stopped, the storage stops answering here. Where txnstore
behaves differently, the test shows how, and docs/kafka-differences.md says why.
"""
