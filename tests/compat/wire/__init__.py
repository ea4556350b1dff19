"""Single requests of Kafka's wire protocol, answered by a broker once and compared with what a gateway answers.

The *scenarios* are lists of requests that cite the items of the list of conformance. ``python -m tests.compat.wire``
runs them against a broker of Kafka 4.4 and writes each response, field by field, into ``tests/traces/wire``; a test
runs them against a gateway. What may differ is listed in :mod:`tests.compat.wire.differences`.
"""
