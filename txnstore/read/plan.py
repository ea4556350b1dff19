"""What a reader looks up in a state before it reads anything: topics, partitions, offsets, and the slices between."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from txnstore.catalog.topics import find_topic
from txnstore.core.model import (
    Isolation,
    Partition,
    TopicPartition,
)
from txnstore.core.view import View
from txnstore.errors import InvalidConfigError, UnknownTopicOrPartitionError


@dataclass(frozen=True, slots=True)
class PartitionOffsets:
    """The bounds of a partition log: ``log_start <= last_stable <= high_watermark`` (LSO-01, LSO-11).

    read_committed sees the offsets ``[log_start, last_stable)``, read_uncommitted ``[log_start, high_watermark)``.
    """

    log_start: int
    last_stable: int
    high_watermark: int


def partition_offsets(state: View, topic: str, partition: int) -> PartitionOffsets:
    """The bounds of a partition log. Raises :class:`UnknownTopicOrPartitionError`."""
    found = find_partition(state, TopicPartition(topic, partition))
    return PartitionOffsets(found.log_start, found.last_stable_offset, found.high_watermark)


def find_partition(state: View, tp: TopicPartition) -> Partition:
    """The partition log. Raises :class:`UnknownTopicOrPartitionError`."""
    topic = find_topic(state, tp.topic)
    found = state.partition(tp)
    if found is None:
        msg = f"topic {tp.topic!r} has no partition {tp.partition!r}: its partitions are 0 to {topic.partitions - 1}"
        raise UnknownTopicOrPartitionError(msg)
    return found


def find_partitions(state: View, topic: str, numbers: Iterable[int] | None) -> list[TopicPartition]:
    """These partitions of a topic in ascending order, each once; all of them for None."""
    count = find_topic(state, topic).partitions
    chosen = sorted({TopicPartition(topic, number) for number in (range(count) if numbers is None else numbers)})
    for tp in chosen:
        find_partition(state, tp)
    return chosen


def parse_isolation(value: str) -> Isolation:
    """The isolation level of this name. Raises :class:`InvalidConfigError` (CON-01)."""
    try:
        return Isolation(value)
    except ValueError:
        known = " or ".join(repr(level.value) for level in Isolation)
        msg = f"isolation must be {known}, not {value!r}"
        raise InvalidConfigError(msg) from None
