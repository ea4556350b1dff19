"""Spark's batch writer: routing, one transaction a job, and what failures leave behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.types import StructType

import txnstore
from tests.helpers.connections import connection_of
from tests.helpers.spark import append, load, records, values
from txnstore.core.model import TopicPartition
from txnstore.core.partitioner import partition_for_key
from txnstore.core.transactions.model import TxnState
from txnstore.spark.options import write_options
from txnstore.spark.writes.writer import TxnStoreWriter
from txnstore.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def store(local_store_url: str) -> Iterator[Store]:
    """A store with a topic of records in three partitions."""
    with txnstore.create(local_store_url) as created:
        created.create_topic("events", partitions=3)
        yield created


def test_records_arrive_where_kafka_would_put_them_in_one_transaction(spark: SparkSession, store: Store) -> None:
    """Key and value may be text; the job is one transaction, with one marker a partition (KIP-98)."""
    before = connection_of(store).view().sequence
    append(records(spark, 100, tasks=4), store.url, "events")
    table = store.scan("events").to_table()
    assert values(store, "events") == list(range(100))
    assert all(
        row["_partition"] == partition_for_key(row["key"], 3) and row["key"] == b"k%d" % (int(row["value"]) % 10)
        for row in table.to_pylist()
    )
    state = connection_of(store).view()
    assert state.sequence == before + 2  # The job's identity, then everything else.
    (txn,) = state.transactions.values()
    assert txn.state is TxnState.COMPLETE_COMMIT
    for _, partition in state.partitions_of("events"):
        assert partition.high_watermark == sum(batch.records for batch in partition.batches) + 1
        assert next(iter(partition.batches)).base_sequence == 0


def test_the_order_of_a_sorted_frame_is_the_order_of_the_log(spark: SparkSession, store: Store) -> None:
    """Tasks follow one another in the log as Spark's partitions do."""
    append(spark.range(0, 400, 1, 4).selectExpr("'one' as key", "cast(id as string) as value"), store.url, "events")
    column = store.scan("events", columns=["value"]).to_table()["value"].to_pylist()
    assert [int(value) for value in column] == list(range(400))


def test_all_columns_of_a_record(spark: SparkSession, store: Store) -> None:
    """Headers and timestamps go through; microseconds are rounded down, as a topic keeps milliseconds."""
    frame = spark.sql(
        "select cast('v' as binary) as value, timestamp_micros(1700000000123456) as timestamp, "
        "array(named_struct('key', 'h', 'value', cast('x' as binary))) as headers, cast(null as binary) as key",
    )
    append(frame, store.url, "events")
    (row,) = store.scan("events").to_table().to_pylist()
    assert row["headers"] == [{"key": "h", "value": b"x"}]
    assert row["key"] is None
    assert int(row["timestamp"].timestamp() * 1000) == 1700000000123
    assert row["_timestamp"] == row["timestamp"]


def test_rows_without_a_key_go_to_a_partition_of_their_task(spark: SparkSession, store: Store) -> None:
    """Sticky by chunk (KIP-480), each task from its own number on: three tasks fill three partitions."""
    append(spark.range(0, 30, 1, 3).selectExpr("cast(id as string) as value"), store.url, "events")
    state = connection_of(store).view()
    assert [partition.high_watermark for _, partition in state.partitions_of("events")] == [11, 11, 11]
    assert values(store, "events") == list(range(30))


def test_a_column_may_name_the_partition(spark: SparkSession, store: Store) -> None:
    """An explicit partition wins; where it is null the key decides."""
    frame = spark.sql("select 'k1' as key, 'a' as value, 2 as _partition union all select 'k1', 'b', null")
    append(frame, store.url, "events")
    partitions = {row["value"]: row["_partition"] for row in store.scan("events").to_table().to_pylist()}
    assert partitions == {b"a": 2, b"b": partition_for_key(b"k1", 3)}


def test_typed_topics_take_columns_by_name(spark: SparkSession, store: Store) -> None:
    """Any order, narrower types, missing nullable ones; ``not null`` fields of Spark are no matter (range's id)."""
    schema = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False),
            pa.field("name", pa.string()),
            pa.field("price", pa.decimal128(10, 2)),
            pa.field("at", pa.timestamp("ms", "UTC")),
            pa.field("tags", pa.list_(pa.string())),
            pa.field("note", pa.string()),
        ],
    )
    store.create_topic("orders", partitions=2, schema=schema, key="id", timestamp="at")
    frame = spark.range(0, 50, 1, 2).selectExpr(
        "array('a', null) as tags",
        "cast(id / 4 as decimal(8, 2)) as price",
        "concat('n', id) as name",
        "id",
        "timestamp_millis(id) as at",
    )
    append(frame, store.url, "orders")
    table = store.scan("orders").to_table()
    assert table.schema.field("id").type == pa.int64()
    orders = sorted(table.to_pylist(), key=lambda row: row["id"])
    assert [row["id"] for row in orders] == list(range(50))
    assert str(orders[7]["price"]) == "1.75"
    assert orders[7]["tags"] == ["a", None]
    assert orders[7]["note"] is None
    assert all(row["_partition"] == partition_for_key(row["id"].to_bytes(8, "big"), 2) for row in orders)
    assert sorted(row[0] for row in load(spark, store.url, "orders", columns="id").collect()) == list(range(50))


def test_several_topics_are_written_in_one_transaction(spark: SparkSession, store: Store) -> None:
    """``_topic`` routes rows; columns of other topics are empty in a row and left out. One entry holds all of it."""
    store.create_topic("counts", schema=pa.schema([("n", pa.int64())]))
    frame = spark.range(0, 20, 1, 2).selectExpr(
        "if(id % 2 = 0, 'events', 'counts') as _topic",
        "if(id % 2 = 0, cast(id as string), null) as value",
        "if(id % 2 = 1, id, null) as n",
    )
    before = connection_of(store).view().sequence
    append(frame, store.url)
    assert connection_of(store).view().sequence == before + 2
    assert values(store, "events") == list(range(0, 20, 2))
    assert sorted(store.scan("counts", columns=["n"]).to_table()["n"].to_pylist()) == list(range(1, 20, 2))


def test_version_is_committed_once(spark: SparkSession, store: Store) -> None:
    """A repeated job does nothing, whatever its data and its batches are; the next version is written."""
    job = {"transactionalId": "loader", "txnVersion": 4}
    append(records(spark, 10), store.url, "events", **job)
    sequence = connection_of(store).view().sequence
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 3)
    try:
        append(records(spark, 12, tasks=5), store.url, "events", **job)
        append(records(spark, 12), store.url, "events", transactionalId="loader", txnVersion=3)
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert connection_of(store).view().sequence == sequence  # Not even a fence: a newer job may be running.
    assert values(store, "events") == list(range(10))
    append(records(spark, 5, first=10), store.url, "events", transactionalId="loader", txnVersion=5)
    append(records(spark, 5, first=15), store.url, "events", transactionalId="loader", txnVersion=5, txnScope="other")
    assert values(store, "events") == list(range(20))


def test_an_empty_frame_records_its_version_and_nothing_else(spark: SparkSession, store: Store) -> None:
    append(records(spark, 0), store.url, "events")
    assert not connection_of(store).view().transactions
    append(records(spark, 0), store.url, "events", transactionalId="loader", txnVersion=0)
    assert connection_of(store).view().transactions["loader"].versions[""] == 0
    assert store.offsets("events", 0).high_watermark == 0


def test_a_task_that_fails_first_leaves_nothing_twice(spark: SparkSession, store: Store) -> None:
    """Every first attempt dies after half of its rows; Spark tries again, and each row is there once."""

    def flaky(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        for number, batch in enumerate(batches):
            if number == 1 and TaskContext.get().attemptNumber() == 0:  # type: ignore[union-attr]  # in a task
                raise RuntimeError("the first attempt dies")
            yield batch

    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 25)
    try:
        frame = records(spark, 100)
        append(frame.mapInArrow(flaky, frame.schema), store.url, "events")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert values(store, "events") == list(range(100))


def test_two_attempts_of_a_task_are_committed_once(store: Store) -> None:
    """Speculation: both attempts upload the rows, and Spark gives the message of one to the commit.

    A session on one machine does not speculate, so the test calls the writer as Spark does, pickled copies included.
    """
    schema = StructType().add("key", "string").add("value", "string")
    writer = TxnStoreWriter(write_options({"path": store.url, "topic": "events"}), schema)
    rows = pa.RecordBatch.from_pylist([{"key": f"k{number}", "value": str(number)} for number in range(100)])
    sent: bytes = cloudpickle.dumps(writer)  # type: ignore[no-untyped-call]
    attempts = [cloudpickle.loads(sent).write(iter([rows])) for _ in range(2)]
    uploaded = {batch.segment.key for attempt in attempts for batch in attempt.batches}
    assert len(uploaded) == 6  # A segment for each of three partitions, twice.
    cloudpickle.loads(sent).commit([attempts[1]])
    assert values(store, "events") == list(range(100))
    named = {part.batch.segment.key for part in store.scan("events").plan()}
    assert named == {batch.segment.key for batch in attempts[1].batches}
    assert store.verify(deep=True).ok


def test_a_job_that_fails_leaves_nothing_visible(spark: SparkSession, store: Store) -> None:
    """Segments that another task had uploaded by then are objects that no entry names, and abort deletes nothing."""
    append(records(spark, 10), store.url, "events")
    url, before = store.url, len(connection_of(store).objects.list("topics/"))
    sequence = connection_of(store).view().sequence

    def broken(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import threading

        from pyspark import TaskContext

        import txnstore

        if TaskContext.get().partitionId() == 1:  # type: ignore[union-attr]  # in a task
            objects = connection_of(txnstore.open(url, read_only=True)).objects
            while len(objects.list("topics/")) == before:
                threading.Event().wait(0.01)
            raise RuntimeError("this job never succeeds")
        yield from batches

    frame = records(spark, 100)
    with pytest.raises(Exception, match="this job never succeeds"):
        append(frame.mapInArrow(broken, frame.schema), store.url, "events", transactionalId="loader")
    state = connection_of(store).view()
    assert values(store, "events", "read_uncommitted") == list(range(10))
    assert state.sequence == sequence + 1  # The named job's identity: no batch, no open transaction.
    assert state.transactions["loader"].state is TxnState.EMPTY
    assert len(connection_of(store).objects.list("topics/")) > before
    append(records(spark, 5, first=10), store.url, "events", transactionalId="loader")
    assert values(store, "events") == list(range(15))


def test_a_newer_job_fences_the_older_one(spark: SparkSession, store: Store) -> None:
    """While an older job with the same id still runs, a newer one begins: the older cannot commit (INIT-01)."""
    url = store.url

    def overtaken(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import txnstore

        txnstore.open(url).producer("loader")
        yield from batches

    frame = records(spark, 10, tasks=1)
    with pytest.raises(Exception, match="ProducerFencedError"):
        append(frame.mapInArrow(overtaken, frame.schema), store.url, "events", transactionalId="loader")
    assert values(store, "events", "read_uncommitted") == []


def test_insert_into_a_view_appends(spark: SparkSession, store: Store) -> None:
    """SQL: the options of a view serve reading and writing."""
    options = f"path '{store.url}', topic 'events', columns 'key,value', transactionalId 'sql'"
    spark.sql(f"create temporary view log using txnstore options ({options})")
    try:
        spark.sql("insert into log values (cast('k' as binary), cast('7' as binary))")
        with pytest.raises(Exception, match="a log can only be appended to"):
            spark.sql("insert overwrite log values (cast('k' as binary), cast('8' as binary))")
    finally:
        spark.catalog.dropTempView("log")
    assert values(store, "events") == [7]
    assert connection_of(store).view().transactions["sql"].state is TxnState.COMPLETE_COMMIT


@pytest.mark.parametrize(
    ("frame", "options", "message"),
    [
        ("'v' as value", {}, "Give the option topic, or a column _topic"),
        ("'v' as valu", {"topic": "events"}, "has no column 'valu'; it has .*; did you mean 'value'"),
        ("'v' as value, 1 as _offset", {"topic": "events"}, "'_offset' is given by the store"),
        ("1 as value", {"topic": "events"}, "column 'value' is of type int32; the topic's column is of type binary"),
    ],
)
def test_mistakes_are_named_before_a_task_runs(
    spark: SparkSession, store: Store, frame: str, options: dict[str, str], message: str
) -> None:
    sequence = connection_of(store).view().sequence
    with pytest.raises(Exception, match=message):
        append(spark.sql(f"select {frame}"), store.url, **options)
    assert connection_of(store).view().sequence == sequence


def test_mistakes_in_rows_are_named_and_nothing_is_written(spark: SparkSession, store: Store) -> None:
    with pytest.raises(Exception, match="there is no partition 3"):
        append(spark.sql("select 'v' as value, 3 as _partition"), store.url, "events")
    assert values(store, "events", "read_uncommitted") == []


def test_overwrite_is_refused(spark: SparkSession, store: Store) -> None:
    append(records(spark, 3), store.url, "events")
    with pytest.raises(Exception, match="a log can only be appended to"):
        records(spark, 3).write.format("txnstore").option("topic", "events").mode("overwrite").save(store.url)
    assert values(store, "events") == [0, 1, 2]


@pytest.mark.parametrize("mode", ["error", "errorifexists", "ignore"])
def test_other_save_modes_are_refused_by_spark(spark: SparkSession, store: Store, mode: str) -> None:
    """Spark asks no Python data source; docs/spark.md explains its message."""
    with pytest.raises(Exception, match=r"UNSUPPORTED_DATA_SOURCE_SAVE_MODE.*\"Append\""):
        records(spark, 1).write.format("txnstore").option("topic", "events").mode(mode).save(store.url)
    assert values(store, "events") == []


def test_a_store_that_is_not_there_is_named(spark: SparkSession, local_store_url: str) -> None:
    with pytest.raises(Exception, match="there is no txnstore at"):
        append(records(spark, 1), local_store_url, "events")
    with pytest.raises(Exception, match="memory of one process"):
        append(records(spark, 1), "memory://x", "events")


def test_a_transaction_of_spark_and_one_of_a_producer_share_a_topic(spark: SparkSession, store: Store) -> None:
    """An open transaction of another producer holds the LSO, not the commit (LSO-01)."""
    producer = store.producer("other")
    producer.begin_transaction()
    producer.send("events", b"100", partition=0)
    producer.flush()
    append(spark.sql("select '1' as value, 0 as _partition"), store.url, "events")
    assert values(store, "events") == []
    producer.commit_transaction()
    assert values(store, "events") == [1, 100]
    assert connection_of(store).view().partition(TopicPartition("events", 0)) is not None
