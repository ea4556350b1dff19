"""Folding the events of a group's members; a part of :mod:`txnstore.core.evolve`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from txnstore.core.group_events import GroupDeleted, GroupRebalanced, MemberJoined, MemberLeft, MemberSeen
from txnstore.core.model import Group, Member, State


def with_lease(group: Group, member_id: str, now: int) -> Group:
    """The group after a sign of life of one of its members; unchanged if it is none."""
    member = group.members.get(member_id)
    return group if member is None else _with_member(group, replace(member, seen_at=now))


def _member_joined(state: State, event: MemberJoined) -> State:
    group = state.groups.get(event.group, Group())
    before = group.members.get(event.replaces or event.member_id)
    member = Member(
        member_id=event.member_id,
        topics=dict(event.topics),
        assignor=event.assignor,
        session_timeout_ms=event.session_timeout_ms,
        instance_id=event.instance_id,
        seen_at=state.timestamp,
        target=before.target if before is not None else (),
        held=before.held if before is not None else (),
    )
    if event.replaces:
        group = replace(group, members=group.members.discard(event.replaces))
    return _with_group(state, event.group, _with_member(group, member))


def _member_left(state: State, event: MemberLeft) -> State:
    group = state.groups[event.group]
    members = group.members.remove(event.member_id)
    emptied_at = group.emptied_at if members else state.timestamp
    return _with_group(state, event.group, replace(group, members=members, emptied_at=emptied_at))


def _member_seen(state: State, event: MemberSeen) -> State:
    group = state.groups[event.group]
    member = replace(group.members[event.member_id], seen_at=state.timestamp)
    if event.topics is not None:
        member = replace(member, topics=dict(event.topics))
    return _with_group(state, event.group, _with_member(group, member))


def _group_rebalanced(state: State, event: GroupRebalanced) -> State:
    group = replace(state.groups[event.group], generation=event.generation)
    for item in event.members:
        member = replace(group.members[item.member_id], target=tuple(item.target), held=tuple(item.held))
        group = _with_member(group, member)
    return _with_group(state, event.group, group)


def _group_deleted(state: State, event: GroupDeleted) -> State:
    return replace(state, groups=state.groups.remove(event.group))


def _with_member(group: Group, member: Member) -> Group:
    return replace(group, members=group.members.insert(member.member_id, member))


def _with_group(state: State, name: str, group: Group) -> State:
    return replace(state, groups=state.groups.insert(name, group))


MEMBERSHIP: dict[type, Callable[[State, Any], State]] = {
    MemberJoined: _member_joined,
    MemberLeft: _member_left,
    MemberSeen: _member_seen,
    GroupRebalanced: _group_rebalanced,
    GroupDeleted: _group_deleted,
}
