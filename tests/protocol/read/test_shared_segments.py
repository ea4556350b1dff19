"""Readers of segments of several batches: each is fetched and opened once, or only the part that is needed is."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from tests.harness.executors import InlineExecutor
from tests.helpers.compaction import rows
from tests.helpers.connections import connection_of
from tests.helpers.inlining import counted_store
from txnstore.consumer import fetcher
from txnstore.consumer.flow import Flow
from txnstore.core.model import TopicPartition
from txnstore.errors import CorruptionError, StorageError
from txnstore.read import ranged
from txnstore.read.readahead import read_ahead
from txnstore.read.reader import open_slice
from txnstore.read.rows import Columns
from txnstore.segment.pieces import ParquetSegment
from txnstore.storage import recent
from txnstore.storage.memory import MemoryStore
from txnstore.storage.recent import ReadCache
from txnstore.store import Store
from txnstore.testing import ManualClock

PARTITIONS, FLUSHES, EACH = 24, 3, 4


@pytest.fixture
def store(clock: ManualClock, objects: MemoryStore) -> Store:
    """Three flushes of four records to each of 24 partitions: three objects."""
    store = counted_store(clock, objects)
    store.create_topic("p", partitions=PARTITIONS, config={"inline.bytes": 0})
    fill(store)
    return store


def fill(store: Store, size: int = 100) -> None:
    numbers = random.Random(1)
    with store.producer("id") as producer:
        for _ in range(FLUSHES):
            with producer.transaction() as txn:
                for partition in range(PARTITIONS):
                    for _ in range(EACH):
                        txn.send("p", numbers.randbytes(size), partition=partition)


def fetched(store: Store, read: Callable[[], object]) -> Counter[str]:
    """How often each segment object is requested during a call."""
    counts = connection_of(store).counts
    counts.reset()
    read()
    return Counter(key for kind, key in counts.log if kind == "get" and key.startswith("topics/"))


def polled(store: Store, most: int, partitions: int = PARTITIONS) -> int:
    """The number of records that polls of at most so many return."""
    with store.consumer(auto_offset_reset="earliest") as consumer:
        consumer.assign([TopicPartition("p", number) for number in range(partitions)])
        return sum(len(batch) for batch in iter(lambda: consumer.poll(max_records=most), []))


# Whole ----------------------------------------------------------------------------------------------------------------


def test_a_scan_fetches_each_segment_once(store: Store) -> None:
    counts = fetched(store, lambda: rows(store, "p"))
    assert sorted(counts.values()) == [1] * FLUSHES
    assert len(rows(store, "p")) == FLUSHES * PARTITIONS * EACH


@pytest.mark.parametrize("most", [1, 7, 10_000])
def test_a_consumer_fetches_each_segment_once(store: Store, most: int) -> None:
    """However few records each of its polls returns."""
    read = list[int]()
    counts = fetched(store, lambda: read.append(polled(store, most)))
    assert read == [FLUSHES * PARTITIONS * EACH]
    assert sorted(counts.values()) == [1] * FLUSHES


def test_parts_of_one_partition_in_a_segment_cost_one_request(store: Store) -> None:
    """As a merged segment has them where a period of retention ends between two batches."""
    (first, *_) = store.scan("p", partitions=[0]).plan()
    parts = [replace(first, limit=first.start + 1), replace(first, start=first.start + 1)]
    connection, columns = connection_of(store), Columns(store.scan("p").topic)

    def read() -> None:
        tables = read_ahead(connection.objects.with_read_cache({"p": 1}), InlineExecutor(), parts, columns)
        assert sum(table.num_rows for table in tables) == EACH

    assert [*fetched(store, read).values()] == [1]


def test_a_consumer_without_records_to_read_keeps_no_segments(store: Store) -> None:
    with store.consumer(["p"], auto_offset_reset="earliest") as consumer:
        consumer.poll(max_records=1)
        assert consumer._poller._objects is not None
        while consumer.poll():
            pass
        assert consumer._poller._objects is None


def test_a_full_memory_of_a_consumer_is_emptied(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has room for one of the segments: each is fetched once all the same, as all partitions advance together."""
    largest = max(item.size for item in connection_of(store).objects.list("topics/"))
    monkeypatch.setattr(recent, "_READ_CACHE_BYTES", largest)
    counts = fetched(store, lambda: polled(store, PARTITIONS * EACH))
    assert len(counts) == FLUSHES
    assert sum(counts.values()) < 2 * PARTITIONS, "without room at the ends of segments alone"


def test_bytes_after_a_shared_segment_are_damage(store: Store, objects: MemoryStore) -> None:
    key = next(iter(objects.list("topics/"))).key
    objects.put(key, objects.get(key) + b"more")
    with pytest.raises(CorruptionError, match=f"{key} .*bytes"):
        rows(store, "p")


def test_a_segment_that_is_described_in_another_way_is_checked_again(store: Store) -> None:
    """What a reader keeps has been checked against one description only."""
    connection, scan = connection_of(store), store.scan("p")
    objects, columns = connection.objects.with_read_cache({"p": PARTITIONS}), Columns(scan.topic)
    first, *_ = scan.plan()
    assert len(open_slice(objects, first, columns)) == 1
    other = replace(first, batch=replace(first.batch, segment=replace(first.batch.segment, size=7)))
    with pytest.raises(CorruptionError, match="expected 7"):
        open_slice(objects, other, columns)


# In parts -------------------------------------------------------------------------------------------------------------


def test_a_reader_of_one_partition_fetches_its_part_of_a_large_segment(store: Store, objects: MemoryStore) -> None:
    """The footer, and then the blocks of its row group: not all rows of 24 partitions."""
    store.alter_topic("p", config={"segment.own.bytes": 1 << 20})
    fill(store, 15_000)
    large = [item.size for item in objects.list("topics/") if item.size >= 1 << 20]
    assert len(large) == FLUSHES
    ranged.forget_footers()
    counts = connection_of(store).counts
    scan = store.scan("p", partitions=[5])
    counts.reset()
    assert scan.to_table().num_rows == 2 * FLUSHES * EACH
    assert counts.snapshot().get == FLUSHES + 2 * FLUSHES
    assert counts.snapshot().bytes_in < sum(large) / 3
    ranged.forget_footers()
    scan = store.scan("p")
    counts.reset()
    assert scan.to_table().num_rows == 2 * FLUSHES * EACH * PARTITIONS
    assert counts.snapshot().get == 2 * FLUSHES, "a reader of all partitions fetches it whole"


def test_without_room_a_large_segment_is_read_in_parts(
    store: Store, objects: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scan goes through all segments once for each partition: it must not fetch them whole each time."""
    store.alter_topic("p", config={"segment.own.bytes": 1 << 20})
    fill(store, 15_000)
    total = sum(item.size for item in objects.list("topics/"))
    monkeypatch.setattr(recent, "_READ_CACHE_BYTES", 1 << 20)
    counts = connection_of(store).counts
    scan = store.scan("p")
    counts.reset()
    assert scan.to_table().num_rows == 2 * FLUSHES * EACH * PARTITIONS
    assert counts.snapshot().bytes_in < PARTITIONS * total / 3


# What is kept ---------------------------------------------------------------------------------------------------------


def test_what_is_asked_for_by_several_threads_is_made_once() -> None:
    cache, made = ReadCache(), list[int]()
    begun, go = threading.Event(), threading.Event()

    def make() -> str:
        made.append(1)
        begun.set()
        assert go.wait(60)
        return "opened"

    results: list[str | None] = []
    threads = [threading.Thread(target=lambda: results.append(cache.once("name", 5, make))) for _ in range(2)]
    threads[0].start()
    assert begun.wait(60)
    threads[1].start()
    go.set()
    for thread in threads:
        thread.join(60)
    assert (results, made) == (["opened"] * 2, [1])


def test_a_child_process_waits_for_no_thread_of_its_parent() -> None:
    cache, results = ReadCache(), list[int | None]()
    go, begun, made = threading.Event(), threading.Event(), threading.Event()

    def slow() -> int:
        begun.set()
        go.wait()
        return 1

    def make() -> int:
        made.set()
        return 2

    parent = threading.Thread(target=cache.once, args=("name", 5, slow))
    child = threading.Thread(target=lambda: results.append(cache.once("name", 5, make)))
    parent.start()
    try:
        assert begun.wait(60)
        cache._process = -1  # As a child sees it.
        child.start()
        assert made.wait(10)
    finally:  # Whatever happened, no thread outlives the test.
        go.set()
        for thread in (parent, child):
            thread.join(60)
    assert (results, cache.once("name", 5, lambda: 3)) == ([2], 2)


def test_what_a_reader_keeps_goes_with_it(store: Store) -> None:
    """Without the collector of cycles, which may come late."""
    objects = connection_of(store).objects.with_read_cache({"p": PARTITIONS})
    scan = store.scan("p")
    assert list(read_ahead(objects, InlineExecutor(), scan.plan(), Columns(scan.topic)))
    cache = weakref.ref(objects.read_cache)
    gc.disable()
    try:
        del objects
        assert cache() is None
    finally:
        gc.enable()


def test_a_pause_of_a_partition_drops_nothing(store: Store) -> None:
    def read() -> None:
        with store.consumer(["p"], auto_offset_reset="earliest") as consumer:
            last = TopicPartition("p", PARTITIONS - 1)
            while consumer.poll(max_records=EACH):
                consumer.pause([last])
                consumer.poll(max_records=EACH)
                consumer.resume([last])

    assert sorted(fetched(store, read).values()) == [1] * FLUSHES


def test_partitions_of_other_topics_make_no_company(store: Store) -> None:
    """One of 24 partitions is read in parts, however many partitions of another topic are assigned."""
    store.alter_topic("p", config={"segment.own.bytes": 1 << 20})
    fill(store, 15_000)
    store.create_topic("other", partitions=PARTITIONS)
    total = sum(item.size for item in connection_of(store).objects.list("topics/p/"))
    ranged.forget_footers()
    counts = connection_of(store).counts
    with store.consumer(auto_offset_reset="earliest") as consumer:
        others = [TopicPartition("other", number) for number in range(PARTITIONS)]
        consumer.assign([TopicPartition("p", 5), *others])
        counts.reset()
        while consumer.poll():
            pass
    assert counts.snapshot().bytes_in < total / 3


def test_what_has_no_room_is_not_made() -> None:
    cache = ReadCache()
    assert cache.once("first", recent._READ_CACHE_BYTES, lambda: 1) == 1
    assert (cache.is_full, cache.once("second", 1, lambda: 2), cache.is_full) == (False, None, True)
    assert cache.once("first", recent._READ_CACHE_BYTES, lambda: 3) == 1


def test_a_failure_is_not_kept() -> None:
    cache = ReadCache()

    def fail() -> int:
        raise StorageError("lost")

    for _ in range(2):
        with pytest.raises(StorageError, match="lost"):
            cache.once("name", recent._READ_CACHE_BYTES, fail)
    makers = (lambda: 1, lambda: 2)
    assert [cache.once("name", recent._READ_CACHE_BYTES, make) for make in makers] == [1, 1]


def test_a_piece_is_decoded_once_for_the_partitions_in_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions lie side by side in a row group: each of them would decode the rows of all."""
    decoded: list[int] = []
    read = ParquetSegment.read

    def counted(segment: ParquetSegment, piece: int, columns: Sequence[str]) -> pa.Table:
        decoded.append(piece)
        return read(segment, piece, columns)

    monkeypatch.setattr(ParquetSegment, "read", counted)
    connection, scan = connection_of(store), store.scan("p")
    objects = connection.objects.with_read_cache({"p": PARTITIONS})
    tables = read_ahead(objects, InlineExecutor(), scan.plan(), Columns(scan.topic))
    assert sum(table.num_rows for table in tables) == FLUSHES * PARTITIONS * EACH
    assert decoded == [0] * FLUSHES


def test_a_poll_looks_at_all_partitions_a_few_times(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once for each partition with records: a thousand of them would be looked at a million times."""
    looks: list[int] = []
    fetch = fetcher.fetch_ahead

    def counted(flows: Iterable[Flow], *others: Any) -> int:
        looks.append(1)
        return fetch(flows, *others)

    monkeypatch.setattr(fetcher, "fetch_ahead", counted)
    with store.consumer(["p"], auto_offset_reset="earliest") as consumer:
        assert len(consumer.poll(max_records=10_000)) == FLUSHES * PARTITIONS * EACH
    assert len(looks) <= FLUSHES * PARTITIONS / 4
