"""What a Spark read plans on the driver, without Spark."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

import txnstore
from tests.helpers.connections import connection_of
from tests.helpers.keys import FixedRuntime
from txnstore import BlockedReadWarning
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Batch, Segment
from txnstore.core.log.slices import Slice
from txnstore.core.model import TopicPartition
from txnstore.errors import OffsetOutOfRangeError, SchemaMismatchError, UnknownTopicOrPartitionError
from txnstore.read.reader import Share
from txnstore.spark.options import read_options
from txnstore.spark.reads.planning import (
    check_starts,
    group,
    group_by_task,
    loaded_view,
    plan,
    projection_schema,
    view_to_read,
)
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on
from txnstore.testing import ManualClock


@pytest.fixture
def store(memory_store_url: str) -> Iterator[Store]:
    """Topic ``t`` with offsets 0-4 committed, 6-10 aborted, 12-16 committed in each of two partitions."""
    with txnstore.create(memory_store_url) as created:
        created.create_topic("t", partitions=2)
        with created.producer("writer") as producer:
            for first, commit in ((0, True), (5, False), (10, True)):
                producer.begin_transaction()
                for number in range(first, first + 5):
                    for partition in (0, 1):
                        producer.send("t", b"%d" % number, partition=partition, timestamp=1000 + number)
                producer.flush()
                producer.commit_transaction() if commit else producer.abort_transaction()
        yield created


def planned(store: Store, **options: str) -> list[tuple[int, int, int]]:
    """Partition, start and limit of each slice of a read."""
    chosen = read_options({"path": "p", "topic": "t", **options})
    groups = plan(connection_of(store), connection_of(store).view(), chosen)
    return [(part.tp.partition, part.start, part.limit) for each in groups for part in each.slices]


BOTH = [(0, 0, 5), (0, 12, 17), (1, 0, 5), (1, 12, 17)]


@pytest.mark.parametrize(
    ("options", "slices"),
    [
        ({}, BOTH),
        ({"partitions": "1"}, BOTH[2:]),
        ({"isolation": "read_uncommitted", "partitions": "0"}, [(0, 0, 5), (0, 6, 11), (0, 12, 17)]),
        ({"startingOffsets": '{"t":{"0":13}}'}, [(0, 13, 17), *BOTH[2:]]),
        ({"startingOffsets": '{"0":-1,"1":-2}'}, BOTH[2:]),
        ({"endingOffsets": '{"0":-2,"1":14}'}, [(1, 0, 5), (1, 12, 14)]),
        ({"startingOffsets": "latest"}, []),
        ({"endingOffsets": "earliest"}, []),
        ({"startingTimestamp": "1003"}, [(0, 3, 5), (0, 12, 17), (1, 3, 5), (1, 12, 17)]),
        ({"startingTimestamp": "1970-01-01T00:00:01.003Z"}, [(0, 3, 5), (0, 12, 17), (1, 3, 5), (1, 12, 17)]),
        ({"startingTimestamp": "1007", "endingTimestamp": "1012"}, [(0, 12, 14), (1, 12, 14)]),
        ({"startingTimestamp": "9999"}, []),
        ({"endingTimestamp": "9999"}, BOTH),
    ],
)
def test_planned_offsets_of_bounds(store: Store, options: dict[str, str], slices: list[tuple[int, int, int]]) -> None:
    assert planned(store, **options) == slices


def test_invalid_bounds_are_refused(store: Store) -> None:
    with pytest.raises(OffsetOutOfRangeError, match=r"offset 99 of t-1 is outside the log.*: change starting"):
        planned(store, startingOffsets='{"1":99}')
    with pytest.raises(OffsetOutOfRangeError, match=r"start at offset 9 and end at 3, .* change startingOffsets or"):
        planned(store, startingOffsets='{"0":9}', endingOffsets='{"0":3}')
    with pytest.raises(UnknownTopicOrPartitionError, match="no partition 2"):
        planned(store, endingOffsets='{"2":3}')
    with pytest.raises(UnknownTopicOrPartitionError, match="no partition 5"):
        planned(store, partitions="5")


def test_a_start_above_the_log_is_refused_when_columns_are_asked_for(store: Store) -> None:
    """One below the log start may be where a stream has started, and a topic of a pattern may be deleted."""
    view = connection_of(store).view()

    def check(offsets: str) -> None:
        check_starts(view, read_options({"path": "p", "topicPattern": ".*", "startingOffsets": offsets}))

    for offsets in ("latest", '{"t":{"0":18,"1":-1}}', '{"u":{"0":99}}'):
        check(offsets)
    with pytest.raises(OffsetOutOfRangeError, match=r"offset 19 of t-1 is outside the log.*: change startingOffsets"):
        check('{"t":{"1":19}}')
    with pytest.raises(UnknownTopicOrPartitionError, match="no partition 2"):
        check('{"t":{"2":0}}')


def test_topics_are_never_mixed_in_a_group(store: Store) -> None:
    store.create_topic("u")
    with store.producer() as producer:
        producer.send("u", b"x")
    groups = plan(connection_of(store), connection_of(store).view(), read_options({"path": "p", "topic": "u,t"}))
    assert [each.topic.name for each in groups] == ["u", "t"]
    assert all({part.tp.topic for part in each.slices} == {each.topic.name} for each in groups)
    assert pickle.loads(pickle.dumps(groups)) == groups  # noqa: S301 - our own bytes; Spark does the same


def test_topics_of_different_columns_are_not_read_together(store: Store) -> None:
    store.create_topic("typed", schema=pa.schema([("n", pa.int64())]))
    with pytest.raises(SchemaMismatchError, match="'t' and 'typed' have different columns"):
        projection_schema(connection_of(store).view(), read_options({"path": "p", "topic": "t,typed"}))
    together = read_options({"path": "p", "topic": "t,typed", "columns": "_offset"})
    with pytest.raises(SchemaMismatchError, match="'typed' has no column 'value'"):
        projection_schema(
            connection_of(store).view(), read_options({"path": "p", "topic": "t,typed", "columns": "value"})
        )
    assert projection_schema(connection_of(store).view(), together).names == ["_offset"]


def test_groups_are_filled_up_to_the_target() -> None:
    """Small neighbours share a task, a large segment has one of its own, and the order stays."""

    def part(number: int, size: int) -> Slice:
        segment = Segment(f"k{number}", "parquet", size, "", 1)
        return Slice(TopicPartition("t", 0), Batch(number, number + 1, 1, segment, 0, 0), number, number + 1)

    mb = 1 << 20
    parts = [part(number, size * mb) for number, size in enumerate((1, 1, 100, 1, 3, 60))]
    groups = [[each.start for each in run] for run in group(parts, 64 * mb)]
    assert groups == [[0, 1], [2], [3, 4], [5]]
    assert list(group([], mb)) == []


def test_large_segments_are_split_into_shares_and_small_ones_are_not() -> None:
    """About 64 MB each, or as many tasks as the read asks for; only tasks of one segment have a share."""

    def part(number: int, size: int, rows: int) -> Slice:
        segment = Segment(f"k{number}", "parquet", size, "", rows, footer_size=1000, footer_sha256="")
        first = number * 10_000_000
        return Slice(TopicPartition("t", 0), Batch(first, first + rows, rows, segment, 0, 0), first, first + rows)

    topic = CatalogTopic(
        name="t", topic_id="i", partitions=1, schema=None, key=None, timestamp=None, config={}, created_at=0
    )
    mb, rows = 1 << 20, 128 * 1024
    slices = [part(0, mb, 100), part(1, 1024 * mb, 16 * rows), part(2, mb, 100), part(3, mb, 100)]
    groups = group_by_task([(topic, slices)])
    assert [(len(each.slices), each.share) for each in groups] == [
        (1, None),
        *((1, Share(number, 16)) for number in range(16)),
        (2, None),
    ]
    assert {each.slices for each in groups[1:-1]} == {(slices[1],)}
    assert len(group_by_task([(topic, slices[2:])], 2)) == 2
    assert len(group_by_task([(topic, [part(0, 3 * mb, 3 * rows)])])) == 1
    assert len(group_by_task([(topic, [part(0, 3 * mb, 3 * rows)])], 20)) == 3
    assert len(group_by_task([(topic, [part(0, 1000, 3 * rows)])], 20)) == 3  # As few bytes as sorted numbers take.
    assert pickle.loads(pickle.dumps(groups)) == groups  # noqa: S301 - our own bytes; Spark does the same


def test_partitions_that_are_nearly_equal_have_a_task_each() -> None:
    """One with a little more than the mean is neither split, nor are its last rows read by a task of their own."""

    def part(partition: int, first: int, size: int, rows: int) -> Slice:
        segment = Segment(f"k{partition}-{first}", "parquet", size, "", rows, footer_size=1000, footer_sha256="")
        batch = Batch(first, first + rows, rows, segment, 0, 0)
        return Slice(TopicPartition("t", partition), batch, first, first + rows)

    topic = CatalogTopic(
        name="t", topic_id="i", partitions=4, schema=None, key=None, timestamp=None, config={}, created_at=0
    )
    sizes = (9_445_470, 9_442_582, 9_456_941, 9_447_460)
    one_segment = [part(number, 0, size, 250_000) for number, size in enumerate(sizes)]
    groups = group_by_task([(topic, one_segment)], processors=2)
    assert [(each.slices, each.share) for each in groups] == [((each,), None) for each in one_segment]
    two_segments = [
        each
        for number, size in enumerate(sizes)
        for each in (part(number, 0, size * 2, 500_000), part(number, 500_000, size // 2, 130_000))
    ]
    groups = group_by_task([(topic, two_segments)], processors=2)
    assert [len({each.tp for each in group.slices}) for group in groups] == [1] * 4
    assert len(group_by_task([(topic, one_segment)], 4, processors=2)) > 4  # Who asks for four gets at least four.


def test_small_reads_have_two_tasks_for_each_processor() -> None:
    """Within bounds: each task costs more than its share of a small read. ``minPartitions`` asks for more."""

    def part(number: int) -> Slice:
        segment = Segment(f"k{number}", "parquet", 7 << 20, "", 1)
        return Slice(TopicPartition("t", 0), Batch(number, number + 1, 1, segment, 0, 0), number, number + 1)

    topic = CatalogTopic(
        name="t", topic_id="i", partitions=1, schema=None, key=None, timestamp=None, config={}, created_at=0
    )
    topic_slices = [(topic, [part(number) for number in range(16)])]
    tasks = {processors: len(group_by_task(topic_slices, processors=processors)) for processors in (1, 2, 4, 8, 64)}
    assert tasks == {1: 4, 2: 4, 4: 8, 8: 16, 64: 16}
    assert len(group_by_task(topic_slices, 16, processors=2)) == 16


# Blocked reads --------------------------------------------------------------------------------------------------------


def _hold_back(store: Store, timeout: float) -> None:
    """An open transaction, and a committed record behind it, in partition 0."""
    producer = store.producer("dead", timeout)
    producer.begin_transaction()
    producer.send("t", b"undecided", partition=0)
    producer.flush()
    with store.producer() as other:
        other.send("t", b"waits", partition=0)


def test_the_driver_warns_once_of_records_that_a_read_leaves_out(store: Store) -> None:
    """LSO-19: only if the read would reach them."""
    _hold_back(store, 900.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", BlockedReadWarning)
        for options in ({"endingOffsets": '{"0":17}'}, {"partitions": "1"}, {"isolation": "read_uncommitted"}):
            planned(store, **options)
    with pytest.warns(BlockedReadWarning, match="1 committed record of t-0 cannot be read yet.* 'dead'"):
        assert planned(store) == BOTH


def test_the_driver_ends_an_expired_transaction_that_holds_records_back(clock: ManualClock) -> None:
    """TMO-01: unless it reads uncommitted records, for which nothing waits."""
    created = create_on(MemoryStore(clock=clock), runtime=FixedRuntime(clock, clock.sleep))
    created.create_topic("t")
    _hold_back(created, 60.0)
    clock.advance(60_001)
    connection, tp = connection_of(created), TopicPartition("t", 0)
    uncommitted, committed = (
        view_to_read(connection, read_options({"path": "p", "topic": "t", "isolation": isolation}))
        for isolation in ("read_uncommitted", "read_committed")
    )
    assert (uncommitted.partitions[tp].last_stable_offset, committed.partitions[tp].last_stable_offset) == (0, 3)


def test_an_earlier_snapshot_is_read_as_it_was(clock: ManualClock) -> None:
    """With its columns and its records; no transaction is ended for it."""
    created = create_on(MemoryStore(clock=clock), runtime=FixedRuntime(clock, clock.sleep))
    created.create_topic("typed", schema=pa.schema([("a", pa.int64())]))
    with created.producer() as producer:
        producer.send("typed", {"a": 1})
    heads = created.snapshot().heads
    created.alter_topic("typed", schema=pa.schema([("a", pa.int64()), ("b", pa.string())]))
    created.create_topic("t")
    _hold_back(created, 60.0)
    held = created.snapshot().sequence
    clock.advance(60_001)
    connection, before = connection_of(created), created.snapshot
    options = read_options({"path": "p", "topic": "typed", "columns": "a", "snapshot": str(heads[0])})
    entries = connection.chain.refresh().sequence
    view = view_to_read(connection, options)
    assert (view.sequence, connection.chain.refresh().sequence) == (heads[0], entries)
    assert loaded_view(connection, options).sequence == heads[0]
    assert [field.name for field in projection_schema(view, options)] == ["a"]
    assert "b" not in projection_schema(view, replace(options, columns=None)).names
    assert [part.limit for each in plan(connection, view, options) for part in each.slices] == [1]
    assert before().sequence > entries, "a snapshot of now ends it"
    options = read_options({"path": "p", "topic": "t", "snapshot": str(held)})
    with pytest.warns(BlockedReadWarning, match="1 committed record of t-0 cannot be read in this snapshot.* 'dead'"):
        assert plan(connection, view_to_read(connection, options), options) == []
