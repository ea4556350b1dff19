"""A sum of records that compactions conserve: it does not depend on files, chunks, or the order of rows and columns.

Each record has a hash of 64 bits; the sum of records is that of their hashes modulo 2^64, with their number and the
size of their values. ``docs/format.md`` defines it, so that other programs, and later releases, get the same sums.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import Executor, Future
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as pt

from txnstore.core.log.sums import MODULUS, Sums
from txnstore.segment.schema import OFFSET_FIELD, TIMESTAMP_FIELD, is_reserved

#: Rows that are hashed at a time: their words stay in the cache of the processor.
_ROWS = 8192
_WORD = 8
#: Strings with more words are hashed one by one.
_LONG = 256
_HALF = np.uint64(32)

Words = npt.NDArray[np.uint64]
Sizes = npt.NDArray[np.int64]


def sums_of(table: pa.Table) -> Sums:
    """The sums of the rows of a table with ``_offset``, ``_timestamp`` and the columns of the topic."""
    hashes, sizes = row_hashes(table)
    return total(hashes, sizes)


class RunningSums:
    """The sums of tables that come one by one: small ones are hashed together, beside what the caller does meanwhile.

    Args:
        pool: Hashes.
    """

    def __init__(self, pool: Executor) -> None:
        self._pool = pool
        self._sums = Sums()
        self._hashing: Future[Sums] | None = None
        self._waiting: list[pa.Table] = []
        self._rows = 0

    def add(self, table: pa.Table) -> None:
        """Add the rows of a table."""
        self._waiting.append(table)
        self._rows += table.num_rows
        if self._rows >= _ROWS:
            self._hash()

    def total(self) -> Sums:
        """The sums of all rows so far."""
        if self._rows:
            self._hash()
        self._collect()
        return self._sums

    def _hash(self) -> None:
        """Hash what waits; one task at a time, so that few tables are in memory."""
        self._collect()
        self._hashing = self._pool.submit(sums_of, pa.concat_tables(self._waiting))
        self._waiting, self._rows = [], 0

    def _collect(self) -> None:
        if self._hashing is not None:
            self._sums += self._hashing.result()
            self._hashing = None


def total(hashes: Words, sizes: Sizes) -> Sums:
    """The sums of rows from their hashes and sizes."""
    return Sums(len(hashes), int(sizes.sum()), f"{int(hashes.sum(dtype=np.uint64)) % MODULUS:016x}")


def row_hashes(table: pa.Table) -> tuple[Words, Sizes]:
    """The hash of each row of a table, and the size of its values in bytes."""
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
            found, size = _hashes(column, np.broadcast_to(_seed(name), len(column)))
            hashes[rows] += found
            sizes[rows] += size
        hashes[rows] = _mixed(hashes[rows])
    return hashes, sizes


def _hashes(array: Any, seeds: Words) -> tuple[Words, Sizes]:
    """The hash of each value with its seed, and its size; both are 0 for null."""
    if pt.is_null(array.type) or not len(array):
        return np.zeros(len(array), np.uint64), np.zeros(len(array), np.int64)
    valid = array.is_valid().to_numpy(zero_copy_only=False) if array.null_count else np.ones(len(array), bool)
    if pt.is_list(array.type) or pt.is_map(array.type):
        hashes, sizes = _of_lists(array, seeds)
    elif pt.is_struct(array.type):
        hashes, sizes = _of_structs(array, seeds, [field.name for field in array.type])
    else:
        words, sizes = _words(array, valid)
        hashes = _folded(words + seeds) * (seeds | np.uint64(1))
    return np.where(valid, hashes, np.uint64(0)), np.where(valid, sizes, 0)


def _of_structs(array: Any, seeds: Words, names: list[str]) -> tuple[Words, Sizes]:
    """The hashes of structs: one for the struct, and those of its fields."""
    hashes, sizes = _mixed(seeds), np.zeros(len(array), np.int64)
    for number, name in enumerate(names):
        found, size = _hashes(array.field(number), _mixed(seeds + _seed(name)))
        hashes, sizes = hashes + found, sizes + size
    return hashes, sizes


def _of_lists(array: Any, seeds: Words) -> tuple[Words, Sizes]:
    """The hashes of lists and maps: one for the length, and those of the elements, each with its place."""
    offsets = array.offsets.to_numpy().astype(np.int64)
    lengths, first = np.diff(offsets), int(offsets[0])
    values = array.values.slice(first, int(offsets[-1]) - first)
    places = np.arange(1, len(values) + 1) - np.repeat(offsets[:-1] - first, lengths)
    inner = _mixed(np.repeat(seeds, lengths) + places.astype(np.uint64))
    found, size = _of_structs(values, inner, ["key", "value"]) if pt.is_map(array.type) else _hashes(values, inner)
    return _mixed(seeds + lengths.astype(np.uint64)) + _run_sums(found, lengths), _run_sums(size, lengths)


def _words(array: Any, valid: npt.NDArray[np.bool_]) -> tuple[Words, Sizes]:
    """One word for each value, and its size in bytes."""
    kind = array.type
    if pt.is_string(kind) or pt.is_binary(kind) or pt.is_large_string(kind) or pt.is_large_binary(kind):
        return _of_bytes(array, valid)
    if pt.is_decimal128(kind):
        data = np.frombuffer(array.buffers()[1], "<u8")[2 * array.offset : 2 * (array.offset + len(array))]
        words = _folded(data).reshape(-1, 2) * _factors(2)
        return words.sum(axis=1, dtype=np.uint64), _constant(array, 2 * _WORD)
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
    return words, _constant(array, _WORD)


def _of_bytes(array: Any, valid: npt.NDArray[np.bool_]) -> tuple[Words, Sizes]:
    """One word for each string: of its length, and of its words of 8 bytes, each with its place."""
    large = pt.is_large_string(array.type) or pt.is_large_binary(array.type)
    _, ends_buffer, data_buffer = array.buffers()
    ends = np.frombuffer(ends_buffer, np.int64 if large else np.int32)
    offsets = ends[array.offset : array.offset + len(array) + 1].astype(np.int64)
    lengths = np.where(valid, np.diff(offsets), 0)
    first, last = int(offsets[0]), int(offsets[-1])
    data = np.zeros(last - first + _WORD, np.uint8)
    if last > first:
        data[:-_WORD] = np.frombuffer(data_buffer, np.uint8)[first:last]
    starts = offsets[:-1] - first
    return _mixed(lengths.astype(np.uint64) + _word_sums(data, starts, lengths)), lengths


def _word_sums(data: npt.NDArray[np.uint8], starts: Sizes, lengths: Sizes) -> Words:
    """The sums of the words of strings in ``data``, which has 8 bytes more; the last word is filled with zeros."""
    at_any = np.ndarray((len(data) - _WORD + 1,), "<u8", data, strides=(1,))
    full = lengths // _WORD
    factors = _factors(int(full.max()) + 1)
    rest = at_any[starts + _WORD * full] & ~(~np.uint64(0) << (8 * (lengths % _WORD)).astype(np.uint64))
    sums = _folded(rest) * factors[full]
    for row in np.flatnonzero(full > _LONG):
        words = data[starts[row] : starts[row] + _WORD * full[row]].view("<u8")
        # As an array, which wraps without a warning; a single number does not.
        sums[row : row + 1] += (_folded(words) * factors[: full[row]]).sum(dtype=np.uint64)
    # The others word by word, the longest first: those that have a word at a place are then a prefix.
    short = np.flatnonzero((full > 0) & (full <= _LONG))
    short = short[np.argsort(-full[short], kind="stable")]
    places, counts, found = starts[short], -full[short], np.zeros(len(short), np.uint64)
    for place in range(-int(counts[0]) if len(short) else 0):
        several = int(np.searchsorted(counts, -place))
        words = at_any[places[:several]]
        words ^= words >> _HALF
        words *= factors[place]
        found[:several] += words
        places += _WORD
    sums[short] += found
    return sums


def _folded(words: Words) -> Words:
    """A permutation of words, so that the upper bits count in all bits of a product."""
    folded: Words = words ^ (words >> _HALF)
    return folded


@lru_cache(maxsize=16)
def _factors(count: int) -> Words:
    """Odd numbers, one for each place."""
    return _mixed(np.arange(1, count + 1, dtype=np.uint64)) | np.uint64(1)


def _run_sums(values: Any, lengths: npt.NDArray[np.int64]) -> Any:
    """The sums of runs of values that follow each other."""
    ends, sums = np.cumsum(lengths), np.concatenate([np.zeros(1, values.dtype), np.cumsum(values)])
    return sums[ends] - sums[ends - lengths]


def _constant(array: Any, size: int) -> Sizes:
    return np.full(len(array), size, np.int64)


@lru_cache(maxsize=4096)
def _seed(name: str) -> Words:
    """The seed of a column or a field."""
    digest = hashlib.sha256(name.encode()).digest()
    return np.frombuffer(digest[:_WORD], "<u8").astype(np.uint64)


def _mixed(words: Words) -> Words:
    """A permutation of 64-bit words: the finaliser of SplitMix64."""
    mixed: Words = words ^ (words >> np.uint64(30))
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed
