"""Spark's batch reader: the same rows as a scan, in the schema that Spark insists on, of one snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import txnstore
from tests.helpers.connections import connection_of
from tests.helpers.spark import append, load, records, rows
from txnstore.core.model import TopicPartition
from txnstore.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

TIME = pa.timestamp("ms", "UTC")
RECORD_COLUMNS = ["_topic", "_partition", "_offset", "_timestamp", "key", "value", "headers", "timestamp"]


@pytest.fixture
def store(local_store_url: str) -> Iterator[Store]:
    """A store with a topic of records in two partitions: ten committed ones each, with an aborted run between them."""
    with txnstore.create(local_store_url) as created:
        created.create_topic("events", partitions=2, config={"segment.own.bytes": 0})
        with created.producer("writer") as producer:
            for first, commit in ((0, True), (5, False), (10, True)):
                producer.begin_transaction()
                for number in range(first, first + 5):
                    for partition in (0, 1):
                        producer.send(
                            "events",
                            str(number).encode(),
                            key=b"k%d" % number,
                            partition=partition,
                            headers=[("n", b"%d" % number)],
                            timestamp=1000 + number,
                        )
                producer.flush()
                if commit:
                    producer.commit_transaction()
                else:
                    producer.abort_transaction()
        yield created


def numbers(frame: DataFrame) -> list[tuple[int, int, int]]:
    """Partition, offset and value of each row, sorted."""
    places = frame.select("_partition", "_offset", "value").collect()
    return sorted((row[0], row[1], int(row[2])) for row in places)


def scanned(store: Store, **options: Any) -> list[tuple[int, int, int]]:
    """The same by a scan."""
    table = store.scan("events", columns=["_partition", "_offset", "value"], **options).to_table()
    return sorted((row["_partition"], row["_offset"], int(row["value"])) for row in table.to_pylist())


def test_an_earlier_snapshot_by_its_entry_and_by_its_time(spark: SparkSession, store: Store) -> None:
    before = store.snapshot()
    append(records(spark, 5), store.url, "events")
    store.delete_records({TopicPartition("events", 0): 14})
    for moment in (str(before.sequence), datetime.fromtimestamp(before.timestamp / 1000, UTC).isoformat()):
        frame = load(spark, store.url, "events", snapshot=moment)
        assert numbers(frame) == scanned(store, snapshot=before)
        assert len(numbers(frame)) == 20


def test_a_read_gives_what_a_scan_gives(spark: SparkSession, store: Store) -> None:
    """All columns, in a scan's order; markers leave gaps; aborted records are not there (CON-02)."""
    frame = load(spark, store.url, "events")
    assert frame.columns == RECORD_COLUMNS
    assert all(field.nullable for field in frame.schema)
    actual = rows(frame)
    expected = store.scan("events").to_table().to_pylist()
    assert len(actual) == 20
    for row, scan_row in zip(actual, expected, strict=True):
        assert row[:3] == ("events", scan_row["_partition"], scan_row["_offset"])
        assert row[3].replace(tzinfo=UTC) == scan_row["_timestamp"]
        assert row[4:6] == (scan_row["key"], scan_row["value"])
        assert [header.asDict() for header in row[6]] == scan_row["headers"]
        assert row[7].replace(tzinfo=UTC) == scan_row["timestamp"]


def test_isolation(spark: SparkSession, store: Store) -> None:
    """read_uncommitted shows aborted and open records, read_committed stops at the LSO (LSO-11)."""
    producer = store.producer("open")
    producer.begin_transaction()
    producer.send("events", b"99", partition=0)
    producer.flush()
    assert numbers(load(spark, store.url, "events")) == scanned(store)
    uncommitted = numbers(load(spark, store.url, "events", isolation="read_uncommitted"))
    assert uncommitted == scanned(store, isolation="read_uncommitted")
    assert len(uncommitted) == 31
    producer.abort_transaction()


def test_typed_columns_come_back_as_they_were(spark: SparkSession, store: Store) -> None:
    """Every kind of type a topic may have, with nulls, in the one Arrow form that Spark takes for it."""
    fields: dict[str, tuple[pa.DataType, Any]] = {
        "b": (pa.bool_(), True),
        "i8": (pa.int8(), -8),
        "i16": (pa.int16(), -16),
        "i32": (pa.int32(), -32),
        "i64": (pa.int64(), -64),
        "f": (pa.float32(), 0.5),
        "d": (pa.float64(), 0.25),
        "s": (pa.string(), "text"),
        "ls": (pa.large_string(), "large"),
        "bin": (pa.binary(), b"bytes"),
        "fixed": (pa.binary(3), b"abc"),
        "day": (pa.date32(), datetime(2026, 1, 2, tzinfo=UTC).date()),
        "ms": (TIME, datetime(2026, 1, 2, 3, 4, 5, 6000, tzinfo=UTC)),
        "bare": (pa.timestamp("us"), datetime(2026, 1, 2, 3, 4, 5, 7)),  # noqa: DTZ001 - a time without a zone
        "price": (pa.decimal128(10, 2), None),
        "list": (pa.list_(pa.large_string()), ["a", None]),
        "map": (pa.map_(pa.string(), pa.int32()), [("x", 1)]),
        "nested": (pa.struct([("a b", pa.list_(pa.struct([("c", TIME)])))]), {"a b": [{"c": None}]}),
    }
    schema = pa.schema([pa.field(name, data_type) for name, (data_type, _) in fields.items()])
    store.create_topic("typed", schema=schema)
    full: dict[str, Any] = {name: value for name, (_, value) in fields.items()}
    empty: dict[str, Any] = dict.fromkeys(fields)
    with store.producer("t") as producer, producer.transaction() as txn:
        txn.send_table("typed", pa.Table.from_pylist([full, empty], schema))
    frame = load(spark, store.url, "typed", columns=",".join([*fields, "_offset"]))
    first, second = (row.asDict(recursive=True) for row in frame.orderBy("_offset").collect())
    assert first.pop("ms").replace(tzinfo=UTC) == full.pop("ms")
    assert first.pop("map") == dict(full.pop("map"))
    assert first.pop("_offset") == 0
    assert first == full
    assert {name: value for name, value in second.items() if name != "_offset"} == empty


def test_not_null_fields_of_spark_survive_the_round_trip(spark: SparkSession, store: Store) -> None:
    """range() says not null; the log and the read say nullable, or Spark would refuse its own data."""
    store.create_topic("ids", schema=pa.schema([pa.field("id", pa.int64(), nullable=False)]), partitions=2)
    append(spark.range(0, 1000, 1, 2), store.url, "ids")
    frame = load(spark, store.url, "ids")
    assert frame.selectExpr("count(*)", "sum(id)").collect()[0] == (1000, 499500)
    append(frame.select((frame["id"] + 1000).alias("id")), store.url, "ids")
    assert load(spark, store.url, "ids", columns="id").distinct().count() == 2000


def test_columns_as_an_option_or_as_a_schema(spark: SparkSession, store: Store) -> None:
    """Only these are decoded; Spark prunes nothing by itself."""
    frame = load(spark, store.url, "events", columns="value, _offset")
    assert frame.columns == ["value", "_offset"]
    assert frame.where("_offset = 12").collect()[0] == (b"10", 12)
    reader = spark.read.format("txnstore").option("topic", "events").schema("_partition int, value binary")
    assert reader.load(store.url).columns == ["_partition", "value"]
    assert {row[1] for row in reader.load(store.url).collect()} == {b"%d" % n for n in (*range(5), *range(10, 15))}
    assert reader.option("columns", "_partition,value").load(store.url).columns == ["_partition", "value"]
    with pytest.raises(Exception, match="give the option columns or a schema, not both"):
        reader.option("columns", "value").load(store.url).count()
    with pytest.raises(Exception, match="'value' is of type binary; the schema of the read says string"):
        spark.read.format("txnstore").option("topic", "events").schema("value string").load(store.url).count()


def test_several_tasks_read_one_large_segment(spark: SparkSession, store: Store) -> None:
    """A task for each of its row groups, if the read asks for so many; each row once, also of a part of it."""
    rows = 300_000
    store.create_topic("large", schema=pa.schema([("n", pa.int64())]))
    with store.producer() as producer:
        producer.send_table("large", pa.table({"n": range(rows)}))
    store.compact("large")
    (part,) = store.scan("large").plan()
    assert part.batch.segment.rows == rows
    frame = load(spark, store.url, "large", columns="_offset,n", minPartitions=8)
    assert frame.rdd.getNumPartitions() == 3
    assert frame.selectExpr("count(*)", "sum(n)", "sum(_offset)").collect()[0][:2] == (rows, rows * (rows - 1) // 2)
    some = load(spark, store.url, "large", columns="n", minPartitions=8, startingOffsets='{"0":100000}')
    assert some.selectExpr("count(*)", "min(n)").collect()[0] == (rows - 100_000, 100_000)
    assert load(spark, store.url, "large").rdd.getNumPartitions() == 1  # It is small.


def test_offsets_partitions_and_times(spark: SparkSession, store: Store) -> None:
    """As in Spark's Kafka source: JSON by topic and partition, -2 and -1, half-open."""
    some = {"startingOffsets": '{"0":1,"1":-2}', "endingOffsets": '{"events":{"0":13,"1":3}}'}
    assert numbers(load(spark, store.url, "events", **some)) == scanned(store, start={0: 1}, end={0: 13, 1: 3})
    times = {"startingTimestamp": 1003, "endingTimestamp": 1011, "partitions": "1"}
    assert numbers(load(spark, store.url, "events", **times)) == scanned(store, start=3, end=13, partitions=[1])


def test_several_topics_with_the_same_columns(spark: SparkSession, store: Store) -> None:
    store.create_topic("more")
    append(records(spark, 5, first=50), store.url, "more")
    frame = load(spark, store.url, "events, more", endingOffsets='{"more":{"0":3}}', partitions="0")
    assert {(row[0], int(row[5])) for row in frame.collect()} == {
        *(("events", number) for number in (*range(5), *range(10, 15))),
        *(("more", number) for number in (50, 51, 52)),
    }


def test_a_frame_pins_its_snapshot_at_its_first_action(spark: SparkSession, store: Store) -> None:
    """What is committed later is in the next frame, and a filter of one query is not in another (no pushFilters)."""
    frame = load(spark, store.url, "events")
    assert frame.count() == 20
    append(records(spark, 5, first=100), store.url, "events")
    assert frame.where("_offset > 11").count() == 10
    assert frame.count() == 20
    assert frame.where("_offset > 11").union(frame).count() == 30
    assert load(spark, store.url, "events").count() == 25


def test_the_reader_pushes_no_filters() -> None:
    """Up to Spark 4.3 pushed filters leak into other queries of the same frame: see ``txnstore.spark.reads.reader``."""
    from pyspark.sql.datasource import DataSourceReader

    from txnstore.spark.reads.reader import TxnStoreReader

    assert TxnStoreReader.pushFilters is DataSourceReader.pushFilters


def test_an_empty_topic_is_an_empty_frame(spark: SparkSession, store: Store) -> None:
    store.create_topic("empty", partitions=2)
    assert load(spark, store.url, "empty").collect() == []


def test_compacted_segments_keep_their_offsets(spark: SparkSession, store: Store) -> None:
    before = numbers(load(spark, store.url, "events"))
    store.compact("events")
    assert numbers(load(spark, store.url, "events")) == before
    assert numbers(load(spark, store.url, "events", startingOffsets='{"0":2,"1":13}')) == scanned(
        store, start={0: 2, 1: 13}
    )


def test_an_altered_segment_is_named(spark: SparkSession, store: Store) -> None:
    """A task compares each segment with the chain's checksum (OBJ)."""
    key = next(iter(store.scan("events").plan())).batch.segment.key
    data = connection_of(store).objects.get(key)
    connection_of(store).objects.put(key, data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(Exception, match=f"segment {key} of events-0 was altered"):
        load(spark, store.url, "events").count()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"topic": "event"}, "there is no topic 'event'; the store has events"),
        ({"topic": "events", "column": "value"}, "there is no option 'column'; did you mean columns"),
        ({"topic": "events", "columns": "value,nothing"}, "has no column 'nothing'"),
    ],
)
def test_mistakes_are_named_at_load(spark: SparkSession, store: Store, options: dict[str, str], message: str) -> None:
    with pytest.raises(Exception, match=message):
        load(spark, store.url, **options)


def test_offsets_outside_the_log_are_refused(spark: SparkSession, store: Store) -> None:
    with pytest.raises(Exception, match="offset 99 of events-0 is outside the log"):
        load(spark, store.url, "events", startingOffsets='{"0":99}').count()
