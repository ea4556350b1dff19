"""Deciding a command: ``decide(state, command, now) -> Decision``.

A refused command raises a domain error and changes nothing. An accepted one becomes events, each folded as soon as
it is decided, so that the second batch of a command sees the first. The rules of producers and transactions are in
:mod:`txnstore.core.transactions`; here are the catalog, the groups and the compaction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from txnstore.core import expiry, membership, transactions
from txnstore.core.appending import MAX_UPLOAD_AGE_MS
from txnstore.core.commands import (
    AbortTxn,
    AlterTopic,
    Append,
    CloseTopic,
    Command,
    CommitOffsets,
    CompleteTxn,
    CopyTopic,
    CreateTopic,
    DeleteGroup,
    DeleteTopic,
    DropObjects,
    EndTxn,
    Expire,
    FenceProducer,
    ForgetObjects,
    Heartbeat,
    HoldTxn,
    InitProducer,
    JoinGroup,
    LeaveGroup,
    ReplaceSegments,
    ResetOffsets,
    WriteMarkers,
)
from txnstore.core.draft import Draft
from txnstore.core.events import (
    Event,
    ObjectsDropped,
    ObjectsForgotten,
    SegmentsReplaced,
    TopicAltered,
    TopicClosed,
    TopicCreated,
    TopicDeleted,
)
from txnstore.core.groups import commit_offsets, delete_group, reset_offsets
from txnstore.core.markers import fence, observe, write_markers
from txnstore.core.model import NO_PRODUCER, Partition, State, Topic
from txnstore.core.routing import CATALOG
from txnstore.errors import (
    CompactionConflictError,
    InvalidConfigError,
    TopicChangedError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
)


@dataclass(frozen=True, slots=True)
class Decision:
    """What a command becomes: its events (none if there is nothing to do), the state after them, the answer."""

    events: tuple[Event, ...]
    state: State
    result: Any


def decide(state: State, command: Command) -> Decision:
    """Decide ``command`` in an entry that :func:`~txnstore.core.evolve.begin_entry` has begun.

    Raises a class of :mod:`txnstore.errors` if the command is refused.
    """
    draft = Draft(state)
    result = _RULES[type(command)](draft, command)
    return Decision(tuple(draft.events), draft.state, result)


def _create_topic(draft: Draft, command: CreateTopic) -> Topic:
    topic = command.topic
    if topic.name in draft.state.topics:
        msg = f"topic {topic.name!r} exists already"
        raise TopicExistsError(msg)
    if topic.partitions < 1:
        msg = f"partitions of topic {topic.name!r} must be at least 1, not {topic.partitions}"
        raise InvalidConfigError(msg)
    topic = replace(topic, revision=draft.state.sequence)
    draft.emit(TopicCreated(topic=topic))
    return topic


def _alter_topic(draft: Draft, command: AlterTopic) -> Topic:
    topic, current = command.topic, _topic(draft.state, command.topic.name)
    if current.version != command.expected_version or current.topic_id != topic.topic_id:
        msg = f"topic {topic.name!r} was changed by somebody else in the meantime: read it again"
        raise TopicChangedError(msg)
    if topic.partitions < current.partitions:
        msg = (
            f"topic {topic.name!r} has {current.partitions} partitions; they can grow, but not shrink to "
            f"{topic.partitions}"
        )
        raise InvalidConfigError(msg)
    topic = replace(topic, revision=draft.state.sequence)
    draft.emit(TopicAltered(topic=topic))
    return topic


def _delete_topic(draft: Draft, command: DeleteTopic) -> None:
    topic = _topic(draft.state, command.name)
    if command.revision not in {None, topic.revision}:
        msg = f"topic {topic.name!r} was changed by somebody else while it was deleted"
        raise TopicChangedError(msg)
    observe(draft, command.after)
    draft.emit(TopicDeleted(name=topic.name, topic_id=topic.topic_id, revision=draft.state.sequence))


def _copy_topic(draft: Draft, command: CopyTopic) -> None:
    """Follow the catalog's chain, in the order of its entries: a copy that comes late changes nothing."""
    known = draft.state.topics.get(command.name)
    if command.revision <= _heard_of(draft.state, command.name):
        return
    observe(draft, ((CATALOG, command.revision),))
    if known is None and command.topic is None:
        draft.emit(TopicClosed(name=command.name, revision=command.revision))
    if known is not None and (command.topic is None or command.topic.topic_id != known.topic_id):
        draft.emit(TopicDeleted(name=known.name, topic_id=known.topic_id, revision=command.revision))
        known = None
    if command.topic is not None:
        draft.emit(TopicCreated(topic=command.topic) if known is None else TopicAltered(topic=command.topic))


def _close_topic(draft: Draft, command: CloseTopic) -> None:
    """From this entry on nothing is appended to the topic, so that the catalog can delete it."""
    known, closed = draft.state.topics.get(command.name), draft.state.deleted.get(command.name, 0)
    if command.revision <= closed or (known is not None and known.revision > command.revision):
        return
    observe(draft, ((CATALOG, command.revision),))
    draft.emit(TopicClosed(name=command.name, revision=command.revision))


def _heard_of(state: State, name: str) -> int:
    """The newest revision of a topic that this chain has heard of; 0 if of none."""
    known = state.topics.get(name)
    return max(known.revision if known is not None else 0, state.deleted.get(name, 0))


def _topic(state: State, name: str) -> Topic:
    topic = state.topics.get(name)
    if topic is None:
        msg = f"there is no topic {name!r}"
        raise UnknownTopicOrPartitionError(msg)
    return topic


def _replace_segments(draft: Draft, command: ReplaceSegments) -> None:
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


def _drop_objects(draft: Draft, command: DropObjects) -> tuple[str, ...]:
    named = {batch.segment.key for partition in draft.state.partitions.values() for batch in partition.batches}
    keys = tuple(key for key in command.keys if key not in named)
    new = [key for key in keys if key not in draft.state.dropped]
    if new:
        draft.emit(ObjectsDropped(keys=new))
    return keys


def _forget_objects(draft: Draft, command: ForgetObjects) -> None:
    keys = [key for key in command.keys if key in draft.state.dropped]
    if keys:
        draft.emit(ObjectsForgotten(keys=keys))


def _commit_offsets(draft: Draft, command: CommitOffsets) -> None:
    commit_offsets(draft, command.offsets)


def _complete_txn(draft: Draft, command: CompleteTxn) -> None:
    before = len(draft.events)
    transactions.complete(draft, command.decided)
    if len(draft.events) > before:
        observe(draft, command.after)


_RULES: dict[type, Callable[[Draft, Any], Any]] = {
    CreateTopic: _create_topic,
    AlterTopic: _alter_topic,
    DeleteTopic: _delete_topic,
    InitProducer: transactions.init_producer,
    Append: transactions.append,
    EndTxn: transactions.end,
    HoldTxn: transactions.hold,
    FenceProducer: fence,
    AbortTxn: transactions.abort,
    WriteMarkers: write_markers,
    CompleteTxn: _complete_txn,
    CopyTopic: _copy_topic,
    CloseTopic: _close_topic,
    CommitOffsets: _commit_offsets,
    JoinGroup: membership.join,
    Heartbeat: membership.heartbeat,
    LeaveGroup: membership.leave,
    ResetOffsets: reset_offsets,
    DeleteGroup: delete_group,
    ReplaceSegments: _replace_segments,
    DropObjects: _drop_objects,
    ForgetObjects: _forget_objects,
    Expire: expiry.expire,
}
