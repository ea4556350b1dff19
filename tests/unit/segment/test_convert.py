"""Rows of any origin fit the topic's schema, or the message names the column that does not."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from txnstore.errors import SchemaMismatchError
from txnstore.segment.convert import conform, normalize, parts_of
from txnstore.segment.schema import RECORD_SCHEMA, stored_schema

SCHEMA = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("name", pa.string())])
TABLE = pa.table({"id": [1, 2], "name": ["a", None]})


class Stream:
    """Something that is Arrow by its capsule only."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


@pytest.mark.parametrize(
    "data",
    [
        TABLE,
        TABLE.to_batches()[0],
        pa.RecordBatchReader.from_batches(TABLE.schema, TABLE.to_batches(max_chunksize=1)),
        Stream(TABLE),
        TABLE.to_pandas(),
        TABLE.to_pylist(),
        TABLE.select(["name", "id"]),
        TABLE.replace_schema_metadata({"pandas": "{}"}),
        pa.table({"id": pa.array([1, 2], pa.int8()), "name": pa.array(["a", None], pa.large_string())}),
        pa.table({"id": pa.array([1.0, 2.0]), "name": pa.array(["a", None], pa.string_view())}),
        pa.table({"id": pa.array([1, 2], pa.uint64()), "name": pa.array(["a", None]).dictionary_encode()}),
    ],
)
def test_all_supported_kinds_of_rows(data: object) -> None:
    table = normalize(data, SCHEMA)
    assert table.schema.equals(stored_schema(SCHEMA), check_metadata=True)
    assert table.to_pylist() == [{"id": 1, "name": "a"}, {"id": 2, "name": None}]


_ANY_TYPE = [
    pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.date32(), pa.time64("us"), pa.duration("us"), pa.int64(),
    pa.float64(), pa.string(), pa.binary(), pa.bool_(), pa.decimal128(5, 2),
]  # fmt: skip
_VALUES = {
    "timestamp[us]": dt.datetime(2026, 1, 2),  # noqa: DTZ001 - the column has no zone
    "timestamp[us, tz=UTC]": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    "date32[day]": dt.date(2026, 1, 2), "time64[us]": dt.time(1), "duration[us]": dt.timedelta(1), "int64": 1,
    "double": 1.5, "string": "a", "binary": b"a", "bool": True, "decimal128(5, 2)": Decimal("1.25"),
}  # fmt: skip


@pytest.mark.parametrize("missing", [pd.NaT, pd.NA], ids=["NaT", "NA"])
@pytest.mark.parametrize("kind", _ANY_TYPE, ids=str)
def test_what_pandas_calls_missing_is_null_in_rows(kind: pa.DataType, missing: object) -> None:
    """As in ``frame.to_dict("records")``; Arrow raises a ValueError, or takes NaT among dates for the year 1."""
    value = _VALUES[str(kind)]
    schema = pa.schema({"c": kind, "l": pa.list_(kind), "s": pa.struct({"x": kind}), "m": pa.map_(pa.string(), kind)})
    rows = [{"c": each, "l": [each, value], "s": {"x": each}, "m": [("k", each)]} for each in (value, missing, None)]
    expected = [{"c": each, "l": [each, value], "s": {"x": each}, "m": [("k", each)]} for each in (value, None, None)]
    assert normalize(rows, schema).to_pylist() == expected
    assert normalize(pd.DataFrame(rows, dtype=object), schema).to_pylist() == expected


def test_nan_in_rows_is_a_value() -> None:
    table = normalize([{"x": float("nan")}, {"x": None}], pa.schema({"x": pa.float64()}))
    assert table["x"].null_count == 1


def test_errors_of_values_are_of_the_schema() -> None:
    class Zone(dt.tzinfo):
        def utcoffset(self, _: dt.datetime | None) -> dt.timedelta:
            raise ValueError("no offset")

        def dst(self, _: dt.datetime | None) -> None:
            return None

        def tzname(self, _: dt.datetime | None) -> str:
            return ""

    with pytest.raises(SchemaMismatchError, match=r"'x' does not fit .*no offset"):
        normalize([{"x": dt.datetime(2026, 1, 2, tzinfo=Zone())}], pa.schema({"x": pa.timestamp("us", "UTC")}))


def test_rows_that_fit_are_not_copied() -> None:
    table = TABLE.cast(stored_schema(SCHEMA))
    assert normalize(table, SCHEMA) is table


def test_missing_columns_become_null() -> None:
    assert normalize(pa.table({"id": [1]}), SCHEMA).to_pylist() == [{"id": 1, "name": None}]
    assert normalize([{"id": 1}, {"id": 2, "name": "b"}], SCHEMA)["name"].to_pylist() == [None, "b"]


@pytest.mark.parametrize("data", [[], SCHEMA.empty_table(), pa.RecordBatchReader.from_batches(SCHEMA, [])])
def test_normalize_without_rows(data: object) -> None:
    assert normalize(data, SCHEMA).equals(stored_schema(SCHEMA).empty_table())


def test_a_stream_comes_batch_by_batch() -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        for number in range(3):
            pulled.append(number)
            yield pa.record_batch({"id": [number], "name": ["x"]})

    pulled: list[int] = []
    reader = pa.RecordBatchReader.from_batches(pa.schema([("id", pa.int64()), ("name", pa.string())]), batches())
    tables = (normalize(part, SCHEMA) for part in parts_of(reader))
    assert next(tables).num_rows == 0
    assert not pulled
    assert next(tables)["id"].to_pylist() == [0]
    assert pulled == [0]
    assert [table["id"].to_pylist() for table in tables] == [[1], [2]]


def test_invalid_stream_is_refused_before_its_first_batch() -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        pulled.append(1)
        yield pa.record_batch({"id": ["x"]})

    pulled: list[int] = []
    reader = pa.RecordBatchReader.from_batches(pa.schema([("id", pa.string())]), batches())
    with pytest.raises(SchemaMismatchError, match="'id'"):
        normalize(reader, SCHEMA)
    assert not pulled


@pytest.mark.parametrize(
    ("data", "column", "says"),
    [
        (pa.table({"name": ["a"]}), "id", "is missing"),
        ([{"name": "a"}], "id", "is missing"),
        (pa.table({"id": [1, None]}), "id", "contains a null"),
        ([{"id": 1}, {"name": "x"}], "id", "contains a null"),
        (pa.table({"id": [1], "price": [2]}), "price", "no column"),
        ([{"id": 1}, {"id": 2, "price": 3}], "price", "no column"),
        (pd.DataFrame({"id": [1], "price": [2]}), "price", "no column"),
        ([{"id": 1, 5: 3}], "5", "no column"),
        (pa.table([[1], [2]], names=["id", "id"]), "id", "duplicate"),
        (pa.table({"id": ["1"]}), "id", "type string"),
        (pa.table({"id": [True]}), "id", "type bool"),
        (pa.table({"id": [1], "name": [5]}), "name", "type int64"),
        (pa.table({"id": [1], "name": [b"x"]}), "name", "type binary"),
        (pa.table({"id": pa.array([2**64 - 1], pa.uint64())}), "id", "does not fit"),
        (pa.table({"id": [1.5]}), "id", "does not fit"),
        ([{"id": 1.5}], "id", "does not fit"),
        ([{"id": 2**70}], "id", "does not fit"),
        ([{"id": 1, "name": "a"}, {"id": 2, "name": 7}], "name", "does not fit"),
        (pd.DataFrame({"id": [1, 2], "name": ["a", 7]}), "name", "does not fit"),
        (pa.table({"id": [float("nan")]}), "id", "does not fit"),
    ],
)
def test_mismatch_error_names_the_column(data: object, column: str, says: str) -> None:
    with pytest.raises(SchemaMismatchError, match=says) as raised:
        normalize(data, SCHEMA)
    assert column in str(raised.value)


@pytest.mark.parametrize("data", [5, None, "text", b"bytes", {"id": 1}, [1, 2], [("id", 1)]])
def test_unsupported_data_is_refused(data: object) -> None:
    with pytest.raises(SchemaMismatchError, match=r"cannot read rows from|a row is a dict"):
        normalize(data, SCHEMA)


def one(data_type: pa.DataType) -> pa.Schema:
    return pa.schema([pa.field("c", data_type)])


UTC = dt.UTC
DAY = dt.datetime(2024, 2, 29, 12, 30, 15, 123_456, UTC)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=UTC)
STRUCT = pa.struct([("a", pa.int64()), ("b", pa.string())])
NANO, MICRO = pa.timestamp("ns"), pa.timestamp("us")
NANO_STRUCT, MICRO_STRUCT = pa.struct([("x", NANO)]), pa.struct([("y", pa.int64()), ("x", MICRO)])
MICRO_MAP = pa.map_(pa.string(), MICRO)
#: The microsecond before 1970.
BEFORE = (EPOCH - dt.timedelta(microseconds=1)).replace(tzinfo=None)


@pytest.mark.parametrize(
    ("given", "target", "expected"),
    [
        (pa.array([1, None], pa.int32()), pa.int16(), [1, None]),
        (pa.array([1, -1]), pa.float64(), [1.0, -1.0]),
        (pa.array([2**60, -(2**63)]), pa.float64(), [2.0**60, -(2.0**63)]),
        (pa.array([2**63], pa.uint64()), pa.float32(), [2.0**63]),
        (pa.array([2**64 - 1], pa.uint64()), pa.decimal128(38, 0), [Decimal(2**64 - 1)]),
        (pa.array([2**64 - 1], pa.uint64()), pa.decimal128(38, 18), [Decimal(2**64 - 1)]),
        (pa.array([0, None]), pa.decimal128(38, 38), [Decimal(0), None]),
        (pa.array([None], pa.timestamp("ns")), pa.timestamp("ms", "UTC"), [None]),
        (pa.array([0.1]), pa.float32(), pc.cast(pa.array([0.1]), pa.float32()).to_pylist()),
        (pa.array([float("inf"), float("nan")]), pa.float32(), None),
        (pa.array([1.0, None]), pa.int32(), [1, None]),
        (pa.array([5, -5]), pa.decimal128(5, 2), [Decimal("5.00"), Decimal("-5.00")]),
        (pa.array([Decimal("1.50")]), pa.decimal128(10, 3), [Decimal("1.500")]),
        (pa.array(["ä"]), pa.binary(), ["ä".encode()]),
        (pa.array(["ä"], pa.string_view()), pa.large_binary(), ["ä".encode()]),
        (pa.array([b"ab"]), pa.binary(2), [b"ab"]),
        (pa.array([b"ab"], pa.binary(2)), pa.binary(), [b"ab"]),
        (pa.array(["x", "x"]).dictionary_encode(), pa.string(), ["x", "x"]),
        (pc.run_end_encode(pa.array(["x", "x"])), pa.string(), ["x", "x"]),
        (pa.nulls(2), pa.date32(), [None, None]),
        (pa.array([DAY], pa.timestamp("us", "UTC")), pa.timestamp("ms", "UTC"), [DAY.replace(microsecond=123_000)]),
        (pa.array([DAY], pa.timestamp("ns", "Europe/Berlin")), pa.timestamp("us", "UTC"), [DAY]),
        (pa.array([-1], pa.timestamp("ns", "UTC")), pa.timestamp("ms", "UTC"), [EPOCH - dt.timedelta(milliseconds=1)]),
        (pa.array([-1], pa.timestamp("ns", "UTC")), pa.timestamp("us", "UTC"), [EPOCH - dt.timedelta(microseconds=1)]),
        (pa.array([-1], pa.timestamp("ns")), pa.timestamp("us"), [BEFORE]),
        (pa.array([[-1], None], pa.list_(pa.timestamp("ns"), 1)), pa.list_(pa.timestamp("us")), [[BEFORE], None]),
        (pa.array([{"x": -1}, None], NANO_STRUCT), MICRO_STRUCT, [{"y": None, "x": BEFORE}, None]),
        (pa.array([[("k", -1)], None, []], pa.map_(pa.string(), NANO)), MICRO_MAP, [[("k", BEFORE)], None, []]),
        (pa.array([[2**60]]), pa.list_(pa.float64()), [[2.0**60]]),
        (pa.array([[0], [1, 2], None, [3]])[1:], pa.list_(pa.decimal128(5, 2)), [[1, 2], None, [3]]),
        (pa.array([1], pa.timestamp("s", "UTC")), pa.timestamp("ms", "UTC"), [EPOCH + dt.timedelta(seconds=1)]),
        (pa.array([1500]), pa.timestamp("ms", "UTC"), [EPOCH + dt.timedelta(seconds=1.5)]),
        (pa.array([dt.date(2024, 2, 29)], pa.date64()), pa.date32(), [dt.date(2024, 2, 29)]),
        (pa.array([[1], None], pa.large_list(pa.int32())), pa.list_(pa.int64()), [[1], None]),
        (pa.array([{"b": "x"}]), STRUCT, [{"a": None, "b": "x"}]),
        (pa.array([[(1, 2)]], pa.map_(pa.int32(), pa.int32())), pa.map_(pa.int64(), pa.int64()), [[(1, 2)]]),
    ],
)
def test_allowed_casts(given: Any, target: pa.DataType, expected: list[Any] | None) -> None:
    table = normalize(pa.table({"c": given}), one(target))
    table.validate(full=True)
    assert table.schema == one(target)
    if expected is None:
        assert str(table["c"].to_pylist()) == str(given.to_pylist())
    else:
        assert table["c"].to_pylist() == expected


@pytest.mark.parametrize(
    ("given", "target"),
    [
        (pa.array([128]), pa.int8()),
        (pa.array([1e39]), pa.float32()),
        (pa.array([[1e39]]), pa.list_(pa.float32())),
        (pa.array([{"a": 1e39}]), pa.struct([("a", pa.float32())])),
        (pa.array([[("k", 1e39)]], pa.map_(pa.string(), pa.float64())), pa.map_(pa.string(), pa.float32())),
        (pa.array([2**53 + 1]), pa.float64()),
        (pa.array([2**63 - 1]), pa.float64()),
        (pa.array([2**64 - 1], pa.uint64()), pa.float64()),
        (pa.array([2**24 + 1]), pa.float32()),
        (pa.array([2**64 - 1], pa.uint64()), pa.decimal128(38, 20)),
        (pa.array([1000]), pa.decimal128(5, 2)),
        (pa.array([Decimal("1.555")]), pa.decimal128(5, 2)),
        (pa.array([1.5]), pa.decimal128(5, 2)),
        (pa.array([b"abc"]), pa.binary(2)),
        (pa.array([dt.date(2024, 2, 29)]), pa.timestamp("ms", "UTC")),
        (pa.array([DAY], pa.timestamp("us", "UTC")), pa.timestamp("us")),
        (pa.array([1]), pa.timestamp("us", "UTC")),
        (pa.array([1]), pa.bool_()),
        (pa.array([1]), pa.date32()),
        (pa.array(["2024-02-29"]), pa.date32()),
        (pa.array([["x"]]), pa.list_(pa.int64())),
        (pa.array([[1.5]]), pa.list_(pa.int64())),
        (pa.array([[1]], pa.list_view(pa.int64())), pa.list_(pa.int64())),
        (pa.array([{"a": 1, "z": 2}]), STRUCT),
        (pa.array([{"a": 1}]), pa.int64()),
        (pa.array([1]), STRUCT),
    ],
)
def test_lossy_casts_are_refused(given: Any, target: pa.DataType) -> None:
    with pytest.raises(SchemaMismatchError, match="column 'c'"):
        normalize(pa.table({"c": given}), one(target))


def test_python_values_of_all_types() -> None:
    schema = pa.schema(
        [
            ("f", pa.float32()),
            ("d", pa.decimal128(6, 2)),
            ("t", pa.timestamp("ms", "UTC")),
            ("day", pa.date32()),
            ("tags", pa.list_(pa.string())),
            ("s", STRUCT),
            ("m", pa.map_(pa.string(), pa.int64())),
            ("b", pa.binary()),
        ],
    )
    row = {
        "f": 0.5,
        "d": Decimal("1.5"),
        "t": DAY,
        "day": dt.date(2024, 2, 29),
        "tags": ["a", None],
        "s": {"a": 1},
        "m": [("x", 1)],
        "b": b"\xff",
    }
    expected = row | {"t": DAY.replace(microsecond=123_000), "s": {"a": 1, "b": None}}
    table = normalize([row, {}], schema)
    assert table.to_pylist() == [expected, dict.fromkeys(schema.names)]


@pytest.mark.parametrize("rows", [list, lambda rows: pd.DataFrame(rows, dtype=object)], ids=["dicts", "pandas"])
def test_integer_among_datetimes_counts_milliseconds(rows: Any) -> None:
    """Whatever shares its batch, and in whichever order."""
    moment = EPOCH + dt.timedelta(milliseconds=1_357_000_000_001)
    values = [1_357_000_000_001, DAY, DAY.astimezone(dt.timezone(dt.timedelta(hours=3))), None]
    in_milliseconds = DAY.replace(microsecond=123_000)
    for given in (values, values[::-1]):
        table = normalize(rows([{"c": value} for value in given]), one(pa.timestamp("ms", "UTC")))
        expected = [moment, in_milliseconds, in_milliseconds, None]
        assert table["c"].to_pylist() == (expected if given is values else expected[::-1])


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (pd.DataFrame({"id": [1, 2], "name": ["a", "b"]}).set_index("id"), [(1, "a"), (2, "b")]),
        (pd.DataFrame({"id": [1, 1], "name": ["a", "b"]}).groupby("id").agg({"name": "last"}), [(1, "b")]),
        (pd.DataFrame({"id": [1], "name": ["a"]}).set_index(["name", "id"]), [(1, "a")]),
        (pd.DataFrame({"id": [1], "name": ["a"]}).set_index("id", drop=False), [(1, "a")]),
        (pd.DataFrame({"id": [1], "name": ["a"]}, index=[7]), [(1, "a")]),
        (pd.Series(["a"], pd.Index([1], name="id"), name="name").to_frame(), [(1, "a")]),
        (pd.DataFrame({"id": [1]}, index=pd.RangeIndex(5, 6)), [(1, None)]),
        (pd.DataFrame(index=pd.RangeIndex(3, 5, name="id")), [(3, None), (4, None)]),
    ],
    ids=["set_index", "groupby", "levels", "both", "no name", "series", "range", "named range"],
)
def test_a_named_level_of_an_index_is_a_column(frame: pd.DataFrame, expected: list[tuple[int, str | None]]) -> None:
    assert [tuple(row.values()) for row in normalize(frame, SCHEMA).to_pylist()] == expected


def test_a_level_that_the_topic_does_not_have_is_refused() -> None:
    frame = pd.DataFrame({"id": [1]}, index=pd.Index([5], name="row"))
    with pytest.raises(SchemaMismatchError, match="no column 'row'"):
        normalize(frame, SCHEMA)
    assert normalize(frame.reset_index(drop=True), SCHEMA).num_rows == 1


def test_a_level_of_categories_or_times_keeps_its_values() -> None:
    times = pd.date_range("2026-01-01", periods=2, tz="Europe/Berlin", name="c")
    assert normalize(pd.DataFrame(index=times), one(pa.timestamp("us", "UTC")))["c"].to_pylist() == list(times)
    codes = pd.CategoricalIndex(["x", "y", "x"], name="c")
    assert normalize(pd.DataFrame(index=codes), one(pa.string()))["c"].to_pylist() == ["x", "y", "x"]


@pytest.mark.parametrize("rows", [list, lambda rows: pd.DataFrame(rows, dtype=object)], ids=["dicts", "frame"])
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.decimal128(38, 0), [2**63, -(10**30), Decimal(1), 7, None]),
        (pa.decimal128(38, 2), [2**64, Decimal("1.25")]),
        (pa.float64(), [2**63, 1.5, 10**20, -7, None]),
        (pa.float32(), [2**63, 0.5]),
        (pa.list_(pa.decimal128(38, 0)), [[2**63, Decimal(1)], None, []]),
        (pa.struct([("x", pa.float64())]), [{"x": 10**20}, {"x": 0.5}, None, {}]),
        (pa.map_(pa.string(), pa.decimal128(38, 0)), [[("a", 2**63)], None, [], {"b": 1}]),
        (pa.list_(pa.map_(pa.string(), pa.list_(pa.int8()))), [[[("a", [1])], None]]),
        (pa.struct([("m", pa.map_(pa.int64(), pa.binary()))]), [{"m": [(1, b"x")]}]),
    ],
    ids=str,
)
def test_integers_of_any_size_and_nested_values(kind: pa.DataType, values: list[Any], rows: Any) -> None:
    table = normalize(rows([{"c": value} for value in values]), one(kind))
    table.validate(full=True)
    expected = [list(value.items()) if value == {"b": 1} else value for value in values]
    assert table["c"].to_pylist() == [{"x": None} if value == {} else value for value in expected]


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.float64(), 2**53 + 1),
        (pa.float64(), 10**400),
        (pa.float32(), 2**24 + 1),
        (pa.decimal128(38, 0), 10**38),
        (pa.decimal128(5, 2), Decimal("1.255")),
        (pa.int64(), 1.5),
        (pa.int8(), 300),
        (pa.int64(), "1"),
        (pa.string(), b"x"),
        (pa.string(), 1),
        (pa.list_(pa.int64()), "text"),
        (pa.list_(pa.int64()), 5),
        (pa.struct([("x", pa.int64())]), {"y": 1}),
        (pa.struct([("x", pa.int64())]), [1]),
        (pa.map_(pa.string(), pa.int64()), [("a", 1.5)]),
        (pa.map_(pa.string(), pa.int64()), [(None, 1)]),
        (pa.map_(pa.string(), pa.int64()), [("a",)]),
        (pa.map_(pa.string(), pa.int64()), {"a": 2**64}),
    ],
    ids=str,
)
def test_python_values_are_never_changed(kind: pa.DataType, value: Any, nested: bool) -> None:
    """Arrow drops the fraction of 1.5 in a map of integers in silence."""
    kind, value = (pa.map_(pa.string(), pa.list_(kind)), [("k", [value])]) if nested else (kind, value)
    with pytest.raises(SchemaMismatchError, match="column 'c'"):
        normalize([{"c": value}], one(kind))


ZONED = pa.timestamp("ms", "UTC")
LOCAL = DAY.replace(tzinfo=None)


@pytest.mark.parametrize(
    ("value", "target"),
    [
        (LOCAL, ZONED),
        ([DAY, LOCAL], pa.list_(ZONED)),
        ({"a": LOCAL}, pa.struct([("a", ZONED)])),
        ([("x", LOCAL)], pa.map_(pa.string(), ZONED)),
        (pd.Timestamp(LOCAL), ZONED),
    ],
    ids=["itself", "list", "struct", "map", "pandas"],
)
@pytest.mark.parametrize("rows", [list, lambda rows: pd.DataFrame(rows, dtype=object)], ids=["dicts", "frame"])
def test_a_datetime_without_a_zone_is_refused(rows: Any, value: Any, target: pa.DataType) -> None:
    """It may be local time or UTC. The error says what to write for each."""
    with pytest.raises(
        SchemaMismatchError, match=r"column 'c' is datetime\(2.*no time zone: write .*tzinfo=UTC\) for a"
    ):
        normalize(rows([{"c": None}, {"c": value}]), one(target))


def test_a_column_without_a_zone_takes_datetimes_without_one() -> None:
    assert normalize([{"c": LOCAL}], one(pa.timestamp("us")))["c"].to_pylist() == [LOCAL]


@pytest.mark.parametrize(
    ("value", "wrapped"),
    [
        (LOCAL, lambda kind: kind),
        ([LOCAL], pa.list_),
        ({"x": LOCAL}, lambda kind: pa.struct([("x", kind)])),
        ([("a", LOCAL)], lambda kind: pa.map_(pa.string(), kind)),
    ],
    ids=["itself", "list", "struct", "map"],
)
@pytest.mark.parametrize("unit", ["us", "ns"])
def test_a_whole_column_without_a_zone_is_refused(unit: str, value: Any, wrapped: Any) -> None:
    """As a single ``datetime`` is: it may be local time or UTC (day_02)."""
    table = pa.table({"c": pa.array([value], wrapped(pa.timestamp(unit)))})
    for data in (table, table.to_batches()[0], pa.RecordBatchReader.from_batches(table.schema, table.to_batches())):
        with pytest.raises(SchemaMismatchError, match=r"'c' is of type"):
            normalize(data, one(wrapped(pa.timestamp("us", "UTC"))))
    assert normalize(table, one(wrapped(pa.timestamp("us"))))["c"].to_pylist() == [value]


def test_a_frame_without_a_zone_is_refused() -> None:
    frame = pd.DataFrame({"c": pd.to_datetime([LOCAL, None])})
    with pytest.raises(SchemaMismatchError, match=r"'c' is of type timestamp.*, for UTC in pandas by .dt.tz_localize"):
        normalize(frame, one(ZONED))
    assert (
        normalize(frame.assign(c=frame["c"].dt.tz_localize("UTC")), one(pa.timestamp("us", "UTC")))["c"][0].as_py()
        == DAY
    )
    assert normalize(frame.iloc[1:], one(ZONED))["c"].to_pylist() == [None]


@pytest.mark.parametrize(
    ("given", "target"),
    [
        ([dt.date(2024, 2, 29), LOCAL], pa.date32()),
        ([dt.date(2024, 2, 29), pd.Timestamp(LOCAL)], pa.date32()),
        ([dt.date(2024, 2, 29), 5.5], pa.date32()),
        ([dt.date(2024, 2, 29), np.int64(5)], pa.date32()),
        ([LOCAL, DAY], pa.timestamp("us")),
        ([LOCAL, DAY.astimezone(dt.timezone(dt.timedelta(hours=5)))], pa.timestamp("us")),
        ([DAY, 5.5], ZONED),
        ([5, 5.5], ZONED),
        ([1.5, True], pa.float64()),
        ([1, True], pa.float32()),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("rows", [list, lambda rows: pd.DataFrame(rows, dtype=object)], ids=["dicts", "frame"])
def test_a_value_of_another_kind_among_others_is_refused(
    rows: Any, given: list[Any], target: pa.DataType, nested: bool
) -> None:
    """Arrow takes the kind of the first one, and drops a zone, a time of day or a fraction of the others."""
    data = [{"c": given}] if nested else [{"c": value} for value in given]
    with pytest.raises(SchemaMismatchError, match="column 'c'"):
        normalize(rows(data), one(pa.list_(target) if nested else target))


def test_nan_among_times_is_null_in_pandas() -> None:
    frame = pd.DataFrame({"c": pd.Series([pd.Timestamp(LOCAL), np.nan, np.float32("nan"), None], dtype=object)})
    assert normalize(frame, one(pa.timestamp("us")))["c"].to_pylist() == [LOCAL, None, None, None]


def test_missing_times_of_pandas_are_null() -> None:
    frame = pd.DataFrame([{"c": pd.NaT}, {"c": DAY}], dtype=object)
    assert normalize(frame, one(ZONED))["c"].to_pylist() == [None, DAY.replace(microsecond=123_000)]


@pytest.mark.parametrize(
    ("given", "target"),
    [
        ([DAY, 1], pa.timestamp("us", "UTC")),
        ([dt.date(2024, 2, 29), 1], pa.date32()),
        ([dt.time(1), 1], pa.time64("us")),
    ],
)
def test_integer_among_dates_is_refused(given: list[Any], target: pa.DataType) -> None:
    for values in (given, given[1:]):
        with pytest.raises(SchemaMismatchError, match="column 'c'"):
            normalize([{"c": value} for value in values], one(target))


def test_records_as_dicts() -> None:
    rows = [{"key": b"k", "value": "text", "headers": [("h", b"1")], "timestamp": 5}, {"headers": [("h", None)]}]
    table = normalize(rows, None)
    assert table.schema == RECORD_SCHEMA
    assert table["value"].to_pylist() == [b"text", None]
    assert table["headers"].to_pylist() == [[{"key": "h", "value": b"1"}], [{"key": "h", "value": None}]]
    assert table["timestamp"].cast(pa.int64()).to_pylist() == [5, None]
    assert normalize(table.to_pylist(), None) == table


def test_pandas_index_is_dropped_and_nan_is_null() -> None:
    frame = pd.DataFrame({"id": [1, 2], "x": [1.0, float("nan")]}, index=["a", "b"])
    table = normalize(frame, pa.schema([("id", pa.int32()), ("x", pa.int64())]))
    assert table.to_pylist() == [{"id": 1, "x": 1}, {"id": 2, "x": None}]


def test_empty_dicts_keep_the_number_of_rows() -> None:
    assert normalize([{}, {}], one(pa.string())).to_pylist() == [{"c": None}, {"c": None}]
    with pytest.raises(SchemaMismatchError, match="'id'"):
        normalize([{}], SCHEMA)


def test_rows_of_an_older_schema_conform() -> None:
    old = pa.table({"id": pa.array([1], pa.int32()), "_offset": [7]})
    assert conform(old, SCHEMA).to_pylist() == [{"id": 1, "name": None}]
    assert conform(old, SCHEMA).schema == stored_schema(SCHEMA)
    assert conform(old, SCHEMA, ["name"]).to_pylist() == [{"name": None}]
    assert conform(old, SCHEMA, ["name", "id"]).column_names == ["name", "id"]
    # A column that became not-null for writers may be null in old rows.
    assert conform(pa.table({"name": ["x"]}), SCHEMA)["id"].to_pylist() == [None]


def test_conform_keeps_the_number_of_rows_without_columns() -> None:
    assert conform(TABLE, SCHEMA, []).shape == (2, 0)


def test_columns_exceeding_32_bit_offsets_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txnstore.values.casts._CHUNK_BYTES", 64)
    texts = [f"text number {number}" for number in range(50)]
    column = normalize(pa.table({"c": pa.array(texts, pa.large_string())}), one(pa.string()))["c"]
    assert column.num_chunks > 5
    assert column.to_pylist() == texts


@pytest.mark.parametrize("value", [Decimal("Infinity"), np.datetime64("2020-01-01")], ids=["infinity", "numpy-day"])
def test_a_value_that_arrow_cannot_take_is_a_mismatch(value: object) -> None:
    """Arrow raises a bare TypeError for these."""
    with pytest.raises(SchemaMismatchError, match="column 'c' does not fit"):
        normalize([{"c": value}], pa.schema([("c", pa.int64())]))


@pytest.mark.slow
@pytest.mark.parametrize("data", ['[{"id": 1}]', 'pa.RecordBatch.from_arrays([pa.nulls(1, pa.int64())], ["id"])'])
def test_pandas_is_imported_in_another_thread(data: str) -> None:
    """Arrow imports pandas when it converts Python values: an interrupt meanwhile would leave it half imported."""
    code = f"""
import sys, threading
import pyarrow as pa
from txnstore.segment.convert import normalize

class Watch:
    def find_spec(self, name, path=None, target=None):
        if name == "pandas":
            importers.append(threading.current_thread())

importers = []
sys.meta_path.insert(0, Watch())
normalize({data}, pa.schema([("id", pa.int64())]))
assert threading.main_thread() not in importers, importers
print(len(importers))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "1\n")


MIXED = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("n", pa.int32()), ("s", pa.string())])


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (pa.table({"n": ["x"], "s": [1.5]}), ["'id' is missing", "'n'", "'s'"]),
        ([{"id": None, "n": [], "s": {}}], ["'id' contains a null", "'n'", "'s'"]),
        (pd.DataFrame({"id": [1], "n": ["x"], "s": [b"y"]}), ["'n'", "'s'"]),
        ([{"id": 1, "x": 1, "y": 1}], ["no columns 'x', 'y'; it has id, n, s"]),
        (pa.Table.from_arrays([pa.array([1])] * 4, ["id", "n", "n", "id"]), ["duplicate columns 'id', 'n'"]),
    ],
    ids=["table", "rows", "pandas", "unknown", "twice"],
)
def test_all_columns_that_do_not_fit_are_named(data: object, says: list[str]) -> None:
    with pytest.raises(SchemaMismatchError) as raised:
        normalize(data, MIXED)
    assert [text for text in says if text not in str(raised.value)] == []
