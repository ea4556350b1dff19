"""Compatibility with Kafka: a broker beside txnstore, and others' clients, tests and programs against gateways.

``broker`` drives a real broker to record and compare traces; ``wire`` compares single responses; ``kafka_clients`` runs
Kafka's own tests, ``kafka_programs`` its tools, Streams and Connect, ``foreign`` the suites of other clients. ``python
-m tests.harness`` runs each with the jars and programs that it needs; docs/internals/testing.md describes them.
"""
