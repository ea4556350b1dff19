"""Reads a share of a large segment, so that several tasks read it together.

A share is a run of the segment's row groups, so every row is in exactly one share. It is decided from the footer of the
file, which each task reads: a plan needs no request. A task fetches the footer and then its row groups, with one GET
each, and so cannot compare the hash of the segment; it detects what the Parquet format detects.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from txnstore.core.log.visibility import Slice
from txnstore.errors import CorruptionError, ObjectNotFoundError
from txnstore.read.reader import DAMAGE, OpenSlice, Projection, check_file, missing, pieces_of, unreadable
from txnstore.segment.codec import ROW_GROUP_BYTES, ROW_GROUP_ROWS
from txnstore.segment.pieces import ParquetSegment
from txnstore.storage.base import ObjectStore

#: The end of a file that is fetched first. A longer footer, of thousands of column chunks, costs another GET.
_TAIL = 64 << 10
#: What follows the footer of a Parquet file: its length in 4 bytes, and a magic number.
_SUFFIX, _MAGIC = 8, b"PAR1"


@dataclass(frozen=True, slots=True)
class Share:
    """One of ``count`` shares of a slice, with a ``number`` from 0."""

    number: int
    count: int


def share_count(part: Slice, target: int, overhead: int = 0) -> int:
    """Into how many shares a slice can be split, as far as is known without its footer.

    Args:
        part: The slice.
        target: The bytes of a share.
        overhead: The bytes that opening the segment counts for.
    """
    batch, segment = part.batch, part.batch.segment
    if segment.format != "parquet" or not segment.rows:
        return 1
    records = min(batch.records, part.limit - part.start)
    size = segment.size * records // segment.rows
    row_groups = max(-(-records // ROW_GROUP_ROWS), -(-size // ROW_GROUP_BYTES))
    return max(1, min(row_groups, -(-(size + overhead) // target)))


def read_share(objects: ObjectStore, part: Slice, projection: Projection, share: Share) -> Iterator[pa.Table]:
    """Read the rows of a share, one row group at a time.

    Raises:
        CorruptionError: The segment is missing or damaged.
    """
    opened = open_share(objects, part, projection, share)
    return map(opened.read, range(len(opened)))


def open_share(objects: ObjectStore, part: Slice, projection: Projection, share: Share) -> OpenSlice:
    """Fetch the footer of a segment, and the row groups of a share; two GETs, or one if the share is empty.

    Raises:
        CorruptionError: The segment is missing, or differs from its description in the chain.
    """
    segment = part.batch.segment
    # A page of memory that is never written takes none, so this is as large as what is fetched.
    data = np.zeros(segment.size, np.uint8)

    def fetch(start: int, end: int) -> None:
        try:
            found = objects.get(segment.key, start, end)
        except ObjectNotFoundError as error:
            raise missing(part.tp, segment) from error
        if len(found) != end - start:
            msg = f"segment {segment.key} of {part.tp} is truncated: it ends before byte {end:,} of {segment.size:,}"
            raise CorruptionError(msg)
        data[start:end] = np.frombuffer(found, np.uint8)

    tail = max(0, segment.size - _TAIL)
    fetch(tail, segment.size)
    footer = _footer_start(data)
    if footer is None:
        raise unreadable(segment, ValueError("it has no footer"))
    if footer < tail:
        fetch(footer, tail)
    try:
        file = ParquetSegment(pa.py_buffer(data))
        check_file(segment, file)
        pieces = pieces_of(part, file)
        first, last = (len(pieces) * number // share.count for number in (share.number, share.number + 1))
        mine = pieces[first:last]
        ranges = [file.byte_range(piece.number) for piece in mine]
    except DAMAGE as error:
        raise unreadable(segment, error) from error
    if mine:
        start, end = min(start for start, _ in ranges), max(end for _, end in ranges)
        if not 0 <= start < end <= segment.size:
            raise unreadable(segment, ValueError("a row group is outside the file"))
        fetch(start, end)
    return OpenSlice(part, projection, file, mine)


def _footer_start(data: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> int | None:
    """The first byte of the footer; None if the file does not end with one."""
    suffix = data[-_SUFFIX:].tobytes()
    start = len(data) - _SUFFIX - int.from_bytes(suffix[:4], "little")
    return start if suffix[4:] == _MAGIC and start >= 0 else None
