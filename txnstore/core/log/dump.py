"""The log of a partition line by line, as Kafka's DumpLogSegments prints one: batches and markers by offset.

A state has the batches, and of aborted transactions the offsets of their markers. All else of markers, and which entry
wrote what, is in the entries of the chain only: what a vacuum has deleted of these is not known any more.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from txnstore.core.catalog.model import TopicCreated
from txnstore.core.history import HistoryEntry
from txnstore.core.log.events import BatchesAppended, MarkerWritten
from txnstore.core.log.model import Batch, Partition, next_sequence
from txnstore.core.log.visibility import batch_status
from txnstore.core.maintenance import SegmentsReplaced
from txnstore.core.model import NO_PRODUCER, Outcome, TopicPartition
from txnstore.core.routing import chain_of_producer


@dataclass(frozen=True, slots=True)
class LogLine:
    """A batch of a partition's log, a marker, or offsets of which nothing is known.

    Attributes:
        kind: ``"batch"``, ``"marker"``, or ``"unknown"``: markers, or records that a clean has removed, whose entries
            were deleted or not read.
        base_offset: The first offset.
        last_offset: The last offset.
        outcome: Of a batch ``"committed"``, ``"aborted"``, ``"open"`` or ``"compacted"`` (merged: all of it is
            committed); of a marker ``"COMMIT"`` or ``"ABORT"``; else None.
        records: The number of records.
        producer_id: The producer id. None without one: of plain records, and of merged batches, which have lost it.
        epoch: The epoch; of a marker that of the transaction plus 1 (KIP-890). None if not known.
        base_sequence: The sequence of the first record of an idempotent producer; else None.
        last_sequence: The sequence of the last record; else None.
        transactional: Whether it is of a transaction; None of a merged batch, where that is not known.
        transactional_id: The transactional id of the producer id, as far as it is known now.
        coordinator: Of what is transactional the chain that coordinates the transaction; else None.
        min_timestamp: The smallest event time of the records, in ms; of a marker the time of its entry; else None.
        max_timestamp: The largest event time, in the same way.
        appended_at: The time of the entry of an appended batch or a marker, in ms; None if it is not known.
        entry: The entry of the partition's chain that wrote it; None if it was deleted or not read.
        segment: The key of the segment of a batch; else None.
        bytes: The size of a batch, or its share of a segment that it has with others; else 0.
    """

    kind: Literal["batch", "marker", "unknown"]
    base_offset: int
    last_offset: int
    outcome: str | None = None
    records: int = 0
    producer_id: int | None = None
    epoch: int | None = None
    base_sequence: int | None = None
    last_sequence: int | None = None
    transactional: bool | None = None
    transactional_id: str | None = None
    coordinator: int | None = None
    min_timestamp: int | None = None
    max_timestamp: int | None = None
    appended_at: int | None = None
    entry: int | None = None
    segment: str | None = None
    bytes: int = 0


class Trace(NamedTuple):
    """The entry in which an offset was written: its number, its time in ms, and the marker, if the offset is one."""

    entry: int
    timestamp: int
    marker: MarkerWritten | None = None


class Traces:
    """The traces of offsets of some partitions, added from the newest entry to older ones."""

    def __init__(self, tps: Iterable[TopicPartition]) -> None:
        #: For each partition by the first offset of a batch, or the offset of a marker.
        self.by_partition: dict[TopicPartition, dict[int, Trace]] = {tp: {} for tp in tps}
        #: The smallest offset of each partition that an entry so far has appended.
        self._first_offsets: dict[TopicPartition, int] = {}
        #: The topics that an entry so far has created: older entries are about others of their names.
        self._created_topics: set[str] = set()

    def reach(self, tp: TopicPartition, offset: int) -> bool:
        """Whether no older entry says anything of this offset or a later one."""
        return tp.topic in self._created_topics or self._first_offsets.get(tp, offset + 1) <= offset

    def add(self, entry: HistoryEntry) -> None:
        """Add an entry."""
        for event in reversed(entry.events):
            if isinstance(event, TopicCreated):
                self._created_topics.add(event.topic.name)
            elif isinstance(event, BatchesAppended):
                for rows in event.batches:
                    tp = TopicPartition(event.topic, rows.partition)
                    self._add_trace(tp, rows.base_offset, Trace(entry.sequence, entry.timestamp))
            elif isinstance(event, MarkerWritten):
                tp = TopicPartition(event.topic, event.partition)
                self._add_trace(tp, event.offset, Trace(entry.sequence, entry.timestamp, event))
            elif isinstance(event, SegmentsReplaced):
                tp = TopicPartition(event.topic, event.partition)
                for batch in event.added:
                    self._add_trace(tp, batch.base_offset, Trace(entry.sequence, entry.timestamp), is_appended=False)

    def _add_trace(self, tp: TopicPartition, offset: int, trace: Trace, *, is_appended: bool = True) -> None:
        if tp in self.by_partition and tp.topic not in self._created_topics:
            if is_appended:
                self._first_offsets[tp] = offset
            # A newer entry has merged the batch into another one of the same first offset.
            self.by_partition[tp].setdefault(offset, trace)


def log_lines(
    partition: Partition, traces: Mapping[int, Trace], transactional_ids: Mapping[int, str], chains: int
) -> Iterator[LogLine]:
    """Return the lines of a log by first offset, from the log start to the high watermark.

    Args:
        partition: The log.
        traces: What entries say of its offsets.
        transactional_ids: The transactional id of each producer id that has one.
        chains: The number of chains of the store.
    """
    aborts = {entry.last_offset: entry.producer_id for entry in partition.aborted}
    known_offsets = {offset for offset, trace in traces.items() if trace.marker is not None} | aborts.keys()
    markers = sorted(offset for offset in known_offsets if partition.log_start <= offset < partition.high_watermark)
    lines = [*_batch_lines(partition, traces), *(_marker_line(offset, traces, aborts) for offset in markers)]
    lines.sort(key=lambda line: line.base_offset)
    for line in _without_gaps(lines, partition.log_start, partition.high_watermark):
        yield _with_producer(line, transactional_ids, chains)


def _batch_lines(partition: Partition, traces: Mapping[int, Trace]) -> Iterator[LogLine]:
    status = batch_status(partition)
    for batch in partition.batches:
        yield _batch_line(batch, status(batch), traces.get(batch.base_offset))


def _batch_line(batch: Batch, outcome: str, trace: Trace | None) -> LogLine:
    """Return the line of a batch; a merged one has lost its transaction and its append time."""
    is_merged = outcome == "compacted"
    sequence = _or_none(batch.base_sequence)
    return LogLine(
        kind="batch",
        base_offset=batch.base_offset,
        last_offset=batch.limit - 1,
        outcome=outcome,
        records=batch.records,
        producer_id=_or_none(batch.producer_id),
        epoch=_or_none(batch.epoch),
        base_sequence=sequence,
        last_sequence=None if sequence is None else next_sequence(sequence, batch.records - 1),
        transactional=None if is_merged else batch.transactional,
        min_timestamp=batch.min_timestamp,
        max_timestamp=batch.max_timestamp,
        appended_at=None if is_merged else batch.appended_at,
        entry=trace.entry if trace is not None else None,
        segment=batch.segment.key,
        bytes=batch.size,
    )


def _marker_line(offset: int, traces: Mapping[int, Trace], aborts: Mapping[int, int]) -> LogLine:
    """Return the line of a marker; without its entry, only that it aborted, and whom."""
    trace = traces.get(offset)
    if trace is None or trace.marker is None:
        return LogLine("marker", offset, offset, Outcome.ABORT.value, producer_id=aborts[offset], transactional=True)
    marker, written_at = trace.marker, trace.timestamp
    return LogLine(
        kind="marker",
        base_offset=offset,
        last_offset=offset,
        outcome=marker.outcome.value,
        producer_id=marker.producer_id,
        epoch=marker.epoch,
        transactional=True,
        min_timestamp=written_at,
        max_timestamp=written_at,
        appended_at=written_at,
        entry=trace.entry,
    )


def _without_gaps(lines: Iterable[LogLine], start: int, end: int) -> Iterator[LogLine]:
    """Yield the lines, and between them a line for each run of offsets that no line covers."""
    next_offset = start
    for line in lines:
        if line.base_offset > next_offset:
            yield LogLine("unknown", next_offset, line.base_offset - 1)
        yield line
        next_offset = max(next_offset, line.last_offset + 1)
    if next_offset < end:
        yield LogLine("unknown", next_offset, end - 1)


def _with_producer(line: LogLine, transactional_ids: Mapping[int, str], chains: int) -> LogLine:
    """Return the line with the transactional id and the coordinator that its producer id shows."""
    if line.producer_id is None or not line.transactional:
        return line
    return replace(
        line,
        transactional_id=transactional_ids.get(line.producer_id),
        coordinator=chain_of_producer(line.producer_id) if chains > 1 else 0,
    )


def _or_none(value: int) -> int | None:
    return None if value == NO_PRODUCER else value
