"""Merging small segments: what readers see stays, what the chain says of it becomes less."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.helpers.compaction import T0, abort, batches, commit, new_store, rows, values
from tests.helpers.connections import connection_of
from tests.helpers.shell import ONE_CHAIN
from txnstore.errors import CorruptionError, InvalidConfigError, ReadOnlyError, UnknownTopicOrPartitionError
from txnstore.segment.codec import decode
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, open_on
from txnstore.testing import ManualClock


@pytest.fixture
def store(clock: ManualClock, chains: int) -> Store:
    store = new_store(clock, chains=chains)
    store.create_topic("t", partitions=2)
    return store


def test_merge_keeps_every_row_and_offset(store: Store, clock: ManualClock) -> None:
    """CMP-01: rows, offsets and timestamps before and after are the same."""
    for number in range(6):
        clock.advance(1_000)
        appended_at = clock()
        commit(store, [b"%d-%d" % (number, row) for row in range(4)])
        commit(store, [b"other %d" % number], partition=1)
    before = rows(store)
    report = store.compact()
    assert rows(store) == before
    assert [row["_offset"] for row in before if row["_partition"] == 0][:6] == [0, 1, 2, 3, 5, 6]
    assert [(item.tp.partition, item.segments_before, item.segments_after) for item in report.partitions] == [
        (0, 6, 1),
        (1, 6, 1),
    ]
    assert (report.records, report.merges, report.conflicts, report.aborted) == (30, 2, 0, 0)
    assert report.bytes_after < report.bytes_before
    (merged,) = batches(store)
    assert (merged.base_offset, merged.limit, merged.records) == (0, 29, 24)
    assert (merged.min_timestamp, merged.max_timestamp) == (1_000, 1_003)
    assert merged.appended_at == appended_at
    assert merged.segment.explicit_offsets
    assert merged.segment.size == report.partitions[0].bytes_after
    assert (merged.producer_id, merged.transactional) == (-1, False)
    assert store.verify(deep=True).ok


def test_second_compaction_does_nothing(store: Store) -> None:
    for number in range(3):
        commit(store, [b"%d" % number])
    store.compact()
    sequence = connection_of(store).view().sequence
    assert store.compact().partitions == ()
    assert connection_of(store).view().sequence == sequence


def test_merged_segments_merge_with_newer_ones(store: Store) -> None:
    """CMP-01: a second pass reads stored offsets, gaps and all."""
    for round_ in range(3):
        for number in range(3):
            commit(store, [b"%d-%d" % (round_, number)])
            abort(store, [b"never"])
        before = rows(store)
        store.compact()
        assert rows(store) == before
    assert len(batches(store)) == 1
    assert store.verify(deep=True).ok


def test_aborted_data_is_dropped_without_reading_it(store: Store) -> None:
    """CMP-06: absent under read_committed before and after; under read_uncommitted present, then absent."""
    commit(store, [b"a", b"b"])
    abort(store, [b"lost"] * 3)
    commit(store, [b"c"])
    assert values(store) == [b"a", b"b", b"c"]
    assert values(store, isolation="read_uncommitted").count(b"lost") == 3
    bounds = store.offsets("t", 0)
    report = store.compact("t")
    assert values(store) == values(store, isolation="read_uncommitted") == [b"a", b"b", b"c"]
    assert [row["_offset"] for row in rows(store)] == [0, 1, 7]
    assert store.offsets("t", 0) == bounds
    assert (report.aborted, report.records) == (1, 3)
    assert store.verify(deep=True).ok


def test_a_log_of_aborted_data_only_becomes_empty_and_keeps_its_offsets(store: Store) -> None:
    """CMP-06; offsets are never used again (CMP-01)."""
    abort(store, [b"x"])
    abort(store, [b"y"])
    counts = connection_of(store).counts.snapshot()
    store.compact()
    spent = connection_of(store).counts.snapshot() - counts
    assert batches(store) == []
    assert (spent.put, spent.put_if_absent) == (0, 1 + 1)
    commit(store, [b"z"])
    assert [(row["_offset"], row["value"]) for row in rows(store)] == [(4, b"z")]
    assert store.verify(deep=True).ok


@pytest.mark.usefixtures("own_objects")
@ONE_CHAIN
def test_merge_costs_one_get_per_source_one_upload_and_one_entry(store: Store) -> None:
    """OBJ-14: S GETs, 1 PUT, 1 conditional PUT; one GET more to find the head.

    The lease costs a list, a conditional PUT, a GET for the head after it, and a DELETE.
    """
    for number in range(7):
        commit(store, [b"%d" % number])
    abort(store, [b"never read"])
    counts = connection_of(store).counts.snapshot()
    store.compact()
    spent = connection_of(store).counts.snapshot() - counts
    assert (spent.get, spent.put, spent.put_if_absent) == (7 + 1 + 1, 1, 1 + 1)
    assert (spent.list, spent.delete, spent.stat, spent.now_ms) == (1, 1, 0, 0)


def test_only_the_named_topic_is_compacted(store: Store) -> None:
    store.create_topic("u")
    for number in range(2):
        commit(store, [b"%d" % number])
        commit(store, [b"%d" % number], topic="u")
    assert [item.tp.topic for item in store.compact("u").partitions] == ["u"]
    assert len(batches(store)) == 2
    with pytest.raises(UnknownTopicOrPartitionError, match="nowhere"):
        store.compact("nowhere")


def test_dry_run_reports_without_changes(store: Store) -> None:
    commit(store, [b"a"])
    abort(store, [b"b"])
    commit(store, [b"c"])
    before, counts = connection_of(store).view(), connection_of(store).counts.snapshot()
    report = store.compact(dry_run=True)
    assert (connection_of(store).counts.snapshot() - counts).puts == 0
    assert connection_of(store).view() == before
    assert report.dry_run
    assert (report.segments_before, report.segments_after, report.aborted, report.records) == (3, 1, 1, 2)


def test_target_bytes_and_min_segments_control_the_merges(store: Store) -> None:
    for number in range(4):
        commit(store, [b"%d" % number])
    size = max(batch.segment.size for batch in batches(store))
    assert store.compact(min_segments=5).partitions == ()
    assert store.compact(target_bytes=size).partitions == ()
    assert store.compact(target_bytes=2 * size).merges == 2
    assert len(batches(store)) == 2


@pytest.mark.parametrize(
    "options", [{"target_bytes": 0}, {"target_bytes": "1"}, {"min_segments": 0}, {"min_segments": True}]
)
def test_bad_options_are_refused_by_name(store: Store, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfigError, match=next(iter(options))):
        store.compact(**options)


def test_read_only_store_is_not_compacted(store: Store) -> None:
    commit(store, [b"a"])
    commit(store, [b"b"])
    reader = open_on(connection_of(store).counts.inner, read_only=True)
    with pytest.raises(ReadOnlyError):
        reader.compact()
    assert reader.compact(dry_run=True).merges == 1


def test_progress_is_reported_per_merge(store: Store) -> None:
    for partition in (0, 1):
        for number in range(2):
            commit(store, [b"%d" % number], partition=partition)
    steps = []
    report = store.compact(progress=lambda step: steps.append((step.tp.partition, step.done, step.total)))
    assert [partition for partition, _, _ in steps] == [0, 1]
    assert steps[-1][1] == steps[-1][2] == report.bytes_before


def test_arrow_segments_merge_into_an_arrow_segment(clock: ManualClock) -> None:
    store = new_store(clock)
    store.create_topic("t", config={"segment.format": "arrow"})
    for number in range(3):
        commit(store, [b"%d-%d" % (number, row) for row in range(3)])
    before = rows(store)
    store.compact()
    assert rows(store) == before
    (merged,) = batches(store)
    assert merged.segment.key.endswith(".arrow")
    table = decode(connection_of(store).objects.get(merged.segment.key), "arrow")
    assert table.column_names == ["_offset", "_timestamp", "key", "value", "headers", "timestamp"]
    assert table["_offset"].to_pylist() == [0, 1, 2, 4, 5, 6, 8, 9, 10]


def test_segments_of_several_formats_merge_into_the_current_format(clock: ManualClock) -> None:
    store = new_store(clock)
    store.create_topic("t", config={"segment.format": "arrow"})
    commit(store, [b"a"])
    store.alter_topic("t", config={"segment.format": "parquet", "compression.type": "gzip"})
    commit(store, [b"b"])
    before = rows(store)
    store.compact()
    assert rows(store) == before
    assert [batch.segment.format for batch in batches(store)] == ["parquet"]


def test_segments_of_older_schemas_merge_into_the_current_schema(clock: ManualClock) -> None:
    """Columns that are younger than a segment are null in the merged one; narrower types are widened."""
    store = new_store(clock)
    store.create_topic("m", schema=pa.schema([("id", pa.int32())]))
    _append_rows(store, [{"id": 1}, {"id": 2}])
    store.alter_topic("m", schema=pa.schema([("id", pa.int64()), ("name", pa.string())]))
    _append_rows(store, [{"id": 2**40, "name": "later"}])
    before = rows(store, "m")
    store.compact("m")
    assert rows(store, "m") == before
    assert [(row["id"], row["name"], row["_offset"]) for row in before] == [
        (1, None, 0),
        (2, None, 1),
        (2**40, "later", 3),
    ]
    (merged,) = connection_of(store).view().partitions[T0._replace(topic="m")].batches
    stored = decode(connection_of(store).objects.get(merged.segment.key), "parquet").schema
    assert stored.field("id").type == pa.int64()


def _append_rows(store: Store, table: list[dict[str, object]]) -> None:
    with store.producer("rows") as producer, producer.transaction():
        producer.send_table("m", table, partition=0)


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_timestamps_of_rows_without_an_event_time_survive(clock: ManualClock, kind: str) -> None:
    """The time of an append is known to the batch only, which a merge takes away: it is stored then."""
    store = new_store(clock)
    store.create_topic("m", schema=pa.schema([("id", pa.int64())]), config={"message.timestamp.type": kind})
    for number in range(3):
        clock.advance(5_000)
        _append_rows(store, [{"id": number}])
    before = rows(store, "m")
    assert len({row["_timestamp"] for row in before}) == 3
    store.compact()
    assert rows(store, "m") == before
    assert store.verify(deep=True).ok


@pytest.mark.usefixtures("own_objects")
def test_a_damaged_source_stops_the_merge_and_is_named(store: Store) -> None:
    """OBJ-13: nothing is uploaded but the lease, nothing is replaced."""
    commit(store, [b"a"])
    commit(store, [b"b"])
    victim = batches(store)[1].segment
    connection_of(store).objects.put(victim.key, connection_of(store).objects.get(victim.key)[:-1] + b"?")
    before = connection_of(store).view()
    counts = connection_of(store).counts.snapshot()
    with pytest.raises(CorruptionError, match=victim.key):
        store.compact()
    assert (connection_of(store).counts.snapshot() - counts).puts == 1
    assert connection_of(store).view() == before


def test_a_large_merge_writes_row_group_by_row_group(clock: ManualClock) -> None:
    """200,000 rows from 4 segments: one segment of several row groups, in order."""
    store = new_store(clock, MemoryStore(clock=clock))
    store.create_topic("m", schema=pa.schema([("id", pa.int64())]))
    for number in range(4):
        table = pa.table({"id": pa.array(range(number * 50_000, (number + 1) * 50_000))})
        with store.producer("rows") as producer, producer.transaction():
            producer.send_table("m", table, partition=0)
    before = store.scan("m").to_table()
    report = store.compact()
    assert report.records == 200_000
    assert store.scan("m").to_table().equals(before)
    assert store.verify(deep=True).ok
