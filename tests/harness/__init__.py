"""Instruments that test txnstore: simulation, history checker, model of Kafka, comparison with Kafka, torture."""
