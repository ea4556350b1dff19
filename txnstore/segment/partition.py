"""Partitioning of Arrow columns: Kafka's murmur2 over arrays, and splitting of tables by partition.

The hash is that of :mod:`txnstore.core.partitioner`, vectorized: numpy iterates over the *words* of the keys, and
processes all keys of a block in each step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnstore.core.partitioner import MULTIPLIER, SEED, murmur2
from txnstore.errors import SchemaMismatchError

#: Keys per block: the intermediate words of one block fit in the processor's cache.
_BLOCK = 1 << 15
#: At most this many of the longest keys of a block are hashed one by one.
_LONG_KEYS = 16
#: Bytes of a table that are split at a time, so that no binary column exceeds 32-bit offsets.
_SPLIT_BYTES = 256 << 20

_Words = npt.NDArray[np.uint32]
_Bytes = npt.NDArray[np.uint8]
_Int64 = npt.NDArray[np.int64]
_Int32 = npt.NDArray[np.int32]

_MULTIPLIER = np.uint32(MULTIPLIER)

#: The numbers that Kafka's serializers accept, as Arrow types: Short, Integer, Long, Float, Double.
_NUMBERS = {
    pa.int16(): ">i2",
    pa.int32(): ">i4",
    pa.int64(): ">i8",
    pa.float32(): ">f4",
    pa.float64(): ">f8",
}


def is_key_type(data_type: pa.DataType) -> bool:
    """Whether a column of this type can be the key, so that :func:`key_bytes` supports it."""
    return data_type in _NUMBERS or pa.types.is_fixed_size_binary(data_type) or _is_bytes(data_type)


def key_bytes(array: Any, column: str = "key") -> Any:
    """Encode keys as Kafka's serializers: strings as UTF-8, numbers big-endian, binary unchanged.

    Every NaN is one key, the canonical one, as ``Double.doubleToLongBits`` of ``DoubleSerializer`` makes it; that of
    0.0 / 0.0 has other bits. ``FloatSerializer`` keeps the bits of a float. -0.0 and 0.0 are two keys, as in Kafka:
    whatever compares keys here compares these bytes.

    Source: Kafka's ``StringSerializer``, ``ShortSerializer``, ``IntegerSerializer``, ``LongSerializer``,
    ``FloatSerializer``, ``DoubleSerializer``.

    Args:
        array: A (chunked) array of keys.
        column: The name of the column, for the message.

    Returns:
        A binary (chunked) array; null where the key is null.

    Raises:
        SchemaMismatchError: The type cannot be a key.
    """
    if isinstance(array, pa.ChunkedArray):
        if not array.chunks:
            key_bytes(pa.array([], array.type), column)
            return pa.chunked_array([], pa.binary())
        return pa.chunked_array([key_bytes(chunk, column) for chunk in array.chunks])
    if pa.types.is_dictionary(array.type):
        return key_bytes(array.cast(array.type.value_type), column)
    if pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type):
        return array
    if pa.types.is_large_string(array.type):
        return array.cast(pa.large_binary())
    if pa.types.is_fixed_size_binary(array.type) or _is_bytes(array.type):
        return array.cast(pa.binary())
    if array.type in _NUMBERS:
        return _big_endian(array, _NUMBERS[array.type])
    raise SchemaMismatchError(
        f"column {column!r} is of type {array.type}, which cannot be a key; a key is a string, binary, int16, int32, "
        "int64, float or double",
    )


def key_from_bytes(data: bytes, data_type: pa.DataType) -> str | bytes | int | float:
    """Decode a key, as Kafka's deserializers do; the inverse of :func:`key_bytes`.

    Args:
        data: The bytes of the key.
        data_type: The type of the key column.

    Raises:
        ValueError: They are no value of this type; the message says why.
    """
    if (number := _NUMBERS.get(data_type)) is not None:
        width = np.dtype(number).itemsize
        if len(data) != width:
            raise ValueError(f"it has {len(data)} bytes, and {data_type} has {width}")
        value: int | float = np.frombuffer(data, number)[0].item()
        return value
    if pa.types.is_fixed_size_binary(data_type) and len(data) != data_type.byte_width:
        raise ValueError(f"it has {len(data)} bytes, and {data_type} has {data_type.byte_width}")
    if pa.types.is_string(data_type) or pa.types.is_large_string(data_type):
        return data.decode()
    return data


def partition_array(keys: Any, partitions: int) -> _Int32:
    """Return the partition of each key as Kafka's Java client chooses it; -1 where the key is null.

    Args:
        keys: A (chunked) array of any type that :func:`key_bytes` supports.
        partitions: The number of partitions.
    """
    hashes = [_murmur2_chunk(chunk) for chunk in _chunks_of(key_bytes(keys))]
    positive = np.concatenate([h & np.uint32(0x7FFFFFFF) for h in hashes]) if hashes else np.empty(0, np.uint32)
    chosen_partitions = (positive % np.uint32(partitions)).astype(np.int32)
    if keys.null_count:
        valid = keys.is_valid()
        flat = valid.combine_chunks() if isinstance(valid, pa.ChunkedArray) else valid
        chosen_partitions[~flat.to_numpy(zero_copy_only=False)] = -1
    return chosen_partitions


def split_by_partition(table: pa.Table, partitions: npt.NDArray[np.integer[Any]], n: int) -> list[tuple[int, pa.Table]]:
    """Split the table into one table per partition; the rows of a partition keep their order.

    Copies the table once, about 256 MB at a time.

    Args:
        table: The rows.
        partitions: The partition of each row, in ``[0, n)``.
        n: The number of partitions.

    Returns:
        Pairs of partition and table, in ascending order; only partitions with rows.
    """
    if len(partitions) != table.num_rows:
        raise ValueError(f"{len(partitions)} partitions for {table.num_rows} rows")
    if table.num_rows == 0:
        return []
    low, high = int(partitions.min()), int(partitions.max())
    if low < 0 or high >= n:
        raise ValueError(f"partitions from {low} to {high}, but the topic has {n}")
    if low == high:
        return [(low, table)]
    pieces: dict[int, list[pa.Table]] = {}
    for start, part in _iterate_slices(table):
        numbers = partitions[start : start + part.num_rows].astype(np.min_scalar_type(n - 1))
        order = np.argsort(numbers, kind="stable")  # numpy uses a radix sort for 8-bit and 16-bit numbers.
        counts = np.bincount(numbers, minlength=n)
        sorted_rows = part.take(pa.array(order))
        limits = np.cumsum(counts)
        for number in np.flatnonzero(counts):
            rows = int(counts[number])
            pieces.setdefault(int(number), []).append(sorted_rows.slice(int(limits[number]) - rows, rows))
    return [(number, pa.concat_tables(pieces[number])) for number in sorted(pieces)]


def _iterate_slices(table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """Yield slices of about ``_SPLIT_BYTES`` each, with the number of their first row."""
    rows = max(1, int(table.num_rows * _SPLIT_BYTES / max(1, table.nbytes)))
    for start in range(0, table.num_rows, rows):
        yield start, table.slice(start, rows)


def _is_bytes(data_type: pa.DataType) -> bool:
    """Whether the type is a string or variable-length binary type of any layout."""
    return any(
        test(data_type)
        for test in (
            pa.types.is_string,
            pa.types.is_large_string,
            pa.types.is_binary,
            pa.types.is_large_binary,
            pa.types.is_string_view,
            pa.types.is_binary_view,
        )
    )


def _chunks_of(array: Any) -> list[Any]:
    return list(array.chunks) if isinstance(array, pa.ChunkedArray) else [array]


def _big_endian(array: Any, dtype: str) -> Any:
    """Return a binary array of the numbers' bytes, most significant first."""
    width = np.dtype(dtype).itemsize
    values = np.frombuffer(array.buffers()[1], np.dtype(dtype).newbyteorder("="))
    values = values[array.offset : array.offset + len(array)]
    if values.dtype.kind == "f":
        values = np.where(np.isnan(values), np.array(np.nan, values.dtype), values)
    big_endian_values = values.astype(dtype)
    offsets = np.arange(len(array) + 1, dtype=np.int32) * width
    valid = array.is_valid().buffers()[1] if array.null_count else None
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(big_endian_values)]
    return pa.Array.from_buffers(pa.binary(), len(array), buffers)


def _murmur2_chunk(array: Any) -> _Words:
    """Return the hashes of one binary or large_binary array."""
    _, offset_buffer, data_buffer = array.buffers()
    count = len(array)
    if count == 0:
        return np.empty(0, np.uint32)
    width = np.int64 if pa.types.is_large_binary(array.type) else np.int32
    offsets = np.frombuffer(offset_buffer, width)[array.offset : array.offset + count + 1].astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
    hashes = np.empty(count, np.uint32)
    for start in range(0, count, _BLOCK):
        limit = min(start + _BLOCK, count)
        _hash_block(data, offsets[start:limit], np.diff(offsets[start : limit + 1]), hashes[start:limit])
    return hashes


def _hash_block(data: _Bytes, starts: _Int64, lengths: _Int64, out: _Words) -> None:
    """Fill ``out`` with the hashes of the keys ``data[start : start + length]``."""
    shortest, longest = int(lengths.min()), int(lengths.max())
    if shortest == longest:
        _hash_uniform(data[int(starts[0]) :], longest, out)
        return
    # Hash the few longest keys alone: otherwise the loop over words would run on for them only.
    order = np.argsort(lengths.astype(np.min_scalar_type(longest)), kind="stable")
    first_long = len(order) - min(_LONG_KEYS, len(order))
    first_long = int(np.searchsorted(lengths[order], lengths[order[first_long]], side="right"))
    for row in order[first_long:]:
        start = int(starts[row])
        out[row] = murmur2(data[start : start + int(lengths[row])].tobytes()) & 0xFFFFFFFF
    if first_long:
        short_keys = order[:first_long]
        out[short_keys] = _hash_sorted(data, starts[short_keys], lengths[short_keys])


def _hash_uniform(data: _Bytes, length: int, out: _Words) -> None:
    """Fill ``out`` with the hashes of contiguous keys of equal length."""
    out[:] = np.uint32(SEED ^ (length & 0xFFFFFFFF))
    scratch = np.empty_like(out)
    for first_byte in range(0, length & ~3, 4):
        _mix_word(out, _strided_column(data, first_byte, length, "<u4", len(out)), scratch)
    if length & 3:
        for byte in range(length & 3):
            tail = _strided_column(data, (length & ~3) + byte, length, "u1", len(out)).astype(np.uint32)
            out ^= tail << np.uint32(8 * byte)
        out *= _MULTIPLIER
    _finish_hash(out)


def _hash_sorted(data: _Bytes, starts: _Int64, lengths: _Int64) -> _Words:
    """Return the hashes of keys in ascending order of length, so that each word is in a suffix of the keys."""
    h = np.uint32(SEED) ^ lengths.astype(np.uint32)
    words = lengths >> 2
    scratch = np.empty_like(h)
    # A view with one (unaligned) word per byte position.
    view: npt.NDArray[np.uint32] = np.ndarray((max(0, len(data) - 3),), "<u4", data, strides=(1,))
    for word in range(int(words[-1])):
        first_row = int(np.searchsorted(words, word, side="right"))
        _mix_word(h[first_row:], view[starts[first_row:] + 4 * word], scratch[first_row:])
    tails = lengths & 3
    for byte in range(3):
        rows = np.flatnonzero(tails > byte)
        h[rows] ^= data[starts[rows] + (words[rows] << 2) + byte].astype(np.uint32) << np.uint32(8 * byte)
    h[tails > 0] *= _MULTIPLIER
    _finish_hash(h)
    return h


def _strided_column(data: _Bytes, first_byte: int, stride: int, dtype: str, count: int) -> npt.NDArray[Any]:
    """Return a contiguous copy of the values at ``first_byte`` of each of ``count`` records of ``stride`` bytes."""
    return np.ndarray((count,), dtype, data, offset=first_byte, strides=(stride,)).copy()


def _mix_word(h: _Words, k: _Words, scratch: _Words) -> None:
    """Mix the word ``k`` into the hash ``h``, in place: a round of MurmurHash2."""
    np.multiply(k, _MULTIPLIER, out=k)
    np.right_shift(k, np.uint32(24), out=scratch)
    np.bitwise_xor(k, scratch, out=k)
    np.multiply(k, _MULTIPLIER, out=k)
    np.multiply(h, _MULTIPLIER, out=h)
    np.bitwise_xor(h, k, out=h)


def _finish_hash(h: _Words) -> None:
    h ^= h >> np.uint32(13)
    h *= _MULTIPLIER
    h ^= h >> np.uint32(15)
