"""Queries with wrong options, offsets, checkpoints and columns fail when they are started, with one clear error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as F  # noqa: N812 - its usual name

import txnstore
import txnstore.spark
from tests.helpers.connections import connection_of
from tests.helpers.spark import drain, load_stream, started, stream_to, values
from txnstore.errors import InvalidConfigError, SchemaMismatchError, UnknownTopicOrPartitionError
from txnstore.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def store(local_store_url: str) -> Iterator[Store]:
    """A store with the topics ``in``, of ten records in one partition, and ``out``."""
    with txnstore.create(local_store_url) as created:
        created.create_topic("in")
        created.create_topic("out")
        append(created, 0, 10)
        yield created


def append(store: Store, first: int, limit: int) -> None:
    with store.producer() as producer:
        for number in range(first, limit):
            producer.send("in", b"%d" % number)


def rows(spark: SparkSession, store: Store, **options: object) -> DataFrame:
    return load_stream(spark, store.url, "in", **options).select("value")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "on"}, "there is no topic 'on'"),
        ({"topic": "in", "maxOffsetsPerTrigger": "0"}, "maxOffsetsPerTrigger must be an integer, 1 or more, not 0"),
        ({"topic": "in", "group": "g", "endingTimestamp": "5"}, "Give endingOffsets"),
        ({"topic": "in", "startingOffsets": '{"0":99}'}, "offset 99 of in-0 is outside the log.*: change startingOf"),
        ({"topic": "in", "startingOffsets": '{"7":0}'}, "no partition 7"),
    ],
)
def test_a_wrong_option_of_a_source_fails_at_load(
    spark: SparkSession, store: Store, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        spark.readStream.format("txnstore").options(**options).load(store.url)


@pytest.mark.parametrize(
    ("option", "message"),
    [("snapshot", "snapshot is for batch reads"), ("endingTimestamp", "endingTimestamp is for batch reads")],
)
def test_a_stream_with_an_option_of_batch_reads_says_so(
    spark: SparkSession, store: Store, tmp_path: Path, option: str, message: str
) -> None:
    """``load()`` does not know yet that it is a stream; Spark reports an error of ``streamReader`` as its own."""
    frame = rows(spark, store, **{option: "3"})
    with pytest.raises(StreamingQueryException, match=f"InvalidConfigError: {message}") as raised:
        drain(stream_to(frame, store.url, tmp_path / "checkpoint", topic="out"))
    assert "UnboundLocalError" not in str(raised.value)


@pytest.mark.parametrize("mode", ["complete", "update"])
def test_an_output_mode_that_is_refused_is_not_advised(
    spark: SparkSession, store: Store, tmp_path: Path, mode: str
) -> None:
    frame = rows(spark, store).groupBy("value").count().selectExpr("value")
    writer = stream_to(frame, store.url, tmp_path / "checkpoint", topic="out").outputMode(mode)
    with pytest.raises(StreamingQueryException) as raised:
        drain(writer)
    assert 'outputMode("update")' not in str(raised.value)


def test_a_wrong_sink_fails_before_the_start(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    """In this process, with our own errors, where Spark would ask the sink in the first micro-batch."""
    frame = rows(spark, store)
    write = txnstore.spark.write_stream
    store.create_topic("typed", schema=pa.schema([pa.field("id", pa.int64())]))
    sequence = connection_of(store).view().sequence
    with pytest.raises(UnknownTopicOrPartitionError, match=r"there is no topic 'on'; the store has.*createTopic"):
        write(frame, store.url, topic="on")
    with pytest.raises(SchemaMismatchError, match="topic 'typed' has no column 'value'"):
        write(frame, store.url, topic="typed")
    with pytest.raises(SchemaMismatchError, match="Give the option topic, or a column _topic"):
        write(frame, store.url)
    with pytest.raises(InvalidConfigError, match="'topics'; did you mean topic"):
        write(frame, store.url, topics="out")
    with pytest.raises(InvalidConfigError, match="group needs the checkpointLocation"):
        write(frame, store.url, topic="out", group="g")
    with pytest.raises(InvalidConfigError, match=r"hdfs.*change checkpointLocation, or leave out group"):
        write(frame, store.url, topic="out", group="g", checkpointLocation="hdfs://host/checkpoint")
    with pytest.raises(InvalidConfigError, match=r"is no stream: read it with spark\.readStream"):
        write(spark.range(1).selectExpr("'v' as value"), store.url, topic="out")
    with pytest.raises(txnstore.errors.StoreNotFoundError, match="there is no txnstore at"):
        write(frame, (tmp_path / "none").as_uri(), topic="out")
    assert connection_of(store).view().sequence == sequence
    options = {"topic": "new", "createTopic": True, "checkpointLocation": str(tmp_path / "checkpoint")}
    drain(write(frame, store.url, **options).trigger(availableNow=True))
    assert values(store, "new") == list(range(10))


def test_a_started_query_has_read_what_there_is(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    """``start`` returns with the first micro-batch; and at once if there is nothing after a restart."""
    writer = stream_to(rows(spark, store), store.url, tmp_path / "checkpoint", topic="out")
    writer = writer.trigger(processingTime="1 hour")
    for _ in range(2):
        query = started(writer)
        assert query.isActive
        query.stop()
        assert values(store, "out") == list(range(10))


def test_offsets_outside_the_log_fail_at_the_start(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    """Where the read has a schema, Spark does not ask the source at ``load()``."""
    reader = spark.readStream.format("txnstore").options(topic="in", startingOffsets='{"0":99}').schema("value binary")
    writer = stream_to(reader.load(store.url), store.url, tmp_path / "checkpoint", topic="out")
    with pytest.raises(
        StreamingQueryException, match=r"offset 99 of in-0 is outside the log.*: change startingOffsets"
    ):
        started(writer)


def test_a_checkpoint_of_another_store_is_refused(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    checkpoint = tmp_path / "checkpoint"
    drain(stream_to(load_stream(spark, store.url, "in").select("value"), store.url, checkpoint, topic="out"))
    with txnstore.create((tmp_path / "other").as_uri()) as other:
        other.create_topic("in")
        frame = load_stream(spark, other.url, "in").select("value")
        with pytest.raises(StreamingQueryException, match="give this store, or a new checkpointLocation"):
            started(stream_to(frame, store.url, checkpoint, topic="out"))


def test_a_schema_that_changes_under_a_stream_is_refused(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    store.create_topic("typed", schema=pa.schema([pa.field("id", pa.int32())]))
    frame = load_stream(spark, store.url, "typed").select(F.col("id").cast("string").alias("value"))
    with store.producer() as producer:
        producer.send_table("typed", [{"id": 1}])
    checkpoint = tmp_path / "checkpoint"
    drain(stream_to(frame, store.url, checkpoint, topic="out"))
    store.alter_topic("typed", schema=pa.schema([pa.field("id", pa.int64()), pa.field("more", pa.string())]))
    with store.producer() as producer:
        producer.send_table("typed", [{"id": 2, "more": "x"}])
    with pytest.raises(StreamingQueryException, match=r"'id' is of type bigint; .* says int.*start the query again"):
        started(stream_to(frame, store.url, checkpoint, topic="out"))
    # A query that is started again with the new schema continues.
    frame = load_stream(spark, store.url, "typed").select(F.col("id").cast("string").alias("value"))
    drain(stream_to(frame, store.url, checkpoint, topic="out"))
    assert values(store, "out") == [1, 2]
