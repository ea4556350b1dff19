"""Segments of several batches, or in entries, that this process has decoded: each once for all readers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TypeAlias

import pyarrow as pa

from txnstore.caches import ByteCache
from txnstore.core.log.model import Segment
from txnstore.core.log.slices import Slice
from txnstore.read.readahead import max_fetches
from txnstore.read.reader import decode_whole, read_decoded
from txnstore.read.rows import Columns
from txnstore.segment.pieces import DecodedSegment
from txnstore.storage.base import ObjectStore
from txnstore.storage.recent import read_cache_of

#: The maximum size of the decoded segments that are kept, in bytes.
KEPT_BYTES = 32 << 20
#: What a decoded segment takes besides its values, in bytes.
_OVERHEAD = 2048

#: What identifies the rows of a segment: its key, and how the chain describes it.
_Name: TypeAlias = tuple[str, str, int]


class SharedSegments:
    """Decodes shared segments, and keeps those that were asked for last. Thread-safe.

    A segment is decoded once, with all of its columns, however many batches are in it.

    Args:
        pool: Returns the executor that fetches and decodes.
        bound: The maximum size of the decoded segments that are kept, in bytes.
    """

    def __init__(self, objects: ObjectStore, pool: Callable[[], Executor], bound: int = KEPT_BYTES) -> None:
        self._objects, self._pool = objects, pool
        self._kept: ByteCache[_Name, DecodedSegment] = ByteCache(bound)

    def read(self, slices: Sequence[Slice], columns: Columns) -> pa.Table:
        """The rows of slices of shared segments, in their order; each segment that is not kept costs one GET.

        Raises:
            CorruptionError: A segment is missing, or differs from its description in the chain.
        """
        return read_decoded(self.decoded(slices), columns)

    def decoded(self, slices: Sequence[Slice]) -> list[tuple[Slice, DecodedSegment]]:
        """Slices of shared segments with all rows of the segment of each, in their order.

        Raises:
            CorruptionError: As :meth:`read`.
        """
        names = [_segment_name(part.batch.segment) for part in slices]
        slice_by_name = dict(zip(names, slices, strict=True))
        files = {name: file for name in slice_by_name if (file := self._kept.find(name)) is not None}
        missing_slices = [part for name, part in slice_by_name.items() if name not in files]
        tasks = min(len(missing_slices), max_fetches(self._objects))
        for decoded in self._pool().map(self._decode, (missing_slices[task::tasks] for task in range(tasks))):
            files.update(decoded)
            for name, file in decoded.items():
                self._kept.keep(name, file, _table_size(file.table))
        return [(part, files[name]) for part, name in zip(slices, names, strict=True)]

    def _decode(self, parts: Iterable[Slice]) -> dict[_Name, DecodedSegment]:
        return {_segment_name(part.batch.segment): self._decode_segment(part) for part in parts}

    def _decode_segment(self, part: Slice) -> DecodedSegment:
        """All rows of the segment of a slice, decoded once for a caller with a read cache."""
        segment = part.batch.segment
        cache = read_cache_of(self._objects) if not part.batch.alone else None
        decode = partial(decode_whole, self._objects, part.tp, segment)
        file = cache.once((DecodedSegment, segment), segment.size, decode) if cache is not None else None
        return decode() if file is None else file


def _segment_name(segment: Segment) -> _Name:
    return segment.key, segment.sha256, segment.rows


def _table_size(table: pa.Table) -> int:
    return int(table.get_total_buffer_size()) + _OVERHEAD
