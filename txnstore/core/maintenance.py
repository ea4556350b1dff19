"""Replacing segments by merged ones, and announcing the deletion of objects: commands, events, rules, folding."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import Literal

from txnstore.core.log.appending import with_partition
from txnstore.core.log.model import MAX_UPLOAD_AGE_MS, AbortedTxn, Batch, BatchList, Partition
from txnstore.core.model import NO_PRODUCER, TopicPartition
from txnstore.core.state import Draft, Fold, State
from txnstore.errors import CompactionConflictError


@dataclass(frozen=True, slots=True)
class ReplaceSegments:
    """Put merged batches in the place of others. Refused if one of ``removed`` is gone or not below the HW rule.

    ``uploaded_at``: when the first of ``added`` was uploaded, in ms; see :class:`~txnstore.core.log.model.NewBatch`.
    """

    tp: TopicPartition
    removed: tuple[Batch, ...]
    added: tuple[Batch, ...]
    uploaded_at: int | None = None


@dataclass(frozen=True, slots=True)
class DropObjects:
    """Announce the deletion of segments. Answered with the keys that may be deleted: those that nothing names.

    The chain orders it with the appends: one that came before keeps its segment, one that comes after is refused.
    """

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ForgetObjects:
    """Forget objects that were dropped and deleted long ago. Answered with None."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentsReplaced:
    """A compaction put ``added`` in the place of the batches that begin at the ``removed`` offsets."""

    type: Literal["SegmentsReplaced"] = "SegmentsReplaced"
    topic: str
    partition: int
    removed: list[int]
    added: list[Batch]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectsDropped:
    """A vacuum is about to delete these segments, which nothing names: no batch may name them any more."""

    type: Literal["ObjectsDropped"] = "ObjectsDropped"
    keys: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectsForgotten:
    """These dropped objects were deleted so long ago that no writer can still mean to name them."""

    type: Literal["ObjectsForgotten"] = "ObjectsForgotten"
    keys: list[str]


def replace_segments(draft: Draft, command: ReplaceSegments) -> None:
    """Nothing at or above the transactional high-watermark may change, and nothing that was read may be gone.

    ``removed`` is a run of neighbours in the log; ``added`` lies inside the offsets of that run, in order, and is
    empty if the run held aborted batches only.
    """
    partition = draft.state.partition(command.tp)
    if partition is None:
        msg = f"partition {command.tp} was deleted while it was compacted"
        raise CompactionConflictError(msg)
    if not command.removed:
        msg = f"a compaction of {command.tp} must remove something"
        raise CompactionConflictError(msg)
    _check_removed(command, partition)
    _check_added(command, draft.state)
    _check_upload_time(draft.state, command)
    draft.emit(
        SegmentsReplaced(
            topic=command.tp.topic,
            partition=command.tp.partition,
            removed=[batch.base_offset for batch in command.removed],
            added=list(command.added),
        ),
    )


def _check_removed(command: ReplaceSegments, partition: Partition) -> None:
    """The removed batches are exactly what the log holds between the first and the last of them, and all are stable."""
    start, limit = command.removed[0].base_offset, command.removed[-1].limit
    if limit > partition.last_stable_offset:
        key = command.removed[-1].segment.key
        msg = f"segment {key} reaches above the last stable offset {partition.last_stable_offset} of {command.tp}"
        raise CompactionConflictError(msg)
    present = tuple(partition.batches.overlapping(start, limit))
    if present == command.removed:
        return
    gone = next((batch for batch in command.removed if batch not in present), None)
    if gone is not None:
        msg = f"segment {gone.segment.key} of {command.tp} was replaced by somebody else"
    else:
        msg = f"the segments to replace between the offsets {start} and {limit} of {command.tp} are not neighbours"
    raise CompactionConflictError(msg)


def _check_added(command: ReplaceSegments, state: State) -> None:
    """The added batches are in order inside the removed range, belong to nobody, and hold no more than was there."""
    at, limit = command.removed[0].base_offset, command.removed[-1].limit
    for batch in command.added:
        if not at <= batch.base_offset < batch.limit <= limit:
            msg = f"segment {batch.segment.key} covers offsets that were not removed from {command.tp}"
            raise CompactionConflictError(msg)
        if batch.transactional or batch.producer_id != NO_PRODUCER:
            msg = f"segment {batch.segment.key} is merged, so it belongs to no producer, not to {batch.producer_id}"
            raise CompactionConflictError(msg)
        if batch.segment.key in state.dropped:
            msg = f"segment {batch.segment.key} was vacuumed before it took its place in {command.tp}"
            raise CompactionConflictError(msg)
        if batch.records != batch.limit - batch.base_offset and not batch.segment.explicit_offsets:
            msg = f"segment {batch.segment.key} has gaps in its offsets, so it must say the offset of each record"
            raise CompactionConflictError(msg)
        at = batch.limit
    before, after = (sum(batch.records for batch in batches) for batches in (command.removed, command.added))
    if after > before:
        msg = f"a compaction of {command.tp} cannot turn {before} records into {after}"
        raise CompactionConflictError(msg)


def _check_upload_time(state: State, command: ReplaceSegments) -> None:
    """A merged segment must not be one that a vacuum has deleted so long ago that the chain forgot it (OBJ-06)."""
    if command.uploaded_at is not None and state.timestamp - command.uploaded_at > MAX_UPLOAD_AGE_MS:
        days = MAX_UPLOAD_AGE_MS // 86_400_000
        msg = f"the merge of {command.tp} was uploaded over {days} days ago: a vacuum may have deleted it"
        raise CompactionConflictError(msg)


def drop_objects(draft: Draft, command: DropObjects) -> tuple[str, ...]:
    named = {batch.segment.key for partition in draft.state.partitions.values() for batch in partition.batches}
    keys = tuple(key for key in command.keys if key not in named)
    new = [key for key in keys if key not in draft.state.dropped]
    if new:
        draft.emit(ObjectsDropped(keys=new))
    return keys


def forget_objects(draft: Draft, command: ForgetObjects) -> None:
    keys = [key for key in command.keys if key in draft.state.dropped]
    if keys:
        draft.emit(ObjectsForgotten(keys=keys))


def _segments_replaced(state: State, event: SegmentsReplaced) -> State:
    tp = TopicPartition(event.topic, event.partition)
    partition = state.partitions[tp]
    removed = [batch for offset in event.removed for batch in partition.batches.overlapping(offset, offset + 1)]
    batches = partition.batches.replace(removed, event.added)
    kept = {batch.segment.key for batch in batches}
    dropped = state.dropped
    for batch in removed:
        if batch.segment.key not in kept:
            dropped = dropped.insert(batch.segment.key, state.timestamp)
    if removed:
        aborted = _still_aborted(partition.aborted, batches, removed[0].base_offset, removed[-1].limit)
        partition = replace(partition, aborted=aborted)
    return replace(with_partition(state, tp, replace(partition, batches=batches)), dropped=dropped)


def _still_aborted(
    index: tuple[AbortedTxn, ...], batches: BatchList[Batch], start: int, limit: int
) -> tuple[AbortedTxn, ...]:
    """The index of aborted transactions without those that a compaction of ``[start, limit)`` left no batch of.

    So does Kafka's cleaner (``CleanedTransactionMetadata``): only an entry of which it has seen a batch is kept.
    """
    first = bisect_left(index, start, key=lambda entry: entry.last_offset)
    kept = tuple(entry for entry in index[first:] if entry.first_offset >= limit or _has_batches(batches, entry))
    return index if first + len(kept) == len(index) else (*index[:first], *kept)


def _has_batches(batches: BatchList[Batch], entry: AbortedTxn) -> bool:
    inside = batches.overlapping(entry.first_offset, entry.last_offset)
    return any(batch.transactional and batch.producer_id == entry.producer_id for batch in inside)


def _objects_dropped(state: State, event: ObjectsDropped) -> State:
    dropped = state.dropped
    for key in event.keys:
        dropped = dropped.insert(key, state.timestamp)
    return replace(state, dropped=dropped)


def _objects_forgotten(state: State, event: ObjectsForgotten) -> State:
    dropped = state.dropped
    for key in event.keys:
        dropped = dropped.discard(key)
    return replace(state, dropped=dropped)


#: Dropped objects are remembered for this long, which exceeds the age of any upload by more than clocks differ.
FORGET_AFTER_MS = 7 * 86_400_000


MAINTENANCE_FOLDS: dict[type, Fold] = {
    SegmentsReplaced: _segments_replaced,
    ObjectsDropped: _objects_dropped,
    ObjectsForgotten: _objects_forgotten,
}
