"""A store with something of everything to verify, and what a verification found."""

from __future__ import annotations

from tests.helpers.compaction import abort, begin, commit, new_store
from txnstore.compactor import VerifyReport
from txnstore.store import Store
from txnstore.testing import ManualClock


def sample_store(clock: ManualClock) -> Store:
    """Commits, an abort, a compaction, a checkpoint, and an open transaction on top."""
    store = new_store(clock)
    store.create_topic("t", partitions=2)
    for number in range(3):
        commit(store, [b"%d" % number, b"x"])
    abort(store, [b"lost"], partition=1)
    store.compact()
    store.checkpoint()
    commit(store, [b"late"], partition=1)
    begin(store, [b"open"])
    return store


def _found(report: VerifyReport) -> list[tuple[str, str]]:
    """Name and subject of each violation."""
    return [(item.name, item.subject) for item in report.violations]
