"""What a Spark read plans on the driver, without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Iterator

import pyarrow as pa
import pytest

import txnstore
from tests.helpers.connections import connection_of
from txnstore.core.log.model import Batch, Segment
from txnstore.core.log.visibility import Slice
from txnstore.core.model import TopicPartition
from txnstore.errors import OffsetOutOfRangeError, SchemaMismatchError, UnknownTopicOrPartitionError
from txnstore.spark.options import read_options
from txnstore.spark.planning import group, plan, projection_schema
from txnstore.store import Store


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
        ({"startingTimestamp": "1007", "endingTimestamp": "1012"}, [(0, 12, 14), (1, 12, 14)]),
        ({"startingTimestamp": "9999"}, []),
        ({"endingTimestamp": "9999"}, BOTH),
    ],
)
def test_planned_offsets_of_bounds(store: Store, options: dict[str, str], slices: list[tuple[int, int, int]]) -> None:
    assert planned(store, **options) == slices


def test_invalid_bounds_are_refused(store: Store) -> None:
    with pytest.raises(OffsetOutOfRangeError, match="offset 99 of t-1 is outside the log"):
        planned(store, startingOffsets='{"1":99}')
    with pytest.raises(OffsetOutOfRangeError, match="cannot start at offset 9 and end at 3"):
        planned(store, startingOffsets='{"0":9}', endingOffsets='{"0":3}')
    with pytest.raises(UnknownTopicOrPartitionError, match="no partition 2"):
        planned(store, endingOffsets='{"2":3}')
    with pytest.raises(UnknownTopicOrPartitionError, match="no partition 5"):
        planned(store, partitions="5")


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
