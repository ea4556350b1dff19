"""Exactly once through gateways: real clients of Kafka on two gateways, with faults, and a check of their histories.

``python -m tests.harness.gateway`` runs it, as does :func:`tests.harness.gateway.run.torture`; it is
described in ``docs/internals/testing.md``.
"""
