"""The lags of a compacted topic hold for each partition alone, also in segments that several of them share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from tests.helpers.compaction import DAY_MS, batches, named_keys, new_store, reopen, rows, segment_keys
from tests.helpers.connections import connection_of
from tests.helpers.merging import merge_now
from txnstore.core.log.model import Layout
from txnstore.core.model import TopicPartition
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store
from txnstore.testing import ManualClock

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
MINUTE = 60_000
SHARED = {"flushed": Layout.APPENDED, "merged": Layout.MERGED_SHARED}


@pytest.fixture(params=SHARED)
def layout(request: pytest.FixtureRequest) -> Layout:
    """That of the segments that partitions share: as producers flush them, or as background merges leave them."""
    return SHARED[request.param]


@pytest.fixture
def store(clock: ManualClock) -> Iterator[Store]:
    with new_store(clock, MemoryStore(clock=clock)) as made:
        yield made


def create(store: Store, layout: Layout, config: Mapping[str, float]) -> None:
    inlined = 0 if layout is Layout.APPENDED else 65_536
    store.create_topic("t", partitions=2, config={"cleanup.policy": "compact", "inline.bytes": inlined, **config})


def send(store: Store, keys: Mapping[int, list[bytes]], times: Mapping[int, int], layout: Layout) -> None:
    """A flush with a record of each key of each partition; both partitions share the segments."""
    with store.producer() as producer:
        for partition, names in keys.items():
            for name in names:
                producer.send("t", b"value", key=name, partition=partition, timestamp=times[partition])
        producer.flush()
    if layout is Layout.MERGED_SHARED:
        merge_now(store)
    newest = [batches(store, tp)[-1] for tp in (T0, T1)]
    assert newest[0].segment == newest[1].segment
    assert [batch.layout for batch in newest] == [layout] * 2


def clean(store: Store) -> list[int]:
    """Clean what is due, and merge nothing; returns up to where each partition is clean."""
    store.compact(min_segments=1_000, expire=False)
    partitions = connection_of(store).view().partitions
    return [partitions[tp].clean_until for tp in (T0, T1)]


def offsets(store: Store, partition: int) -> list[int]:
    return [row["_offset"] for row in rows(store) if row["_partition"] == partition]


def test_young_records_of_one_partition_keep_no_other_one_from_being_cleaned(
    store: Store, clock: ManualClock, layout: Layout
) -> None:
    """CMP-02: min.compaction.lag.ms is that of the batches of a partition, not of the segments that they are in."""
    create(store, layout, {"min.compaction.lag.ms": 40 * MINUTE, "min.cleanable.dirty.ratio": 0.0})
    for _ in range(6):
        send(store, {0: [b"k"], 1: [b"k"]}, {0: clock() - 60 * MINUTE, 1: clock()}, layout)
    assert clean(store) == [6, 0]
    assert (offsets(store, 0), offsets(store, 1)) == ([5], [0, 1, 2, 3, 4, 5])
    clock.advance(DAY_MS)
    store.vacuum()
    assert segment_keys(store) == named_keys(store), "what the young ones are in stays"
    assert (offsets(store, 0), offsets(store, 1)) == ([5], [0, 1, 2, 3, 4, 5])
    assert clean(store) == [6, 6]
    assert (offsets(store, 0), offsets(store, 1)) == ([5], [5])
    assert rows(reopen(store, clock)) == rows(store)
    assert store.verify(deep=True).violations == ()


def test_old_records_of_one_partition_make_no_other_one_due(store: Store, clock: ManualClock, layout: Layout) -> None:
    """max.compaction.lag.ms, with a dirty part that is too small otherwise."""
    create(store, layout, {"max.compaction.lag.ms": 60 * MINUTE, "min.cleanable.dirty.ratio": 0.9})
    names = [b"%d" % number for number in range(50)]
    send(store, {0: names, 1: names}, {0: clock(), 1: clock()}, layout)
    assert clean(store) == [50, 50]
    send(store, {0: [b"7"], 1: [b"7"]}, {0: clock() - 61 * MINUTE, 1: clock()}, layout)
    assert clean(store) == [51, 50]
    kept = [number for number in range(51) if number != 7]
    assert (offsets(store, 0), offsets(store, 1)) == (kept, list(range(51)))
    clock.advance(59 * MINUTE)
    assert clean(store) == [51, 50]
    clock.advance(2 * MINUTE)
    assert clean(store) == [51, 51]
    assert (offsets(store, 0), offsets(store, 1)) == (kept, kept)
    assert rows(reopen(store, clock)) == rows(store)
    assert store.verify(deep=True).violations == ()
