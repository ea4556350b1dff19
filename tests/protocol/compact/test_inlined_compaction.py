"""A compaction reads each entry, and each shared segment, once for all partitions that have batches in it."""

from __future__ import annotations

import random
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from tests.helpers.compaction import batches, runtime, values
from tests.helpers.connections import connection_of
from tests.helpers.inlining import counted_store
from txnstore.core.model import TopicPartition
from txnstore.errors import CorruptionError
from txnstore.storage import recent
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, open_on
from txnstore.testing import ManualClock


@pytest.fixture
def store(clock: ManualClock, objects: MemoryStore) -> Store:
    return counted_store(clock, objects)


def fill(store: Store, transactions: int, more: bytes = b"") -> None:
    """Transactions over all partitions, which send their number, and a checkpoint."""
    for number in range(transactions):
        with store.producer("id").transaction() as txn:
            for partition in range(8):
                txn.send("wide", b"%d" % number + more, partition=partition)
    store.checkpoint()


@pytest.mark.parametrize("config", [{}, {"inline.bytes": 0}], ids=["entries", "objects"])
def test_a_compaction_reads_each_entry_or_pack_once(store: Store, clock: ManualClock, config: dict[str, int]) -> None:
    """All partitions have segments in it."""
    store.create_topic("wide", partitions=8, config=config)
    fill(store, 20)
    shared = {batch.segment.object for batch in batches(store, TopicPartition("wide", 0))}
    other = open_on(CountingStore(connection_of(store).counts.inner, log=True), runtime=runtime(clock))
    report = other.compact("wide")
    assert [item.segments_before for item in report.partitions] == [20] * 8
    read = Counter(key for kind, key in connection_of(other).counts.log if kind == "get")
    assert {key: read[key] for key in shared} == dict.fromkeys(shared, 1)
    assert values(other, "wide") == [b"%d" % number for number in range(20)] * 8


@pytest.mark.parametrize("config", [{}, {"inline.bytes": 0}], ids=["entries", "objects"])
def test_bytes_that_a_compaction_read_and_did_not_check_are_not_kept(
    store: Store, objects: MemoryStore, clock: ManualClock, config: dict[str, int]
) -> None:
    """They were damaged on their way: the next reader of this process gets those that are stored."""

    class Damaging:
        def __init__(self) -> None:
            self.damaged = 0

        def __getattr__(self, name: str) -> Any:
            return getattr(objects, name)

        def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
            data = objects.get(key, start, end)
            if self.damaged or (start is None and not key.startswith("topics/")):
                return data
            self.damaged = 1
            return bytes(byte ^ 1 for byte in data)

    store.create_topic("wide", partitions=8, config=config)
    fill(store, 4)
    damaging = Damaging()
    other = open_on(damaging, runtime=runtime(clock))
    with suppress(CorruptionError):
        other.compact("wide")
    assert damaging.damaged
    assert values(other, "wide") == [b"%d" % number for number in range(4)] * 8
    other.compact("wide")
    assert other.verify(deep=True).ok


def test_what_a_compaction_keeps_is_not_dropped_for_more(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each entry would be dropped when the next partition needs it, and be fetched again and again."""
    monkeypatch.setattr(recent, "_READ_CACHE_BYTES", 4 * recent._BEGINNING_BYTES)
    store.create_topic("wide", partitions=8, config={"inline.bytes": 1 << 20})
    fill(store, 10, random.Random(1).randbytes(5_000))
    other = open_on(CountingStore(connection_of(store).counts.inner, log=True), runtime=runtime(clock))
    shared = {batch.segment.object for batch in batches(store, TopicPartition("wide", 0))}
    other.compact("wide")
    read = Counter(key for kind, key in connection_of(other).counts.log if kind == "get")
    assert sorted(read[key] for key in shared) == [1] * 6 + [8] * 4
