"""Lookups before a read: bounds of partitions, partitions of a topic, offsets by time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa

from txnstore import compute as pc
from txnstore.core.log.model import Layout
from txnstore.core.log.visibility import visible_slices
from txnstore.core.model import Isolation, TopicPartition
from txnstore.core.view import View
from txnstore.read.reader import open_slice
from txnstore.read.rows import Columns
from txnstore.storage.base import ObjectStore

#: The isolation of a reader (Kafka's ``isolation.level``, CON-01): committed records only, or all records.
IsolationLevel = Isolation | Literal["read_committed", "read_uncommitted"]


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """The bounds of a partition log: ``log_start <= last_stable <= high_watermark`` (LSO-01, LSO-11).

    read_committed sees the offsets ``[log_start, last_stable)``, read_uncommitted ``[log_start, high_watermark)``.

    Attributes:
        log_start: The first offset of the log.
        last_stable: The first offset of the earliest open transaction, or the high watermark.
        high_watermark: The offset of the next record that is appended.
    """

    log_start: int
    last_stable: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """A record's offset, and its timestamp in milliseconds since the epoch."""

    offset: int
    timestamp: int


def partition_offsets(view: View, topic: str, partition: int) -> PartitionOffsets:
    """Look up the bounds of a partition log.

    Raises:
        UnknownTopicOrPartitionError: The partition does not exist.
    """
    log = view.find_partition(TopicPartition(topic, partition))
    return PartitionOffsets(log.log_start, log.last_stable_offset, log.high_watermark)


def find_partitions(view: View, topic: str, numbers: Iterable[int] | None) -> list[TopicPartition]:
    """Look up partitions of a topic.

    Args:
        topic: The name of the topic.
        numbers: The numbers of the partitions; None for all.

    Returns:
        The partitions in ascending order, without duplicates.

    Raises:
        UnknownTopicOrPartitionError: The topic or a partition does not exist.
    """
    count = view.find_topic(topic).partitions
    tps = sorted({TopicPartition(topic, number) for number in (range(count) if numbers is None else numbers)})
    for tp in tps:
        view.find_partition(tp)
    return tps


def offset_for_time(
    objects: ObjectStore, view: View, tp: TopicPartition, isolation: Isolation, timestamp: int
) -> OffsetAndTimestamp | None:
    """Find the first visible record at or after a time (LSO-11).

    The chain records the range of timestamps of each batch, so usually only the batch with the result is read. Earlier
    batches are read only if a compaction removed records that their ranges include.

    Args:
        isolation: Which records are visible.
        timestamp: The time, in milliseconds since the epoch.

    Returns:
        The offset and the timestamp of the record; None if there is no such record.

    Raises:
        UnknownTopicOrPartitionError: The partition does not exist.
        CorruptionError: A segment is missing or damaged.
    """
    columns = Columns(view.find_topic(tp.topic), ["_offset", "_timestamp"])
    for part in visible_slices(tp, view.find_partition(tp), isolation):
        earliest, latest = part.time_range
        if latest < timestamp:
            continue
        if earliest == latest and part.layout is Layout.APPENDED:
            return OffsetAndTimestamp(part.start, earliest)
        opened = open_slice(objects, part, columns)
        for table in map(opened.read, range(len(opened))):
            moments = table.column("_timestamp").cast(pa.int64())
            row = pc.index(pc.greater_equal(moments, timestamp), True).as_py()
            if row >= 0:
                return OffsetAndTimestamp(table.column("_offset")[row].as_py(), moments[row].as_py())
    return None


def offset_of_greatest_time(
    objects: ObjectStore, view: View, tp: TopicPartition, isolation: Isolation
) -> OffsetAndTimestamp | None:
    """Find the first of the visible records with the greatest timestamp (KIP-734).

    Usually only its batch is read; further ones if the record that gave a batch its greatest timestamp is deleted.

    Args:
        isolation: Which records are visible.

    Returns:
        The offset and the timestamp of the record; None if no record is visible.

    Raises:
        UnknownTopicOrPartitionError: The partition does not exist.
        CorruptionError: A segment is missing or damaged.
    """
    columns = Columns(view.find_topic(tp.topic), ["_offset", "_timestamp"])
    parts = [(part.time_range, part) for part in visible_slices(tp, view.find_partition(tp), isolation)]
    greatest: OffsetAndTimestamp | None = None
    for (first, last), part in sorted(parts, key=lambda each: (-each[0][1], each[1].start)):
        if greatest is not None and last < greatest.timestamp:
            break
        if first == last and part.layout is Layout.APPENDED:
            candidates = [OffsetAndTimestamp(part.start, first)]
        else:
            opened = open_slice(objects, part, columns)
            candidates = [
                _record_with_greatest_time(table) for table in map(opened.read, range(len(opened))) if table.num_rows
            ]
        greatest = max(
            [*candidates, *([] if greatest is None else [greatest])],
            key=lambda candidate: (candidate.timestamp, -candidate.offset),
            default=None,
        )
    return greatest


def _record_with_greatest_time(table: pa.Table) -> OffsetAndTimestamp:
    moments = table.column("_timestamp").cast(pa.int64())
    row = pc.index(moments, pc.max(moments)).as_py()
    return OffsetAndTimestamp(table.column("_offset")[row].as_py(), moments[row].as_py())
