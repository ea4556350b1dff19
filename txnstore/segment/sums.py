"""A sum of records that compactions conserve, independent of files, chunks, and the order of rows and columns.

Each record has a hash of 64 bits; the sum of records is that of their hashes modulo 2^64, with their number and the
size of their values. ``docs/format.md`` defines it, so that other programs, and later releases, get the same sums.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from txnstore import compute as pc
from txnstore.core.log.sums import MODULUS, Sums
from txnstore.segment.schema import OFFSET_FIELD, TIMESTAMP_FIELD, is_reserved

#: Rows that are hashed at a time: their words stay in the cache of the processor.
_ROWS = 8192
_WORD = 8
#: Words of strings that are hashed at a time, for the same reason.
_WORDS = 1 << 17
#: Strings of up to as many words are hashed together, whatever their lengths.
_SHORT_WORDS = 4
_HALF = np.uint64(32)

Words = npt.NDArray[np.uint64]
Sizes = npt.NDArray[np.int64]


def sums_of(table: pa.Table) -> Sums:
    """Return the sums of the rows of a table with ``_offset``, ``_timestamp`` and the columns of the topic."""
    hashes, sizes = row_hashes(table)
    return total_sums(hashes, sizes)


def total_sums(hashes: Words, sizes: Sizes) -> Sums:
    """Return the sums of rows from their hashes and sizes."""
    return Sums(len(hashes), int(sizes.sum()), f"{int(hashes.sum(dtype=np.uint64)) % MODULUS:016x}")


def row_hashes(table: pa.Table) -> tuple[Words, Sizes]:
    """Return the hash of each row of a table, and the size of its values in bytes."""
    names = [
        name
        for name in table.column_names
        if name in (OFFSET_FIELD.name, TIMESTAMP_FIELD.name) or not is_reserved(name)
    ]
    hashes, sizes = np.zeros(table.num_rows, np.uint64), np.zeros(table.num_rows, np.int64)
    for start in range(0, table.num_rows, _ROWS):
        rows = slice(start, start + _ROWS)
        for name in names:
            column = table.column(name).slice(start, _ROWS).combine_chunks()
            column_hashes, column_sizes = _value_hashes(column, np.broadcast_to(_seed_of(name), len(column)))
            hashes[rows] += column_hashes
            sizes[rows] += column_sizes
        hashes[rows] = _mix_words(hashes[rows])
    return hashes, sizes


def _value_hashes(array: Any, seeds: Words) -> tuple[Words, Sizes]:
    """Return the hash of each value with its seed, and its size; both are 0 for null."""
    if array.null_count == len(array):
        return np.zeros(len(array), np.uint64), np.zeros(len(array), np.int64)
    valid = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else np.ones(len(array), bool)
    if pt.is_list(array.type) or pt.is_map(array.type):
        hashes, sizes = _list_hashes(array, seeds)
    elif pt.is_struct(array.type):
        hashes, sizes = _struct_hashes(array, seeds, [field.name for field in array.type])
    else:
        words, sizes = _value_words(array)
        hashes = _fold_upper_bits(words + seeds) * (seeds | np.uint64(1))
    return np.where(valid, hashes, np.uint64(0)), np.where(valid, sizes, 0)


def _struct_hashes(array: Any, seeds: Words, names: list[str]) -> tuple[Words, Sizes]:
    """Return the hashes of structs: one for the struct, and those of its fields."""
    hashes, sizes = _mix_words(seeds), np.zeros(len(array), np.int64)
    for number, name in enumerate(names):
        field_hashes, field_sizes = _value_hashes(array.field(number), _mix_words(seeds + _seed_of(name)))
        hashes, sizes = hashes + field_hashes, sizes + field_sizes
    return hashes, sizes


def _list_hashes(array: Any, seeds: Words) -> tuple[Words, Sizes]:
    """Return the hashes of lists and maps: one for the length, and those of the elements by place."""
    offsets = array.offsets.to_numpy().astype(np.int64)
    lengths, first = np.diff(offsets), int(offsets[0])
    values = array.values.slice(first, int(offsets[-1]) - first)
    places = np.arange(1, len(values) + 1) - np.repeat(offsets[:-1] - first, lengths)
    element_seeds = _mix_words(np.repeat(seeds, lengths) + places.astype(np.uint64))
    value_hashes, value_sizes = (
        _struct_hashes(values, element_seeds, ["key", "value"])
        if pt.is_map(array.type)
        else _value_hashes(values, element_seeds)
    )
    length_hashes = _mix_words(seeds + lengths.astype(np.uint64))
    return length_hashes + _run_sums(value_hashes, lengths), _run_sums(value_sizes, lengths)


def _value_words(array: Any) -> tuple[Words, Sizes]:
    """Return one word for each value, and its size in bytes."""
    kind = array.type
    if pt.is_string(kind) or pt.is_binary(kind) or pt.is_large_string(kind) or pt.is_large_binary(kind):
        return _string_words(array)
    if pt.is_fixed_size_binary(kind) and not pt.is_decimal(kind):
        return _string_words(array.cast(pa.binary()))
    if pt.is_decimal128(kind):
        data = np.frombuffer(array.buffers()[1], "<u8")[2 * array.offset : 2 * (array.offset + len(array))]
        words = _fold_upper_bits(data).reshape(-1, 2) * _odd_factors(2)
        return words.sum(axis=1, dtype=np.uint64), _constant_array(array, 2 * _WORD)
    if pt.is_floating(kind):
        numbers = array.cast(pa.float64()).fill_null(0).to_numpy()
        words = np.where(np.isnan(numbers), np.nan, numbers).view(np.uint64)
    elif pt.is_timestamp(kind) or pt.is_integer(kind) or pt.is_boolean(kind):
        words = array.cast(pa.int64()).fill_null(0).to_numpy().view(np.uint64)
    elif pt.is_date32(kind):
        words = array.cast(pa.int32()).cast(pa.int64()).fill_null(0).to_numpy().view(np.uint64)
    else:
        msg = f"a topic has no column of type {kind}"
        raise TypeError(msg)
    return words, _constant_array(array, _WORD)


def _string_words(array: Any) -> tuple[Words, Sizes]:
    """Return one word for each string: of its length, and of its words of 8 bytes by place."""
    is_large = pt.is_large_string(array.type) or pt.is_large_binary(array.type)
    _, ends_buffer, data = array.buffers()
    ends = np.frombuffer(ends_buffer, np.int64 if is_large else np.int32)
    offsets = ends[array.offset : array.offset + len(array) + 1].astype(np.int64)
    lengths = np.diff(offsets)
    # Arrow pads text only; nothing checks that it is text. Nulls are strings as well, whose hashes the caller drops.
    text = pa.large_string() if is_large else pa.string()
    strings = pa.Array.from_buffers(text, len(array), [None, ends_buffer, data], offset=array.offset)
    return _mix_words(lengths.astype(np.uint64) + _word_sums(strings, (lengths + _WORD - 1) // _WORD)), lengths


def _word_sums(strings: Any, counts: Sizes) -> Words:
    """Return the sums of the words of strings, which have ``counts`` words; the last is filled with zeros."""
    max_count = int(counts.max())
    if max_count <= _SHORT_WORDS or max_count * len(counts) <= 2 * int(counts.sum()):
        return _padded_sums(strings, max_count)
    # Those that differ by less than a factor of two together, so that not much more is filled than there is.
    sums = np.empty(len(counts), np.uint64)
    classes = np.frexp(counts // _SHORT_WORDS)[1]
    for number in np.flatnonzero(np.bincount(classes)):
        rows = np.flatnonzero(classes == number)
        sums[rows] = _padded_sums(strings.take(pa.array(rows)), int(counts[rows].max()))
    return sums


def _padded_sums(strings: Any, count: int) -> Words:
    """Return the sums of the words of strings of at most ``count`` words; a filled-in word is 0 and adds nothing."""
    sums = np.zeros(len(strings), np.uint64)
    if count == 0:
        return sums
    factors = _odd_factors(1 << count.bit_length())[:count]
    step = max(1, _WORDS // count)
    for start in range(0, len(strings), step):
        padded = pc.ascii_rpad(strings.slice(start, step), width=_WORD * count, padding="\0")
        words = np.frombuffer(padded.buffers()[2], "<u8", len(padded) * count).reshape(-1, count)
        np.einsum("ij,j->i", _fold_upper_bits(words), factors, out=sums[start : start + step])
    return sums


def _fold_upper_bits(words: Words) -> Words:
    """Permute words, so that the upper bits count in all bits of a product."""
    folded: Words = words >> _HALF
    folded ^= words
    return folded


@lru_cache(maxsize=16)
def _odd_factors(count: int) -> Words:
    """Return odd numbers, one for each place."""
    return _mix_words(np.arange(1, count + 1, dtype=np.uint64)) | np.uint64(1)


def _run_sums(values: Any, lengths: npt.NDArray[np.int64]) -> Any:
    """Return the sums of runs of values that follow each other."""
    ends = np.cumsum(lengths)
    sums = np.concatenate([np.zeros(1, values.dtype), np.cumsum(values)])
    return sums[ends] - sums[ends - lengths]


def _constant_array(array: Any, size: int) -> Sizes:
    return np.full(len(array), size, np.int64)


@lru_cache(maxsize=4096)
def _seed_of(name: str) -> Words:
    """Return the seed of a column or a field."""
    digest = hashlib.sha256(name.encode()).digest()
    return np.frombuffer(digest[:_WORD], "<u8").astype(np.uint64)


def _mix_words(words: Words) -> Words:
    """Permute 64-bit words by the finaliser of SplitMix64."""
    mixed: Words = words ^ (words >> np.uint64(30))
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed
