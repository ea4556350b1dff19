"""The rules of membership: members hold leases in the group's chain (KIP-848 without a coordinator).

A member joins, and renews its lease by heartbeats and offset commits. Every change of the members, or of the topics
that they read, gives each member a target and raises the generation, which fences offset commits of members that have
not seen it (KIP-447). There is no barrier and no leader: a partition moves to its new owner once the old one has
given it back or has left; all other members go on reading. Time is the chain's: a lease ends when another command of
the group finds it expired; until then the member can renew it.
"""

from __future__ import annotations

from collections.abc import Iterable

from txnstore.core.groups.assignors import ASSIGNORS, assignor_of
from txnstore.core.groups.commands import Heartbeat, JoinGroup, LeaveGroup, Membership, TxnOffsets
from txnstore.core.groups.events import GroupRebalanced, MemberJoined, MemberLeft, MemberPartitions, MemberSeen
from txnstore.core.groups.model import Group, Member
from txnstore.core.model import TopicPartition
from txnstore.core.state import Draft
from txnstore.errors import FencedInstanceError, IllegalGenerationError, InvalidConfigError, UnknownMemberError
from txnstore.validation import check_id, check_topic_name

#: Kafka's ``group.max.session.timeout.ms``.
MAX_SESSION_TIMEOUT_MS = 1_800_000


def join(draft: Draft, command: JoinGroup) -> Membership:
    """Become a member, take the place of a static one, or read other topics than before."""
    topics = _checked_topics(command.topics)
    _check_join(command, topics)
    group = _group(draft, command.group)
    before = group.members.get(command.member_id)
    if before is not None and before.instance_id != command.instance_id:
        msg = f"member {before.member_id!r} of group {command.group!r} cannot change its group.instance.id"
        raise InvalidConfigError(msg)
    if before is None:
        before = _static_member(group, command.instance_id)
    gone = expire(draft, command.group, but=before)
    draft.emit(
        MemberJoined(
            group=command.group,
            member_id=command.member_id,
            topics=topics,
            assignor=command.assignor,
            session_timeout_ms=command.session_timeout_ms,
            instance_id=command.instance_id,
            replaces=before.member_id if before is not None and before.member_id != command.member_id else "",
        ),
    )
    if gone or before is None or (before.topics, before.assignor) != (topics, command.assignor):
        _rebalance(draft, command.group)
    return _membership(draft, command.group, command.member_id)


def heartbeat(draft: Draft, command: Heartbeat) -> Membership:
    """Renew a lease; partitions that the member is not to read, and does not read any more, go to their new owners."""
    member = known_member(_group(draft, command.group), command.group, command.member_id, command.instance_id)
    topics = _checked_topics(command.topics) if command.topics is not None else member.topics
    if set(topics) != set(member.topics):
        msg = f"member {member.member_id!r} of group {command.group!r} has to join again to read other topics"
        raise InvalidConfigError(msg)
    changed = topics != member.topics
    draft.emit(MemberSeen(group=command.group, member_id=member.member_id, topics=topics if changed else None))
    if expire(draft, command.group, but=member) or changed:
        _rebalance(draft, command.group, {member.member_id: command.owned})
    else:
        _hand_over(draft, command.group, {member.member_id: command.owned})
    return _membership(draft, command.group, member.member_id)


def leave(draft: Draft, command: LeaveGroup) -> None:
    """Stop being a member. Who is gone already does not mind."""
    group = _group(draft, command.group)
    static = _static_member(group, command.instance_id)
    if command.instance_id is not None and command.member_id and static is not None:
        known_member(group, command.group, command.member_id, command.instance_id)
    member = static if command.instance_id is not None else group.members.get(command.member_id)
    if member is not None:
        draft.emit(MemberLeft(group=command.group, member_id=member.member_id, reason="left"))
        expire(draft, command.group)
        _rebalance(draft, command.group)


def empty(draft: Draft, name: str) -> bool:
    """Whether a group has no live member; if so, those whose leases have run out are removed."""
    if live_members(_group(draft, name), draft.state.timestamp):
        return False
    if expire(draft, name):
        _rebalance(draft, name)
    return True


def expire(draft: Draft, name: str, but: Member | None = None) -> bool:
    """Remove the members whose leases have run out, without the one that is just showing that it is alive.

    True if there were some: then the rest needs new targets.
    """
    spared = but.member_id if but is not None else ""
    gone = [
        member
        for member in _members(_group(draft, name))
        if member.expired(draft.state.timestamp) and member.member_id != spared
    ]
    for member in gone:
        draft.emit(MemberLeft(group=name, member_id=member.member_id, reason="expired"))
    return bool(gone)


def live_members(group: Group, now: int) -> list[Member]:
    """The members whose leases have not run out at the time ``now`` of the chain."""
    return [member for _, member in sorted(group.members.items(), key=_by_member_id) if not member.expired(now)]


def known_member(group: Group, name: str, member_id: str, instance_id: str | None) -> Member:
    """The member of this id; else the error that says why there is none (OFF-06).

    :class:`FencedInstanceError`: its static name has gone to another. :class:`UnknownMemberError`: it left, its lease
    ran out, or it never joined.
    """
    static = _static_member(group, instance_id)
    if static is not None and static.member_id != member_id:
        msg = f"member {static.member_id!r} of group {name!r} has taken over the group.instance.id {instance_id!r}"
        raise FencedInstanceError(msg)
    member = group.members.get(member_id)
    if member is None or (instance_id is not None and member.instance_id != instance_id):
        msg = f"group {name!r} has no member {member_id!r} (any more)"
        raise UnknownMemberError(msg)
    return member


def check_commit(draft: Draft, offsets: TxnOffsets, *, transactional: bool) -> None:
    """Fence an offset commit by member id, static name and generation (KIP-447).

    Without a membership it is accepted in a transaction (OFF-08). Without a generation it is accepted while the group
    has no live member, whoever says that he is one: there is nobody to protect, as in Kafka's
    ``ClassicGroup.validateOffsetCommit``. A generation is one of a group that is known. Stricter than Kafka: a member
    cannot commit for a partition that another member holds, though its generation is the newest; it gave that
    partition back before.
    """
    name, group = offsets.group, _group(draft, offsets.group)
    anonymous = not offsets.member_id and offsets.instance_id is None
    if offsets.generation < 0 and ((transactional and anonymous) or empty(draft, name)):
        return
    if offsets.generation < 0 and anonymous:
        msg = f"group {name!r} has members, so offsets can be committed by them only"
        raise UnknownMemberError(msg)
    if offsets.generation >= 0 and name not in draft.state.groups:
        msg = f"group {name!r} is not known, so it has no generation {offsets.generation}"
        raise IllegalGenerationError(msg)
    known_member(group, name, offsets.member_id, offsets.instance_id)
    if offsets.generation != group.generation:
        msg = f"group {name!r} is at generation {group.generation}, not {offsets.generation}"
        raise IllegalGenerationError(msg)
    wanted = {item.tp for item in offsets.offsets}
    for other in _members(group):
        if other.member_id != offsets.member_id and (taken := sorted(wanted.intersection(other.held))):
            msg = f"{taken[0]} belongs to member {other.member_id!r} of group {name!r}, not to {offsets.member_id!r}"
            raise IllegalGenerationError(msg)


def _rebalance(draft: Draft, name: str, owned: dict[str, tuple[TopicPartition, ...]] | None = None) -> None:
    """New targets for all members, in a new generation; what is free goes to its new owner at once."""
    group = _group(draft, name)
    members = _members(group)
    targets: dict[str, tuple[TopicPartition, ...]] = {}
    if members:
        targets = assignor_of(members)(members, _previous(members))
    _emit(draft, name, max(group.generation, 0) + 1, targets, owned or {})


def _hand_over(draft: Draft, name: str, owned: dict[str, tuple[TopicPartition, ...]]) -> None:
    """The targets stay; what was given back goes to its new owner."""
    group = _group(draft, name)
    targets = {member.member_id: member.target for member in _members(group)}
    _emit(draft, name, group.generation, targets, owned)


def _emit(
    draft: Draft,
    name: str,
    generation: int,
    targets: dict[str, tuple[TopicPartition, ...]],
    owned: dict[str, tuple[TopicPartition, ...]],
) -> None:
    """``owned``: what members that have just spoken still read; all else that is not theirs to read is given back."""
    group = _group(draft, name)
    members = _members(group)
    kept = {
        member.member_id: {
            tp
            for tp in member.held
            if tp in targets[member.member_id] or tp in owned.get(member.member_id, member.held)
        }
        for member in members
    }
    taken = {tp for tps in kept.values() for tp in tps}
    changes = []
    for member in members:
        target = targets[member.member_id]
        held = tuple(sorted(kept[member.member_id] | {tp for tp in target if tp not in taken}))
        if (target, held) != (member.target, member.held):
            changes.append(MemberPartitions(member_id=member.member_id, target=list(target), held=list(held)))
    if changes or generation != group.generation:
        draft.emit(GroupRebalanced(group=name, generation=generation, members=changes))


def _previous(members: Iterable[Member]) -> dict[TopicPartition, str]:
    """Who was to read each partition; where nobody was, who has not given it back yet."""
    found: dict[TopicPartition, str] = {}
    for member in members:
        for tp in member.held:
            found.setdefault(tp, member.member_id)
    for member in members:
        for tp in member.target:
            found[tp] = member.member_id
    return found


def _group(draft: Draft, name: str) -> Group:
    return draft.state.groups.get(name, Group())


def _members(group: Group) -> list[Member]:
    return [member for _, member in sorted(group.members.items(), key=_by_member_id)]


def _static_member(group: Group, instance_id: str | None) -> Member | None:
    if instance_id is None:
        return None
    return next((member for member in group.members.values() if member.instance_id == instance_id), None)


def _membership(draft: Draft, name: str, member_id: str) -> Membership:
    group = _group(draft, name)
    return Membership(member_id, group.generation, group.members[member_id].assigned)


def _check_join(command: JoinGroup, topics: dict[str, int]) -> None:
    check_id("group.id", command.group)
    check_id("member.id", command.member_id)
    if command.instance_id is not None:
        check_id("group.instance.id", command.instance_id)
    if not topics:
        msg = f"a member of group {command.group!r} has to read a topic"
        raise InvalidConfigError(msg)
    if command.assignor not in ASSIGNORS:
        known = ", ".join(repr(name) for name in ASSIGNORS)
        msg = f"assignor must be one of {known}, not {command.assignor!r}"
        raise InvalidConfigError(msg)
    if not 0 < command.session_timeout_ms <= MAX_SESSION_TIMEOUT_MS:
        msg = f"session_timeout must be above 0 and up to {MAX_SESSION_TIMEOUT_MS // 1000} s"
        raise InvalidConfigError(msg)


def _checked_topics(topics: Iterable[tuple[str, int]]) -> dict[str, int]:
    found = {check_topic_name(name): count for name, count in topics}
    for name, count in found.items():
        if count < 0:
            msg = f"topic {name!r} cannot have {count} partitions"
            raise InvalidConfigError(msg)
    return dict(sorted(found.items()))


def _by_member_id(item: tuple[str, object]) -> str:
    return item[0]
