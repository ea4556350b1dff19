"""Instruments that test txnstore. They run from the root of a clone and are not part of the package.

``simulation`` runs real clients against a storage in memory under one seeded scheduler, which injects every fault and
replays any seed bit for bit: ``python -m tests.harness.simulation --seed 42 --trace``, or ``--seeds 10000 --jobs 2``.
``torture`` runs real processes on one store, kills and pauses them at random, and checks what they observed: ``python
-m tests.harness.torture --duration 120 --chains 4``. ``history`` records the operations of clients and reports every
anomaly among them; the other two use it, and ``history.check(history.read_history(paths))`` checks any recorded file.
``model`` is a small Kafka in memory that shares no code with txnstore. ``differential`` runs the same operations
against the model and txnstore and compares what both return: ``python -m tests.harness.differential replay
tests/traces/model/*.json``. ``python -m tests.harness.differential record OPS --kafka LIBS`` records traces that the
model must reproduce, with a real Kafka broker that ``tests.compat`` drives. ``executors`` runs tasks without threads,
in an order that a test controls. ``docs/internals/testing.md`` describes all of them.
"""
