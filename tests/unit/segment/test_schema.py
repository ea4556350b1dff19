"""Columns of a topic: what is stored, what reads add, when a row happened."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from txnstore.errors import SchemaMismatchError
from txnstore.segment.schema import (
    HEADERS,
    RECORD_SCHEMA,
    TIMESTAMP,
    as_milliseconds,
    fill_timestamps,
    is_reserved,
    is_timestamp_type,
    records_to_table,
    stored_schema,
    timestamp_ranges,
    timestamps_of,
    tombstones,
)

NOW = 1_700_000_000_000


def ms(values: Any) -> list[int]:
    result: list[int] = values.cast(pa.int64()).to_pylist()
    return result


def test_the_record_schema_is_kafkas_record() -> None:
    assert RECORD_SCHEMA.names == ["key", "value", "headers", "timestamp"]
    assert RECORD_SCHEMA.types == [pa.binary(), pa.binary(), HEADERS, pa.timestamp("ms", "UTC")]
    assert all(field.nullable for field in RECORD_SCHEMA)


def test_stored_columns_are_nullable_without_metadata() -> None:
    given = pa.schema([pa.field("id", pa.int64(), nullable=False, metadata={"note": "x"})], metadata={"pandas": "{}"})
    assert stored_schema(given).equals(pa.schema([pa.field("id", pa.int64())]), check_metadata=True)
    assert stored_schema(None) is RECORD_SCHEMA


@pytest.mark.parametrize("name", ["_offset", "_Offset", "_offset_2", "_topic", "_partitions", "_TIMESTAMP"])
def test_reserved_names(name: str) -> None:
    assert is_reserved(name)


@pytest.mark.parametrize("name", ["offset", "_off", "topic", "__offset", "timestamp"])
def test_unreserved_names(name: str) -> None:
    assert not is_reserved(name)


def test_records_become_a_table() -> None:
    headers = [("a", b"1"), ("a", None)]
    table = records_to_table([(b"k", b"v", headers, 5), (None, None, None, None)], NOW)
    assert table.schema.equals(RECORD_SCHEMA)
    assert table["key"].to_pylist() == [b"k", None]
    assert table["value"].to_pylist() == [b"v", None]
    assert table["headers"].to_pylist() == [[{"key": "a", "value": b"1"}, {"key": "a", "value": None}], None]
    assert ms(table["timestamp"]) == [5, NOW]


def test_no_records_are_an_empty_table() -> None:
    assert records_to_table([], NOW).equals(RECORD_SCHEMA.empty_table())


@pytest.mark.parametrize(
    ("record", "part"),
    [
        ((1, b"v", None, None), "key"),
        ((b"k", 1.5, None, None), "value"),
        ((b"k", b"v", [("a", 1)], None), "headers"),
        ((b"k", b"v", None, "now"), "timestamp"),
        ((b"k", b"v", None, 2**64), "timestamp"),
    ],
)
def test_mismatch_error_names_the_part_of_the_record(record: Any, part: str) -> None:
    with pytest.raises(SchemaMismatchError, match=f"the {part} of a record"):
        records_to_table([(b"k", b"v", None, None), record], NOW)


def test_timestamps_come_from_the_column_and_nulls_from_the_append_time() -> None:
    table = pa.table({"at": pa.array([7, None], pa.int64()), "id": [1, 2]})
    assert ms(timestamps_of(table, "at", NOW)) == [7, NOW]
    assert timestamps_of(table, "at", NOW).type == TIMESTAMP
    assert timestamp_ranges(table, "at", NOW, [len(table)]) == [(7, NOW)]


def test_without_a_column_all_rows_have_the_append_time() -> None:
    table = pa.table({"id": [1, 2]})
    assert ms(timestamps_of(table, None, NOW)) == [NOW, NOW]
    assert timestamp_ranges(table, None, NOW, [len(table)]) == [(NOW, NOW)]
    # The column was added to the schema after this segment was written.
    assert ms(timestamps_of(table, "at", NOW)) == [NOW, NOW]


def test_stored_timestamp_takes_precedence() -> None:
    table = pa.table({"at": [7, 8], "_timestamp": pa.array([1, 2], TIMESTAMP)})
    assert ms(timestamps_of(table, "at", NOW)) == [1, 2]
    assert timestamp_ranges(table, None, NOW, [len(table)]) == [(1, 2)]


def test_the_range_of_no_rows_is_the_append_time() -> None:
    assert timestamp_ranges(RECORD_SCHEMA.empty_table(), "timestamp", NOW, [0]) == [(NOW, NOW)]


@pytest.mark.parametrize(
    ("data_type", "values", "expected"),
    [
        (pa.int64(), [-1, 0], [-1, 0]),
        (pa.timestamp("ms", "UTC"), [-1, 0], [-1, 0]),
        (pa.timestamp("ms"), [-1, 0], [-1, 0]),
        (pa.timestamp("us", "UTC"), [1_999, -1, -1_000], [1, -1, -1]),
        (pa.timestamp("us"), [1_999], [1]),
        (pa.timestamp("us", "Europe/Berlin"), [1_999], [1]),
    ],
)
def test_event_times_are_rounded_down_to_milliseconds(data_type: Any, values: list[int], expected: list[int]) -> None:
    array = pa.array([*values, None], pa.int64()).cast(data_type)
    assert is_timestamp_type(data_type)
    assert as_milliseconds(array, "at").type == TIMESTAMP
    assert ms(as_milliseconds(array, "at")) == [*expected, None]


@pytest.mark.parametrize("data_type", [pa.string(), pa.int32(), pa.date32(), pa.timestamp("ns")])
def test_other_types_are_no_timestamp(data_type: pa.DataType) -> None:
    assert not is_timestamp_type(data_type)
    with pytest.raises(SchemaMismatchError, match="'at'"):
        as_milliseconds(pa.array([None], data_type), "at")


@pytest.mark.parametrize("data_type", [pa.int64(), pa.timestamp("us"), pa.timestamp("us", "UTC"), TIMESTAMP])
def test_missing_event_times_are_filled(data_type: pa.DataType) -> None:
    table = pa.table({"id": [1, 2], "at": pa.array([7_000, None], data_type)})
    filled = fill_timestamps(table, "at", NOW)
    assert filled.schema == table.schema
    assert ms(as_milliseconds(filled["at"], "at"))[1] == NOW
    assert filled["at"][0] == table["at"][0]
    assert fill_timestamps(filled, "at", 1) is filled


def test_a_record_without_a_value_and_a_row_that_says_so_are_tombstones() -> None:
    """The rule is one, and by column: null in the value of records, true in a boolean one."""
    table = pa.table({"value": pa.array([b"x", None, b""], pa.binary()), "gone": [True, False, None]})
    assert tombstones(table, "value").to_pylist() == [False, True, False]
    assert tombstones(table, "gone").to_pylist() == [True, False, False]
    assert tombstones(table.slice(2), "gone").null_count == 0
