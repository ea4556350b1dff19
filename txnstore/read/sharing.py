"""Segments of several batches, or in entries, that this process has decoded: each once for all readers."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from typing import TypeAlias

import pyarrow as pa

from txnstore.core.log.model import Segment
from txnstore.core.log.slices import Slice
from txnstore.read.readahead import most_fetches
from txnstore.read.reader import decode_whole, read_decoded
from txnstore.read.rows import Columns
from txnstore.segment.pieces import DecodedSegment
from txnstore.storage.base import ObjectStore
from txnstore.threads import ForkLock

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
        objects: The object store.
        pool: Returns the executor that fetches and decodes.
        bound: The maximum size of the decoded segments that are kept, in bytes.
    """

    def __init__(self, objects: ObjectStore, pool: Callable[[], Executor], bound: int = KEPT_BYTES) -> None:
        self._objects, self._pool, self._bound = objects, pool, bound
        #: Guards the fields below, and no request.
        self._lock = ForkLock()
        #: The one that was asked for last is the last one.
        self._kept: OrderedDict[_Name, DecodedSegment] = OrderedDict()
        self._bytes = 0

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
        names = [_name(part.batch.segment) for part in slices]
        wanted = dict(zip(names, slices, strict=True))
        files = self._find(wanted)
        missing = [part for name, part in wanted.items() if name not in files]
        tasks = min(len(missing), most_fetches(self._objects))
        for decoded in self._pool().map(self._decode, (missing[task::tasks] for task in range(tasks))):
            files.update(decoded)
            self._keep(decoded)
        return [(part, files[name]) for part, name in zip(slices, names, strict=True)]

    def _decode(self, parts: Iterable[Slice]) -> dict[_Name, DecodedSegment]:
        segments = ((part.tp, part.batch.segment) for part in parts)
        return {_name(segment): decode_whole(self._objects, tp, segment) for tp, segment in segments}

    def _find(self, names: Iterable[_Name]) -> dict[_Name, DecodedSegment]:
        """Those of the segments that are kept."""
        with self._lock.own:
            files = {name: file for name in names if (file := self._kept.get(name)) is not None}
            for name in files:
                self._kept.move_to_end(name)
        return files

    def _keep(self, decoded: dict[_Name, DecodedSegment]) -> None:
        with self._lock.own:
            for name, file in decoded.items():
                if name not in self._kept:
                    self._kept[name] = file
                    self._bytes += _size(file.table)
            while self._kept and self._bytes > self._bound:
                _, dropped = self._kept.popitem(last=False)
                # An interrupt can leave the sum too large.
                self._bytes = self._bytes - _size(dropped.table) if self._kept else 0


def _name(segment: Segment) -> _Name:
    return segment.key, segment.sha256, segment.rows


def _size(table: pa.Table) -> int:
    return int(table.get_total_buffer_size()) + _OVERHEAD
