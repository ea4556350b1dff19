"""Partitions whose committed records wait behind an open transaction."""

from __future__ import annotations

from tests.helpers.reading import T0, append, begin
from txnstore.core.model import TopicPartition
from txnstore.store import Store

#: The records that wait.
WAITING = [f"waits-{number}" for number in range(40)]
#: The timeout of the transaction, and a moment after it, in ms.
TIMEOUT_MS = 60_000
LATER_MS = TIMEOUT_MS + 1


def hold_back(store: Store, name: str = "dead", tp: TopicPartition = T0) -> None:
    """A producer whose process dies with flushed records in an open transaction, then 40 records of another one."""
    begin(store, name, "undecided", tp=tp)
    append(store, *WAITING, tp=tp)
