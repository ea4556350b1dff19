"""The sums of records: what they do not depend on, and their definition in docs/internals/format-writing.md."""

from __future__ import annotations

import hashlib
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from txnstore.core.log.sums import ConservedSums, Sums, add_up
from txnstore.segment.codec import decode, encode
from txnstore.segment.schema import OFFSET_FIELD, TIMESTAMP_FIELD
from txnstore.segment.sums import row_hashes, sums_of

_MASK = (1 << 64) - 1

SCHEMA = pa.schema(
    [
        OFFSET_FIELD,
        TIMESTAMP_FIELD,
        ("flag", pa.bool_()),
        ("small", pa.int16()),
        ("ratio", pa.float32()),
        ("name", pa.string()),
        ("data", pa.binary()),
        ("day", pa.date32()),
        ("moment", pa.timestamp("us")),
        ("price", pa.decimal128(9, 2)),
        ("tags", pa.list_(pa.struct([("k", pa.string()), ("v", pa.int32())]))),
        ("labels", pa.map_(pa.string(), pa.int64())),
    ]
)


def _row(number: int) -> dict[str, Any]:
    """A record; some have nulls, empty values, and strings around the length of a word."""
    return {
        "_offset": number,
        "_timestamp": datetime.fromtimestamp(number, UTC),
        "flag": number % 2 == 0,
        "small": None if number % 5 == 0 else number - 7,
        "ratio": number / 4,
        "name": "n" * (number % 19),
        "data": None if number % 7 == 0 else bytes(range(number % 40)) + b"\0" * (number % 3),
        "day": date(2026, 1, 1 + number % 28),
        "moment": datetime(2026, 1, 1, microsecond=number, tzinfo=UTC).replace(tzinfo=None),
        "price": Decimal(number - 9) / 100,
        "tags": None if number % 3 == 0 else [{"k": f"t{at}", "v": at or None} for at in range(number % 4)],
        "labels": [(f"l{at}", number) for at in range(number % 3)],
    }


ROWS = [_row(number) for number in range(60)]
TABLE = pa.Table.from_pylist(ROWS, SCHEMA)


def _hash(table: pa.Table) -> list[int]:
    return [int(value) for value in row_hashes(table)[0]]


# The definition, record by record -------------------------------------------------------------------------------------


def _mix(word: int) -> int:
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    word = (word ^ word >> 27) * 0x94D049BB133111EB & _MASK
    return word ^ word >> 31


def _seed(name: str) -> int:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


def _fold(word: int) -> int:
    return word ^ word >> 32


def _factor(place: int) -> int:
    return _mix(place + 1) | 1


def _word(value: Any, kind: pa.DataType) -> int:
    if isinstance(value, (str, bytes)):
        data = value.encode() if isinstance(value, str) else value
        words = [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]
        return _mix((len(data) + sum(_fold(word) * _factor(at) for at, word in enumerate(words))) & _MASK)
    if isinstance(value, Decimal):
        data = int(value.scaleb(kind.scale)).to_bytes(16, "little", signed=True)
        words = [int.from_bytes(data[at : at + 8], "little") for at in (0, 8)]
        return sum(_fold(word) * _factor(at) for at, word in enumerate(words)) & _MASK
    if isinstance(value, float):
        (number,) = struct.unpack("<Q", struct.pack("<d", value))
        return int(number)
    return int(pa.scalar(value, kind).cast(pa.int64() if kind != pa.date32() else pa.int32()).as_py()) & _MASK


def _value(value: Any, kind: pa.DataType, seed: int) -> int:
    if value is None:
        return 0
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        inner = (
            kind.value_type
            if pa.types.is_list(kind)
            else pa.struct([("key", kind.key_type), ("value", kind.item_type)])
        )
        items = value if pa.types.is_list(kind) else [{"key": key, "value": item} for key, item in value]
        hashes = [_value(item, inner, _mix((seed + at) & _MASK)) for at, item in enumerate(items, 1)]
        return _mix((seed + len(items)) & _MASK) + sum(hashes)
    if pa.types.is_struct(kind):
        fields = [_value(value[item.name], item.type, _mix((seed + _seed(item.name)) & _MASK)) for item in kind]
        return _mix(seed) + sum(fields)
    return _fold((_word(value, kind) + seed) & _MASK) * (seed | 1)


def test_the_hash_of_a_record_is_as_defined() -> None:
    """Section 5.1 of docs/internals/format-writing.md, in plain Python."""
    expected = [
        _mix(sum(_value(row[field.name], field.type, _seed(field.name)) for field in SCHEMA) & _MASK) for row in ROWS
    ]
    assert _hash(TABLE) == expected


def _strings(lengths: list[int]) -> pa.Array:
    """Strings of these lengths, with bytes that are no text; every tenth is null."""
    rng = np.random.default_rng(7)
    return pa.array(
        [None if number % 10 == 9 else rng.bytes(length) for number, length in enumerate(lengths)], pa.binary()
    )


@pytest.mark.parametrize(
    "lengths",
    [
        [0] * 5,
        [400] * 3_000,
        [8 * (number % 3) for number in range(100)],
        [number % 500 for number in range(3_000)],
        [number % 30 for number in range(100)] + [70_000, 5_000, 5_001],
        [300_000, 0, 2_000_000],
    ],
    ids=["empty", "equal", "short", "even", "skewed", "long"],
)
@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
def test_the_hash_of_strings_of_any_length_is_as_defined(lengths: list[int], kind: pa.DataType) -> None:
    strings = _strings(lengths).cast(kind)
    expected = [_mix(_value(value, kind, _seed("s")) & _MASK) for value in strings.to_pylist()]
    assert _hash(pa.table({"s": strings})) == expected
    assert _hash(pa.table({"s": strings}).slice(1)) == expected[1:]


def test_the_sums_of_a_release_are_those_of_all_later_ones() -> None:
    assert str(sums_of(TABLE)) == "60 records of 6589 bytes (658eb2d0145557cb)"


# What the sums do not depend on ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fmt", "compression"), [("parquet", "zstd"), ("parquet", "none"), ("arrow", "lz4")])
def test_sums_do_not_depend_on_the_file(fmt: str, compression: str) -> None:
    encoded = encode(TABLE, fmt, compression, row_group_rows=11)
    assert sums_of(decode(encoded.data, fmt)) == sums_of(TABLE)


def test_sums_do_not_depend_on_chunks_and_order() -> None:
    parts = [TABLE.slice(0, 1), TABLE.slice(1, 30), TABLE.slice(31)]
    assert add_up(map(sums_of, parts)) == sums_of(pa.concat_tables(reversed(parts))) == sums_of(TABLE)
    assert sums_of(TABLE.select(TABLE.column_names[::-1])) == sums_of(TABLE)


def test_sums_do_not_depend_on_later_changes_of_the_schema() -> None:
    wider = TABLE.append_column("later", pa.nulls(len(ROWS), pa.string()))
    for name, kind in (("small", pa.int64()), ("ratio", pa.float64()), ("name", pa.large_string())):
        at = wider.column_names.index(name)
        wider = wider.set_column(at, name, wider.column(name).cast(kind))
    at = wider.column_names.index("price")
    wider = wider.set_column(at, "price", wider.column("price").cast(pa.decimal128(20, 2)))
    assert sums_of(wider) == sums_of(TABLE)


def test_reserved_columns_beside_offset_and_timestamp_do_not_count() -> None:
    more = TABLE.append_column("_topic", pa.array(["t"] * len(ROWS)))
    more = more.append_column("_timestamp_delete_horizon", pa.array([1] * len(ROWS)))
    assert sums_of(more) == sums_of(TABLE)


def test_no_record_has_no_sums() -> None:
    assert sums_of(TABLE.slice(0, 0)) == Sums()


def test_long_strings_are_hashed_as_short_ones() -> None:
    """Beyond 2 KiB a string is hashed by itself."""
    values = [b"abcdefgh" * 300, b"x", b"", bytes(2048), bytes(2057), None, b"abcdefgh" * 300 + b"i"]
    values += [b"\xff" * 3000, b"\xfe" * 4097]  # their sums wrap
    table = pa.table({"data": pa.array(values)})
    assert _hash(table) == [_mix(_value(value, pa.binary(), _seed("data")) & _MASK) for value in values]
    assert len(set(_hash(table))) == len(values)


def test_the_bytes_of_nulls_do_not_count() -> None:
    offsets, data = pa.py_buffer(np.array([0, 3, 6], np.int32)), pa.py_buffer(b"abcdef")
    hidden = pa.Array.from_buffers(pa.binary(), 2, [pa.py_buffer(b"\x01"), offsets, data])
    assert hidden.to_pylist() == [b"abc", None]
    assert sums_of(pa.table({"data": hidden})) == sums_of(pa.table({"data": pa.array([b"abc", None])}))


# What they depend on --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("_offset", 99),
        ("_timestamp", datetime(2026, 1, 1, tzinfo=UTC)),
        ("flag", None),
        ("name", "nn\0"),
        ("data", b""),
        ("tags", []),
        ("tags", [{"k": "t1", "v": 1}, {"k": "t0", "v": None}]),
        ("labels", [("l0", 3)]),
    ],
)
def test_each_change_of_a_record_changes_the_sums(name: str, value: object) -> None:
    rows = [*ROWS]
    rows[14] = {**rows[14], name: value}
    assert sums_of(pa.Table.from_pylist(rows, SCHEMA)).hash != sums_of(TABLE).hash


def test_values_that_change_places_change_the_sums() -> None:
    swapped = TABLE.rename_columns({"name": "data", "data": "name"})
    assert sums_of(swapped).hash != sums_of(TABLE).hash
    assert sums_of(TABLE.set_column(0, OFFSET_FIELD, TABLE.column(0)[::-1])).hash != sums_of(TABLE).hash


def test_the_order_of_headers_counts() -> None:
    kind = pa.list_(pa.string())
    one, other = (pa.table({"headers": pa.array([item], kind)}) for item in (["a", "b"], ["b", "a"]))
    assert sums_of(one).hash != sums_of(other).hash


def test_what_is_read_is_what_is_written_and_removed() -> None:
    parts = tuple(sums_of(TABLE.slice(at, 20)) for at in (0, 20, 40))
    assert ConservedSums(sums_of(TABLE), parts[0], parts[1:]).conserved
    assert not ConservedSums(sums_of(TABLE), Sums(), parts[1:]).conserved
