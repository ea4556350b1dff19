"""Slices of batches: rows of a segment with their offsets and times, as the chain describes them; no I/O."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from txnstore.core.log.model import Batch, Layout
from txnstore.core.model import TopicPartition


class Times(StrEnum):
    """The source of the event times of rows."""

    #: A column that a compaction has written.
    STORED = "stored"
    #: A column of the topic.
    COLUMN = "column"
    #: The time of the append, which is the same for all rows of the batch.
    APPEND = "append"


@dataclass(frozen=True, slots=True)
class Slice:
    """The records of one batch with offsets in ``[start, limit)``."""

    tp: TopicPartition
    batch: Batch
    start: int
    limit: int

    @property
    def whole(self) -> bool:
        """Whether the slice covers the whole batch."""
        return self.start <= self.batch.base_offset and self.batch.limit <= self.limit

    @property
    def layout(self) -> Layout:
        """The layout of the rows in the segment."""
        return self.batch.layout

    @property
    def times(self) -> Times:
        """The source of the event times of the rows."""
        if self.batch.segment.explicit_offsets:
            return Times.STORED
        return Times.APPEND if self.batch.timestamp_type == "LogAppendTime" else Times.COLUMN

    @property
    def origin(self) -> int | None:
        """The difference of a row's offset and its number in the segment; None: offsets are stored."""
        batch = self.batch
        return None if batch.segment.explicit_offsets else batch.base_offset - batch.first_row

    @property
    def rows(self) -> range:
        """The range of rows in the segment; where offsets are stored, all rows of the batch, whose offsets decide."""
        batch, origin = self.batch, self.origin
        if origin is None:
            return range(batch.first_row, batch.first_row + batch.records)
        return range(self.start - origin, self.limit - origin)

    @property
    def most_records(self) -> int:
        """The number of records; an upper bound if offsets are stored and the slice is cut."""
        return min(self.batch.records, self.limit - self.start)

    @property
    def most_bytes(self) -> int:
        """The share of the segment's size that :attr:`most_records` have."""
        segment = self.batch.segment
        return segment.size * self.most_records // max(1, segment.rows)

    @property
    def time_range(self) -> tuple[int, int]:
        """The smallest and the largest event time of the batch, in ms. Rows without a stored time have the latter."""
        return self.batch.min_timestamp, self.batch.max_timestamp

    def between(self, start: int, limit: int) -> Slice:
        """Return the part of the batch with offsets in another range."""
        return Slice(self.tp, self.batch, start, limit)


def whole_batch(tp: TopicPartition, batch: Batch) -> Slice:
    """Return all records of a batch as a slice."""
    return Slice(tp, batch, batch.base_offset, batch.limit)
