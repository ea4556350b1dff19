"""The values of a partition log: segments, batches, producer states, the aborted index.

Ranges of offsets are half-open: from ``base_offset`` up to, not including, ``limit``. Times are in ms.
"""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum
from typing import Literal, TypeAlias

from txnstore.core.log.batches import BatchList
from txnstore.core.model import NO_PRODUCER, Isolation, Map, ProducerIdentity, TopicPartition, interned_tp, value_class

#: The number of batches in the window of a producer in a partition (Kafka: ``ProducerStateEntry``).
WINDOW = 5

#: The offsets of a batch in a window whose transaction was aborted.
NO_OFFSET = -1

#: Sequence numbers wrap after this value (Kafka: ``DefaultRecordBatch.incrementSequence``).
MAX_SEQUENCE = 2**31 - 1


#: Where the event times of a batch come from (Kafka: ``TimestampType``): the rows, or the time of the append.
TimestampType: TypeAlias = Literal["CreateTime", "LogAppendTime"]

#: The prefix of the keys of entries, which no segment of its own has.
_CHAINS = "chains/"


class Layout(StrEnum):
    """The way in which a segment stores rows."""

    #: As they were appended: offsets follow from the numbers of the rows.
    APPENDED = "appended"
    #: With offsets and times: those of one batch, which a compaction has written.
    MERGED = "merged"
    #: With offsets, times and partitions: those of several batches, which a merge has written.
    MERGED_SHARED = "merged_shared"


@value_class()
class Segment:
    """The description of a segment in the chain: an object, or a range of the bytes of one.

    A segment that is a range of an entry is *inlined*. One or several batches of a topic are row ranges of a segment,
    also of different partitions that one chain leads: a flush writes one segment for all of them.

    Attributes:
        object: The key of the object that has its bytes, relative to the root of the store.
        format: The file format: ``parquet``, ``arrow`` (an IPC file) or ``arrow_stream`` (an IPC stream).
        size: The size in bytes.
        sha256: The SHA-256 of its bytes, in hex.
        rows: The number of rows.
        explicit_offsets: The object has an ``_offset`` column (compacted segments). Otherwise the offset of a row is
            the base offset of its batch plus the number of the row, counted from the batch's ``first_row``.
        footer_size: The size in bytes of the footer of a large Parquet segment, which holds checksums of the bytes
            before it, so that a part can be read and checked; None for a segment that is read whole.
        footer_sha256: The SHA-256 of that footer, in hex.
        first_byte: The first of its bytes in the object; None if it is the whole object.
    """

    object: str
    format: str
    size: int
    sha256: str
    rows: int
    explicit_offsets: bool = False
    footer_size: int | None = None
    footer_sha256: str | None = None
    first_byte: int | None = None

    @property
    def key(self) -> str:
        """The unique name: the key of the object; of a range of one also ``#`` and its first byte."""
        return self.object if self.first_byte is None else f"{self.object}#{self.first_byte}"

    @property
    def is_range(self) -> bool:
        """Whether the segment is a range of the bytes of an object, which may have other segments."""
        return self.first_byte is not None

    @property
    def inlined(self) -> bool:
        """Whether the bytes of the segment are in the entry that committed it."""
        return self.first_byte is not None and self.object.startswith(_CHAINS)


@value_class()
class Batch:
    """Records of one partition that were appended together, or merged by a compaction.

    Covers the offsets ``[base_offset, limit)`` with ``records`` records: fewer than offsets only after a compaction.
    Timestamps are in ms. A merged batch has no producer. ``delete_horizon``: the earliest time at which a clean may
    remove a tombstone of it; None if it has no tombstone that a clean has read. ``timestamp_type``: where the event
    times of its rows come from, decided when it was appended.
    """

    base_offset: int
    limit: int
    records: int
    segment: Segment
    min_timestamp: int
    max_timestamp: int
    first_row: int = 0
    producer_id: int = NO_PRODUCER
    epoch: int = NO_PRODUCER
    base_sequence: int = NO_PRODUCER
    transactional: bool = False
    appended_at: int = 0
    delete_horizon: int | None = None
    timestamp_type: TimestampType = "CreateTime"

    @property
    def alone(self) -> bool:
        """Whether the batch has all rows of its segment; then no other batch names it, because a row is one record."""
        return self.first_row == 0 and self.records == self.segment.rows

    @property
    def layout(self) -> Layout:
        """The layout of the rows in the segment."""
        if not self.segment.explicit_offsets:
            return Layout.APPENDED
        return Layout.MERGED if self.alone else Layout.MERGED_SHARED

    @property
    def shared(self) -> bool:
        """Whether the object may have other batches, also of other partitions."""
        return self.segment.is_range or not (self.alone or self.segment.explicit_offsets)

    @property
    def size(self) -> int:
        """The size in bytes: the batch's share of a segment that it has with other batches."""
        segment = self.segment
        return segment.size * self.records // segment.rows if segment.rows else segment.size


@value_class()
class NewBatch:
    """Rows of a segment that is uploaded, or is to be inlined; they have no offsets yet.

    Attributes:
        segment: The uploaded segment.
        min_timestamp: The lowest timestamp of its records, in ms.
        max_timestamp: The highest timestamp of its records, in ms.
        base_sequence: The sequence of the first record; -1 without a producer.
        uploaded_at: The time of the upload in ms, at least that of the newest entry that the writer knew. An upload
            older than :data:`MAX_UPLOAD_AGE_MS` is refused, because a vacuum may have deleted it. None: not checked.
        topic_id: The id of the topic that the rows were written for; refused if the topic was created again. None: not
            checked.
        topic_version: The version of the topic whose columns the rows have; refused in a chain whose copy of the topic
            is older, so that no reader sees rows before their columns. None: not checked.
        data: The bytes of a segment that is not uploaded: it is to be inlined in the entry that appends it, which also
            gives it its place. Batches of one segment have the same bytes object. None: it is uploaded.
        first_row: The row of the segment at which it begins.
        rows: The number of its rows; None: all of the segment.
        timestamp_type: Where the event times come from; for ``LogAppendTime`` the time of the append replaces both
            timestamps.
    """

    topic: str
    partition: int
    segment: Segment
    min_timestamp: int
    max_timestamp: int
    base_sequence: int = NO_PRODUCER
    uploaded_at: int | None = None
    topic_id: str | None = None
    topic_version: int | None = None
    data: bytes | None = field(default=None, repr=False)
    first_row: int = 0
    rows: int | None = None
    timestamp_type: TimestampType = "CreateTime"

    @property
    def tp(self) -> TopicPartition:
        """The partition to append to."""
        return interned_tp(self.topic, self.partition)

    @property
    def records(self) -> int:
        """The number of records, which is the number of offsets that it takes."""
        return self.segment.rows if self.rows is None else self.rows

    def placed_batch(self, base_offset: int, producer: ProducerIdentity, appended_at: int) -> Batch:
        """Return the batch of ``producer`` at the offsets from ``base_offset`` on."""
        records = self.records
        at_append = self.timestamp_type == "LogAppendTime"
        return Batch(
            base_offset,
            base_offset + records,
            records,
            self.segment,
            appended_at if at_append else self.min_timestamp,
            appended_at if at_append else self.max_timestamp,
            self.first_row,
            producer.producer_id,
            producer.epoch,
            self.base_sequence,
            producer.transactional_id is not None,
            appended_at,
            None,
            self.timestamp_type,
        )


@value_class()
class BatchMetadata:
    """A batch in the window of a producer, with which a retry is answered (SEQ-03; Kafka: ``BatchMetadata``).

    ``timestamp`` is the time of the append in ms.
    """

    first_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


@value_class()
class ProducerState:
    """The state of a producer in a partition (Kafka: ``ProducerStateEntry``).

    Attributes:
        epoch: The newest epoch.
        batches: The window: the last :data:`WINDOW` batches of this epoch.
        last_timestamp: The time of the last batch, marker or fence, in ms.
        current_txn_first_offset: The first offset of the open transaction, or None.
    """

    epoch: int
    batches: tuple[BatchMetadata, ...] = ()
    last_timestamp: int = 0
    current_txn_first_offset: int | None = None

    @property
    def last_sequence(self) -> int:
        """The last sequence number, or -1 if none was accepted in this epoch."""
        return self.batches[-1].last_sequence if self.batches else -1


@value_class()
class SessionWindow:
    """The last batches of the earlier transactions of a session, in a partition (SEQ-03).

    A client of transactions v1 numbers its records on from one transaction to the next. The marker of each of them
    empties the window of the :class:`ProducerState`, which is kept here; the batches of aborted ones without their
    offsets (:data:`NO_OFFSET`).

    Attributes:
        session_epoch: The epoch that the client has: another one is of another session.
        batches: The last :data:`WINDOW` batches up to the last marker.
    """

    session_epoch: int
    batches: tuple[BatchMetadata, ...]


@value_class()
class AbortedTxn:
    """An entry of the aborted index (LSO-06; Kafka: ``AbortedTxn``).

    ``last_offset`` is the offset of the abort marker.
    """

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


@value_class()
class Partition:
    """A partition log.

    Attributes:
        log_start: The first offset that can be read.
        high_watermark: The offset after the last record or marker.
        batches: The batches by offset.
        producers: The state of each producer, by producer id.
        session_windows: What is left of the windows of producers whose client continues with its epoch, by producer id.
        open_txns: The first offset of each open transaction, by producer id.
        aborted: The aborted index, in order of the markers.
        clean_until: The cleaner checkpoint: below it the log has at most one record of each key. Use
            :attr:`first_dirty_offset`, which is never below the log start.
        revision: The number of the entry that last replaced or deleted batches, or that created the partition: a
            compaction that was planned at another one is refused. 0 in states of releases that did not record it.
    """

    log_start: int = 0
    high_watermark: int = 0
    batches: BatchList[Batch] = field(default_factory=BatchList)
    producers: Map[int, ProducerState] = field(default_factory=Map)
    open_txns: Map[int, int] = field(default_factory=Map)
    aborted: tuple[AbortedTxn, ...] = ()
    clean_until: int = 0
    revision: int = 0
    session_windows: Map[int, SessionWindow] = field(default_factory=Map)

    @property
    def first_dirty_offset(self) -> int:
        """The first offset that no clean has covered (CMP-21; Kafka: ``firstDirtyOffset``)."""
        return max(self.log_start, self.clean_until)

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the earliest open transaction, or the high watermark (LSO-01)."""
        return max(self.log_start, min(self.open_txns.values(), default=self.high_watermark))

    def with_appended(
        self,
        high_watermark: int,
        batches: BatchList[Batch],
        producers: Map[int, ProducerState],
        open_txns: Map[int, int],
        aborted: tuple[AbortedTxn, ...],
    ) -> Partition:
        """Return the log after a batch or a marker. A commit makes one for each of its partitions."""
        return Partition(
            self.log_start,
            high_watermark,
            batches,
            producers,
            open_txns,
            aborted,
            self.clean_until,
            self.revision,
            self.session_windows,
        )

    def read_limit(self, isolation: Isolation) -> int:
        """The offset at which a reader stops: the LSO, or the high watermark (LSO-11)."""
        return self.last_stable_offset if isolation is Isolation.READ_COMMITTED else self.high_watermark


def next_sequence(sequence: int, increment: int = 1) -> int:
    """Return ``sequence + increment``, wrapped past :data:`MAX_SEQUENCE` (SEQ-05)."""
    return (sequence + increment) % (MAX_SEQUENCE + 1)


#: The greatest age of an upload that is registered: a vacuum may have deleted an older one (OBJ-06).
MAX_UPLOAD_AGE_MS = 3 * 86_400_000
