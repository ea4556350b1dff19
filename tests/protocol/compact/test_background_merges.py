"""Small commits become segments of a topic by themselves: what is read, what is refused, and what it costs."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.harness.executors import DeferredExecutor, InlineExecutor, never
from tests.helpers.compaction import (
    DAY_MS,
    HookStore,
    abort,
    batches,
    begin,
    commit,
    named_keys,
    new_store,
    reopen,
    rows,
    runtime,
    segment_keys,
    values,
)
from tests.helpers.connections import connection_of
from tests.helpers.inlining import counted_store, inlined, payloads, requests
from tests.helpers.keys import FixedRuntime
from tests.helpers.later import append_entry
from tests.helpers.merging import merge_now, merge_quietly, numbers, send
from txnstore.catalog.settings import TopicConfig
from txnstore.chain.codec import encode
from txnstore.chain.payload import line_of, payload_of
from txnstore.compactor.compact import background, merge, sources
from txnstore.compactor.compact import small_commits as planning
from txnstore.compactor.compact.lease import DURATION_MS, LeaseDocument
from txnstore.compactor.compact.memory import Memory
from txnstore.compactor.compact.merge_plan import MergePlan
from txnstore.connection import OpenParts
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.commands import Append
from txnstore.core.log.model import Batch, NewBatch, Partition
from txnstore.core.log.slices import Slice
from txnstore.core.model import Map, Outcome, TopicPartition
from txnstore.core.routing import chain_of_partition
from txnstore.core.state import replace
from txnstore.core.transactions.commands import EndTxn, InitProducer
from txnstore.errors import (
    CorruptionError,
    StorageError,
    StorageRefusedError,
    UnknownOutcomeError,
    UnsupportedFormatError,
)
from txnstore.read.plan import IsolationLevel
from txnstore.read.sharing import SharedSegments
from txnstore.segment.codec import SegmentWriter, encode_stream
from txnstore.segment.schema import records_to_table
from txnstore.segment.sums import row_hashes
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import Fault, FaultStore, ManualClock
from txnstore.testing.faults import no_faults, on

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
ISOLATIONS: tuple[IsolationLevel, IsolationLevel] = ("read_committed", "read_uncommitted")


@pytest.fixture
def store(clock: ManualClock, objects: MemoryStore) -> Iterator[Store]:
    with counted_store(clock, objects) as made:
        yield made


def everything(store: Store) -> dict[str, list[dict[str, Any]]]:
    """All rows at both isolation levels."""
    return {isolation: rows(store, "t", isolation) for isolation in ISOLATIONS}


def merged(store: Store, tp: TopicPartition = T0) -> list[int]:
    """The numbers of records of the batches of a partition that are not inlined."""
    return [batch.records for batch in batches(store, tp) if not batch.segment.inlined]


def entries_of(objects: MemoryStore, chain: int) -> list[str]:
    """The entries of a chain, in their order."""
    return sorted(item.key for item in objects.list("chains/") if f"/{chain:04}/entries/" in item.key)


def sound(store: Store) -> None:
    assert store.verify(deep=True).violations == ()


# What is read ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", ["parquet", "arrow"])
def test_a_reader_finds_the_same_before_and_after(store: Store, clock: ManualClock, fmt: str) -> None:
    """Offsets, times, keys and headers; an open transaction, and one that was aborted, between."""
    store.alter_topic("t", config={"segment.format": fmt, "compression.type": "zstd"})
    send(store, numbers(3))
    commit(store, [b"a", b"b"])
    abort(store, [b"aborted"])
    commit(store, [b"c"], partition=1)
    with begin(store, [b"open"], partition=1) as opened:
        send(store, numbers(2, 3))
        before = everything(store)
        report = merge_now(store)
        assert report.batches == 3 + 1 + 2 + 3 + 1
        assert everything(store) == before
        assert everything(reopen(store, clock)) == everything(store)
        assert (merged(store, T0), merged(store, T1)) == ([5, 1, 2], [4, 1])
        sound(store)
        opened.abort_transaction()
    merge_now(store)
    assert rows(store) == [row for row in before["read_uncommitted"] if row["value"] not in (b"aborted", b"open")]
    assert not any(inlined(store, T0) + inlined(store, T1))


def test_a_merged_segment_has_the_rows_of_all_partitions_and_who_they_belong_to(
    store: Store, objects: MemoryStore
) -> None:
    send(store, numbers(3))
    merge_now(store)
    (first,), (second,) = batches(store, T0), batches(store, T1)
    assert first.segment == second.segment
    assert (first.first_row, second.first_row, first.segment.rows) == (0, 3, 6)
    table = pq.read_table(pa.BufferReader(objects.get(first.segment.object)))
    assert table.column_names == ["_partition", "_offset", "_timestamp", "key", "value", "headers", "timestamp"]
    assert table.column("_partition").to_pylist() == [0, 0, 0, 1, 1, 1]
    assert table.column("_offset").to_pylist() == [0, 1, 2, 0, 1, 2]


def test_the_entry_has_the_sums_of_what_was_read_and_written(store: Store) -> None:
    """A verification compares them: records are neither lost nor changed."""
    send(store, numbers(3))
    merge_now(store)
    chain = connection_of(store).chain
    key = connection_of(store).keys.entry(0, chain.refresh().sequence)
    events = json.loads(line_of(connection_of(store).objects.get(key)))["events"]
    assert [event["partition"] for event in events] == [0, 1]
    for event in events:
        assert event["sums"]["read"]["records"] == 3
        assert event["sums"]["added"] == [event["sums"]["read"]]
        assert (event["removed"], len(event["added"])) == ([0, 1, 2], 1)


def test_consumers_read_on_across_a_merge(store: Store) -> None:
    send(store, numbers(4))
    with store.consumer() as consumer:
        consumer.assign([T0, T1])
        consumer.seek(T0, 1)
        seen = [(record.partition, record.offset) for record in consumer.poll(max_records=2)]
        merge_now(store)
        while records := consumer.poll(0):
            seen += [(record.partition, record.offset) for record in records]
    assert sorted(seen) == [(0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3)]


def test_deleted_records_of_one_partition_are_not_read(store: Store, clock: ManualClock) -> None:
    """The log starts inside its batch, while the other partition has all of its rows in the same segment."""
    send(store, numbers(4))
    merge_now(store)
    store.delete_records({T0: 2})
    assert [(row["_partition"], row["_offset"]) for row in rows(reopen(store, clock))] == [
        (0, 2), (0, 3), (1, 0), (1, 1), (1, 2), (1, 3)
    ]  # fmt: skip
    store.delete_records({T0: 4})
    assert [(row["_partition"], row["_offset"]) for row in rows(store)] == [(1, 0), (1, 1), (1, 2), (1, 3)]
    sound(store)


def test_an_old_snapshot_reads_the_entries(store: Store) -> None:
    send(store, numbers(3))
    before, expected = store.snapshot(), rows(store)
    merge_now(store)
    assert rows(store, snapshot=before) == rows(store, snapshot=store.snapshot()) == expected


def test_eight_merged_segments_become_one(store: Store, clock: ManualClock) -> None:
    """A partition that got nothing since the first of them has its rows in the new segment, too."""
    send(store, numbers(1))
    for number in range(8):
        merge_now(store)
        assert len(segment_keys(store)) == number + 1
        send(store, numbers(2, 1 + 2 * number), partitions=[0])
    expected = rows(store)
    merge_now(store)
    assert len(named_keys(store)) == 1
    assert rows(reopen(store, clock)) == rows(store) == expected
    sound(store)


@pytest.mark.slow
def test_equal_records_are_written_a_few_times(store: Store) -> None:
    """Their segments do not grow; counted by bytes, the first record was written again with each seventh merge."""
    written: list[str] = []
    for _ in range(80):
        send(store, [b"equal"], partitions=[0])
        merge_now(store)
        key = batches(store)[0].segment.object
        if key not in written:
            written.append(key)
    assert len(written) == 3, "of one, of nine and of 73 records"
    assert len(named_keys(store)) == 1 + 7, "of 73, and seven of one"
    assert [row["_offset"] for row in rows(store)] == list(range(80))
    sound(store)


@pytest.mark.slow
def test_rows_of_many_blocks_and_row_groups(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is decoded together, each partition gets its own rows."""
    monkeypatch.setattr(sources, "_BLOCK_BYTES", 3_000)
    monkeypatch.setattr(background, "_MEMORY", Memory(16_000))
    monkeypatch.setattr(merge, "_PART_BYTES", 1)
    for first in range(0, 90, 10):
        send(store, [b"%d" % number * 40 for number in range(first, first + 10)])
        expected = rows(store)
        merge_now(store)
        assert rows(store) == expected
    send(store, numbers(1))
    expected = rows(store)
    merge_now(store)
    assert rows(store) == expected
    assert len(named_keys(store)) == 2, "one merge of eight, with the last commits, and one of the rest"
    sound(store)


def test_a_column_that_the_chain_does_not_know_yet_is_kept(clock: ManualClock) -> None:
    """A topic is altered, and the copy in another chain is an old one when that gets a row with the new column."""
    objects = MemoryStore(clock=clock)
    with new_store(clock, objects, chains=3) as store:
        old = pa.schema([("a", pa.int64())])
        store.create_topic("t", schema=old, partitions=6, key="a")
        new = pa.schema([("a", pa.int64()), ("b", pa.int64())])
        with store.producer() as producer:
            producer.send_table("t", pa.table({"a": range(60)}, schema=old))
        before = [chain.state.topics["t"] for chain in connection_of(store).chains]
        store.alter_topic("t", schema=new)
        with store.producer() as producer:
            producer.send_table("t", pa.table({"a": range(60), "b": range(60)}, schema=new))
        expected = rows(store)
        parts = connection_of(store).parts_if_open()
        assert parts is not None
        for chain, topic in zip(parts.chains, before, strict=True):
            state = chain.refresh()
            if chain.number:
                state = replace(state, topics=state.topics.insert("t", topic))
            assert background.merge_small_commits(parts, state, Map()).errors == []
        assert rows(store) == expected
        assert not any(
            batch.segment.inlined for partition in range(6) for batch in batches(store, TopicPartition("t", partition))
        )
        sound(store)


# A backlog ------------------------------------------------------------------------------------------------------------


def test_each_entry_of_a_backlog_is_fetched_once(
    store: Store, objects: MemoryStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bounded memory: what is merged at a time are some entries, with what they have for all partitions."""
    window = 8_000
    monkeypatch.setattr(planning, "_MAX_INLINED_BYTES", window)
    decoded: list[int] = []
    read = SharedSegments.decoded

    def measured(segments: SharedSegments, slices: Sequence[Slice]) -> Any:
        files = read(segments, slices)
        decoded.append(sum({id(file): file.table.nbytes for _, file in files}.values()))
        return files

    monkeypatch.setattr(SharedSegments, "decoded", measured)
    send(store, [b"%d" % number * 200 for number in range(40)])
    expected = rows(store)
    keys = {batch.segment.object for batch in batches(store)}
    with open_on(CountingStore(objects, log=True), runtime=runtime(clock)) as other:
        connection = connection_of(other)
        connection.chain.refresh()
        connection.objects.forget()
        connection.counts.reset()
        report = merge_now(other)
        fetched = Counter(key for kind, key in connection.counts.log if kind == "get")
        written = [key for kind, key in connection.counts.log if kind == "put"]
    assert (report.batches, report.left) == (80, set())
    assert [fetched[key] for key in sorted(keys)] == [1] * 40
    assert {batch.segment.object for batch in batches(store)} == set(written)
    assert len(written) == len(decoded) > 3
    assert max(decoded) <= window
    assert rows(store) == expected
    sound(store)


class _Counting(MemoryStore):
    """Calls ``hook`` after each read of a part of an object."""

    hook: Callable[[], None] = staticmethod(lambda: None)
    reads = 0

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        data = super().get(key, start, end)
        if start is not None:
            self.reads += 1
            self.hook()
        return data


def test_a_close_does_not_wait_for_a_backlog(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_FETCHES", 4)
    objects = _Counting(clock=clock)
    with new_store(clock, objects) as store:
        store.create_topic("t", partitions=2)
        send(store, numbers(20))
        connection = connection_of(store)
        parts = connection.parts_if_open()
        assert parts is not None
        state = parts.chains[0].refresh()
        connection.objects.forget()
        objects.hook = store.close
        report = background.merge_small_commits(parts, state, Map())
        assert objects.reads == 4
        assert (report.batches, report.left, report.errors) == (0, {T0, T1}, [])
        assert segment_keys(store) == set()


def test_a_close_does_not_wait_for_what_is_encoded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_BLOCK_BYTES", 1)
    send(store, numbers(5))
    blocks: list[int] = []

    def closing(table: pa.Table) -> Any:
        blocks.append(table.num_rows)
        store.close()
        return row_hashes(table)

    monkeypatch.setattr(merge, "row_hashes", closing)
    report = merge_now(store)
    assert (blocks, report.batches, report.left) == ([1], 0, {T0, T1})
    assert segment_keys(store) == set()


def test_a_merge_leaves_what_a_compaction_wrote(clock: ManualClock) -> None:
    """One small commit after it must not write the topic again, and the next compaction then all of it once more."""
    with create_on(CountingStore(MemoryStore(clock=clock)), runtime=runtime(clock)) as store:
        store.create_topic("t", partitions=9)
        draw = random.Random(1)
        for _ in range(2):
            send(store, [draw.randbytes(300_000)], partitions=range(9))
        store.compact()
        for _ in range(3):
            send(store, [b"x"], partitions=[0])
            before = connection_of(store).counts.snapshot().bytes_out
            merge_now(store)
            assert connection_of(store).counts.snapshot().bytes_out - before < 10_000
            assert store.compact().merges <= 1


# Maintenance ----------------------------------------------------------------------------------------------------------


def test_a_vacuum_deletes_what_merges_replaced(store: Store, clock: ManualClock, objects: MemoryStore) -> None:
    for number in range(9):
        send(store, numbers(2, 2 * number))
        merge_now(store)
    assert len(segment_keys(store)) == 9
    assert len(payloads(objects)) > 0
    expected = rows(store)
    clock.advance(DAY_MS)
    store.vacuum()
    assert segment_keys(store) == named_keys(store)
    assert len(segment_keys(store)) == 1
    assert payloads(objects) == {}
    assert rows(reopen(store, clock)) == expected
    sound(store)
    store.recover()
    assert rows(store) == expected


def test_a_merged_segment_stays_while_a_partition_has_rows_in_it(store: Store, clock: ManualClock) -> None:
    send(store, numbers(3))
    merge_now(store)
    (key,) = named_keys(store)
    store.delete_records({T0: -1})
    clock.advance(DAY_MS)
    store.vacuum()
    assert segment_keys(store) == {key}
    assert len(values(store)) == 3
    store.compact(min_segments=2)
    clock.advance(DAY_MS)
    store.vacuum()
    assert len(segment_keys(store)) == 1
    assert key not in segment_keys(store), "a compaction moves what is left, so that deleted records go"
    assert len(values(store)) == 3
    sound(store)


def place_lease(store: Store, *partitions: TopicPartition) -> str:
    connection = connection_of(store)
    key = connection.keys.lease(1)
    connection.objects.put(key, encode(LeaseDocument(owner="o", duration_ms=DURATION_MS, partitions=list(partitions))))
    return key


def test_a_compaction_of_one_partition_leaves_the_rows_of_the_others(store: Store, clock: ManualClock) -> None:
    for number in range(2):
        send(store, numbers(2, 2 * number))
        merge_now(store)
    expected = rows(store)
    lease = place_lease(store, T1)
    store.compact()
    connection_of(store).objects.delete([lease])
    assert (len(batches(store, T0)), len(batches(store, T1))) == (1, 2)
    assert rows(store) == rows(reopen(store, clock)) == expected
    sound(store)


def test_partitions_with_a_lease_are_left_alone_and_merged_when_it_expires(store: Store, clock: ManualClock) -> None:
    send(store, numbers(2))
    place_lease(store, T0)
    report = merge_now(store)
    assert report.left == {T0}
    assert (inlined(store, T0), inlined(store, T1)) == ([True, True], [False])
    clock.advance(DURATION_MS + 1)
    assert merge_now(store).left == set()
    assert inlined(store, T0) == [False]


# Damage ---------------------------------------------------------------------------------------------------------------


def rewritten(store: Store, objects: MemoryStore, change: Callable[[pa.Table], pa.Table]) -> str:
    """Merge with other rows than there are in the entries; returns the key of the segment."""
    send(store, numbers(2))
    appended = SegmentWriter.append

    class Wrong(SegmentWriter):
        def __init__(self, schema: pa.Schema, *args: Any, **options: Any) -> None:
            super().__init__(change(schema.empty_table()).schema, *args, **options)

        def append(self, rows: pa.Table | pa.RecordBatch) -> None:
            appended(self, change(rows))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge, "SegmentWriter", Wrong)
        merge_now(store)
    return batches(store)[0].segment.key


def test_a_segment_without_partitions_is_damage(store: Store, objects: MemoryStore, clock: ManualClock) -> None:
    key = rewritten(store, objects, lambda table: table.drop_columns(["_partition"]))
    with pytest.raises(CorruptionError, match=rf"^segment {key} has no column _partition, which every merged"):
        rows(reopen(store, clock))
    assert {each.subject for each in store.verify(deep=True).violations} == {key}


def test_a_scan_and_a_verification_compare_the_stored_partitions(store: Store, objects: MemoryStore) -> None:
    """SQL and Spark read them; other readers know them from the chain."""
    key = rewritten(
        store, objects, lambda table: table.set_column(0, "_partition", pa.nulls(len(table), pa.int32()).fill_null(1))
    )
    message = f"segment {key} has rows of t-0 with another partition"
    with pytest.raises(CorruptionError, match=message):
        rows(store)
    (violation,) = store.verify(deep=True).violations
    assert violation.subject == key
    assert violation.message == message


# Races and failures ---------------------------------------------------------------------------------------------------


def test_two_processes_that_merge_the_same(clock: ManualClock) -> None:
    objects = HookStore(clock=clock)
    with new_store(clock, objects) as store:
        store.create_topic("t", partitions=2)
        send(store, numbers(3))
        expected = rows(store)
        other = reopen(store, clock)
        objects.after_put = lambda: assert_merged(other, 6)
        report = merge_quietly(store)
        assert (report.batches, report.left, report.errors) == (0, {T0, T1}, [])
        assert rows(store) == expected
        assert len(segment_keys(store)) == 2
        clock.advance(4 * DAY_MS)
        store.vacuum()
        assert segment_keys(store) == named_keys(store)
        sound(store)


def assert_merged(store: Store, count: int) -> None:
    assert merge_now(store).batches == count


def delete_records(store: Store, offsets: dict[TopicPartition, int]) -> None:
    store.delete_records(offsets)


def test_one_refused_replacement_does_not_take_the_others_with_it(clock: ManualClock) -> None:
    """Another process deletes records of one partition between the upload and the replacement."""
    objects = HookStore(clock=clock)
    with new_store(clock, objects) as store:
        store.create_topic("t", partitions=2)
        send(store, numbers(3))
        other = reopen(store, clock)
        objects.after_put = partial(delete_records, other, {T0: 1})
        report = merge_now(store)
        assert (report.batches, report.left) == (3, {T0})
        assert [(row["_partition"], row["value"]) for row in rows(store)] == [
            (0, b"1"), (0, b"2"), (1, b"0"), (1, b"1"), (1, b"2")
        ]  # fmt: skip
        assert merge_now(store).batches == 2, "its first batch is cut by the start of the log, and stays"
        assert len(rows(store)) == 5
        sound(store)


def test_nothing_is_uploaded_for_what_the_chain_would_refuse(store: Store, clock: ManualClock) -> None:
    send(store, numbers(2))
    parts = connection_of(store).parts_if_open()
    assert parts is not None
    state = parts.chains[0].refresh()
    merge_now(store)
    requests(store)
    report = background.merge_small_commits(parts, state, Map())
    assert (report.batches, report.left, report.errors) == (0, {T0, T1}, [])
    assert requests(store)["put"] == 0


def test_a_topic_that_was_deleted_meanwhile(clock: ManualClock) -> None:
    objects = HookStore(clock=clock)
    with new_store(clock, objects) as store:
        store.create_topic("t", partitions=2)
        send(store, numbers(2))
        other = reopen(store, clock)

        def create_again() -> None:
            other.delete_topic("t")
            other.create_topic("t", partitions=2)
            send(other, [b"new"])

        objects.after_put = create_again
        assert merge_now(store).batches == 0
        assert values(store) == [b"new", b"new"]


def test_several_runs_of_a_partition_are_one_segment_and_one_entry(store: Store) -> None:
    """A large commit stands between them."""
    send(store, numbers(2))
    for number in range(3):
        send(store, [b"x" * 100_000], partitions=[0])
        send(store, numbers(2, 2 * number), partitions=[0])
    before, head = rows(store), connection_of(store).chain.refresh().sequence
    merge_now(store)
    assert connection_of(store).chain.refresh().sequence == head + 1
    assert [batch.records for batch in batches(store)] == [2, 1, 2, 1, 2, 1, 2]
    assert len({batch.segment.key for batch in batches(store)}) == 4
    assert rows(store) == before
    sound(store)


@pytest.mark.parametrize("most", [1024, 7])
def test_commits_of_many_periods_of_the_retention_are_few_entries(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """Each stays a batch, so that none outlives its retention, and a reader fetches one object."""
    monkeypatch.setattr(background, "_REPLACEMENTS_PER_ENTRY", most)
    store.alter_topic("t", config={"retention.ms": "60000"})
    with store.producer() as producer:
        for number in range(20):
            producer.send("t", b"%d" % number, partition=0, timestamp=clock())
            producer.flush()
            clock.advance(10_000)
    before, head = rows(store), connection_of(store).chain.refresh().sequence
    assert merge_now(store).left == set()
    assert connection_of(store).chain.refresh().sequence == head + -(-20 // most)
    assert merged(store) == [1] * 20
    assert len(named_keys(store)) == 1
    assert rows(store) == before
    sound(store)


def aborted_commit(store: Store, topic: str) -> None:
    """An inlined batch of a transaction that is aborted."""
    connection = connection_of(store)
    producer = connection.submit(InitProducer("aborter"))
    encoded = encode_stream(records_to_table([(b"k", b"aborted", None, 1)], 1))
    batch = NewBatch(topic, 0, encoded.segment(""), 1, 1, 0, data=encoded.data)
    connection.submit(Append(producer, (batch,)))
    connection.submit(EndTxn(producer, Outcome.ABORT))


def test_aborted_commits_alone_cost_no_upload(store: Store) -> None:
    aborted_commit(store, "t")
    assert inlined(store) == [True]
    requests(store)
    assert merge_now(store).batches == 1
    assert requests(store)["put"] == 0
    assert batches(store) == []
    sound(store)


def test_a_damaged_topic_holds_no_other_one_up(clock: ManualClock, objects: MemoryStore) -> None:
    with new_store(clock, objects) as store:
        for name in ("a", "t", "z"):
            store.create_topic(name, partitions=2)
        send(store, numbers(2), "t")
        send(store, numbers(2), "a")
        send(store, numbers(2), "z")
        key = batches(store)[0].segment.object
        intact = objects.get(key)
        objects.put(key, line_of(intact) + bytes(len(payload_of(intact))))
        connection_of(store).objects.forget()
        report = merge_quietly(store)
        assert report.left == {T0, T1}
        (error,) = report.errors
        assert isinstance(error, CorruptionError)
        assert key in str(error)
        assert report.batches == 8
        objects.put(key, intact)
        assert merge_now(store).batches == 4
        sound(store)


def test_a_lost_segment_beside_a_damaged_chain_holds_no_other_topic_up(clock: ManualClock) -> None:
    """Whether another process has replaced the lost one, only its own chain is asked, and no answer is no error."""
    objects = MemoryStore(clock=clock)
    with new_store(clock, objects, chains=2) as store:
        for name in ("a", "z"):
            store.create_topic(name, partitions=8)
        first, second = ([n for n in range(8) if chain_of_partition(TopicPartition("a", n), 2) == c] for c in range(2))
        for _ in range(8):
            send(store, numbers(1), "a", first)
            merge_now(store)
        lost = batches(store, TopicPartition("a", first[0]))[0].segment.object
        others = [n for n in range(8) if chain_of_partition(TopicPartition("z", n), 2) == 0]
        send(store, numbers(2), "a", first)
        send(store, numbers(2), "z", others)
        with reopen(store, clock) as other:
            send(other, numbers(1), "a", second)
        newest = entries_of(objects, 1)[-1]
        objects.delete([lost])
        objects.put(newest, b"{damaged")
        connection_of(store).objects.forget()
        report = merge_quietly(store)
        assert [str(error) for error in report.errors if lost not in str(error)] == []
        assert report.damaged
        assert report.batches == 2 * (len(first) + len(others))


def test_what_a_vacuum_deleted_after_another_merge_is_no_damage(clock: ManualClock) -> None:
    """1. This process plans. 2. Another one merges, and a vacuum deletes the entries' payloads. 3. This one reads."""
    objects = MemoryStore(clock=clock)
    with new_store(clock, objects) as store, reopen(store, clock) as slow:
        store.create_topic("t", partitions=2)
        send(store, numbers(2))
        parts = connection_of(slow).parts_if_open()
        assert parts is not None
        state = parts.chains[0].refresh()
        merge_now(store)
        clock.advance(DAY_MS)
        store.vacuum()
        connection_of(slow).objects.forget()
        report = background.merge_small_commits(parts, state, Map())
        assert (report.batches, report.left, report.errors) == (0, {T0, T1}, [])


@pytest.mark.slow
def test_a_damaged_merged_segment_stays_and_later_commits_are_merged(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The merge that fails with it is tried once by a process."""
    executor = DeferredExecutor()
    with background_store(clock, executor, clock.sleep) as store:
        send(store, numbers(8 - connection_of(store).chain.state.sequence))
        executor.run_all()
        objects, key = connection_of(store).counts, batches(store)[0].segment.object
        objects.put(key, bytes(len(objects.get(key))))
        for _ in range(20):
            send(store, numbers(8))
            executor.run_all()
        assert sum(inlined(store)) <= 8
        assert store.metrics().background_merge_failures == 1
        assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1
        assert "was altered" in caplog.text
        assert len(named_keys(store)) <= 15, "eight that were tried, and fewer than eight others"
        executor.run_all()


def test_a_damaged_entry_leaves_older_segments_to_the_next_merge(store: Store, objects: MemoryStore) -> None:
    """They are sound: the merge without them fails, too."""
    for number in range(8):
        send(store, numbers(1, number))
        merge_now(store)
    send(store, [b"damaged"])
    key = batches(store)[-1].segment.object
    objects.put(key, objects.get(key).replace(b"damaged", b"altered"))
    connection_of(store).objects.forget()
    report = merge_quietly(store)
    assert (report.left, report.damaged) == ({T0, T1}, set())
    assert all("altered" in str(error) for error in report.errors)


def test_a_damaged_entry_of_a_partition_that_changes_meanwhile_leaves_older_segments_sound(clock: ManualClock) -> None:
    """The merge without the older ones did not read the damaged entry: it says nothing about these."""
    objects = HookStore(clock=clock)
    with new_store(clock, objects) as store:
        store.create_topic("t", partitions=2)
        for number in range(8):
            send(store, numbers(1, number))
            merge_now(store)
        send(store, [b"damaged"], partitions=[0])
        send(store, [b"intact"], partitions=[1])
        key = batches(store)[-1].segment.object
        objects.put(key, objects.get(key).replace(b"damaged", b"altered"))
        connection = connection_of(store)
        connection.objects.forget()
        parts = connection.parts_if_open()
        assert parts is not None
        merges = background._Merges(parts, 0, background.BackgroundReport())
        is_current, asked = merges._is_current, list[TopicPartition]()

        def overtaken(topic: CatalogTopic, plan: MergePlan) -> bool:
            """After the first merge has failed, another process has deleted a record of the partition."""
            asked.append(plan.tp)
            if len(asked) == 3:
                with reopen(store, clock) as other:
                    other.delete_records({T0: 1})
                parts.chains[0].refresh()
            return is_current(topic, plan)

        merges._is_current = overtaken  # type: ignore[method-assign]
        state = parts.chains[0].refresh()
        (planned,) = planning.plan_small_commits(state, Map(), lambda _: TopicConfig())
        assert not merges.merge_topic(planned.topic, planned.plans)
        assert merges._report.damaged == set()
        assert merges._report.batches, "the other partition was merged"


def test_without_an_answer_for_an_older_segment_the_small_commits_are_merged(clock: ManualClock) -> None:
    """It is not damaged: the next merge, with the storage in order again, takes all of them."""
    faults = FaultStore(MemoryStore(clock=clock))
    with new_store(clock, faults) as store:
        store.create_topic("t", partitions=2)
        for number in range(8):
            send(store, numbers(1, number))
            merge_now(store)
        older = batches(store)[3].segment.object
        send(store, numbers(2, 8))
        expected = rows(store)
        connection_of(store).objects.forget()
        faults.plan = on(Fault.ERROR_BEFORE, "get", key_contains=older, times=None)
        report = merge_quietly(store)
        assert (report.batches, report.left, report.damaged) == (4, {T0, T1}, set())
        assert [type(error) for error in report.errors] == [StorageError]
        assert merged(store) == [1] * 8 + [2]
        faults.plan = no_faults
        assert rows(store) == expected
        send(store, numbers(1, 10))
        expected = rows(store)
        merge_now(store)
        assert merged(store) == [11]
        assert rows(store) == expected
        sound(store)


@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.LOST_RESPONSE])
def test_a_replacement_of_unknown_outcome(clock: ManualClock, fault: Fault) -> None:
    faults = FaultStore(MemoryStore(clock=clock))
    with new_store(clock, faults) as store:
        store.create_topic("t", partitions=2)
        send(store, numbers(2))
        expected = rows(store)
        faults.plan = on(fault, "put_if_absent", key_contains="entries/", times=None)
        report = merge_quietly(store)
        assert (report.left, report.batches) == ({T0, T1}, 0)
        assert [type(error) for error in report.errors] == [UnknownOutcomeError] * 2
        faults.plan = no_faults
        merge_now(store)
        assert rows(store) == expected
        assert inlined(store) == [False]
        sound(store)


def test_nothing_is_written_with_an_unknown_feature_of_writers(store: Store) -> None:
    send(store, numbers(2))
    append_entry(connection_of(store).counts.inner, write=["sealed-records"])
    report = merge_quietly(store)
    assert (report.left, report.batches) == ({T0, T1}, 0)
    (error,) = report.errors
    assert isinstance(error, UnsupportedFormatError)
    assert segment_keys(store) == set()


# In the background ----------------------------------------------------------------------------------------------------


def background_store(clock: ManualClock, executor: DeferredExecutor, sleep: Callable[[float], None]) -> Store:
    """A store whose background tasks wait until the test runs them, and whose checkpoints come with 8 entries."""
    made = FixedRuntime(clock, sleep, background=lambda: executor, spawn=never)
    store = create_on(CountingStore(MemoryStore(clock=clock), log=True), runtime=made)
    store.create_topic("t", partitions=2)
    for chain in connection_of(store).chains:
        chain._checkpoint_every = 8
    return store


def test_a_merge_is_one_upload_and_one_listing_for_64_entries(store: Store, clock: ManualClock) -> None:
    """Without a read: this process has written what it merges. Its replacement is an entry of its own here."""
    connection = connection_of(store)
    send(store, numbers(70 - connection.chain.state.sequence))
    requests(store)
    send(store, numbers(128 - connection.chain.state.sequence))
    kinds = requests(store)
    listed = {"get": kinds["get"], "list": kinds["list"], "delete": kinds["delete"]}
    assert listed == {"get": 0, "list": 1, "delete": 0}
    # An entry for each commit and one for the replacement; the segment, the checkpoint with its index, and the hint.
    assert kinds["put_if_absent"] <= 58 + 1 + 3
    assert len(segment_keys(store)) == 2
    assert store.metrics().background_merged_batches == 2 * (61 + 63)


def test_the_next_commit_carries_the_replacement(clock: ManualClock) -> None:
    executor = DeferredExecutor()
    during: list[Callable[[], None]] = []

    def sleep(seconds: float) -> None:
        clock.sleep(seconds)
        while during:
            during.pop()()

    with background_store(clock, executor, sleep) as store:
        send(store, numbers(8 - connection_of(store).chain.state.sequence))
        assert all(inlined(store)), "nothing in the committing thread"
        producer = store.producer(linger=None)  # Else the time of the machine might send the record before.
        producer.send("t", b"first", partition=0)
        producer.flush()
        head = connection_of(store).chain.state.sequence
        during.append(producer.flush)
        producer.send("t", b"next", partition=0)
        executor.run_all()
        assert connection_of(store).chain.state.sequence == head + 1
        assert inlined(store) == [False, True, True, True], "the merged ones; the last of these eight, and two"
        sound(store)


def test_what_failed_is_merged_later_though_it_did_not_change(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A lease, and a failure: the next merge of the process plans these partitions again."""
    executor = DeferredExecutor()
    with background_store(clock, executor, clock.sleep) as store:
        send(store, numbers(5 - connection_of(store).chain.state.sequence))
        log = connection_of(store).view().partitions[T0]
        send(store, numbers(3), partitions=[1])
        assert connection_of(store).view().partitions[T0] is log, "the checkpoint has its last commit"
        lease = place_lease(store, T0)
        executor.run_all()
        assert (inlined(store, T0)[0], inlined(store, T1)[0]) == (True, False)
        connection_of(store).objects.delete([lease])
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(merge, "_encode", fail)
            send(store, numbers(8), partitions=[1])
            executor.run_all()
        assert (inlined(store, T0)[0], inlined(store, T1)[1]) == (True, True)
        assert store.metrics().background_merge_failures == 1
        send(store, numbers(8), partitions=[1])
        executor.run_all()
        assert (inlined(store, T0)[0], inlined(store, T1)[1]) == (False, False)
        assert "small commits not merged: no upload" in caplog.text
        sound(store)


def fail(*_: object) -> None:
    raise StorageError("no upload")


class _Denying(CountingStore):
    """The storage of a process that may not write the segments of a topic."""

    def put(self, key: str, data: bytes) -> None:
        if key.startswith("topics/secret/"):
            raise StorageRefusedError(f"Cannot write {key}: access denied.")
        super().put(key, data)


def test_a_process_that_may_not_write_a_topic_merges_the_others_and_warns_once(
    clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    inner = MemoryStore(clock=clock)
    with new_store(clock, inner) as store, open_on(_Denying(inner), runtime=runtime(clock)) as limited:
        for name in ("secret", "t"):
            store.create_topic(name, partitions=2)
        for chain in connection_of(limited).chains:
            chain._checkpoint_every = 8
        for _ in range(3):
            send(limited, numbers(8), "secret")
            send(limited, numbers(8), "t")
        assert limited.metrics().background_merge_failures >= 3
        assert len([record for record in caplog.records if record.levelname == "WARNING"]) == 1
        assert "access denied" in caplog.text
        secret = TopicPartition("secret", 0)
        assert all(inlined(limited, secret))
        assert not all(inlined(limited))
        merge_now(store)
        assert not any(inlined(store, secret))
        sound(store)


def test_a_failing_topic_does_not_hide_another_failure(clock: ManualClock, caplog: pytest.LogCaptureFixture) -> None:
    """A warning for each topic and class of error: that a topic may not be written is nothing that anybody acts on."""
    inner = MemoryStore(clock=clock)
    with new_store(clock, inner) as store, open_on(_Denying(inner), runtime=runtime(clock)) as limited:
        for name in ("secret", "t", "u"):
            store.create_topic(name, partitions=2)
        for chain in connection_of(limited).chains:
            chain._checkpoint_every = 8
        send(limited, numbers(8), "secret")
        for number, name in enumerate(["t", "u", "secret"]):
            send(limited, numbers(1), name)
            key = [batch for batch in batches(limited, TopicPartition(name, 0)) if batch.segment.inlined][-1]
            intact = inner.get(key.segment.object)
            inner.put(key.segment.object, line_of(intact) + bytes(len(payload_of(intact))))
            connection_of(limited).objects.forget()
            send(limited, numbers(16), name)
            warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
            assert len(warnings) == number + 2
            assert f"of {name}-" in warnings[-1]


def test_an_idle_partition_is_not_looked_at_again(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = DeferredExecutor()
    looked_at: list[int] = []
    tail = planning._decided_tail

    def noted(log: Partition) -> list[Batch]:
        looked_at.append(log.high_watermark)
        return tail(log)

    monkeypatch.setattr(planning, "_decided_tail", noted)
    with background_store(clock, executor, clock.sleep) as store:
        send(store, numbers(8 - connection_of(store).chain.state.sequence))
        executor.run_all()
        for _ in range(2):
            send(store, numbers(10), partitions=[1])
            executor.run_all()
        idle, busy = (connection_of(store).chain.state.partitions[tp].high_watermark for tp in (T0, T1))
        looked_at.clear()
        send(store, numbers(16), partitions=[1])
        executor.run_all()
        assert looked_at
        assert min(looked_at) > busy > idle


def test_a_close_does_not_connect_again(clock: ManualClock) -> None:
    """One merge is queued, and another one continues while the store is closed."""
    executor = DeferredExecutor()
    with background_store(clock, executor, clock.sleep) as store:
        connection = connection_of(store)
        send(store, numbers(8 - connection.chain.state.sequence))
        store.close()
        connection.counts.reset()
        executor.run_all()
        assert [kind for kind, _ in connection.counts.log if kind != "put"] == [], "only a checkpoint, which was due"
        assert connection.parts_if_open() is None
        assert all(inlined(store))


def test_a_merge_that_a_close_overtakes_ends_with_the_topic(clock: ManualClock) -> None:
    objects = HookStore(clock=clock)
    with new_store(clock, objects) as store:
        for name in ("t", "u", "v"):
            store.create_topic(name, partitions=2)
            send(store, numbers(2), name) if name != "u" else aborted_commit(store, name)
        connection = connection_of(store)
        objects.after_put = store.close
        parts = connection.parts_if_open()
        assert parts is not None
        report = background.merge_small_commits(parts, parts.chains[0].refresh(), Map())
        assert report.batches == 4
        assert report.left == {TopicPartition("u", 0), TopicPartition("v", 0), TopicPartition("v", 1)}
        assert connection.parts_if_open() is None
        assert values(store) == [b"0", b"1"] * 2


def test_a_merge_that_cannot_begin_does_not_hold_up_the_next_one(store: Store) -> None:
    """For a while, the process can start no thread."""
    send(store, numbers(4))
    parts = connection_of(store).parts_if_open()
    assert parts is not None
    refusing = ThreadPoolExecutor(1)
    refusing.shutdown()
    state = parts.chains[0].refresh()
    executors: list[tuple[Executor, list[int]]] = [(refusing, []), (InlineExecutor(), [4])]
    for executor, expected in executors:
        background.merge_later(OpenParts(parts.connection, parts.chains, parts.pool, executor), state)
        assert merged(store) == expected


#: A process whose tasks of the background run at its end.
_UNTIL_A_CHECKPOINT = """
import sys
from tests.harness.executors import DeferredExecutor
from txnstore.chain.context import CHECKPOINT_EVERY
from txnstore.runtime import Runtime
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on

background = DeferredExecutor()
with create_on(MemoryStore(), runtime=Runtime(background=lambda: background)) as store:
    store.create_topic("t")
    with store.producer(linger=None) as producer:
        for _ in range(CHECKPOINT_EVERY):
            producer.send("t", b"v").result()
    assert "txnstore.compactor" not in sys.modules, "imported by a commit"
    background.run_all()
    assert store.metrics().background_merged_batches > 0
"""


@pytest.mark.slow
def test_the_commit_that_makes_a_merge_due_does_not_wait_until_its_modules_are_imported() -> None:
    command = [sys.executable, "-c", _UNTIL_A_CHECKPOINT]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=True)


@pytest.mark.parametrize("in_background", [True, False])
def test_merges_keep_no_record_from_being_cleaned_after_its_lag(clock: ManualClock, *, in_background: bool) -> None:
    """CMP-02: a batch is cleaned when its newest record is old enough, so a merge adds no younger ones to it.

    A record of one key each minute, a lag of 40 minutes: 40 records are young, and a period of the lag has five.
    """
    minute, lag = 60_000, 40
    with new_store(clock, MemoryStore(clock=clock)) as store:
        config = {"cleanup.policy": "compact", "min.compaction.lag.ms": lag * minute, "min.cleanable.dirty.ratio": 0.0}
        store.create_topic("t", config=config)
        most = 0
        for number in range(1, 161):
            with store.producer() as producer:
                producer.send("t", b"%d" % number, key=b"k", timestamp=clock())
            clock.advance(minute)
            if number % 4 == 0 and in_background:
                merge_now(store)
            if number % 8 == 0:
                store.compact(min_segments=1_000 if in_background else 2, expire=False)
                most = max(most, len(rows(store)))
        assert most <= lag + 5 + 8
        assert len(batches(store, T0)) < 40
        sound(store)
