"""Folding the events of a group's offsets; a part of :mod:`txnstore.core.evolve`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from txnstore.core.events import GroupMarkerWritten, OffsetsCommitted
from txnstore.core.fences import with_fence
from txnstore.core.group_evolve import with_lease
from txnstore.core.model import NO_PRODUCER, CommittedOffset, Group, Map, OffsetAndMetadata, Outcome, State


def _offsets_committed(state: State, event: OffsetsCommitted) -> State:
    group = state.groups.get(event.group, Group())
    position = state.next_offset_position
    pending = event.producer_id != NO_PRODUCER
    offsets = group.pending.get(event.producer_id, Map()) if pending else group.offsets
    for item in event.offsets:
        value = OffsetAndMetadata(item.offset, item.metadata, item.leader_epoch)
        offsets = offsets.insert(item.tp, CommittedOffset(value, position, state.timestamp, item.topic_id))
        position += 1
    if pending:
        group = replace(group, pending=group.pending.insert(event.producer_id, offsets))
        # A marker of an older transaction that comes late must not be taken for the one that these wait for.
        state = with_fence(state, event.producer_id, event.epoch)
    else:
        group = replace(group, offsets=offsets)
    group = with_lease(group, event.member_id, state.timestamp)
    return replace(state, groups=state.groups.insert(event.group, group), next_offset_position=position)


def _group_marker_written(state: State, event: GroupMarkerWritten) -> State:
    """The pending offsets are decided; a producer of another chain is fenced, whether it had any here or not."""
    state = with_fence(state, event.producer_id, event.epoch)
    group = state.groups.get(event.group)
    if group is None or event.producer_id not in group.pending:
        return state
    group = decided_offsets(group, event.producer_id, event.epoch, event.outcome)
    return replace(state, groups=state.groups.insert(event.group, group))


def decided_offsets(group: Group, producer_id: int, marker_epoch: int, outcome: Outcome) -> Group:
    """Pending offsets take effect unless a plain commit came after them in the log (OFF-11)."""
    if producer_id not in group.pending:
        return group
    offsets = group.offsets
    last_producer = group.last_producer
    if outcome is Outcome.COMMIT:
        for tp, value in group.pending[producer_id].items():
            current = offsets.get(tp)
            if current is None or current.position < value.position:
                offsets = offsets.insert(tp, value)
        last_producer = (producer_id, marker_epoch - 1)
    return replace(group, offsets=offsets, pending=group.pending.remove(producer_id), last_producer=last_producer)


OFFSETS: dict[type, Callable[[State, Any], State]] = {
    OffsetsCommitted: _offsets_committed,
    GroupMarkerWritten: _group_marker_written,
}
