"""The rules of membership: members have leases in the group's chain (KIP-848 without a coordinator process).

A member joins, and renews its lease by heartbeats and offset commits. Every change of the members or their topics
computes new targets and raises the generation, which fences offset commits of members that have not seen it (KIP-447).
There is no barrier and no leader: a partition moves to its new owner when the old one has released it or has left; the
other members continue to read. A lease has expired when another process has measured that it was not renewed for its
whole length: a later command of the group names the newest renewal that this process knew, and has no effect on a
member that has renewed its lease since (``groups.md``, ``fences.md`` in ``docs/internals/design``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from txnstore.core.authorization.rights import Right, reads_group, reads_group_or_maintains
from txnstore.core.declaration import command
from txnstore.core.groups.assignors import ASSIGNORS, assignor_of
from txnstore.core.groups.commands import (
    ExpiredMembers,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    Membership,
    TxnOffsets,
)
from txnstore.core.groups.events import (
    GroupRebalanced,
    MemberJoined,
    MemberLeft,
    MemberPartitions,
    MemberReconciled,
    MemberSeen,
)
from txnstore.core.groups.model import GROUPS, ClassicMember, Group, Member, PartitionHolder
from txnstore.core.model import TopicPartition, sorted_items
from txnstore.core.routes import to_group
from txnstore.core.state import Draft, State
from txnstore.errors import (
    FencedInstanceError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidConfigError,
    UnknownMemberError,
)
from txnstore.validation import check_id, check_topic_name

#: Kafka's ``group.max.session.timeout.ms``.
MAX_SESSION_TIMEOUT_MS = 1_800_000


@command(JoinGroup, route=to_group, right=reads_group)
def join(draft: Draft, command: JoinGroup) -> Membership:
    """Join a group, replace a static member of the same name, or change the topics of a member.

    Raises:
        InconsistentGroupProtocolError: A gateway keeps members of the group.
        InvalidConfigError: An argument is not valid, or a member changes its ``group.instance.id``.
    """
    topics = _checked_topics(command.topics)
    _check_join(command, topics)
    group = _group_in(draft, command.group)
    if group.kind != command.kind:
        if not expire_if_none_live(draft, command.group, command.expired):
            msg = f"group {command.group!r} has members of the kind {group.kind}, so none of another kind can join it"
            raise InconsistentGroupProtocolError(msg)
        group = _group_in(draft, command.group)
    member = group.members.get(command.member_id)
    if member is not None and member.instance_id != command.instance_id:
        msg = f"member {member.member_id!r} of group {command.group!r} cannot change its group.instance.id"
        raise InvalidConfigError(msg)
    if member is None:
        member = _static_member(group, command.instance_id)
    has_expired = expire(draft, command.group, command.expired, caller=member)
    epoch = group.epochs.get(member.member_id) if group.epochs is not None and member is not None else None
    draft.emit(
        MemberJoined(
            group=command.group,
            member_id=command.member_id,
            topics=topics,
            assignor=command.assignor,
            session_timeout_ms=command.session_timeout_ms,
            instance_id=command.instance_id,
            replaces=member.member_id if member is not None and member.member_id != command.member_id else "",
        ),
    )
    if has_expired or member is None or (member.topics, member.assignor) != (topics, command.assignor):
        _rebalance(draft, command.group)
    if command.kind == "consumer":
        draft.require(GROUPS)
        _reconcile(draft, command.group, command.member_id, epoch)
    return _membership(draft, command.group, command.member_id)


@command(Heartbeat, route=to_group, right=reads_group)
def heartbeat(draft: Draft, command: Heartbeat) -> Membership:
    """Renew a lease; partitions that the member no longer reads, and no longer has as targets, go to new owners.

    Raises:
        UnknownMemberError: There is no such member.
        FencedInstanceError: Another member has its static name.
        InvalidConfigError: The topics are other ones than at the last join.
    """
    group = _group_in(draft, command.group)
    member = require_member(group, command.group, command.member_id, command.instance_id)
    topics = _checked_topics(command.topics) if command.topics is not None else member.topics
    if set(topics) != set(member.topics):
        msg = f"member {member.member_id!r} of group {command.group!r} has to join again to read other topics"
        raise InvalidConfigError(msg)
    has_changed = topics != member.topics
    owned_by_member = {member.member_id: command.owned} if command.owned is not None else {}
    if group.epochs is None or has_changed:
        draft.emit(MemberSeen(group=command.group, member_id=member.member_id, topics=topics if has_changed else None))
    if expire(draft, command.group, command.expired, caller=member) or has_changed:
        _rebalance(draft, command.group, owned_by_member)
    else:
        _reassign_released(draft, command.group, owned_by_member)
    if group.epochs is not None:
        _reconcile(draft, command.group, member.member_id, group.epochs[member.member_id])
    return _membership(draft, command.group, member.member_id)


def leaves_group(command: LeaveGroup, state: State) -> list[Right]:
    """The right of a member, or, without a member, of a gateway that asks for itself after a session timeout."""
    names_member = bool(command.member_id) or command.instance_id is not None
    return (reads_group if names_member else reads_group_or_maintains)(command, state)


@command(LeaveGroup, route=to_group, right=leaves_group)
def leave(draft: Draft, command: LeaveGroup) -> None:
    """Remove a member, if there is one, and the members whose leases have expired."""
    group = _group_in(draft, command.group)
    static = _static_member(group, command.instance_id)
    if command.instance_id is not None and command.member_id and static is not None:
        require_member(group, command.group, command.member_id, command.instance_id)
    member = static if command.instance_id is not None else group.members.get(command.member_id)
    if member is not None:
        draft.emit(MemberLeft(group=command.group, member_id=member.member_id, reason="left"))
    if expire(draft, command.group, command.expired) or member is not None:
        _rebalance(draft, command.group)


def expire_if_none_live(draft: Draft, name: str, expired_members: ExpiredMembers) -> bool:
    """Remove all members of a group if the leases of all have expired; none if one is live.

    A member that a gateway keeps has no lease: it is live.

    Returns:
        Whether the group has no live member.
    """
    if _group_in(draft, name).classic_members or any(
        (member.member_id, member.seen_at) not in expired_members for member in _sorted_members(_group_in(draft, name))
    ):
        return False
    if expire(draft, name, expired_members):
        _rebalance(draft, name)
    return True


def expire(draft: Draft, name: str, expired_members: ExpiredMembers, caller: Member | None = None) -> bool:
    """Emit ``MemberLeft`` for expired members that have not renewed their leases since, except for ``caller``.

    Args:
        draft: The draft.
        name: The group.
        expired_members: The members whose leases the caller has measured to be over.
        caller: The member whose command this is: the command itself shows that it is alive.

    Returns:
        Whether any was removed; the caller then has to compute new targets for the others.
    """
    caller_id = caller.member_id if caller is not None else ""
    removed_members = [
        member
        for member in _sorted_members(_group_in(draft, name))
        if (member.member_id, member.seen_at) in expired_members and member.member_id != caller_id
    ]
    for member in removed_members:
        draft.emit(MemberLeft(group=name, member_id=member.member_id, reason="expired"))
    return bool(removed_members)


def live_members(group: Group, now: int) -> list[Member]:
    """Return the members whose leases have not expired at ``now`` (ms), if the clocks of all writers are right."""
    return [member for member in _sorted_members(group) if not member.is_expired(now)]


def holders(group: Group, member: Member) -> tuple[PartitionHolder, ...]:
    """Return the members that hold the partitions that a member waits for, by member id.

    A member waits for the targets that it does not hold. A member without targets, because the group has more members
    than partitions, waits until any of the others leaves.
    """
    awaited_tps = set(member.target).difference(member.held)
    result = []
    for other in _sorted_members(group):
        if other.member_id == member.member_id:
            continue
        held_tps = tuple(tp for tp in other.held if (tp in awaited_tps if member.target else tp.topic in member.topics))
        if held_tps:
            result.append(PartitionHolder(other.member_id, other.instance_id, held_tps, other.expires_at))
    return tuple(result)


def require_member(group: Group, name: str, member_id: str, instance_id: str | None) -> Member:
    """Return the member of this id that has a lease (OFF-06).

    Raises:
        FencedInstanceError: Another member has taken over its static name (KIP-345).
        UnknownMemberError: It left, its lease expired, or it never joined.
    """
    member = group.members.get(member_id)
    static = _static_member(group, instance_id)
    return _require_static_or_id(member, static, name, member_id, instance_id)


def require_any_member(group: Group, name: str, member_id: str, instance_id: str | None) -> None:
    """Check that the group has this member, with a lease or at a gateway; raises as :func:`require_member`."""
    if not group.classic_members:
        require_member(group, name, member_id, instance_id)
        return
    members = group.classic_members
    same_id = next((member for member in members if member.member_id == member_id), None)
    same_name = (member for member in members if member.instance_id == instance_id)
    static_member = next(same_name, None) if instance_id is not None else None
    _require_static_or_id(same_id, static_member, name, member_id, instance_id)


M = TypeVar("M", Member, ClassicMember)


def _require_static_or_id(member: M | None, static: M | None, name: str, member_id: str, instance_id: str | None) -> M:
    """Return ``member``, if it exists and ``static``, the holder of its static name, is no other member.

    Raises:
        FencedInstanceError: Another member has taken over its static name (KIP-345).
        UnknownMemberError: It left, its lease expired, or it never joined.
    """
    if static is not None and static.member_id != member_id:
        msg = f"member {static.member_id!r} of group {name!r} has taken over the group.instance.id {instance_id!r}"
        raise FencedInstanceError(msg)
    if member is None or (instance_id is not None and member.instance_id != instance_id):
        msg = f"group {name!r} has no member {member_id!r}: it never joined, it left, or its lease expired"
        raise UnknownMemberError(msg)
    return member


def check_offset_commit(draft: Draft, offsets: TxnOffsets, *, transactional: bool) -> None:
    """Check the member id, static name and generation of an offset commit (KIP-447).

    If it depends on whether the group has a live member, this also removes the members whose leases are all over.
    A commit without a membership is accepted in a transaction (OFF-08). A commit without a generation is accepted while
    the group has no live member, whatever its member id, as in Kafka's ``ClassicGroup.validateOffsetCommit``. Stricter
    than Kafka: a member with a lease cannot commit for a partition that another one holds, also with the newest
    generation; it has released that partition.

    Raises:
        UnknownMemberError: The group has live members, and the caller is none of them.
        FencedInstanceError: Another member has the caller's static name.
        IllegalGenerationError: The generation is not that of the group, or another member holds a partition.
    """
    name = offsets.group
    is_anonymous = not offsets.member_id and offsets.instance_id is None
    if offsets.generation < 0 and (
        (transactional and is_anonymous) or expire_if_none_live(draft, name, offsets.expired)
    ):
        return
    if offsets.generation < 0 and is_anonymous:
        msg = f"group {name!r} has members, so only a member can commit its offsets"
        raise UnknownMemberError(msg)
    check_membership(draft.state.groups.get(name), offsets)


def check_membership(group: Group | None, offsets: TxnOffsets) -> None:
    """Check the member id, static name, generation and partitions of a commit that carries a membership.

    Raises:
        UnknownMemberError: The group has no such member.
        FencedInstanceError: Another member has the caller's static name.
        IllegalGenerationError: The generation is not that of the group, or another member holds a partition.
    """
    name = offsets.group
    if offsets.generation >= 0 and group is None:
        msg = f"group {name!r} does not exist, so it has no generation {offsets.generation}"
        raise IllegalGenerationError(msg)
    group = group or Group()
    require_any_member(group, name, offsets.member_id, offsets.instance_id)
    generation = _generation_of(group, offsets.member_id)
    if offsets.generation != generation:
        msg = f"group {name!r} is at generation {generation}, not {offsets.generation}"
        raise IllegalGenerationError(msg)
    tps = {offset.tp for offset in offsets.offsets}
    for other in _sorted_members(group):
        if other.member_id != offsets.member_id and (taken_tps := sorted(tps.intersection(other.held))):
            msg = f"member {other.member_id!r} of group {name!r} holds {taken_tps[0]}, not {offsets.member_id!r}"
            raise IllegalGenerationError(msg)


def _rebalance(draft: Draft, name: str, owned_by_member: dict[str, tuple[TopicPartition, ...]] | None = None) -> None:
    """Compute and emit targets for all members in a new generation, with the resulting held partitions.

    A member holds a target at once if no member holds it; else it waits for the holder.
    ``owned_by_member``: see :func:`_emit_rebalance`.
    """
    group = _group_in(draft, name)
    members = _sorted_members(group)
    targets: dict[str, tuple[TopicPartition, ...]] = {}
    if members:
        targets = assignor_of(members)(members, _current_owners(members))
    _emit_rebalance(draft, name, max(group.generation, 0) + 1, targets, owned_by_member or {})


def _reassign_released(draft: Draft, name: str, owned_by_member: dict[str, tuple[TopicPartition, ...]]) -> None:
    """Emit the held partitions after a release: released ones go to the members whose targets they are.

    Targets and generation stay. ``owned_by_member``: see :func:`_emit_rebalance`.
    """
    group = _group_in(draft, name)
    targets = {member.member_id: member.target for member in _sorted_members(group)}
    _emit_rebalance(draft, name, group.generation, targets, owned_by_member)


def _emit_rebalance(
    draft: Draft,
    name: str,
    generation: int,
    targets: dict[str, tuple[TopicPartition, ...]],
    owned_by_member: dict[str, tuple[TopicPartition, ...]],
) -> None:
    """Emit ``GroupRebalanced`` with the targets, and the held partitions that follow; nothing if nothing changes.

    ``owned_by_member`` has the partitions that the calling member still reads, under its id; empty: it releases none.
    It releases its held partitions that are neither among these nor among its targets; other members keep theirs.
    """
    group = _group_in(draft, name)
    members = _sorted_members(group)
    held_by_member = {
        member.member_id: {
            tp
            for tp in member.held
            if tp in targets[member.member_id] or tp in owned_by_member.get(member.member_id, member.held)
        }
        for member in members
    }
    held_tps = {tp for tps in held_by_member.values() for tp in tps}
    changes = []
    for member in members:
        target = targets[member.member_id]
        held = tuple(sorted(held_by_member[member.member_id] | {tp for tp in target if tp not in held_tps}))
        if (target, held) != (member.target, member.held):
            changes.append(MemberPartitions(member_id=member.member_id, target=list(target), held=list(held)))
    if changes or generation != group.generation:
        draft.emit(GroupRebalanced(group=name, generation=generation, members=changes))


def _current_owners(members: Iterable[Member]) -> dict[TopicPartition, str]:
    """Return the member that has each partition as a target, else the member that holds it."""
    owners: dict[TopicPartition, str] = {}
    for member in members:
        for tp in member.held:
            owners.setdefault(tp, member.member_id)
    for member in members:
        for tp in member.target:
            owners[tp] = member.member_id
    return owners


def _group_in(draft: Draft, name: str) -> Group:
    return draft.state.groups.get(name, Group())


def _sorted_members(group: Group) -> list[Member]:
    return [member for _, member in sorted_items(group.members)]


def _static_member(group: Group, instance_id: str | None) -> Member | None:
    if instance_id is None:
        return None
    return next((member for member in group.members.values() if member.instance_id == instance_id), None)


def _membership(draft: Draft, name: str, member_id: str) -> Membership:
    group = _group_in(draft, name)
    return Membership(member_id, _generation_of(group, member_id), group.members[member_id].assigned)


def _generation_of(group: Group, member_id: str) -> int:
    """Return the generation in which a member commits: the last one that it has reconciled, or that of the group."""
    return group.generation if group.epochs is None else group.epochs.get(member_id, group.generation)


def _reconcile(draft: Draft, name: str, member_id: str, epoch: int | None) -> None:
    """Emit the generation that a member has reconciled; ``epoch``, the last one, stays until it has released all.

    Partitions that another member still holds do not matter: this member does not read them yet (KIP-848).
    """
    group = _group_in(draft, name)
    member = group.members[member_id]
    reconciled_generation = group.generation if epoch is None or set(member.held).issubset(member.target) else epoch
    if group.epochs is None or group.epochs.get(member_id) != reconciled_generation:
        draft.emit(MemberReconciled(group=name, member_id=member_id, epoch=reconciled_generation))


def _check_join(command: JoinGroup, topics: dict[str, int]) -> None:
    """Refuse ids, topics, an assignor or a session timeout that no member may have."""
    check_id("group.id", command.group)
    check_id("member.id", command.member_id)
    if command.instance_id is not None:
        check_id("group.instance.id", command.instance_id)
    if not topics and command.kind == "native":  # A regular expression of KIP-848 may match none yet.
        msg = f"a member of group {command.group!r} must read at least one topic"
        raise InvalidConfigError(msg)
    if command.assignor not in ASSIGNORS:
        names = ", ".join(repr(name) for name in ASSIGNORS)
        msg = f"assignor must be one of {names}, not {command.assignor!r}"
        raise InvalidConfigError(msg)
    if not 0 < command.session_timeout_ms <= MAX_SESSION_TIMEOUT_MS:
        msg = f"session_timeout must be above 0 and up to {MAX_SESSION_TIMEOUT_MS // 1000} s"
        raise InvalidConfigError(msg)


def _checked_topics(topics: Iterable[tuple[str, int]]) -> dict[str, int]:
    counts = {check_topic_name(name): count for name, count in topics}
    for name, count in counts.items():
        if count < 0:
            msg = f"topic {name!r} cannot have {count} partitions"
            raise InvalidConfigError(msg)
    return dict(sorted(counts.items()))
