"""The checker: which anomalies a history has. A pure function, linear in the history but for sorting."""

from __future__ import annotations

from tests.harness.history import bounds, cycles, positions, reads, transactions
from tests.harness.history.format import History
from tests.harness.history.index import Anomaly, Index

_PARTS = (
    reads.inconsistent_offsets,
    reads.duplicates,
    reads.aborted_reads,
    reads.lost_writes,
    reads.unseen,
    reads.precommitted_reads,
    positions.polls,
    positions.sends,
    cycles.cycles,
    transactions.torn,
    transactions.offsets_and_data,
    transactions.consumed,
    transactions.epochs,
    transactions.zombies,
    transactions.wrong_outcomes,
    bounds.regressions,
    bounds.stuck,
    bounds.removals,
    bounds.compactions,
)


def find(history: History) -> list[Anomaly]:
    """All anomalies, also those that are allowed (JEP-13)."""
    index = Index(history)
    return list(dict.fromkeys(item for part in _PARTS for item in part(index)))


def check(history: History) -> list[Anomaly]:
    """The anomalies that are not allowed; none if the history is one of an exactly-once store."""
    return [item for item in find(history) if not item.allowed]
