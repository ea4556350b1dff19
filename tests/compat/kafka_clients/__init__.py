"""Kafka's own tests of its Java clients, unmodified, against gateways (DIF-06).

``python -m tests.harness kafka-tests`` fetches the tests by Maven, compiles the classes in ``java/`` that give each
test a cluster of gateway processes instead of brokers in its own memory, runs them, and compares the outcomes with
``expected.tsv``.
"""
