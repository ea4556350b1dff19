"""Reads every byte of a large segment once, in order, so that its hash can be compared too."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pyarrow as pa

from txnstore.core.log.model import Segment
from txnstore.core.model import TopicPartition
from txnstore.errors import CorruptionError
from txnstore.read.ranged import RangedSegment
from txnstore.segment.parts import PartialFile
from txnstore.storage.base import ObjectStore

#: How many bytes that belong to no piece are fetched together.
_STEP_BYTES = 8 << 20


class HashedSegment(RangedSegment):
    """A large segment whose pieces one thread reads in order, each with one GET: those of its columns, and all others.

    A column that the reader does not know is compared only by :meth:`compare`.
    """

    def __init__(self, objects: ObjectStore, tp: TopicPartition, segment: Segment) -> None:
        super().__init__(objects, tp, segment)
        self._tp, self._segment = tp, segment
        self._sha256 = hashlib.sha256()
        self._at = 0

    def read(self, piece: int, columns: Sequence[str]) -> pa.Table:
        """Fetch a row group, and decode these columns of it."""
        ranges = self._footer.byte_ranges(piece, self.columns)
        if not ranges or ranges[0][0] < self._at:
            return super().read(piece, columns)
        start, end = ranges[0][0], max(limit for _, limit in ranges)
        if start - self._at > _STEP_BYTES:
            self._pass(start)
        file = self._footer.open(PartialFile(self._size, self._next(end)))
        return self._footer.read(file, piece, columns)

    def compare(self) -> None:
        """Fetch the bytes that no piece had, and compare the hash of all.

        Raises:
            CorruptionError: The segment is missing or damaged, or its hash is not the one that the chain records.
        """
        self._pass(self._object.body)
        self._sha256.update(self._object.footer().data)
        found, expected = self._sha256.hexdigest(), self._segment.sha256
        if found != expected:
            msg = f"segment {self._segment.key} of {self._tp} was altered: its SHA-256 is {found}; expected {expected}"
            raise CorruptionError(msg)

    def _pass(self, end: int) -> None:
        while self._at < end:
            self._next(min(end, self._at + _STEP_BYTES))

    def _next(self, end: int) -> dict[int, bytes]:
        """The blocks with the bytes up to ``end`` that were not hashed before."""
        parts = self._object.fetch([(self._at, end)])
        [(first, data)] = parts.items()
        self._sha256.update(memoryview(data)[self._at - first : end - first])
        self._at = end
        return parts
