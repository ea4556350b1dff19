"""What a Spark write task does with its rows, without Spark."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest

from tests.helpers.keys import FixedRuntime
from txnstore.catalog.writing import topic_writer
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import NewBatch
from txnstore.core.partitioner import partition_for_key
from txnstore.errors import RecordTooLargeError, SchemaMismatchError, UnknownTopicOrPartitionError
from txnstore.segment.codec import decode
from txnstore.spark.writes.routing import SegmentRouter
from txnstore.storage.memory import MemoryStore
from txnstore.testing import ManualClock

EVENTS = CatalogTopic("events", "id-1", 3)
SMALL = CatalogTopic("small", "id-2", 1, config={"max.message.bytes": "10"})


class Bench:
    """A router over a bucket of its own, and what it uploaded."""

    def __init__(self, only: str | None = "events", first: int = 0, **sizes: int) -> None:
        self.objects = MemoryStore()
        clock = ManualClock()
        topics = {topic.name: topic_writer(topic) for topic in (EVENTS, SMALL)}
        runtime = FixedRuntime(clock, clock.sleep, random.Random(7))
        self.router = SegmentRouter(self.objects, runtime, topics, only, first, **sizes)

    def write(self, *batches: dict[str, Any]) -> tuple[NewBatch, ...]:
        for batch in batches:
            self.router.add(pa.RecordBatch.from_pydict(batch))
        return self.router.finish()

    def rows(self, batch: NewBatch) -> list[Any]:
        """The values of an uploaded segment."""
        segment = batch.segment
        values: list[Any] = decode(self.objects.get(segment.key), segment.format)["value"].to_pylist()
        return values


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.router.close()


def test_one_segment_per_partition_keeps_row_order(bench: Bench) -> None:
    keys = [f"k{number % 7}" for number in range(100)]
    batches = [{"key": keys[at : at + 10], "value": [f"{n}" for n in range(at, at + 10)]} for at in range(0, 100, 10)]
    uploaded = bench.write(*batches)
    assert [batch.partition for batch in uploaded] == [0, 1, 2]
    for batch in uploaded:
        mine = [n for n in range(100) if partition_for_key(keys[n].encode(), 3) == batch.partition]
        assert bench.rows(batch) == [b"%d" % n for n in mine]
    assert len(bench.objects.list("topics/")) == 3


def test_rows_without_a_key_change_the_partition_with_each_chunk() -> None:
    """A chunk has 65,536 rows; the first partition is given, and differs by task."""
    bench = Bench(first=2)
    uploaded = bench.write(*({"value": [str(chunk)] * 65_536} for chunk in range(4)))
    assert [(batch.partition, sorted(set(bench.rows(batch)))) for batch in uploaded] == [
        (0, [b"1"]),
        (1, [b"2"]),
        (2, [b"0", b"3"]),
    ]
    bench.router.close()


@pytest.mark.slow
def test_large_partitions_become_several_segments_in_order() -> None:
    """Memory stays bounded by the sizes, and the messages keep the order of the rows."""
    bench = Bench(segment_bytes=8 << 20, buffer_bytes=20 << 20)
    value = "x" * 4096
    uploaded = bench.write(*({"value": [f"{at + n}{value}" for n in range(4096)]} for at in range(0, 32768, 4096)))
    assert len(uploaded) > 3
    total = 0
    for partition in range(3):
        mine = [row for batch in uploaded if batch.partition == partition for row in bench.rows(batch)]
        numbers = [int(row[: -len(value)]) for row in mine]
        assert numbers == sorted(numbers)
        total += len(numbers)
    assert total == 32768
    bench.router.close()


def test_tasks_begin_their_rows_without_keys_at_different_partitions() -> None:
    partitions = []
    for task in range(3):
        bench = Bench(first=task)
        partitions.append([batch.partition for batch in bench.write({"value": ["a", "b"]})])
        bench.router.close()
    assert partitions == [[0], [1], [2]]


def test_rows_of_several_topics() -> None:
    """A column that a topic does not have is left out where it is empty."""
    bench = Bench(only=None)
    uploaded = bench.write(
        {"_topic": ["small", "events", "small"], "value": ["1", "2", "3"], "other": pa.nulls(3, pa.string())},
    )
    rows = sorted((batch.topic, bench.rows(batch)) for batch in uploaded)
    assert rows == [("events", [b"2"]), ("small", [b"1", b"3"])]
    bench.router.close()


def test_topic_option_overrides_the_topic_column(bench: Bench) -> None:
    (batch,) = bench.write({"_topic": ["small"], "value": ["1"]})
    assert batch.topic == "events"


def test_explicit_partition_overrides_the_key(bench: Bench) -> None:
    uploaded = bench.write({"key": ["k", "k"], "value": ["1", "2"], "_partition": [2, None]})
    where = {value: batch.partition for batch in uploaded for value in bench.rows(batch)}
    assert where == {b"1": 2, b"2": partition_for_key(b"k", 3)}


def test_task_without_rows_uploads_nothing(bench: Bench) -> None:
    assert bench.write({"value": pa.array([], pa.string())}) == ()
    assert bench.objects.list("topics/") == []


@pytest.mark.parametrize(
    ("batch", "error", "message"),
    [
        ({"value": ["v"], "_partition": [3]}, UnknownTopicOrPartitionError, "so there is no partition 3"),
        ({"value": ["v"], "_partition": [-1]}, UnknownTopicOrPartitionError, "so there is no partition -1"),
        ({"value": ["v"], "_partition": ["0"]}, SchemaMismatchError, "'_partition' must be of an integer type"),
        ({"value": [1]}, SchemaMismatchError, "'value' is of type int64"),
        ({"value": ["v"], "x": ["y"]}, SchemaMismatchError, "no column 'x'"),
    ],
)
def test_invalid_rows_are_named(bench: Bench, batch: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        bench.write(batch)
    assert bench.objects.list("topics/") == []


def test_unknown_topics_are_named() -> None:
    bench = Bench(only=None)
    with pytest.raises(UnknownTopicOrPartitionError, match="there is no topic 'x'; the topics are: events, small"):
        bench.write({"_topic": ["events", "x"], "value": ["1", "2"]})
    with pytest.raises(SchemaMismatchError, match="'_topic' is null"):
        bench.write({"_topic": pa.array([None], pa.string()), "value": ["1"]})
    with pytest.raises(RecordTooLargeError, match=r"max.message.bytes \(10\) of topic 'small'"):
        bench.write({"_topic": ["small"], "value": ["x" * 11]})
    bench.router.close()
