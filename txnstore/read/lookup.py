"""Offsets by time."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from txnstore.catalog.topics import find_topic
from txnstore.core.model import (
    Isolation,
    TopicPartition,
)
from txnstore.core.view import View
from txnstore.core.visibility import visible
from txnstore.read.plan import find_partition
from txnstore.read.reader import Projection, read_slice
from txnstore.storage.base import ObjectStore


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """A record's offset and timestamp in milliseconds."""

    offset: int
    timestamp: int


def offset_for_time(
    objects: ObjectStore,
    state: View,
    tp: TopicPartition,
    isolation: Isolation,
    timestamp: int,
) -> OffsetAndTimestamp | None:
    """The first record, among those that the isolation shows, whose timestamp is ``timestamp`` or later (LSO-11).

    The chain knows the range of timestamps of each batch, so at most the batch that holds the answer is read, and
    those in front of it only if compaction or retention took the records that the ranges promise.
    """
    projection = Projection(find_topic(state, tp.topic), ["_offset", "_timestamp"])
    for part in visible(tp, find_partition(state, tp), isolation):
        first, last = projection.timestamp_range(part)
        if last < timestamp:
            continue
        if first == last and not part.batch.segment.explicit_offsets:
            return OffsetAndTimestamp(part.start, first)
        table = read_slice(objects, part, projection)
        moments = table.column("_timestamp").cast(pa.int64())
        row = pc.index(pc.greater_equal(moments, timestamp), True).as_py()
        if row >= 0:
            return OffsetAndTimestamp(table.column("_offset")[row].as_py(), moments[row].as_py())
    return None
