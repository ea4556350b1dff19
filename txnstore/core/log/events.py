"""The events of partition logs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import Literal

from txnstore.core.log.model import Batch, Segment, TimestampType
from txnstore.core.model import Outcome, TopicPartition, interned_tp, value_class


@value_class()
class AppendedRows:
    """The rows ``[first_row, first_row + records)`` of a segment, appended to a partition at ``base_offset``.

    Timestamps are in ms; of ``LogAppendTime`` both are the time of the entry.
    """

    partition: int
    base_offset: int
    records: int
    first_row: int
    base_sequence: int
    min_timestamp: int
    max_timestamp: int


@value_class()
class BatchesAppended:
    """Rows of a segment became batches of its topic, all of one producer; at most one for each partition.

    In a transaction, their records are not stable until the marker.
    """

    type: Literal["BatchesAppended"] = field(default="BatchesAppended", kw_only=True)
    topic: str
    segment: Segment
    producer_id: int
    epoch: int
    transactional: bool
    timestamp_type: TimestampType
    batches: list[AppendedRows]

    def placed_batches(self, appended_at: int) -> Iterator[tuple[TopicPartition, Batch]]:
        """Yield the batches with their partitions; ``appended_at`` is the time of the entry in ms."""
        for rows in self.batches:
            yield (
                interned_tp(self.topic, rows.partition),
                Batch(
                    rows.base_offset,
                    rows.base_offset + rows.records,
                    rows.records,
                    self.segment,
                    rows.min_timestamp,
                    rows.max_timestamp,
                    rows.first_row,
                    self.producer_id,
                    self.epoch,
                    rows.base_sequence,
                    self.transactional,
                    appended_at,
                    None,
                    self.timestamp_type,
                ),
            )


def append_events(batches: Mapping[TopicPartition, Batch]) -> list[BatchesAppended]:
    """Return the events of batches of one producer, one for each segment."""
    events: dict[tuple[str, str], BatchesAppended] = {}
    for tp, batch in batches.items():
        segment = batch.segment
        event = events.get((tp.topic, segment.key))
        if event is None:
            event = events[tp.topic, segment.key] = BatchesAppended(
                tp.topic, segment, batch.producer_id, batch.epoch, batch.transactional, batch.timestamp_type, []
            )
        event.batches.append(
            AppendedRows(
                tp.partition,
                batch.base_offset,
                batch.records,
                batch.first_row,
                batch.base_sequence,
                batch.min_timestamp,
                batch.max_timestamp,
            )
        )
    return list(events.values())


@value_class(kw_only=True)
class ProducerFenced:
    """The chain refuses epochs below ``epoch`` of a producer of another chain.

    ``partitions`` and ``groups``: those of its open transaction that this chain has.
    """

    type: Literal["ProducerFenced"] = "ProducerFenced"
    producer_id: int
    epoch: int
    partitions: list[TopicPartition]
    groups: list[str]


@value_class(kw_only=True)
class LogStartMoved:
    """The records of a partition below ``offset`` were deleted; no record of an open transaction is among them."""

    type: Literal["LogStartMoved"] = "LogStartMoved"
    topic: str
    partition: int
    offset: int


@value_class()
class MarkerWritten:
    """The marker of a transaction took ``offset`` in a partition; ``epoch`` is the transaction's plus 1 (KIP-890)."""

    type: Literal["MarkerWritten"] = field(default="MarkerWritten", kw_only=True)
    topic: str
    partition: int
    producer_id: int
    epoch: int
    outcome: Outcome
    offset: int
