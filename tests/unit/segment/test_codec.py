"""A table survives its way through the bytes of a segment, and damaged bytes are refused by name."""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import random
import re
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txnstore.core.log.model import Segment
from txnstore.errors import CorruptionError, InvalidConfigError
from txnstore.segment.codec import (
    COMPRESSIONS,
    SegmentWriter,
    _own_rows,
    check_format,
    decode,
    decode_pieces,
    encode,
    encode_stream,
    verify_checksum,
)
from txnstore.segment.schema import HEADERS, RECORD_SCHEMA, records_to_table

FORMATS = sorted(COMPRESSIONS)
PAIRS = [(fmt, compression) for fmt in FORMATS for compression in COMPRESSIONS[fmt]]

#: One column of each type that a topic's schema may have, with a null in each.
ALL_TYPES = pa.table(
    {
        "b": pa.array([True, None, False]),
        "i8": pa.array([1, None, -128], pa.int8()),
        "i16": pa.array([1, None, -(2**15)], pa.int16()),
        "i32": pa.array([1, None, -(2**31)], pa.int32()),
        "i64": pa.array([1, None, -(2**63)], pa.int64()),
        "f": pa.array([0.5, None, float("inf")], pa.float32()),
        "d": pa.array([0.1, None, -0.0], pa.float64()),
        "s": pa.array(["ä", None, ""], pa.string()),
        "ls": pa.array(["ä", None, ""], pa.large_string()),
        "bin": pa.array([b"\xff", None, b""], pa.binary()),
        "lbin": pa.array([b"\xff", None, b""], pa.large_binary()),
        "fixed": pa.array([b"ab", None, b"cd"], pa.binary(2)),
        "day": pa.array([dt.date(1969, 1, 1), None, dt.date(2024, 2, 29)], pa.date32()),
        "ms": pa.array([-1, None, 2**40], pa.timestamp("ms", "UTC")),
        "us": pa.array([-1, None, 2**50], pa.timestamp("us", "UTC")),
        "local": pa.array([-1, None, 2**50], pa.timestamp("us")),
        "dec": pa.array([Decimal("1.50"), None, Decimal("-99999999.99")], pa.decimal128(10, 2)),
        "list": pa.array([[1, None], None, []], pa.list_(pa.int64())),
        "struct": pa.array([{"x": 1, "y": "a"}, None, {}], pa.struct([("x", pa.int32()), ("y", pa.string())])),
        "map": pa.array([[("a", 1)], None, []], pa.map_(pa.string(), pa.int64())),
        "a.b": pa.array([1, None, 2]),
    },
)


def numbers(rows: int) -> pa.Table:
    return pa.table({"n": pa.array(range(rows), pa.int64()), "text": [f"row {n}" for n in range(rows)]})


@pytest.mark.parametrize(("fmt", "compression"), PAIRS)
def test_every_type_round_trips(fmt: str, compression: str) -> None:
    encoded = encode(ALL_TYPES, fmt, compression)
    table = decode(encoded.data, fmt)
    assert table.schema == ALL_TYPES.schema
    assert table.equals(ALL_TYPES)


@pytest.mark.parametrize("fmt", FORMATS)
def test_records_round_trip(fmt: str) -> None:
    table = records_to_table([(b"k", b"v", [("h", b"1"), ("h", None)], 5), (None, None, None, None)], 7)
    assert decode(encode(table, fmt).data, fmt).equals(table)
    assert decode(encode(table, fmt).data, fmt).schema == RECORD_SCHEMA


@pytest.mark.parametrize("fmt", FORMATS)
def test_encoded_segment_describes_its_bytes(fmt: str) -> None:
    encoded = encode(numbers(10), fmt)
    sha256 = hashlib.sha256(encoded.data).hexdigest()
    assert (encoded.rows, encoded.size, encoded.sha256) == (10, len(encoded.data), sha256)
    assert encoded.segment("a/b", explicit_offsets=True) == Segment("a/b", fmt, encoded.size, sha256, 10, True)
    assert "data" not in repr(encoded)


@pytest.mark.slow
@pytest.mark.parametrize("fmt", FORMATS)
@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 40), st.integers(0, 40))
def test_decode_of_any_row_range(fmt: str, total: int, group: int, a: int, b: int) -> None:
    table = numbers(total)
    start, limit = (min(bound, total) for bound in sorted((a, b)))
    encoded = encode(table, fmt, row_group_rows=group)
    assert decode(encoded.data, fmt, first_row=start, rows=limit - start).equals(table.slice(start, limit - start))
    assert decode(encoded.data, fmt, first_row=start).equals(table.slice(start))


@pytest.mark.parametrize("fmt", FORMATS)
def test_columns_in_the_order_asked_for_and_only_those_that_exist(fmt: str) -> None:
    data = encode(ALL_TYPES, fmt).data
    assert decode(data, fmt, ["s", "younger", "i8"]).equals(ALL_TYPES.select(["s", "i8"]))
    assert decode(data, fmt, ["a.b", "list"]).equals(ALL_TYPES.select(["a.b", "list"]))
    assert decode(data, fmt, []).shape == (3, 0)
    assert decode(data, fmt, ["younger"], 1, 2).shape == (2, 0)


@pytest.mark.parametrize("fmt", FORMATS)
def test_pieces_are_row_groups_and_only_the_wanted_ones(fmt: str) -> None:
    data = encode(numbers(10), fmt, row_group_rows=4).data
    pieces = [piece["n"].to_pylist() for piece in decode_pieces(data, fmt, first_row=3, rows=3)]
    assert pieces == [[3], [4, 5]]


@pytest.mark.parametrize("fmt", FORMATS)
def test_segment_without_rows(fmt: str) -> None:
    empty = ALL_TYPES.schema.empty_table()
    encoded = encode(empty, fmt)
    assert encoded.rows == 0
    assert decode(encoded.data, fmt).equals(empty)
    assert decode(encoded.data, fmt, ["s"]).schema.names == ["s"]
    assert decode(encode(numbers(3), fmt).data, fmt, first_row=3).equals(numbers(3).slice(3))


@pytest.mark.parametrize("fmt", FORMATS)
def test_a_segment_with_too_few_rows_is_damaged(fmt: str) -> None:
    data = encode(numbers(10), fmt).data
    with pytest.raises(CorruptionError, match=r"topics/t/0/x has 10 rows; expected at least 11"):
        decode(data, fmt, first_row=5, rows=6, key="topics/t/0/x")


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("damage", ["empty", "half", "tail", "head", "noise", "footer"])
def test_damaged_bytes_name_the_object(fmt: str, damage: str) -> None:
    data = encode(numbers(1000), fmt).data
    size = len(data)
    damaged = {
        "empty": b"",
        "half": data[: size // 2],
        "tail": data[:-1],
        "head": data[1:],
        "noise": random.Random(1).randbytes(size),
        "footer": data[:-40] + b"\xff" * 30 + data[-10:],
    }[damage]
    with pytest.raises(CorruptionError, match=rf"topics/t/0/x cannot be read as {fmt}"):
        decode(damaged, fmt, key="topics/t/0/x")


@pytest.mark.parametrize("fmt", FORMATS)
def test_writer_and_encode_give_equal_segments(fmt: str) -> None:
    table = numbers(1000)
    with SegmentWriter(table.schema, fmt, row_group_rows=64) as writer:
        for start in range(0, 1000, 30):
            writer.append(table.slice(start, 30))
        written = writer.finish()
    assert written.rows == 1000
    assert decode(written.data, fmt).equals(table)
    assert [piece.num_rows for piece in decode_pieces(written.data, fmt)] == [64] * 15 + [40]


@pytest.mark.parametrize("fmt", FORMATS)
def test_writer_accepts_batches_and_reports_its_size(fmt: str) -> None:
    [batch] = numbers(1000).to_batches()
    with SegmentWriter(batch.schema, fmt, row_group_rows=100) as writer:
        assert writer.size == 0
        writer.append(batch)
        grown = writer.size
        assert grown > 1000
        writer.append(batch)
        assert writer.size > grown
        assert writer.rows == 2000
        assert writer.finish().size >= writer.size


def test_writer_buffers_at_most_one_row_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txnstore.segment.codec.ROW_GROUP_BYTES", 10_000)
    wide = pa.table({"value": pa.array([b"x" * 1000] * 5, pa.binary())})
    with SegmentWriter(wide.schema) as writer:
        for _ in range(20):
            writer.append(wide)
            assert writer._pending_bytes <= 20_000
        data = writer.finish().data
    assert decode(data, "parquet").equals(pa.concat_tables([wide] * 20))
    groups = pq.ParquetFile(pa.BufferReader(data)).metadata
    assert max(groups.row_group(number).num_rows for number in range(groups.num_row_groups)) <= 10


def test_unfinished_writer_discards_the_segment() -> None:
    with SegmentWriter(numbers(1).schema) as writer:
        writer.append(numbers(1))
    with pytest.raises(ValueError, match="closed"):
        writer.finish()


def column_of(data: bytes, name: str) -> Any:
    metadata = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0)
    [column] = [
        metadata.column(number)
        for number in range(metadata.num_columns)
        if metadata.column(number).path_in_schema == name
    ]
    return column


def test_a_segment_for_tables_has_no_statistics_of_milliseconds() -> None:
    """Iceberg's Java library takes them for microseconds, and leaves out the row group."""
    moments = range(10)
    table = pa.table(
        {"ms": pa.array(moments, pa.timestamp("ms", "UTC")), "us": pa.array(moments, pa.timestamp("us", "UTC"))}
    )
    for for_table in (False, True):
        with SegmentWriter(table.schema, for_table=for_table) as writer:
            writer.append(table)
            data = writer.finish().data
        assert (column_of(data, "ms").statistics is None) == for_table
        assert column_of(data, "us").statistics.has_min_max


def test_parquet_encodings_follow_the_values() -> None:
    rows = 5000
    table = pa.table(
        {
            "_offset": pa.array(range(0, 3 * rows, 3), pa.int64()),
            "at": pa.array(range(rows), pa.timestamp("ms", "UTC")),
            "country": [("de", "fr", "us")[n % 3] for n in range(rows)],
            "unique": [f"id-{n}" for n in range(rows)],
            "payload": pa.array([b"x" * 100] * rows, pa.binary()),
        },
    )
    data = encode(table).data
    assert "DELTA_BINARY_PACKED" in column_of(data, "_offset").encodings
    assert column_of(data, "_offset").total_compressed_size < 500
    assert "DELTA_BINARY_PACKED" in column_of(data, "at").encodings
    assert "RLE_DICTIONARY" in column_of(data, "country").encodings
    assert "RLE_DICTIONARY" not in column_of(data, "unique").encodings
    assert "RLE_DICTIONARY" not in column_of(data, "payload").encodings
    assert column_of(data, "_offset").statistics.max == 3 * rows - 3
    assert column_of(data, "country").statistics.min == "de"
    assert column_of(data, "unique").statistics is None
    assert column_of(data, "payload").statistics is None
    assert column_of(data, "_offset").compression == "ZSTD"
    # Statistics and dictionaries never cost a small batch anything it does not use.
    assert "RLE_DICTIONARY" not in column_of(encode(table.slice(0, 100)).data, "country").encodings


def test_statistics_are_written_only_where_every_engine_is_right() -> None:
    """NaN is in no statistics, and DuckDB 2.0.0 takes text with nulls for constant: engines lost rows of both."""
    rows = 2000
    table = pa.table(
        {
            "f": pa.array([1.0, math.nan] * (rows // 2), pa.float32()),
            "d": [1.0, math.nan] * (rows // 2),
            "text": ["a", None] + [str(row) for row in range(rows - 2)],
            "bytes": pa.array([b"a", None] + [b"%d" % row for row in range(rows - 2)], pa.large_binary()),
            "fixed": pa.array([b"ab", None] * (rows // 2), pa.binary(2)),
            "day": pa.array([0, None] * (rows // 2), pa.date32()),
            "flag": [True, None] * (rows // 2),
            "amount": pa.array([Decimal("1.50"), None] * (rows // 2), pa.decimal128(38, 2)),
            "s": [{"x": math.nan, "n": 1}] * rows,
            "l": [[math.nan]] * rows,
            "s.x": range(rows),  # The path of a part of another column, which must not get its options.
        }
    )
    columns = pq.read_metadata(pa.BufferReader(encode(table).data)).row_group(0)
    described = [columns.column(number) for number in range(columns.num_columns)]
    assert {each.path_in_schema for each in described if each.statistics is not None} == {"day", "flag", "amount"}
    assert not any(each.has_column_index or each.has_offset_index or each.bloom_filter_offset for each in described)


@pytest.mark.parametrize("compression", ["zstd", "lz4", "snappy", "gzip"])
def test_a_small_segment_compresses_only_columns_with_many_bytes(compression: str) -> None:
    rows = 63
    flat = pa.table({"n": range(rows), "a.b": pa.array(range(rows), pa.int32()), "long": [b"x" * 5] * rows})
    assert [column.nbytes for column in flat.columns] == [504, 252, 567]
    data = encode(flat, "parquet", compression).data
    used = {name: column_of(data, name).compression.lower() for name in flat.column_names}
    assert used == {"n": "uncompressed", "a.b": "uncompressed", "long": compression}
    assert decode(data, "parquet").equals(flat)
    nested = pa.table({"n": range(rows), "list": [["x" * 100]] * rows})
    data = encode(nested, "parquet", compression).data
    assert column_of(data, "list.list.element").compression.lower() == compression
    assert decode(data, "parquet").equals(nested)


@pytest.mark.parametrize(("columns", "used"), [(8, "UNCOMPRESSED"), (9, "ZSTD")])
def test_many_short_columns_are_compressed(columns: int, used: str) -> None:
    """Together they are as many bytes as one long column."""
    table = pa.table({f"c{number}": pa.array(range(63), pa.int64()) for number in range(columns)})
    data = encode(table).data
    assert {column_of(data, name).compression for name in table.column_names} == {used}
    assert decode(data, "parquet").equals(table)


def test_a_column_may_have_the_path_of_a_nested_one() -> None:
    """The options of a Parquet file name columns by path, and here two columns have the same."""
    table = pa.table({"a.b": [1, 2], "a": [{"b": "x"}, {"b": "y"}], "n": [3, 4]})
    assert decode(encode(table).data, "parquet").equals(table)


def test_all_columns_of_a_large_segment_are_compressed() -> None:
    """Its first row group does not tell how large its columns will be."""
    table = pa.table({"null": pa.nulls(20, pa.binary()), "long": [b"x" * 100] * 20})
    with SegmentWriter(table.schema, row_group_rows=10) as writer:
        writer.append(table)
        data = writer.finish().data
    assert {column_of(data, name).compression for name in table.column_names} == {"ZSTD"}


def test_duckdb_reads_parquet_segments(tmp_path: Any) -> None:
    path = tmp_path / "segment.parquet"
    path.write_bytes(encode(ALL_TYPES).data)
    with duckdb.connect() as con:
        rows = con.sql(f"select i8, i64, s, dec, list, struct from read_parquet('{path}')").fetchall()
    assert rows[0] == (1, 1, "ä", Decimal("1.50"), [1, None], {"x": 1, "y": "a"})
    assert rows[1] == (None,) * 6


@pytest.mark.parametrize(
    ("fmt", "compression", "says"),
    [
        ("orc", "zstd", "segment.format 'orc'"),
        ("arrow", "gzip", "compression.type 'gzip' does not go with arrow"),
        ("arrow", "snappy", "compression.type 'snappy'"),
        ("parquet", "brotli", "compression.type 'brotli'"),
    ],
)
def test_unknown_formats_are_refused(fmt: str, compression: str, says: str) -> None:
    with pytest.raises(InvalidConfigError, match=says):
        check_format(fmt, compression)
    with pytest.raises(InvalidConfigError, match=says):
        encode(numbers(1), fmt, compression)


def test_verify_checksum_reports_differences() -> None:
    encoded = encode(numbers(10))
    data, sha256, size = encoded.data, encoded.sha256, encoded.size
    verify_checksum("x/y", data, sha256, size)
    with pytest.raises(CorruptionError, match=r"x/y is truncated: it has .* bytes; expected"):
        verify_checksum("x/y", data[:-1], sha256, size)
    with pytest.raises(CorruptionError, match="x/y is too long: it has"):
        verify_checksum("x/y", data + b"0", sha256, size)
    with pytest.raises(CorruptionError, match=f"x/y was altered: .*expected {sha256}"):
        verify_checksum("x/y", bytes([data[0] ^ 1]) + data[1:], sha256, size)


def test_a_slice_of_a_large_table_is_a_small_segment() -> None:
    rows = 100_000
    table = pa.table([pa.nulls(rows, field.type) for field in RECORD_SCHEMA], schema=RECORD_SCHEMA)
    for fmt in FORMATS:
        part = table.slice(5, 10)
        encoded = encode(part, fmt, "none")
        assert encoded.size < 5_000
        assert decode(encoded.data, fmt).equals(part)


@pytest.mark.parametrize("rows", [1, 9, 39])
@pytest.mark.parametrize("first", [0, 20])
def test_arrow_data_has_nothing_outside_of_a_slice(first: int, rows: int) -> None:
    """The rows beside it may be those of another topic, of another user."""
    marks = [f"mark-{row:02}" for row in range(60)]
    headers = [[{"key": mark, "value": mark.encode()}] if row % 3 else None for row, mark in enumerate(marks)]
    table = pa.table(
        {
            "text": marks,
            "large": pa.array(marks, pa.large_string()),
            "sparse": [mark if row % 2 else None for row, mark in enumerate(marks)],
            "fixed": pa.array([mark.encode() for mark in marks], pa.binary(7)),
            "headers": pa.array(headers, HEADERS),
            "once": pa.array([None] * 59 + [[{"key": marks[59], "value": b""}]], HEADERS),
            "map": pa.array([[(mark, mark)] for mark in marks], pa.map_(pa.string(), pa.string())),
            "struct": [{"inner": {"text": mark}, "list": [mark]} for mark in marks],
            "pair": pa.array([[mark, mark] for mark in marks], pa.list_(pa.string(), 2)),
        }
    )
    part = table.slice(first, rows)
    own = {mark.encode() for mark in marks[first : first + rows]}
    for encoded, name in ((encode_stream(part), "arrow_stream"), (encode(part, "arrow", "none"), "arrow")):
        assert decode(encoded.data, name).equals(part)
        assert set(re.findall(rb"mark-\d\d", encoded.data)) == own


@pytest.mark.parametrize("first", [0, 3])
def test_arrow_data_does_not_depend_on_rows_outside_of_a_slice(first: int) -> None:
    """Sizes of buffers do not show them: bits in the last byte of booleans, and a buffer that two fields share."""
    both_encoded = []
    for other in (False, True):
        flags, texts = [other] * 8, [f"mark-{int(other)}"] * 8
        flags[first : first + 4], texts[first : first + 4] = [True, False, True, False], ["mine-0"] * 4
        twice = [pa.array(texts)] * 4
        pairs = pa.StructArray.from_arrays(twice, [*"abcd"])
        lists = pa.ListArray.from_arrays(pa.array(range(9), pa.int32()), pairs)
        nothing = pa.StructArray.from_arrays(twice, [*"abcd"], mask=pa.array([True] * 8))
        columns = {"flags": pa.array(flags), "pairs": pairs, "lists": lists, "nothing": nothing}
        part = pa.table(columns).slice(first, 4)
        encoded = encode_stream(part)
        assert decode(encoded.data, "arrow_stream").equals(part)
        both_encoded.append((encoded.data, encode(part, "arrow", "none").data))
    assert both_encoded[0] == both_encoded[1]


def test_a_record_alone_is_encoded_without_a_copy() -> None:
    table = records_to_table([(b"key", b"value", None, 1)], 0)
    assert [_addresses(column) for column in _own_rows(table).columns] == [_addresses(c) for c in table.columns]


def _addresses(column: pa.ChunkedArray) -> list[int]:
    return [buffer.address for buffer in column.chunk(0).buffers() if buffer]


@pytest.mark.parametrize("fmt", FORMATS)
def test_rows_of_another_schema_are_refused(fmt: str) -> None:
    table = numbers(100)
    with SegmentWriter(table.schema, fmt, row_group_rows=10) as writer:
        writer.append(table)
        with pytest.raises(ValueError, match="the segment has n: int64"):
            writer.append(pa.table({"other": [1]}))
        assert decode(writer.finish().data, fmt).equals(table)
