"""Reads a share of a large segment, so that several tasks read it together.

A share is a run of the segment's row groups, so every row is in exactly one share. It is decided from the footer of the
file, which each task reads: a plan needs no request. A task fetches the footer, and then its row groups one by one; a
small segment, whose footer has no checksums of its blocks, is fetched whole by each task.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from txnstore.core.log.slices import Slice
from txnstore.read.ranged import WHOLE_BYTES
from txnstore.read.reader import open_slice
from txnstore.read.rows import Columns
from txnstore.segment.codec import least_row_groups
from txnstore.storage.base import ObjectStore


@dataclass(frozen=True, slots=True)
class Share:
    """One of ``count`` shares of a slice, with a ``number`` from 0."""

    number: int
    count: int


def share_count(part: Slice, target: int, overhead: int = 0) -> int:
    """Into how many shares a slice can be split, as far as is known without its footer.

    Args:
        target: The bytes of a share.
        overhead: The bytes that opening the segment counts for.
    """
    segment = part.batch.segment
    if segment.format != "parquet" or not segment.rows:
        return 1
    if segment.footer_size is None and segment.size > WHOLE_BYTES:
        return 1  # Each task would have to read it whole.
    size = part.most_bytes
    return max(1, min(least_row_groups(part.most_records, size), -(-(size + overhead) // target)))


def read_share(objects: ObjectStore, part: Slice, columns: Columns, share: Share) -> Iterator[pa.Table]:
    """Read the rows of a share, one row group at a time.

    Raises:
        CorruptionError: The segment is missing or damaged.
    """
    opened = open_slice(objects, part, columns, in_parts=True).share(share.number, share.count)
    return map(opened.read, range(len(opened)))
