"""Records of topics with a schema: rows as JSON objects, and back."""

from __future__ import annotations

import datetime as dt
import json
import math
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.arrow_values import TYPES, bits
from txnstore.catalog.schemas import check_schema
from txnstore.catalog.writing import TopicWriter, topic_writer
from txnstore.core.catalog.model import CatalogTopic
from txnstore.errors import SchemaMismatchError
from txnstore.gateway.records.batch import InvalidBatchError
from txnstore.gateway.records.typed import json_rows, rows_from_json, tombstone_values
from txnstore.segment.partition import key_from_bytes
from txnstore.segment.schema import records_to_table, schema_to_text, stored_schema

UTC = dt.UTC

KEYS = [pa.string(), pa.large_string(), pa.binary(), pa.binary(3), pa.int16(), pa.int32(), pa.int64(), pa.float64()]


def values_of(*rows: object) -> pa.Array:
    return pa.array(
        [row if row is None or isinstance(row, bytes) else json.dumps(row).encode() for row in rows], pa.binary()
    )


def read(schema: pa.Schema, *rows: object, keys: list[bytes | None] | None = None, key: str | None = None) -> pa.Table:
    return rows_from_json(values_of(*rows), pa.array(keys or [None] * len(rows), pa.binary()), schema, key)


def refused(schema: pa.Schema, *rows: object, **options: Any) -> list[tuple[int, str]]:
    """Index and message of the records for which the batch is refused."""
    with pytest.raises(InvalidBatchError) as raised:
        read(schema, *rows, **options)
    assert raised.value.kafka_code == 87
    first = raised.value.record_errors[0]
    assert str(raised.value) == f"record {first.index}: {first.message}"
    return [(error.index, error.message) for error in raised.value.record_errors]


def schema_of(kind: pa.DataType, *, nullable: bool = True) -> pa.Schema:
    return pa.schema([pa.field("c", kind, nullable)])


# Round trips ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "values"), TYPES, ids=[str(kind) for kind, _ in TYPES])
def test_every_type_is_read_back(kind: pa.DataType, values: st.SearchStrategy[Any]) -> None:
    schema = schema_of(kind)
    check_schema(schema)

    @given(st.lists(st.none() | values, max_size=6), st.integers(0, 2))
    @settings(max_examples=40)
    def check(column: list[Any], skipped: int) -> None:
        # Of a slice, whose arrays begin within their buffers.
        table = pa.table([pa.array(column, kind)], schema=schema).slice(skipped)
        keys, texts = json_rows(table, None)
        assert keys.type == texts.type == pa.binary()
        assert keys.null_count == table.num_rows
        for text in texts.to_pylist():
            json.loads(text, parse_constant=pytest.fail)
        again = rows_from_json(texts, keys, schema, None)
        again.validate(full=True)
        assert again.schema.equals(stored_schema(schema))
        assert bits(again.to_pylist()) == bits(table.to_pylist())

    check()


def test_all_columns_and_chunks_together() -> None:
    schema = pa.schema([pa.field(f"column {number}", kind) for number, (kind, _) in enumerate(TYPES)])
    table = schema.empty_table()
    table = pa.concat_tables([table, pa.table([pa.nulls(2, field.type) for field in schema], schema=schema), table])
    keys, values = json_rows(table, None)
    assert len(json.loads(values[0].as_py())) == len(TYPES)
    assert rows_from_json(values, keys, schema, None).equals(table.combine_chunks())


@pytest.mark.parametrize("kind", KEYS, ids=str)
def test_keys_are_those_of_kafkas_serializers(kind: pa.DataType) -> None:
    schema = schema_of(kind)
    values = next(strategy for one, strategy in TYPES if one == kind)

    @given(st.lists(st.none() | values, max_size=5))
    @settings(max_examples=20)
    def check(column: list[Any]) -> None:
        table = pa.table([pa.array(column, kind)], schema=schema)
        keys, texts = json_rows(table, "c")
        assert keys.type == pa.binary()
        assert [key is None for key in keys.to_pylist()] == [value is None for value in column]
        assert rows_from_json(texts, keys, schema, "c").num_rows == len(column)
        assert rows_from_json(pa.chunked_array([texts]), pa.chunked_array([keys]), schema, "c").num_rows == len(column)

    check()
    table = pa.table([pa.array([7, 258], pa.int32())], names=["c"])
    assert json_rows(table, "c")[0].to_pylist() == [b"\0\0\0\7", b"\0\0\1\2"]


# The JSON -------------------------------------------------------------------------------------------------------------


def test_rows_as_clients_get_them() -> None:
    table = pa.table(
        {
            "name": ["a", 'ü"\\\n'],
            "at": pa.array([0, 1], pa.timestamp("ms", "UTC")),
            "price": pa.array([Decimal("1.50"), None], pa.decimal128(5, 2)),
            "data": [b"\xff", b""],
            "tags": pa.array([[("x", 1.5)], [("x", None), ("x", math.nan)]], pa.map_(pa.string(), pa.float64())),
            "place": [{"lat": 1.0, "day": dt.date(2026, 1, 2)}, None],
        }
    )
    assert [json.loads(text) for text in json_rows(table, None)[1].to_pylist()] == [
        {
            "name": "a",
            "at": "1970-01-01T00:00:00.000Z",
            "price": "1.50",
            "data": "/w==",
            # The second row has a key twice, so the column is an array of entries.
            "tags": [{"key": "x", "value": 1.5}],
            "place": {"lat": 1, "day": "2026-01-02"},
        },
        {
            "name": 'ü"\\\n',
            "at": "1970-01-01T00:00:00.001Z",
            "price": None,
            "data": "",
            "tags": [{"key": "x", "value": None}, {"key": "x", "value": "NaN"}],
            "place": None,
        },
    ]
    (text,) = json_rows(table.slice(0, 1).select(["tags"]), None)[1].to_pylist()
    assert text == b'{"tags":{"x":1.5}}'


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (pa.float64(), 3, 3.0),
        (pa.float64(), 2**60, float(2**60)),
        (pa.float64(), 9223372036854776000, float(2**63)),  # As JavaScript writes it.
        (pa.float32(), 2**24 + 2, float(2**24 + 2)),
        (pa.int64(), 1.0, 1),
        (pa.timestamp("ms", "UTC"), 1_700_000_000_000, dt.datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
        (pa.float32(), 0.1, struct.unpack("f", struct.pack("f", 0.1))[0]),
        (pa.float32(), 3.4028235e38, 3.4028234663852886e38),
        (pa.float64(), "-Infinity", -math.inf),
        (pa.date32(), "2026-02-28", dt.date(2026, 2, 28)),
        (pa.date32(), "20260228", dt.date(2026, 2, 28)),
        (pa.timestamp("ms", "UTC"), "2026-01-01T00:00:00.0019Z", dt.datetime(2026, 1, 1, 0, 0, 0, 1000, UTC)),
        (pa.timestamp("ms", "UTC"), "1969-12-31T23:59:59.9999Z", dt.datetime(1969, 12, 31, 23, 59, 59, 999000, UTC)),
        (pa.timestamp("us", "UTC"), "2026-01-01T02:00:00+02:00", dt.datetime(2026, 1, 1, tzinfo=UTC)),
        (pa.timestamp("us"), "2026-01-01T01:02:03", dt.datetime.fromisoformat("2026-01-01T01:02:03")),
        (pa.decimal128(4, 2), "1.5", Decimal("1.50")),
        (pa.decimal128(4, 2), "1.500", Decimal("1.50")),
        (pa.decimal128(4, 2), "15E-1", Decimal("1.50")),
        (pa.decimal128(4, 2), 12, Decimal("12.00")),
        (pa.decimal128(4, 2), 1.5, Decimal("1.50")),
        (pa.binary(), "aGk=", b"hi"),
        (pa.binary(), {"base64": "aGk="}, b"hi"),
        (pa.map_(pa.string(), pa.int8()), [["a", 1], ["b", None]], [("a", 1), ("b", None)]),
        (pa.map_(pa.date32(), pa.int8()), {"2026-01-02": 1}, [(dt.date(2026, 1, 2), 1)]),
        (pa.map_(pa.string(), pa.int8()), {"a": 1}, [("a", 1)]),
        (pa.map_(pa.string(), pa.int8()), [{"key": "a", "value": 1}, {"key": "b"}], [("a", 1), ("b", None)]),
        (pa.struct([pa.field("x", pa.int8()), pa.field("y", pa.int8())]), {"y": 1}, {"x": None, "y": 1}),
    ],
    ids=str,
)
def test_values_of_other_forms(kind: pa.DataType, value: object, expected: object) -> None:
    assert read(schema_of(kind), {"c": value}, {})["c"].to_pylist() == [expected, None]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.bool_(), 1),
        (pa.bool_(), "true"),
        (pa.int8(), 128),
        (pa.int8(), -129),
        (pa.int64(), 2**63),
        (pa.int64(), 1.5),
        (pa.int64(), 1e300),
        (pa.int64(), "1"),
        (pa.int64(), True),
        (pa.float64(), "1.5"),
        (pa.float64(), True),
        (pa.float64(), 10**400),
        (pa.float64(), 2**53 + 1),
        (pa.float32(), 2**24 + 1),
        (pa.float64(), "nan"),
        (pa.float32(), 3.4028236e38),
        (pa.float32(), 10**39),
        (pa.string(), 1),
        (pa.string(), "\ud800"),
        (pa.large_string(), ["a"]),
        (pa.binary(), "a"),
        (pa.binary(), "a?=="),
        (pa.binary(), "é"),
        (pa.binary(), 1),
        (pa.binary(3), "aGk="),
        (pa.date32(), "2026-02-30"),
        (pa.date32(), 20_000),
        (pa.timestamp("us", "UTC"), 1_700_000_000_000),
        (pa.timestamp("ms", "UTC"), 2**63),
        (pa.timestamp("ms", "UTC"), "2026-01-01"),
        (pa.timestamp("us", "UTC"), "2026-01-01T01:02:03"),
        (pa.timestamp("us"), "1712011230000"),
        (pa.timestamp("ms", "UTC"), "noon"),
        (pa.timestamp("ms"), "2026-01-01T00:00:00Z"),
        (pa.timestamp("ms"), "0000-01-01T00:00:00"),
        (pa.timestamp("ms"), "2026-01-01T00:00:60"),
        (pa.decimal128(4, 2), "100"),
        (pa.decimal128(4, 2), "1.505"),
        (pa.decimal128(4, 2), 1.505),
        (pa.decimal128(4, 2), "NaN"),
        (pa.decimal128(4, 2), "1_0"),
        (pa.decimal128(4, 2), "1E999"),
        (pa.decimal128(4, 2), " 1"),
        (pa.decimal128(4, 2), True),
        (pa.list_(pa.int8()), 1),
        (pa.list_(pa.int8()), [1, "a"]),
        (pa.struct([pa.field("x", pa.int8())]), {"z": 1}),
        (pa.struct([pa.field("x", pa.int8())]), [1]),
        (pa.map_(pa.int8(), pa.int8()), {"1": 1}),
        (pa.map_(pa.string(), pa.int8()), [{"key": None}]),
        (pa.map_(pa.string(), pa.int8()), [{"key": "a", "other": 1}]),
        (pa.map_(pa.string(), pa.int8()), [1]),
        (pa.map_(pa.string(), pa.int8()), {"a": 1.5}),
    ],
    ids=str,
)
def test_a_value_that_does_not_fit_is_named(kind: pa.DataType, value: object) -> None:
    schema = schema_of(kind)
    ((index, message),) = refused(schema, {}, {"c": None}, {"c": value}, {})
    assert index == 2
    assert message.startswith("column 'c': ")
    assert "is not" in message


def test_a_map_with_equal_keys_is_named_and_others_are_not() -> None:
    schema = schema_of(pa.list_(pa.map_(pa.int16(), pa.int8())))
    once, twice = [[{"key": 1}]], [[{"key": 2}], [{"key": 1}, {"key": 1}]]
    assert refused(schema, {"c": once}, {"c": None}, {"c": twice}) == [(2, "column 'c' has a map with the key 1 twice")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "it has no value, and a topic with a schema has tombstones only if it has tombstone.column"),
        (b"", "its value is no JSON"),
        (b'{"c":1}{"c":2}', "its value is no JSON"),
        (b'{"c":1', "its value is no JSON"),
        (b'{"c":NaN}', "its value is no JSON: NaN is no JSON number"),
        (b'{"c":"\xff"}', "its value is no JSON"),
        ('{"c":1}'.encode("utf-16"), "its value is no JSON"),
        (b'\xef\xbb\xbf{"c":1}', "its value is no JSON"),
        (b'{"c":1,"c":2}', "its value is no JSON: the name 'c' occurs twice"),
        (b"[" * 100_000, "its value is no JSON: it is nested too deeply"),
        (b'{"c":' + b"1" * 5_000 + b"}", "column 'c': 1111"),
        (b"[]", "its value is no JSON object"),
        (b"1", "its value is no JSON object"),
        (b"null", "its value is no JSON object"),
        (b'{"d":1,"c":1,"e":1}', "the topic has no column 'd', 'e'"),
        (b'{"C":1}', "the topic has no column 'C'"),
    ],
)
def test_what_is_no_row_is_named(text: bytes | None, message: str) -> None:
    ((index, reason),) = refused(schema_of(pa.int64()), {"c": 1}, text, {"c": 2})
    assert index == 1
    assert reason.startswith(message)


def test_all_refused_records_are_listed() -> None:
    errors = refused(schema_of(pa.int8(), nullable=False), {"c": 1}, {"c": 300}, {}, {"c": None}, {"d": 1}, {"c": 2})
    assert [index for index, _ in errors] == [1, 2, 3, 4]
    assert errors[1][1] == errors[2][1] == "column 'c' is null or missing, but the topic declares it not null"
    assert len(refused(schema_of(pa.int8()), *[{"c": 300}] * 200)) == 100


def test_a_message_is_short() -> None:
    ((_, message),) = refused(schema_of(pa.int8()), {"c": "x" * 10_000})
    assert len(message) < 120


# Keys -----------------------------------------------------------------------------------------------------------------

KEYED = pa.schema([pa.field("id", pa.string()), pa.field("n", pa.int8())])


def test_a_record_has_the_key_of_its_row_or_none() -> None:
    rows = [{"id": "a", "n": 1}, {"id": "b", "n": 2}, {"n": 3}]
    assert read(KEYED, *rows, keys=[b"a", None, None], key="id").num_rows == 3
    assert refused(KEYED, *rows, keys=[b"a", b"a", b"a"], key="id") == [
        (1, "its key is not that of its column 'id'"),
        (2, "its key is not that of its column 'id'"),
    ]


def test_a_topic_without_key_column_has_no_keys() -> None:
    assert refused(KEYED, {"id": "a"}, {"id": "b"}, keys=[None, b"b"]) == [
        (1, "it has a key, and the topic has no key column")
    ]


def test_no_records_are_no_rows() -> None:
    assert read(KEYED).equals(KEYED.empty_table())
    keys, values = json_rows(KEYED.empty_table(), "id")
    assert (len(keys), len(values)) == (0, 0)


# Tombstones -----------------------------------------------------------------------------------------------------------


def writer_of(schema: pa.Schema, timestamp: str | None = None) -> TopicWriter:
    """A topic whose tombstones are rows with ``gone``."""
    config = {"tombstone.column": "gone"}
    return topic_writer(CatalogTopic("t", "id", 1, schema_to_text(schema), "id", timestamp, config))


def records_of(*records: tuple[bytes | None, bytes | None], time: int = 5) -> pa.Table:
    return records_to_table([(key, value, None, time) for key, value in records], 0)


def rows_of(writer: TopicWriter, records: pa.Table) -> list[dict[str, Any]]:
    """The rows that are stored of records."""
    assert writer.schema is not None
    values = tombstone_values(records, writer)
    rows: list[dict[str, Any]] = rows_from_json(values, records["key"], writer.schema, writer.key_column).to_pylist()
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("kind", KEYS, ids=str)
def test_tombstones_are_written_and_read_by_keys_of_any_type(kind: pa.DataType) -> None:
    schema = pa.schema([("id", kind), ("name", pa.string()), ("gone", pa.bool_())])
    writer = writer_of(schema)
    values = next(strategy for one, strategy in TYPES if one == kind)

    @given(st.lists(st.tuples(values, st.sampled_from([None, False, True])), max_size=5))
    @settings(max_examples=20)
    def check(rows: list[tuple[Any, bool | None]]) -> None:
        ids, gone = [row[0] for row in rows], [row[1] for row in rows]
        table = pa.table([pa.array(ids, kind), ["x"] * len(rows), pa.array(gone, pa.bool_())], schema=schema)
        keys, texts = json_rows(table, "id", "gone")
        assert [text is None for text in texts.to_pylist()] == [each is True for each in gone]
        times = pa.nulls(len(rows), pa.timestamp("ms", "UTC"))
        again = rows_of(writer, pa.table({"key": keys, "value": texts, "timestamp": times}))
        assert [row["gone"] for row in again] == gone
        assert [row["name"] for row in again] == [None if each else "x" for each in gone]
        canonical = [key_from_bytes(key, kind) for key in keys.to_pylist()]  # Every NaN is one key.
        assert bits([row["id"] for row in again]) == bits(canonical)

    check()


@pytest.mark.parametrize("nullable", [True, False])
@pytest.mark.parametrize(
    ("kind", "shown"),
    [
        (pa.int64(), 1_500),
        (pa.timestamp("ms"), dt.datetime.fromisoformat("1970-01-01T00:00:01.5")),
        (pa.timestamp("us"), dt.datetime.fromisoformat("1970-01-01T00:00:01.5")),
        (pa.timestamp("us", "UTC"), dt.datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC)),
    ],
    ids=str,
)
def test_a_tombstone_has_the_time_of_its_record(kind: pa.DataType, shown: object, *, nullable: bool) -> None:
    schema = pa.schema([("id", pa.string()), ("gone", pa.bool_()), pa.field("at", kind, nullable)])
    rows = rows_of(writer_of(schema, "at"), records_of((b"k", None), time=1_500))
    assert rows == [{"id": "k", "gone": True, "at": shown}]


MARKED = pa.schema([("id", pa.int64()), ("gone", pa.bool_())])


def test_tombstones_of_a_batch_that_are_none_are_listed() -> None:
    row = b'{"id": 1}'
    records = records_of((None, row), (None, None), (b"\0" * 8, None), (b"1", None), (None, b"no JSON"))
    with pytest.raises(InvalidBatchError) as raised:
        rows_of(writer_of(MARKED), records)
    assert [(error.index, error.message) for error in raised.value.record_errors] == [
        (1, "it has neither a value nor a key: a tombstone deletes a key"),
        (3, "its key is no value of column 'id': it has 1 bytes, and int64 has 8"),
    ]


def test_tombstones_are_refused_where_another_column_is_not_null() -> None:
    """A row with that column may be one."""
    writer = writer_of(pa.schema([*MARKED, pa.field("n", pa.int8(), nullable=False)]))
    with pytest.raises(SchemaMismatchError, match="would have no value in 'n', which the topic declares not null"):
        rows_of(writer, records_of((b"\0" * 8, None)))
