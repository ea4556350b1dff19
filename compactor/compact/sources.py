"""Reads what a merge or a clean writes again: the records of its sources in order, each entry once, and checks them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from itertools import groupby
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnstore.compactor.compact.memory import Memory
from txnstore.core.log.slices import Slice
from txnstore.core.model import TopicPartition
from txnstore.errors import CorruptionError
from txnstore.read.readahead import read_ahead
from txnstore.read.rows import Columns
from txnstore.read.sharing import KEPT_BYTES, SharedSegments
from txnstore.storage.base import ObjectStore
from txnstore.storage.recent import with_read_cache

#: Rows that are checked, hashed and encoded at a time, and their bytes; one table may have more.
_BLOCK_ROWS, _BLOCK_BYTES = 16 * 1024, 8 << 20
#: So many entries are fetched for a table.
_FETCHES = 256
#: With few threads, small tables are joined up to this part of the bytes that are encoded at a time.
_JOINED_PART = 8

Numbers: TypeAlias = npt.NDArray[np.int64]


def read_sources(
    objects: ObjectStore, pool: Executor, sources: Sequence[Slice], columns: Columns, memory: Memory
) -> Iterator[pa.Table]:
    """The rows of sources in order, in tables of some megabytes.

    Inlined ones are fetched and decoded together, up to 8 MiB and 256 entries of them, and an entry with rows of
    several sources once; the others are read ahead.

    Args:
        pool: Fetches and decodes concurrently.
        memory: How much is fetched ahead; with few threads, one row group is decoded at a time.

    Raises:
        CorruptionError: A source is missing or damaged.
    """
    # Only then an entry has rows of several sources.
    has_several_partitions = len({source.tp for source in sources}) > 1
    entries = SharedSegments(objects, lambda: pool, KEPT_BYTES if has_several_partitions else 0)
    objects = with_read_cache(objects)
    for inlined, run in groupby(sources, lambda source: source.batch.segment.inlined):
        if inlined:
            yield from (entries.read(block, columns) for block in _blocks_of_inlined(run))
            continue
        ahead = not memory.few_threads
        tables = read_ahead(objects, pool, run, columns, together=True, window=memory.fetched, decode_ahead=ahead)
        if ahead:
            yield from in_blocks(tables)
        else:
            yield from _in_parts(in_blocks(tables, memory.rows // _JOINED_PART), memory.rows)


def _blocks_of_inlined(sources: Iterable[Slice]) -> Iterator[list[Slice]]:
    """Inlined sources whose rows become a table: no more bytes, and no more entries to fetch, than that allows."""
    fetched = set[tuple[str, int | None]]()
    block: list[Slice] = []
    size = entries = 0
    for source in sources:
        segment = source.batch.segment
        place = segment.object, segment.first_byte
        is_new = place not in fetched
        added_bytes = segment.size if is_new else source.batch.size
        if block and (size + added_bytes > _BLOCK_BYTES or entries + is_new > _FETCHES):
            yield block
            block, size, entries = [], 0, 0
        block.append(source)
        fetched.add(place)
        size, entries = size + added_bytes, entries + is_new
    if block:
        yield block


def in_blocks(tables: Iterable[pa.Table], min_bytes: int = _BLOCK_BYTES) -> Iterator[pa.Table]:
    """The rows in tables of at least ``_BLOCK_ROWS`` or ``min_bytes``, but for the last: each table costs time."""
    waiting_tables: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        waiting_tables.append(table)
        rows, size = rows + table.num_rows, size + table.nbytes
        del table  # Else it is in memory while the next one is decoded.
        if rows >= _BLOCK_ROWS or size >= min_bytes:
            block, waiting_tables, rows, size = pa.concat_tables(waiting_tables), [], 0, 0
            yield block
            del block
    if rows:
        yield pa.concat_tables(waiting_tables)


def _in_parts(tables: Iterable[pa.Table], limit: int) -> Iterator[pa.Table]:
    """The rows in tables of a few bytes, so that only one row group is decoded."""
    for table in tables:
        count = max(1, -(-table.nbytes // limit))
        step = max(1, -(-table.num_rows // count))
        for start in range(0, table.num_rows, step):
            yield table.slice(start, step) if count > 1 else table
        del table
        # The allocator keeps what was freed, also of row groups of other sizes.
        pa.default_memory_pool().release_unused()


class RowOrder:
    """Checks that rows are those of sources of a partition: their offsets ascend inside of these, and all are there."""

    def __init__(self, tp: TopicPartition, sources: Sequence[Slice]) -> None:
        self._tp, self._sources = tp, sources
        self._next_offset, self._limit_offset = (sources[0].start, sources[-1].limit) if sources else (0, 0)
        #: The number of the rows so far, and of those that whole sources have.
        self.rows, self._expected_rows = 0, sum(source.batch.records for source in sources)

    @property
    def missing_rows(self) -> int:
        """How many rows more whole sources have."""
        return self._expected_rows - self.rows

    def check_next(self, offsets: Numbers) -> None:
        """Check the next rows, at least one, by their offsets.

        Raises:
            CorruptionError: They are out of order, or outside the sources.
        """
        first_offset, last_offset = int(offsets[0]), int(offsets[-1])
        if first_offset < self._next_offset or last_offset >= self._limit_offset or (offsets[1:] <= offsets[:-1]).any():
            msg = (
                f"one of {self._segments_text()} has the offsets {first_offset} to {last_offset} out of order; "
                f"expected ascending offsets from {self._next_offset} on and below {self._limit_offset}"
            )
            raise CorruptionError(msg)
        self._next_offset = last_offset + 1
        self.rows += len(offsets)

    def check_end(self) -> None:
        """Check that these were all rows.

        Raises:
            CorruptionError: They were not; a source that covers only a part of its batch may have fewer rows.
        """
        if self.missing_rows < 0 or (self.missing_rows and all(source.whole for source in self._sources)):
            msg = f"{self._segments_text()} have {self.rows} records; expected {self._expected_rows}"
            raise CorruptionError(msg)

    def _segments_text(self) -> str:
        """Name the first segment and the last one: there may be thousands."""
        first_key, last_key = self._sources[0].batch.segment.key, self._sources[-1].batch.segment.key
        return f"the segments {first_key} to {last_key} of {self._tp}"
