"""The folding of the events of groups: offsets and members."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.fences import with_fence
from txnstore.core.groups.events import (
    GenerationStored,
    GroupDeleted,
    GroupMarkerWritten,
    GroupRebalanced,
    MemberJoined,
    MemberLeft,
    MemberReconciled,
    MemberSeen,
    OffsetsCommitted,
    OffsetsDeleted,
)
from txnstore.core.groups.model import ClassicGeneration, CommittedOffset, Group, Member, OffsetAndMetadata
from txnstore.core.model import NO_PRODUCER, Map, Outcome, TopicPartition
from txnstore.core.state import State, fold, is_foreign, replace


def with_lease(group: Group, member_id: str, now: int) -> Group:
    """Renew the lease of a member at ``now``; unchanged if there is no such member."""
    member = group.members.get(member_id)
    return group if member is None else _with_member(group, replace(member, seen_at=now))


@fold(MemberJoined)
def _member_joined(state: State, event: MemberJoined) -> State:
    """Add a member, or renew it; it inherits the partitions of the static member that it replaces."""
    group = state.groups.get(event.group, Group())
    earlier_member = group.members.get(event.replaces or event.member_id)
    member = Member(
        member_id=event.member_id,
        topics=dict(event.topics),
        assignor=event.assignor,
        session_timeout_ms=event.session_timeout_ms,
        instance_id=event.instance_id,
        seen_at=state.timestamp,
        target=earlier_member.target if earlier_member is not None else (),
        held=earlier_member.held if earlier_member is not None else (),
    )
    if group.classic is not None or not group.members:
        group = replace(group, classic=None, epochs=None)
    if event.replaces:
        group = _without_epoch(replace(group, members=group.members.discard(event.replaces)), event.replaces)
    return _with_group(state, event.group, _with_member(group, member))


@fold(MemberLeft)
def _member_left(state: State, event: MemberLeft) -> State:
    group = _without_epoch(state.groups[event.group], event.member_id)
    members = group.members.remove(event.member_id)
    emptied_at = group.emptied_at if members else state.timestamp
    return _with_group(state, event.group, replace(group, members=members, emptied_at=emptied_at))


@fold(MemberSeen)
def _member_seen(state: State, event: MemberSeen) -> State:
    group = state.groups[event.group]
    member = replace(group.members[event.member_id], seen_at=state.timestamp)
    if event.topics is not None:
        member = replace(member, topics=dict(event.topics))
    return _with_group(state, event.group, _with_member(group, member))


@fold(MemberReconciled)
def _member_reconciled(state: State, event: MemberReconciled) -> State:
    group = state.groups[event.group]
    epochs: Map[str, int] = Map() if group.epochs is None else group.epochs
    return _with_group(state, event.group, replace(group, epochs=epochs.insert(event.member_id, event.epoch)))


def _without_epoch(group: Group, member_id: str) -> Group:
    return group if group.epochs is None else replace(group, epochs=group.epochs.discard(member_id))


@fold(GroupRebalanced)
def _group_rebalanced(state: State, event: GroupRebalanced) -> State:
    group = replace(state.groups[event.group], generation=event.generation)
    for assigned in event.members:
        member = replace(group.members[assigned.member_id], target=tuple(assigned.target), held=tuple(assigned.held))
        group = _with_member(group, member)
    return _with_group(state, event.group, group)


@fold(GroupDeleted)
def _group_deleted(state: State, event: GroupDeleted) -> State:
    return replace(state, groups=state.groups.remove(event.group))


@fold(GenerationStored)
def _generation_stored(state: State, event: GenerationStored) -> State:
    """Replace the generation that a gateway keeps; note when the last member left."""
    group = state.groups.get(event.group, Group())
    classic = ClassicGeneration(
        event.protocol_type, event.protocol, event.leader, tuple(event.members), stored_at=state.timestamp
    )
    is_emptied = bool(group.classic_members) and not event.members
    group = replace(
        group,
        generation=event.generation,
        classic=classic,
        epochs=None,
        emptied_at=state.timestamp if is_emptied else group.emptied_at,
    )
    return _with_group(state, event.group, group)


def _with_member(group: Group, member: Member) -> Group:
    return replace(group, members=group.members.insert(member.member_id, member))


def _with_group(state: State, name: str, group: Group) -> State:
    return replace(state, groups=state.groups.insert(name, group))


@fold(OffsetsCommitted)
def _offsets_committed(state: State, event: OffsetsCommitted) -> State:
    """Add offsets: as committed, or as pending in the transaction of the producer."""
    group = state.groups.get(event.group, Group())
    commit_position = state.next_commit_position
    pending = event.producer_id != NO_PRODUCER
    offsets = group.pending.get(event.producer_id, Map()) if pending else group.offsets
    for offset in event.offsets:
        value = OffsetAndMetadata(offset.offset, offset.metadata, offset.leader_epoch)
        offsets = offsets.insert(offset.tp, CommittedOffset(value, commit_position, state.timestamp, offset.topic_id))
        commit_position += 1
    if pending:
        group = replace(group, pending=group.pending.insert(event.producer_id, offsets))
        # The fence keeps a late marker of an earlier transaction from ending these offsets.
        if is_foreign(state, event.producer_id):
            state = with_fence(state, event.producer_id, event.epoch)
    else:
        group = replace(group, offsets=offsets)
    group = with_lease(group, event.member_id, state.timestamp)
    return replace(state, groups=state.groups.insert(event.group, group), next_commit_position=commit_position)


@fold(OffsetsDeleted)
def _offsets_deleted(state: State, event: OffsetsDeleted) -> State:
    group = state.groups[event.group]
    pending = group.pending
    for producer_id, offsets in group.pending.items():
        pending = pending.insert(producer_id, _without_partitions(offsets, event.partitions))
    group = replace(group, offsets=_without_partitions(group.offsets, event.partitions), pending=pending)
    return _with_group(state, event.group, group)


def _without_partitions(
    offsets: Map[TopicPartition, CommittedOffset], partitions: Iterable[TopicPartition]
) -> Map[TopicPartition, CommittedOffset]:
    for tp in partitions:
        offsets = offsets.discard(tp)
    return offsets


@fold(GroupMarkerWritten)
def _group_marker_written(state: State, event: GroupMarkerWritten) -> State:
    """End the pending offsets of a transaction; fence a producer of another chain, even without offsets here."""
    if is_foreign(state, event.producer_id):
        state = with_fence(state, event.producer_id, event.epoch)
    group = state.groups.get(event.group)
    if group is None or event.producer_id not in group.pending:
        return state
    group = end_pending_offsets(group, event.producer_id, event.epoch, event.outcome)
    return replace(state, groups=state.groups.insert(event.group, group))


def end_pending_offsets(group: Group, producer_id: int, marker_epoch: int, outcome: Outcome) -> Group:
    """Apply or drop pending offsets; none replaces an offset with a later commit position (OFF-11)."""
    if producer_id not in group.pending:
        return group
    offsets = group.offsets
    last_producer = group.last_producer
    if outcome is Outcome.COMMIT:
        for tp, pending_offset in group.pending[producer_id].items():
            current_offset = offsets.get(tp)
            if current_offset is None or current_offset.commit_position < pending_offset.commit_position:
                offsets = offsets.insert(tp, pending_offset)
        last_producer = (producer_id, marker_epoch - 1)
    return replace(group, offsets=offsets, pending=group.pending.remove(producer_id), last_producer=last_producer)


def existing_offsets(group: Group, topics: Mapping[str, CatalogTopic]) -> Group:
    """Return the group with the offsets of topics of the catalog only, by their ids (OFF-18)."""
    pending = group.pending
    for producer_id, offsets in group.pending.items():
        pending = pending.insert(producer_id, _offsets_of_topics(offsets, topics))
    return replace(group, offsets=_offsets_of_topics(group.offsets, topics), pending=pending)


def _offsets_of_topics(
    offsets: Map[TopicPartition, CommittedOffset], topics: Mapping[str, CatalogTopic]
) -> Map[TopicPartition, CommittedOffset]:
    for tp, offset in offsets.items():
        topic = topics.get(tp.topic)
        if topic is None or offset.topic_id not in (None, topic.topic_id):
            offsets = offsets.remove(tp)
    return offsets
