"""Reads parts of a large segment: its footer, then the columns and row groups that are needed.

The chain records the hash of the footer, and the footer the checksums of all blocks before it, so whatever is fetched
is checked. See :mod:`txnstore.segment.blocks`.
"""

from __future__ import annotations

import hashlib
import io
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto

import pyarrow as pa
import pyarrow.parquet as pq

from txnstore.caches import ByteCache
from txnstore.core.log.model import Segment
from txnstore.core.log.slices import Slice
from txnstore.core.model import TopicPartition
from txnstore.errors import CorruptionError, ObjectNotFoundError
from txnstore.read.rows import Columns
from txnstore.segment.blocks import BLOCKS_KEY, Blocks
from txnstore.segment.codec import check_size, verify_checksum
from txnstore.segment.pieces import ParquetFooter
from txnstore.segment.schema import PARTITION_FIELD
from txnstore.storage.base import ObjectStore
from txnstore.storage.recent import ReadCache


class PartialFile(io.RawIOBase):
    """A read-only file of ``size`` bytes with the bytes of ``parts``, by their place; parts do not overlap.

    A read of other bytes raises ``OSError``.
    """

    def __init__(self, size: int, parts: Mapping[int, bytes]) -> None:
        super().__init__()
        self._size = size
        self._parts = parts
        self._starts = sorted(parts)
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        """Read from one part: the last that begins at the position or before it."""
        start = self._position
        end = self._size if size is None or size < 0 else min(self._size, start + size)
        if start >= end:
            return b""
        index = bisect_right(self._starts, start) - 1
        part_start = self._starts[index] if index >= 0 else 0
        part = self._parts[part_start] if index >= 0 else b""
        if end > part_start + len(part):
            msg = f"the bytes {start} to {end} were not fetched"
            raise OSError(msg)
        self._position = end
        return part[start - part_start : end - part_start]


#: The exceptions that pyarrow raises for damaged bytes.
DAMAGE = (pa.ArrowException, OSError, ValueError, KeyError, IndexError)
#: A larger segment with checksums of its blocks is never fetched whole.
WHOLE_BYTES = 16 << 20
#: A smaller one is, unless a small part of it is needed: a second request takes longer than its bytes.
SMALL_BYTES = 4 << 20
#: Bytes between two needed ranges that are fetched with them: a request costs more than they do.
_GAP_BYTES = 512 << 10
#: The bytes of footers that a process keeps; a footer has some 10 to 100 KB.
_FOOTER_BYTES = 4 << 20
_SHA256 = re.compile("[0-9a-f]{64}")


def has_footer(segment: Segment) -> bool:
    """Whether parts of a segment can be read and checked."""
    return segment.footer_size is not None and segment.format == "parquet" and not segment.is_range


def may_read_parts(segment: Segment) -> bool:
    """Whether parts of a segment can be read and checked, and are worth a request of their own."""
    return has_footer(segment) and segment.size > SMALL_BYTES


def footer_of(segment: Segment) -> tuple[int, str]:
    """The size and the SHA-256 of a segment's footer.

    Raises:
        CorruptionError: The chain describes a footer that no segment can have.
    """
    size, sha256 = segment.footer_size, segment.footer_sha256
    if size is None or not 0 < size <= segment.size or _SHA256.fullmatch(sha256 or "") is None:
        msg = (
            f"segment {segment.key} is described with a footer of {size} bytes and the SHA-256 {sha256!r}: no segment "
            f"of {segment.size} bytes has such a footer"
        )
        raise CorruptionError(msg)
    return size, sha256 or ""


class Fetch(Enum):
    """What a reader fetches of the segment of a slice."""

    #: All of its bytes, with one GET.
    WHOLE = auto()
    #: The same, once for all slices of a caller with a read cache.
    KEPT = auto()
    #: The footer, and of each piece the columns that are read.
    RANGES = auto()


def choose_fetch_mode(
    part: Slice, columns: Columns, cache: ReadCache | None = None, *, in_parts: bool = False
) -> Fetch:
    """Choose what is fetched of the segment of a slice: ranges, if that needs less than half of it, or it is large.

    Of a small segment only what needs less than a quarter of its rows is read by ranges.

    Args:
        columns: The columns that are read.
        cache: That of the caller; None: the segment is not kept.
        in_parts: Read by ranges wherever it is possible, because only some pieces will be read.
    """
    segment, rows = part.batch.segment, part.most_records
    cache = None if part.batch.alone else cache
    if not has_footer(segment):
        return Fetch.WHOLE if cache is None else Fetch.KEPT
    if cache is not None and segment.size <= WHOLE_BYTES:
        partitions = cache.partitions
        if partitions is None or 2 * rows * partitions.get(part.tp.topic, 1) >= segment.rows:
            return Fetch.KEPT
    if segment.size <= SMALL_BYTES:
        is_part = not part.batch.alone and 4 * rows < segment.rows
    else:
        names = [name for name in columns.needs(part) if name != PARTITION_FIELD.name]  # Small, or not there.
        stored_columns = len(columns.topic_fields) + (0 if part.origin is not None else 2)  # _offset and _timestamp
        is_part = segment.size > WHOLE_BYTES or 2 * rows < segment.rows or 2 * len(names) < stored_columns
    return Fetch.RANGES if in_parts or is_part else Fetch.WHOLE


@dataclass(frozen=True, slots=True)
class Footer:
    """The checked footer of a segment: its bytes, and what they say."""

    data: bytes
    parsed: ParquetFooter
    blocks: Blocks


#: The footers that this process has read last, by their hash: a segment never changes.
_footers: ByteCache[str, Footer] = ByteCache(_FOOTER_BYTES)


def forget_footers() -> None:
    """Read each footer again: a verification compares what is stored now."""
    _footers.forget()


class RangedObject:
    """The bytes of a large segment, fetched by ranges and checked. Thread-safe.

    Args:
        tp: The partition, for messages.
        segment: The segment, which has a footer with checksums.

    Raises:
        CorruptionError: The chain describes a footer that no segment can have.
    """

    def __init__(self, objects: ObjectStore, tp: TopicPartition, segment: Segment) -> None:
        size, self._sha256 = footer_of(segment)
        self._objects = objects
        self._tp = tp
        self._segment = segment
        self.size = segment.size
        #: The first byte of the footer.
        self.footer_start = segment.size - size

    def footer(self) -> Footer:
        """The footer; one GET unless this process has read it lately.

        Raises:
            CorruptionError: The segment is missing, or its footer differs from the one that the chain describes.
        """
        footer = _footers.find(self._sha256)
        return footer if footer is not None else self._checked_footer(self._get(self.footer_start, self.size))

    def _checked_footer(self, data: bytes) -> Footer:
        """Check, parse and cache the bytes of the footer.

        Raises:
            CorruptionError: They differ from the ones that the chain describes, or cannot be parsed.
        """
        segment = self._segment
        verify_checksum(f"the footer of segment {segment.key} of {self._tp}", data, self._sha256, len(data))
        try:
            parsed = ParquetFooter(pq.ParquetFile(pa.BufferReader(data)))
            footer = Footer(data, parsed, Blocks.from_text(parsed.metadata[BLOCKS_KEY], self.footer_start))
        except DAMAGE as error:
            msg = f"segment {segment.key} cannot be read as parquet: {error}"
            raise CorruptionError(msg) from error
        _footers.keep(self._sha256, footer, len(data))
        return footer

    def check_whole(self, data: bytes) -> None:
        """Check all bytes of the object by the checksums of blocks, which take half the time of a SHA-256 of them.

        Raises:
            CorruptionError: They differ from what the chain describes.
        """
        check_size(f"segment {self._segment.key} of {self._tp}", len(data), self.size)
        blocks = self._checked_footer(data[self.footer_start :]).blocks
        self._compare(blocks, 0, memoryview(data)[: self.footer_start])

    def tail(self, start: int) -> bytes:
        """The bytes from ``start``, the first one of a block before the footer, to the end of the file; one GET."""
        data = self._get(start, self.size)
        blocks = self._checked_footer(data[self.footer_start - start :]).blocks
        if start % blocks.size == 0:
            self._check(blocks, start, data[: self.footer_start - start])
            return data
        [(first, before_footer)] = self.fetch(
            [(start, self.footer_start)]
        ).items()  # of a writer with blocks of another size
        return before_footer[start - first :] + data[self.footer_start - start :]

    def around(self, start: int, end: int) -> tuple[int, int]:
        """The bytes of the blocks that hold the bytes ``[start, end)`` before the footer."""
        return self.footer().blocks.around(start, end)

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> dict[int, bytes]:
        """Fetch ranges before the footer, widened to blocks, with one GET for each group of near ones.

        Args:
            ranges: The first byte, and the byte after the last one, of each range, in ascending order.

        Returns:
            The bytes by their place.

        Raises:
            CorruptionError: The segment is missing or damaged.
        """
        blocks = self.footer().blocks
        if any(not 0 <= start <= end <= self.footer_start for start, end in ranges):
            msg = f"segment {self._segment.key} of {self._tp} cannot be read as parquet: a column is outside the file"
            raise CorruptionError(msg)
        return {start: self._check(blocks, start, self._get(start, end)) for start, end in _join_ranges(blocks, ranges)}

    def _check(self, blocks: Blocks, start: int, data: bytes) -> bytes:
        self._compare(blocks, start, data)
        return data

    def _compare(self, blocks: Blocks, start: int, data: bytes | memoryview) -> None:
        """Raise CorruptionError if a block of the bytes from ``start`` on differs from its checksum."""
        damaged = blocks.find_damage(start, data)
        if damaged is not None:
            msg = (
                f"segment {self._segment.key} of {self._tp} was altered: its bytes {damaged[0]:,} to {damaged[1]:,} do "
                "not have the checksum in its footer"
            )
            raise CorruptionError(msg)

    def _get(self, start: int, end: int) -> bytes:
        """Fetch a range; raises CorruptionError if the object is missing or truncated."""
        segment = self._segment
        try:
            data = self._objects.get(segment.key, start, end)
        except ObjectNotFoundError:
            raise missing_segment(self._tp, segment) from SegmentNotFoundError(self._tp, segment.key)
        if len(data) != end - start:
            msg = f"segment {segment.key} of {self._tp} is truncated: it ends before byte {end:,} of {segment.size:,}"
            raise CorruptionError(msg)
        return data


def _join_ranges(blocks: Blocks, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges widened to blocks; those that are near each other as one."""
    joined: list[tuple[int, int]] = []
    for start, end in (blocks.around(*needed) for needed in ranges):
        if joined and start - joined[-1][1] <= _GAP_BYTES:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return joined


class RangedSegment:
    """A large segment, of which each read fetches a row group's columns. Thread-safe.

    Opening it costs the GET of the footer, a read one GET for each group of near columns.
    """

    def __init__(self, objects: ObjectStore, tp: TopicPartition, segment: Segment) -> None:
        self._object = RangedObject(objects, tp, segment)
        self._size = segment.size
        self._footer = self._object.footer().parsed
        self.columns, self.rows = self._footer.columns, self._footer.rows

    def offset_range(self, piece: int) -> tuple[int, int] | None:
        """The smallest and the largest ``_offset`` of a row group, by its statistics."""
        return self._footer.offset_range(piece)

    def read(self, piece: int, columns: Sequence[str]) -> pa.Table:
        """Fetch and decode these columns of a row group; ignores names that the segment does not have."""
        parts = self._object.fetch(self._footer.byte_ranges(piece, columns))
        return self._footer.read(self._footer.open(PartialFile(self._size, parts)), piece, columns)


class SegmentNotFoundError(ObjectNotFoundError):
    """The cause of the error of a segment that does not exist: :mod:`txnstore.read.expired` finds out if it is lost."""

    def __init__(self, tp: TopicPartition, key: str) -> None:
        super().__init__(f"there is no segment {key} of {tp}")
        self.tp, self.key = tp, key

    def __reduce__(self) -> tuple[type[SegmentNotFoundError], tuple[TopicPartition, str]]:
        return type(self), (self.tp, self.key)  # A task of Spark returns its errors to the driver.


def missing_segment(tp: TopicPartition, segment: Segment) -> CorruptionError:
    """The error of a segment that does not exist; raise it from a :class:`SegmentNotFoundError`."""
    expected = f"an object of {segment.size} bytes was expected"
    if segment.is_range:
        expected = f"{segment.object} was expected to have its {segment.size} bytes from byte {segment.first_byte} on"
    msg = (
        f"segment {segment.key} of {tp} is missing: {expected}. If this is an old "
        "snapshot, a vacuum or an erasure may have deleted the segment, because only old snapshots refer to it"
    )
    return CorruptionError(msg)


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
        self._hashed_up_to = 0

    def read(self, piece: int, columns: Sequence[str]) -> pa.Table:
        """Fetch a row group, and decode these columns of it."""
        ranges = self._footer.byte_ranges(piece, self.columns)
        if not ranges or ranges[0][0] < self._hashed_up_to:
            return super().read(piece, columns)
        start, end = ranges[0][0], max(limit for _, limit in ranges)
        if start - self._hashed_up_to > _STEP_BYTES:
            self._hash_up_to(start)
        file = self._footer.open(PartialFile(self._size, self._fetch_up_to(end)))
        return self._footer.read(file, piece, columns)

    def compare(self) -> None:
        """Fetch the bytes that no piece had, and compare the hash of all.

        Raises:
            CorruptionError: The segment is missing or damaged, or its hash is not the one that the chain records.
        """
        self._hash_up_to(self._object.footer_start)
        self._sha256.update(self._object.footer().data)
        digest, expected = self._sha256.hexdigest(), self._segment.sha256
        if digest != expected:
            msg = f"segment {self._segment.key} of {self._tp} was altered: its SHA-256 is {digest}; expected {expected}"
            raise CorruptionError(msg)

    def _hash_up_to(self, end: int) -> None:
        while self._hashed_up_to < end:
            self._fetch_up_to(min(end, self._hashed_up_to + _STEP_BYTES))

    def _fetch_up_to(self, end: int) -> dict[int, bytes]:
        """The blocks with the bytes up to ``end`` that were not hashed before."""
        parts = self._object.fetch([(self._hashed_up_to, end)])
        [(first, data)] = parts.items()
        self._sha256.update(memoryview(data)[self._hashed_up_to - first : end - first])
        self._hashed_up_to = end
        return parts
