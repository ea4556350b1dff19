"""The vectorised partitioner equals the scalar one, and a table is split without losing or moving a row."""

from __future__ import annotations

import math
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.arrow_values import TYPES
from txnstore.core.partitioner import partition_for_key
from txnstore.errors import SchemaMismatchError
from txnstore.segment.partition import (
    is_key_type,
    key_bytes,
    key_from_bytes,
    partition_array,
    split_by_partition,
)

#: So many partitions that the number of one is the hash itself, but for its sign.
ALL_BITS = 2**31 - 1
KEYS = st.lists(st.none() | st.binary(max_size=40), max_size=60)


def expected(keys: list[bytes | None], partitions: int) -> list[int]:
    return [-1 if key is None else partition_for_key(key, partitions) for key in keys]


@pytest.mark.slow
@settings(deadline=None)
@given(KEYS, st.integers(1, 100), st.sampled_from([pa.binary(), pa.large_binary()]))
def test_partitions_equal_the_scalar_partitioner(keys: list[bytes | None], n: int, data_type: pa.DataType) -> None:
    chosen = partition_array(pa.array(keys, data_type), n)
    assert chosen.dtype == np.int32
    assert chosen.tolist() == expected(keys, n)


@settings(deadline=None)
@given(st.lists(st.binary(min_size=7, max_size=7), max_size=40))
def test_hashes_of_equally_long_keys(keys: list[bytes]) -> None:
    assert partition_array(pa.array(keys, pa.binary()), ALL_BITS).tolist() == expected([*keys], ALL_BITS)


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(st.text(max_size=20), max_size=40), st.sampled_from([pa.string(), pa.large_string(), pa.string_view()]))
def test_strings_are_hashed_as_utf8(keys: list[str], data_type: pa.DataType) -> None:
    chosen = partition_array(pa.array(keys, data_type), ALL_BITS)
    assert chosen.tolist() == expected([key.encode() for key in keys], ALL_BITS)


@settings(deadline=None)
@given(KEYS, st.integers(0, 60), st.integers(0, 60))
def test_keys_in_slices_and_chunks(keys: list[bytes | None], a: int, b: int) -> None:
    start, limit = sorted((a, b))
    array = pa.array(keys, pa.binary())
    assert partition_array(array[start:limit], 9).tolist() == expected(keys[start:limit], 9)
    chunks = pa.chunked_array([array[:start], array[start:]], pa.binary())
    assert partition_array(chunks, 9).tolist() == expected(keys, 9)


def test_more_keys_than_a_block_and_a_few_very_long_ones() -> None:
    keys: list[bytes | None] = [str(i).encode() * (i % 5) for i in range(70_000)]
    keys[10], keys[50_000], keys[69_999] = b"x" * 100_003, None, b"y" * 5_000
    assert partition_array(pa.array(keys, pa.binary()), 13).tolist() == expected(keys, 13)


def test_partition_of_no_keys() -> None:
    assert partition_array(pa.array([], pa.binary()), 3).tolist() == []
    assert partition_array(pa.chunked_array([], pa.string()), 3).tolist() == []
    assert partition_array(pa.array([None, None], pa.binary()), 3).tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("data_type", "layout", "values"),
    [
        (pa.int16(), ">h", [0, 1, -1, 2**15 - 1]),
        (pa.int32(), ">i", [0, 1, -1, 2**31 - 1]),
        (pa.int64(), ">q", [0, 1, -1, -(2**63)]),
        (pa.float32(), ">f", [0.0, -0.5, 1.5]),
        (pa.float64(), ">d", [0.0, -0.1, 1e300]),
    ],
)
def test_numbers_are_big_endian_as_in_kafkas_serializers(data_type: Any, layout: str, values: list[Any]) -> None:
    array = pa.array([7, None, *values], data_type)[1:]
    packed = [None, *(struct.pack(layout, value) for value in values)]
    assert key_bytes(array).to_pylist() == packed
    assert key_bytes(array).type == pa.binary()
    assert partition_array(array, 11).tolist() == expected(packed, 11)


def test_keys_of_fixed_size_and_dictionaries() -> None:
    assert key_bytes(pa.array([b"ab", None], pa.binary(2))).to_pylist() == [b"ab", None]
    assert key_bytes(pa.array(["x", "y", "x"]).dictionary_encode()).to_pylist() == [b"x", b"y", b"x"]


_KEY_TYPES = [(kind, values) for kind, values in TYPES if is_key_type(kind)]


@pytest.mark.parametrize(("data_type", "values"), _KEY_TYPES, ids=[str(kind) for kind, _ in _KEY_TYPES])
def test_keys_are_decoded_as_by_kafkas_deserializers(data_type: pa.DataType, values: st.SearchStrategy[Any]) -> None:
    @settings(deadline=None, max_examples=50)
    @given(values)
    def check(value: Any) -> None:
        encoded = key_bytes(pa.array([value], data_type))
        decoded = key_from_bytes(encoded[0].as_py(), data_type)
        assert key_bytes(pa.array([decoded], data_type)) == encoded
        assert [decoded] == [value] or math.isnan(value)

    check()


@pytest.mark.parametrize(
    ("data_type", "data", "says"),
    [
        (pa.int16(), b"\0", "it has 1 bytes, and int16 has 2"),
        (pa.int64(), b"5", "it has 1 bytes, and int64 has 8"),
        (pa.float64(), b"", "it has 0 bytes, and double has 8"),
        (pa.binary(3), b"abcd", "it has 4 bytes, and fixed_size_binary"),
        (pa.string(), b"\xff", "can't decode byte 0xff"),
        (pa.large_string(), b"a\xff", "can't decode byte 0xff"),
    ],
)
def test_bytes_that_are_no_key_of_a_column_are_refused(data_type: pa.DataType, data: bytes, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        key_from_bytes(data, data_type)


@pytest.mark.parametrize("data_type", [pa.bool_(), pa.uint64(), pa.date32(), pa.list_(pa.int64())])
def test_other_types_cannot_be_keys(data_type: pa.DataType) -> None:
    assert not is_key_type(data_type)
    with pytest.raises(SchemaMismatchError, match="'customer'"):
        key_bytes(pa.array([None], data_type), "customer")
    with pytest.raises(SchemaMismatchError, match="'customer'"):
        key_bytes(pa.chunked_array([], data_type), "customer")


@settings(deadline=None)
@given(st.lists(st.integers(0, 6), max_size=80), st.integers(0, 80))
def test_split_keeps_every_row_in_order(numbers: list[int], cut: int) -> None:
    rows = pa.table({"row": pa.array(range(len(numbers)), pa.int64()), "text": [str(n) for n in range(len(numbers))]})
    table = pa.concat_tables([rows.slice(0, cut), rows.slice(cut)]) if cut < len(numbers) else rows
    parts = split_by_partition(table, np.array(numbers, np.int32), 7)
    assert [number for number, _ in parts] == sorted(set(numbers))
    for number, part in parts:
        assert part["row"].to_pylist() == [row for row, chosen in enumerate(numbers) if chosen == number]
        assert part["text"].to_pylist() == [str(row) for row in part["row"].to_pylist()]
        assert part.schema == table.schema


def test_split_works_on_runs_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("txnstore.segment.partition._SPLIT_BYTES", 800)
    table = pa.table({"row": pa.array(range(1000), pa.int64())})
    numbers = np.arange(1000, dtype=np.int32) % 3
    parts = dict(split_by_partition(table, numbers, 3))
    assert parts[1].column("row").num_chunks > 1
    assert [parts[n]["row"].to_pylist() for n in range(3)] == [list(range(n, 1000, 3)) for n in range(3)]


def test_split_into_one_partition_copies_nothing() -> None:
    table = pa.table({"row": [1, 2, 3]})
    [(number, part)] = split_by_partition(table, np.array([4, 4, 4]), 5)
    assert (number, part) == (4, table)


@pytest.mark.parametrize("numbers", [[0, -1], [0, 5], [0]])
def test_split_refuses_invalid_partitions(numbers: list[int]) -> None:
    with pytest.raises(ValueError, match="partitions"):
        split_by_partition(pa.table({"row": [1, 2]}), np.array(numbers), 5)
