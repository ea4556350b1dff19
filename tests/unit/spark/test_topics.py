"""Topics that are made from the schemas of DataFrames, without a session of Spark."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest
from pyspark.sql import types as spark

import txnstore
from tests.helpers.connections import connection_of
from txnstore.errors import SchemaMismatchError, TopicExistsError
from txnstore.spark import create_topic
from txnstore.spark.options import NewTopic
from txnstore.spark.topics import create_missing, topic_schema
from txnstore.store import Store

RECORD = "key binary, value binary, headers array<struct<key: string, value: binary>>, timestamp timestamp"


@pytest.fixture
def store(memory_store_url: str) -> Iterator[Store]:
    with txnstore.create(memory_store_url) as created:
        yield created


def frame(ddl: str) -> spark.StructType:
    """A schema of these columns, each ``name type``; nested types have no spaces but after their commas."""
    names = {
        "binary": spark.BinaryType(),
        "string": spark.StringType(),
        "bigint": spark.LongType(),
        "timestamp": spark.TimestampType(),
        "array<struct<key: string, value: binary>>": spark.ArrayType(
            spark.StructType().add("key", spark.StringType()).add("value", spark.BinaryType())
        ),
    }
    schema, rest = spark.StructType(), ddl
    while rest:
        name, _, rest = rest.partition(" ")
        ddl_type = max((candidate for candidate in names if rest.startswith(candidate)), key=len)
        schema, rest = schema.add(name, names[ddl_type]), rest[len(ddl_type) :].removeprefix(", ")
    return schema


def test_every_type_that_a_topic_stores(store: Store) -> None:
    """As Spark sends them; all nullable, since Spark's own frames are not null by accident (range)."""
    schema = (
        spark.StructType()
        .add("b", spark.BooleanType())
        .add("i8", spark.ByteType())
        .add("i16", spark.ShortType())
        .add("i32", spark.IntegerType())
        .add("i64", spark.LongType(), nullable=False)
        .add("f", spark.FloatType())
        .add("d", spark.DoubleType())
        .add("s", spark.StringType())
        .add("bin", spark.BinaryType())
        .add("day", spark.DateType())
        .add("at", spark.TimestampType())
        .add("bare", spark.TimestampNTZType())
        .add("price", spark.DecimalType(12, 3))
        .add("list", spark.ArrayType(spark.ArrayType(spark.StringType())))
        .add("map", spark.MapType(spark.StringType(), spark.LongType()))
        .add("nested", spark.StructType().add("a b", spark.DateType()))
        .add("_topic", spark.StringType())
        .add("_partition", spark.IntegerType())
    )
    topic = create_topic(store, "typed", schema, partitions=3, key="i64", timestamp="at")
    assert (topic.partitions, topic.key, topic.timestamp) == (3, "i64", "at")
    assert topic.schema == pa.schema(
        [
            ("b", pa.bool_()),
            ("i8", pa.int8()),
            ("i16", pa.int16()),
            ("i32", pa.int32()),
            ("i64", pa.int64()),
            ("f", pa.float32()),
            ("d", pa.float64()),
            ("s", pa.string()),
            ("bin", pa.binary()),
            ("day", pa.date32()),
            ("at", pa.timestamp("us", "UTC")),
            ("bare", pa.timestamp("us")),
            ("price", pa.decimal128(12, 3)),
            ("list", pa.list_(pa.list_(pa.string()))),
            ("map", pa.map_(pa.string(), pa.int64())),
            ("nested", pa.struct([("a b", pa.date32())])),
        ]
    )


@pytest.mark.parametrize(
    ("columns", "records"),
    [
        (RECORD, True),
        ("value string", True),
        ("key string, value binary", True),
        ("key string", False),
        ("value bigint", False),
        ("value string, more string", False),
        ("value string, timestamp bigint", False),
    ],
)
def test_columns_of_kafka_records_make_a_topic_of_them(columns: str, *, records: bool) -> None:
    """What such a topic takes; so a frame that was read from one, or made for Kafka, goes into one."""
    schema = frame(columns)
    assert (topic_schema(schema) is None) is records
    assert topic_schema(schema, typed=True) is not None


@pytest.mark.parametrize(
    ("column", "data_type", "message"),
    [
        ("pause", spark.DayTimeIntervalType(), "column 'pause' is of type interval day to second, which a topic"),
        ("any", spark.VariantType(), "column 'any' is of type variant"),
        ("none", spark.NullType(), "column 'none' is of type void"),
        ("deep", spark.ArrayType(spark.StructType().add("x", spark.VariantType())), "column 'deep.element.x' is of"),
        ("map", spark.MapType(spark.StringType(), spark.NullType()), "column 'map.value' is of type void"),
    ],
)
def test_a_type_that_no_topic_stores_is_named(
    store: Store, column: str, data_type: spark.DataType, message: str
) -> None:
    schema = spark.StructType().add("id", spark.LongType()).add(column, data_type)
    with pytest.raises(SchemaMismatchError, match=message):
        create_topic(store, "t", schema)
    assert not store.topics()


def test_other_mistakes_of_a_schema_are_named(store: Store) -> None:
    with pytest.raises(SchemaMismatchError, match=r"df\.schema, not from Schema"):
        create_topic(store, "t", pa.schema([("a", pa.int64())]))
    with pytest.raises(SchemaMismatchError, match="'_offset' has a reserved name"):
        create_topic(store, "t", frame("_offset bigint, id bigint"))
    with pytest.raises(SchemaMismatchError, match=r"key.*'no'"):
        create_topic(store, "t", frame("id bigint"), key="no")
    with pytest.raises(SchemaMismatchError, match="at least one column"):
        create_topic(store, "t", spark.StructType())
    create_topic(store, "t", frame("id bigint"))
    assert create_topic(store, "t", frame("id bigint"), exist_ok=True).name == "t"
    with pytest.raises(TopicExistsError, match="another schema"):
        create_topic(store, "t", frame("id string"), exist_ok=True)
    assert create_topic(store, "records", frame("key string, value string")).key is None
    assert create_topic(store, "typed", frame("key string, value string"), key="key").key == "key"


def test_a_write_creates_a_topic_only_if_it_is_missing(store: Store) -> None:
    connection = connection_of(store)
    view = create_missing(connection, connection.view(), "t", frame("id bigint, s string"), NewTopic(4, key="id"))
    assert (view.find_topic("t").partitions, view.find_topic("t").key) == (4, "id")
    sequence = view.sequence
    assert create_missing(connection, view, "t", frame("other string"), NewTopic()) is view
    assert connection.view().sequence == sequence


def test_another_writer_may_create_the_topic_first(store: Store) -> None:
    connection = connection_of(store)
    before = connection.view()
    store.create_topic("t", partitions=2)
    view = create_missing(connection, before, "t", frame("value string"), NewTopic())
    assert view.find_topic("t").partitions == 2
