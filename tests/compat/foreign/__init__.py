"""What other clients of Kafka have as tests of themselves, against gateways (DIF-06).

``python -m tests.harness foreign-clients`` fetches and builds the clients of ``suites.py`` in the pinned versions,
starts gateways on a new store, runs each suite, and kcat, and compares the outcomes with ``expected.tsv``.
"""
