"""Structured Streaming from topics to topics: exactly once, in one entry for each micro-batch, with clear errors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - its usual name

import txnstore
import txnstore.spark
from tests.helpers.connections import connection_of
from tests.helpers.spark import drain, in_and_out, load_stream, running, send, stream_to, values
from txnstore import TopicPartition
from txnstore.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def store(local_store_url: str) -> Iterator[Store]:
    with in_and_out(local_store_url) as created:
        yield created


def offsets(store: Store, group: str) -> dict[str, int]:
    committed = connection_of(store).view().groups[group].offsets
    return {str(tp): value.value.offset for tp, value in committed.items()}


def forget_last_commit(checkpoint: Path) -> None:
    """As after a crash between the commit in the store and Spark's note of it."""
    last = max(int(each.name) for each in (checkpoint / "commits").glob("[0-9]*"))
    (checkpoint / "commits" / str(last)).unlink()
    (checkpoint / "commits" / f".{last}.crc").unlink()


def test_a_pipeline_is_exact_over_restarts_and_a_lost_checkpoint(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    """OFF-03, OFF-04: records and offsets in one transaction, one entry for each micro-batch; nothing is repeated."""
    group = {"group": "etl"}
    checkpoint = tmp_path / "checkpoint"
    frame = load_stream(spark, store.url, "in", maxOffsetsPerTrigger=40, **group).select("key", "value")
    send(store, 0, 100)
    before = connection_of(store).view().sequence
    query = drain(stream_to(frame, store.url, checkpoint, topic="out", **group))
    assert values(store, "out") == list(range(100))
    # The start in the group, the epoch of the run, then an entry for each of three micro-batches.
    assert connection_of(store).view().sequence == before + 2 + 3
    assert sum(offsets(store, "etl").values()) == 100
    assert txnstore.spark.lag(query.lastProgress) == {TopicPartition("in", 0): 0, TopicPartition("in", 1): 0}

    send(store, 100, 130)
    drain(stream_to(frame, store.url, checkpoint, topic="out", **group))
    assert values(store, "out") == list(range(130))

    # Spark repeats a micro-batch that is not in its own log of commits; it is committed already.
    forget_last_commit(checkpoint)
    sequence = connection_of(store).view().sequence
    drain(stream_to(frame, store.url, checkpoint, topic="out", **group))
    assert connection_of(store).view().sequence == sequence

    shutil.rmtree(checkpoint)
    send(store, 130, 150)
    drain(stream_to(frame, store.url, checkpoint, topic="out", **group))
    assert values(store, "out") == list(range(150))


@pytest.mark.parametrize(("group", "lost"), [({}, 2), ({"group": "etl"}, 1), ({"group": "etl"}, 2)])
def test_a_checkpoint_that_was_set_back_skips_no_records(
    spark: SparkSession, store: Store, tmp_path: Path, group: dict[str, str], lost: int
) -> None:
    """Spark plans the micro-batches that it has forgotten with other records, under the numbers of committed ones."""
    checkpoint = tmp_path / "checkpoint"
    frame = load_stream(spark, store.url, "in", **group).select("key", "value")
    for first in range(0, 90, 30):
        send(store, first, first + 30)
        drain(stream_to(frame, store.url, checkpoint, topic="out", **group))
    for log in ("offsets", "commits"):
        numbers = sorted(int(each.name) for each in (checkpoint / log).glob("[0-9]*"))
        for number in numbers[-lost:]:
            (checkpoint / log / str(number)).unlink()
            (checkpoint / log / f".{number}.crc").unlink()
    send(store, 90, 120)
    with pytest.raises(StreamingQueryException, match="ProducerFencedError"):
        drain(stream_to(frame, store.url, checkpoint, topic="out", **group))
    assert values(store, "out") == list(range(90))
    if group:
        shutil.rmtree(checkpoint)
        drain(stream_to(frame, store.url, checkpoint, topic="out", **group))
        assert values(store, "out") == list(range(120))


def test_a_micro_batch_for_several_topics_is_one_transaction(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    """Each task uploads one segment for each partition that it writes, and the driver commits them in one entry."""
    store.create_topic("odd")
    send(store, 0, 50)
    number = F.col("value").cast("string").cast("int")
    topic = F.when(number % 2 == 1, F.lit("odd")).otherwise(F.lit("out"))
    frame = load_stream(spark, store.url, "in").select(topic.alias("_topic"), "key", "value")
    segments = len(list(Path(store.url.removeprefix("file://")).rglob("topics/**/*.parquet")))
    before = connection_of(store).view().sequence
    drain(stream_to(frame, store.url, tmp_path / "checkpoint"))
    assert connection_of(store).view().sequence == before + 2  # The epoch, and everything else.
    assert values(store, "odd") == list(range(1, 50, 2))
    assert values(store, "out") == list(range(0, 50, 2))
    added = len(list(Path(store.url.removeprefix("file://")).rglob("topics/**/*.parquet"))) - segments
    view = connection_of(store).view()
    batches = [batch for name in ("odd", "out") for _, log in view.partitions_of(name) for batch in log.batches]
    assert added == len(batches) <= 2 * 3  # Two tasks at most, three partitions.


def test_a_running_query_picks_up_new_partitions_and_topics(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    """With Spark's default trigger; ``latest`` skips what was there before, and nothing later."""
    send(store, 0, 10)
    frame = load_stream(spark, store.url, topicPattern="in.*", startingOffsets="latest", pollIntervalMs=0)
    frame = frame.select("key", "value")
    writer = stream_to(frame, store.url, tmp_path / "checkpoint", topic="out")
    query = running(writer.trigger(processingTime="0 seconds"))
    try:
        store.alter_topic("in", partitions=3)
        store.create_topic("in2")
        send(store, 10, 40)
        send(store, 40, 50, "in2")
        query.processAllAvailable()
        assert values(store, "out") == list(range(10, 50))
        send(store, 50, 60)
        query.processAllAvailable()
        assert values(store, "out") == list(range(10, 60))
        assert query.lastProgress is not None
        progress = json.loads(query.lastProgress.json)
        assert progress["sources"][0]["latestOffset"]["in2"] == {"0": 10}
    finally:
        query.stop()


def test_for_each_batch_commits_several_outputs_at_once(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    """The rows and an aggregate in one transaction with the offsets; a committed micro-batch is not computed again."""
    store.create_topic("counts")
    send(store, 0, 60)
    checkpoint = tmp_path / "checkpoint"
    frame = load_stream(spark, store.url, "in", maxOffsetsPerTrigger=30, group="etl").select("key", "value")
    computed: list[int] = []

    def process(batch: txnstore.spark.BatchTransaction) -> None:
        computed.append(batch.batch_id)
        batch.append(batch.frame, "out")
        counts = batch.frame.groupBy().agg(F.count("*").cast("string").alias("value"))
        batch.append(counts.select(F.lit("counts").alias("_topic"), "value"))

    function = txnstore.spark.for_each_batch(store.url, process, group="etl", checkpoint=str(checkpoint))
    writer = frame.writeStream.foreachBatch(function).option("checkpointLocation", str(checkpoint))
    before = connection_of(store).view().sequence
    drain(writer.trigger(availableNow=True))
    assert computed == [0, 1]
    assert values(store, "out") == list(range(60))
    assert values(store, "counts") == [30, 30]
    assert sum(offsets(store, "etl").values()) == 60
    assert connection_of(store).view().sequence == before + 2 + 2  # The start, the epoch, two micro-batches.
    forget_last_commit(checkpoint)
    drain(writer)
    assert computed == [0, 1]
    assert values(store, "counts") == [30, 30]


def test_a_stream_decodes_the_columns_that_it_names(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    """By the option, or by the schema of the read; a schema that the topic does not have ends the query."""
    send(store, 0, 10)
    by_option = load_stream(spark, store.url, "in", columns="value,_offset")
    reader = spark.readStream.format("txnstore").option("topic", "in")
    by_schema = reader.schema("value binary, _offset bigint").load(store.url)
    numbers: list[int] = []

    def collect(batch: DataFrame, _: int) -> None:
        numbers.extend(int(row["value"]) for row in batch.collect())

    for number, frame in enumerate((by_option, by_schema)):
        assert frame.columns == ["value", "_offset"]
        writer = frame.writeStream.foreachBatch(collect).trigger(availableNow=True)
        drain(writer.option("checkpointLocation", str(tmp_path / str(number))))
        assert sorted(numbers) == list(range(10))
        numbers.clear()
    wrong = reader.schema("value string").load(store.url)
    with pytest.raises(StreamingQueryException, match="'value' is of type binary; the schema of the read says string"):
        drain(stream_to(wrong, store.url, tmp_path / "wrong", topic="out"))


# Errors ---------------------------------------------------------------------------------------------------------------


def test_a_query_stops_when_another_one_takes_over(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    """Spark's own message says only that the write failed; the log of the driver has the error of the commit."""
    send(store, 0, 10)
    frame = load_stream(spark, store.url, "in", group="etl", pollIntervalMs=0).select("value")
    writer = stream_to(frame, store.url, tmp_path / "checkpoint", topic="out", group="etl")
    query = running(writer.trigger(processingTime="0 seconds"))
    try:
        store.producer(transactional_id="spark-etl").close()
        send(store, 10, 20)
        with pytest.raises(StreamingQueryException):
            query.processAllAvailable()
        assert values(store, "out") == list(range(10))
        assert sum(offsets(store, "etl").values()) == 10
    finally:
        query.stop()
