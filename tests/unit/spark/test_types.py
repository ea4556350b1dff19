"""Arrow types as Spark wants them, without Spark."""

from __future__ import annotations

import pyarrow as pa
import pytest

from txnstore.errors import SchemaMismatchError
from txnstore.segment.schema import RECORD_SCHEMA, RESERVED_FIELDS
from txnstore.spark.types import BATCH_ROWS, arrow_type, ddl, spark_schema, to_batches, type_name


def test_the_columns_of_a_record_topic() -> None:
    assert ddl(spark_schema(pa.schema([*RECORD_SCHEMA, *RESERVED_FIELDS]))) == (
        "`key` binary, `value` binary, `headers` array<struct<`key`:string,`value`:binary>>, `timestamp` timestamp, "
        "`_topic` string, `_partition` int, `_offset` bigint, `_timestamp` timestamp"
    )


@pytest.mark.parametrize(
    ("ours", "spark", "name"),
    [
        (pa.large_string(), pa.string(), "string"),
        (pa.large_binary(), pa.binary(), "binary"),
        (pa.binary(16), pa.binary(), "binary"),
        (pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC"), "timestamp"),
        (pa.timestamp("ms"), pa.timestamp("us"), "timestamp_ntz"),
        (pa.decimal128(12, 3), pa.decimal128(12, 3), "decimal(12,3)"),
        (pa.list_(pa.field("item", pa.int8())), pa.list_(pa.field("element", pa.int8())), "array<tinyint>"),
        (pa.map_(pa.string(), pa.timestamp("ms", "UTC")), pa.map_(pa.string(), pa.timestamp("us", "UTC")),
         "map<string,timestamp>"),
        (pa.struct([("a b", pa.date32())]), pa.struct([("a b", pa.date32())]), "struct<a b:date>"),
    ],
)  # fmt: skip
def test_arrow_types_map_to_spark_types(ours: pa.DataType, spark: pa.DataType, name: str) -> None:
    (field,) = spark_schema(pa.schema([pa.field("c", ours, nullable=False)]))
    assert field.nullable
    assert field.type.equals(spark, check_metadata=True)
    assert type_name(field.type) == name


def test_names_are_quoted_in_ddl() -> None:
    schema = spark_schema(pa.schema([("a`b", pa.struct([("c d", pa.int64())]))]))
    assert ddl(schema) == "`a``b` struct<`c d`:bigint>"


def test_unsupported_type_is_named() -> None:
    with pytest.raises(SchemaMismatchError, match="column 'c' is of type time64"):
        spark_schema(pa.schema([("c", pa.list_(pa.time64("us")))]))


@pytest.mark.parametrize("name", ["bigint", "string", "timestamp_ntz", "decimal(8,2)", "boolean"])
def test_type_names_map_back_to_arrow_types(name: str) -> None:
    assert type_name(arrow_type(name)) == name
    assert arrow_type("struct<a:int>") == pa.null()


def test_small_tables_are_joined_and_large_ones_cut() -> None:
    """A batch for each tiny segment would cost more than its rows; Spark reads 128k rows at a time best."""
    target = spark_schema(pa.schema([("n", pa.int64())]))
    tables = [pa.table({"n": range(first, first + 10)}) for first in range(0, 1000, 10)]
    (batch,) = to_batches(iter(tables), target)
    assert batch.column(0).to_pylist() == list(range(1000))
    sizes = [batch.num_rows for batch in to_batches(iter([pa.table({"n": range(2 * BATCH_ROWS + 5)})]), target)]
    assert sizes == [BATCH_ROWS, BATCH_ROWS, 5]
    assert list(to_batches(iter([]), target)) == []


@pytest.mark.slow
def test_wide_rows_make_smaller_batches() -> None:
    target = spark_schema(pa.schema([("b", pa.binary())]))
    table = pa.table({"b": pa.array([b"x" * (1 << 20)] * 80)})
    sizes = [batch.nbytes for batch in to_batches(iter([table]), target)]
    assert max(sizes) <= 33 << 20
    assert sum(sizes) >= 80 << 20


def test_batches_have_exactly_the_schema_that_was_asked_for() -> None:
    """Names of list elements, units and nullability count for Spark; our own layout counts for us."""
    ours = pa.schema([("l", pa.list_(pa.field("item", pa.large_string()))), ("t", pa.timestamp("ms", "UTC"))])
    table = pa.table([[["a", None], None], [1, None]], schema=ours)
    target = spark_schema(ours)
    (batch,) = to_batches(iter([table]), target)
    assert batch.schema.equals(target, check_metadata=True)
    assert batch.schema.field("l").type.value_field.name == "element"
    assert batch.to_pydict()["l"] == [["a", None], None]
    strict = pa.schema([pa.field("t", pa.timestamp("us", "UTC"), nullable=False)])
    with pytest.raises(SchemaMismatchError, match="column 't' holds nulls"):
        list(to_batches(iter([table]), strict))
