"""The positions of a streaming query: its form in Spark's checkpoint, and the ranges of each micro-batch. Pure.

A position describes a whole micro-batch: the offset of each partition at its start and at its end. Spark stores the end
of a micro-batch before it runs, but not the start of the first one, and asks for that start again when it repeats the
micro-batch. A start such as ``latest`` would then be a later one, and the records in between would be lost. So the
start is stored with the end, and a repeated micro-batch reads the same offsets.

Spark compares positions as JSON text, so equal positions have equal text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from txnstore.core.model import TopicPartition
from txnstore.errors import InvalidConfigError, UnsupportedFormatError
from txnstore.validation import as_integer

#: The version of the JSON text, under the name by which a position is recognized in a checkpoint.
VERSION, MARK = 1, "txnstore"

#: An offset for each of some partitions.
Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Position:
    """A micro-batch of a stream: its start and its end, each the next offset to read by partition.

    Attributes:
        store_id: The id of the store that was read.
        topic_ids: The ids of the topics by name: a topic that is created again has another id.
        start: The offsets at which the micro-batch starts.
        end: The offsets at which it ends.
        group: The consumer group of the stream, if it has one.
    """

    store_id: str
    topic_ids: Mapping[str, str] = field(default_factory=dict)
    start: Offsets = field(default_factory=dict)
    end: Offsets = field(default_factory=dict)
    group: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Format the position as Spark stores it; equal positions give equal text."""
        group = {} if self.group is None else {"group": self.group}
        topics = {name: self.topic_ids[name] for name in sorted(self.topic_ids)}
        return {
            MARK: VERSION,
            "store": self.store_id,
            **group,
            "topics": topics,
            "start": _format_offsets(self.start),
            "end": _format_offsets(self.end),
        }


def parse(document: Any) -> Position:
    """Parse a position as Spark stored it.

    Raises:
        InvalidConfigError: It is not a position of txnstore.
        UnsupportedFormatError: A newer txnstore wrote it.
    """
    if not is_position(document):
        msg = f"the checkpoint holds an offset that is not one of txnstore: {json.dumps(document)[:200]}"
        raise InvalidConfigError(msg)
    if document[MARK] != VERSION:
        msg = f"the checkpoint was written by a newer txnstore: its offsets have version {document[MARK]}"
        raise UnsupportedFormatError(msg)
    return Position(
        document["store"],
        dict(document["topics"]),
        _parse_offsets(document["start"]),
        _parse_offsets(document["end"]),
        document.get("group"),
    )


def limits_json(limits: Offsets) -> dict[str, dict[str, int]]:
    """Format the ends of partitions, as the progress of a query shows them."""
    return _format_offsets(limits)


def is_position(document: object) -> bool:
    """Whether a JSON value is a position of txnstore, of any version."""
    return isinstance(document, dict) and as_integer(document.get(MARK)) is not None


def parse_lines(lines: Iterable[str]) -> list[Position]:
    """Return the positions of txnstore in a file of Spark's offset log, which has a line for each source."""
    positions = []
    for line in lines:
        try:
            document = json.loads(line)
        except ValueError:
            continue  # The line with the version of the log, or the offset of another source.
        positions += [parse(value) for value in _nested_values(document) if is_position(value)]
    return positions


def _nested_values(document: Any) -> Iterable[Any]:
    """Return the value of a line, and those inside it: newer logs name their sources."""
    yield document
    if isinstance(document, dict) and not is_position(document):
        for value in document.values():
            if isinstance(value, str):
                try:
                    yield json.loads(value)
                except ValueError:
                    continue
            else:
                yield value


def _format_offsets(offsets: Offsets) -> dict[str, dict[str, int]]:
    result: dict[str, dict[str, int]] = {}
    for tp in sorted(offsets):
        result.setdefault(tp.topic, {})[str(tp.partition)] = offsets[tp]
    return result


def _parse_offsets(nested: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic, int(number)): offset
        for topic, offsets in nested.items()
        for number, offset in offsets.items()
    }


# What a stream reads next ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Log:
    """The part of a partition log that a stream can read.

    Attributes:
        start: The first offset of the log.
        limit: The offset up to which the stream may read: the last stable offset, or the high watermark.
        end: The high watermark.
    """

    start: int
    limit: int
    end: int


@dataclass(frozen=True, slots=True)
class Logs:
    """The partitions that a stream reads, as one view of the store shows them."""

    store_id: str
    topic_ids: Mapping[str, str]
    partitions: Mapping[TopicPartition, Log]

    @property
    def limits(self) -> dict[TopicPartition, int]:
        """The offsets up to which the stream may read."""
        return {tp: log.limit for tp, log in self.partitions.items()}


@dataclass(frozen=True, slots=True)
class Step:
    """A micro-batch to read, and the records that the store has lost since the stream read it.

    Attributes:
        position: The micro-batch to read.
        losses: A sentence for each partition that lost records before they were read.
    """

    position: Position
    losses: tuple[str, ...] = ()


def initial_position(logs: Logs, start: Offsets, group: str | None = None) -> Position:
    """Return the position of a stream that has read nothing: it starts and ends at these offsets."""
    return Position(logs.store_id, dict(logs.topic_ids), dict(start), dict(start), group)


def next_step(
    position: Position,
    logs: Logs,
    *,
    until: Offsets | None = None,
    max_offsets: int | None = None,
) -> Step:
    """Return the micro-batch after a position; the position itself if there is nothing to read.

    Partitions that the position does not know are new, and are read from the start of their log.

    Args:
        position: The last micro-batch.
        logs: The partitions to read.
        until: Read no further than these offsets, and no other partitions; None: as far as the logs go.
        max_offsets: The most offsets to read, over all partitions; None: no limit.
    """
    losses = _missing_partition_losses(position, logs)
    starts: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    for tp, log in logs.partitions.items():
        if until is not None and tp not in until and tp not in position.end:
            continue
        start, loss = _resume_offset(position, logs, tp)
        losses += loss
        limit = log.limit if until is None else min(log.limit, until.get(tp, start))
        starts[tp], ends[tp] = start, max(start, limit)
    if max_offsets is not None:
        ends = _share_limit(starts, ends, max_offsets)
    if starts == ends and not losses:
        return Step(position)
    return Step(Position(logs.store_id, dict(logs.topic_ids), starts, ends, position.group), tuple(losses))


def replay_step(position: Position, logs: Logs) -> Step:
    """Return the readable part of a planned micro-batch: its offsets that are still in the store."""
    losses = [
        f"topic {tp.topic!r} was deleted, or created again, before offsets {start} to {limit - 1} of {tp} were read"
        for tp, (start, limit) in _offset_ranges(position).items()
        if not is_same(position, logs, tp)
    ]
    starts: dict[TopicPartition, int] = {}
    ends: dict[TopicPartition, int] = {}
    for tp, (start, limit) in _offset_ranges(position).items():
        if not is_same(position, logs, tp):
            continue
        log = logs.partitions[tp]
        if start < log.start:
            losses.append(_expiry_loss(tp, start, min(limit, log.start)))
        if limit > log.end:
            losses.append(_truncation_loss(tp, limit, log.end))
        starts[tp] = min(max(start, log.start), log.end)
        ends[tp] = max(starts[tp], min(limit, log.end))
    return Step(Position(position.store_id, position.topic_ids, starts, ends, position.group), tuple(losses))


def lag(end: Any, latest: Any) -> dict[TopicPartition, int]:
    """Return the offsets of each partition that are not read yet, from the progress of a source.

    Args:
        end: The source's position, as JSON value.
        latest: The ends of its partitions, from :func:`limits_json`.
    """
    read_offsets, limits = parse(end).end, _parse_offsets(latest)
    return {tp: max(0, limit - read_offsets.get(tp, 0)) for tp, limit in sorted(limits.items())}


def _offset_ranges(position: Position) -> dict[TopicPartition, tuple[int, int]]:
    """Return the offsets of each partition that the micro-batch reads; partitions without any are left out."""
    ranges = {tp: (position.start.get(tp, 0), limit) for tp, limit in position.end.items()}
    return {tp: (start, limit) for tp, (start, limit) in ranges.items() if start < limit}


def is_same(position: Position, logs: Logs, tp: TopicPartition) -> bool:
    """Whether the partition exists, in the topic that the position names."""
    return tp in logs.partitions and position.topic_ids.get(tp.topic) == logs.topic_ids.get(tp.topic)


def _missing_partition_losses(position: Position, logs: Logs) -> list[str]:
    """Describe partitions that the stream has read and that it would not read any more."""
    missing_topics = {tp.topic for tp in position.end} - set(logs.topic_ids)
    excluded_tps = [
        tp
        for tp in sorted(position.end)
        if tp not in logs.partitions and logs.topic_ids.get(tp.topic) == position.topic_ids.get(tp.topic, "")
    ]
    return [
        *(f"topic {name!r} does not exist any more, or the options leave it out" for name in sorted(missing_topics)),
        *(f"the stream has read {tp}, which the option partitions leaves out" for tp in excluded_tps),
    ]


def _resume_offset(position: Position, logs: Logs, tp: TopicPartition) -> tuple[int, list[str]]:
    """Return the offset at which to continue in a partition, and the records that were lost before it."""
    log = logs.partitions[tp]
    offset = position.end.get(tp)
    if offset is None:
        return log.start, []
    if not is_same(position, logs, tp):
        return log.start, [f"topic {tp.topic!r} was deleted and created again since {tp} was read"]
    if offset < log.start:
        return log.start, [_expiry_loss(tp, offset, log.start)]
    if offset > log.end:
        return log.end, [_truncation_loss(tp, offset, log.end)]
    return offset, []


def _expiry_loss(tp: TopicPartition, first_offset: int, limit: int) -> str:
    offsets = f"{first_offset} to {limit - 1}"
    return f"offsets {offsets} of {tp} were deleted before they were read (retention, or delete_records)"


def _truncation_loss(tp: TopicPartition, offset: int, log_end: int) -> str:
    return (
        f"the stream has read {tp} up to offset {offset}, but its log ends at {log_end}: was the store restored from a "
        "copy?"
    )


def _share_limit(starts: Offsets, ends: Offsets, limit: int) -> dict[TopicPartition, int]:
    """Return ends that read at most ``limit`` offsets, shared between the partitions by what each has to read."""
    pending_counts = {tp: ends[tp] - starts[tp] for tp in ends}
    total_count = sum(pending_counts.values())
    if total_count <= limit:
        return dict(ends)
    shares = {tp: limit * count // total_count for tp, count in pending_counts.items()}
    # What the rounding leaves goes to the largest remainders, so each micro-batch reads something.
    by_remainder = sorted(pending_counts, key=lambda tp: (-(limit * pending_counts[tp] % total_count), tp))
    for tp in by_remainder[: limit - sum(shares.values())]:
        shares[tp] += 1
    return {tp: starts[tp] + shares[tp] for tp in ends}
