"""Describes consumer groups, resets their offsets and deletes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from txnstore.connection import Connection
from txnstore.core.blocked import BlockedPartition, blocked_partitions
from txnstore.core.groups.commands import DeleteGroup, LeaveGroup, ResetOffsets, StoreGeneration, TxnOffsets
from txnstore.core.groups.consumer_protocol import assigned_partitions, subscribed_topics
from txnstore.core.groups.membership import holders
from txnstore.core.groups.model import ClassicMember, Group, GroupKind, Member, OffsetAndMetadata, PartitionHolder
from txnstore.core.groups.offsets import committed, describe_live_members, exists, group_offset
from txnstore.core.log.visibility import check_offset
from txnstore.core.model import Isolation, TopicPartition
from txnstore.core.view import View
from txnstore.errors import GroupNotEmptyError, GroupNotFoundError
from txnstore.threads import load
from txnstore.times import Time, check_time
from txnstore.validation import check_id, check_names, nearest

#: The target of a reset: an end of the log, a point in time, or an offset for each partition.
Target = Time | Mapping[TopicPartition, int | OffsetAndMetadata]


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A member of a group.

    Attributes:
        member_id: The id that it joined with.
        instance_id: The name of a static member (KIP-345), or None.
        topics: The topics that it subscribed to. Those of a member that a gateway keeps are known if its clients speak
            Kafka's consumer protocol.
        assigned: The partitions that it reads; as for ``topics``.
        waits_for: The partitions of its target that other members still hold (KIP-848).
        expires_at: When its lease ends unless it is renewed, in milliseconds since the epoch; None: a gateway keeps it,
            and knows that.
        holders: The members that hold the partitions that it waits for; for a member without any target, because the
            group has more members than partitions, all others with partitions. None where a gateway keeps the members.
        client_id: The ``client.id`` of a client of a gateway.
        client_host: The address from which it calls.
    """

    member_id: str
    instance_id: str | None
    topics: tuple[str, ...]
    assigned: tuple[TopicPartition, ...]
    waits_for: tuple[TopicPartition, ...]
    expires_at: int | None
    holders: tuple[PartitionHolder, ...] = ()
    client_id: str = ""
    client_host: str = ""


@dataclass(frozen=True, slots=True)
class GroupPosition:
    """The committed offset of a group in a partition.

    Attributes:
        tp: The partition.
        offset: The next offset to read; None if nothing is committed.
        metadata: The text that was committed with it.
        committed_at: When, in milliseconds since the epoch.
        end: The last stable offset of the partition, where ``read_committed`` reads end.
        lag: How many offsets the group is behind it (LSO-13).
        high_watermark: The offset of the next record that is appended.
        blocked: The committed records from ``end`` on, which wait for an open transaction and are not part of ``lag``;
            None if there are none.
        pending: Whether an open transaction has a pending offset of the partition.
        member_id: The member that reads the partition, if one does.
    """

    tp: TopicPartition
    offset: int | None
    metadata: str
    committed_at: int | None
    end: int
    lag: int
    high_watermark: int
    blocked: BlockedPartition | None
    pending: bool
    member_id: str | None


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A consumer group.

    Attributes:
        group: Its name.
        state: ``Empty`` (no live member), ``Reconciling`` (partitions change hands) or ``Stable``.
        generation: Grows with each change of its members; -1: it never had members.
        last_transactional_id: The id of the transaction that last committed its offsets (OFF-23).
        members: Its live members.
        positions: Where it has committed, or has members.
        kind: ``native``: its members are consumers of this library. ``classic``: they are Kafka clients, which a
            gateway keeps; members, state and generation are those that it has stored last. ``consumer``: a gateway
            keeps the members, and the chain assigns to them (KIP-848).
        protocol_type: Of a classic group: ``consumer``, ``connect`` or another type.
        protocol: Of a classic group with members: the protocol that they have agreed on, such as ``range``.
        stored_at: Of a classic group: when the generation was stored, in milliseconds since the epoch.
    """

    group: str
    state: str
    generation: int
    last_transactional_id: str | None
    members: tuple[GroupMember, ...]
    positions: tuple[GroupPosition, ...]
    kind: GroupKind = "native"
    protocol_type: str | None = None
    protocol: str | None = None
    stored_at: int | None = None

    @property
    def lag(self) -> int:
        """The sum of the lags of all partitions that the group reads."""
        return sum(position.lag for position in self.positions)


def list_groups(connection: Connection) -> list[GroupDescription]:
    """Describe all groups, by name."""
    view = connection.view()
    return [
        _describe(view, name, group, _live_members(connection, view, name))
        for name, group in sorted(view.groups.items())
        if exists(group)
    ]


def describe_group(connection: Connection, name: str) -> GroupDescription:
    """Describe a group."""
    view = connection.view()
    return _describe(view, name, _existing_group(view, check_id("group", name)), _live_members(connection, view, name))


def delete_group(connection: Connection, name: str) -> None:
    """See :meth:`txnstore.Store.delete_group`."""
    connection.submit(DeleteGroup(check_id("group", name)))


def remove_members(connection: Connection, name: str) -> int:
    """See :meth:`txnstore.Store.remove_members`.

    Members that are alive lose nothing but their membership: their gateway is refused its next generation, their
    commits are refused, and they join again.
    """
    view = connection.view()
    group = _existing_group(view, check_id("group", name))
    if not group.has_members_at_gateway:
        connection.chains.make_durable(view)
        return 0
    if group.classic is None:  # A group of KIP-848 has no generation to replace: each member leaves.
        for member_id in sorted(group.members):
            connection.submit(LeaveGroup(name, member_id))
        return len(group.members)
    # The members of a classic group are those of its last generation: an empty one replaces it.
    connection.submit(
        StoreGeneration(
            name,
            expected=group.generation,
            generation=group.generation + 1,
            protocol_type=group.classic.protocol_type,
            protocol=None,
            leader=None,
            members=(),
        )
    )
    return len(group.classic_members)


def reset_offsets(
    connection: Connection, name: str, to: Target, topics: Sequence[str] | None = None, *, dry_run: bool = False
) -> dict[TopicPartition, int]:
    """See :meth:`txnstore.Store.reset_offsets`."""
    name = check_id("group", name)
    view = connection.view()
    if _live_members(connection, view, name):
        msg = f"group {name!r} has {describe_live_members(view.groups[name])}, so its offsets cannot be reset"
        raise GroupNotEmptyError(msg)
    if isinstance(to, Mapping):
        items = tuple(group_offset(tp, value) for tp, value in to.items())
    else:
        items = tuple(
            group_offset(tp, _target_offset(connection, view, tp, to))
            for tp in _partitions_to_reset(view, name, topics)
        )
    for offset in items:
        check_offset(offset.tp, view.find_partition(offset.tp), Isolation.READ_UNCOMMITTED, offset.offset)
    if items and not dry_run:
        connection.submit(ResetOffsets(TxnOffsets(name, items)))
    return {offset.tp: offset.offset for offset in items}


def _partitions_to_reset(view: View, name: str, topics: Sequence[str] | None) -> list[TopicPartition]:
    """All partitions of the topics; without topics, those in which the group has committed."""
    if topics is not None:
        names = [topics] if isinstance(topics, str) else check_names("topics", topics)
        counts = {topic: view.find_topic(topic).partitions for topic in names}
        return [TopicPartition(topic, number) for topic in counts for number in range(counts[topic])]
    return sorted(_existing_group(view, name).offsets)


def _target_offset(connection: Connection, view: View, tp: TopicPartition, to: Time) -> int:
    """Return the offset that ``to`` means in a partition: earliest, latest, or the first record from a time on."""
    partition = view.find_partition(tp)
    latest = partition.last_stable_offset
    if to == "earliest":
        return partition.log_start
    if to == "latest":
        return latest
    time_ms = check_time("to, if it is not 'earliest', 'latest' or offsets by partition,", to, round_up=True)
    load("txnstore.read.plan")
    from txnstore.read.plan import offset_for_time

    first_record = offset_for_time(connection.objects, view, tp, Isolation.READ_COMMITTED, time_ms)
    return first_record.offset if first_record is not None else latest


def _existing_group(view: View, name: str) -> Group:
    group = view.groups.get(name)
    if group is None or not exists(group):
        names = [other for other in view.groups if exists(view.groups[other])]
        msg = f"there is no group {name!r}{nearest(name, names)}"
        raise GroupNotFoundError(msg)
    return group


def _live_members(connection: Connection, view: View, name: str) -> list[Member | ClassicMember]:
    """The members of a group by member id, without those whose leases have expired for this process."""
    group = view.groups.get(name, Group())
    if group.classic_members:
        return list(group.classic_members)
    expired_members = dict(connection.chains.ages.expired_members(view.states, name))
    return [member for member_id, member in sorted(group.members.items()) if member_id not in expired_members]


def _describe(view: View, name: str, group: Group, live: list[Member | ClassicMember]) -> GroupDescription:
    """Describe a group with its live members: Empty, Stable, or Reconciling while partitions move."""
    members = [member for member in live if isinstance(member, Member)]
    member_descriptions = [
        _describe_member(group, member) if isinstance(member, Member) else _describe_classic_member(group, member)
        for member in live
    ]
    if not live:
        state = "Empty"
    elif all(member.assigned == member.target == member.held for member in members):
        state = "Stable"
    else:
        state = "Reconciling"
    return GroupDescription(
        group=name,
        state=state,
        generation=group.generation,
        last_transactional_id=view.transactional_ids.get(group.last_producer[0]) if group.last_producer else None,
        members=tuple(member_descriptions),
        positions=tuple(_positions(view, name, group, member_descriptions)),
        kind=group.kind,
        protocol_type=group.classic.protocol_type if group.classic is not None else None,
        protocol=group.classic.protocol if group.classic is not None else None,
        stored_at=group.classic.stored_at if group.classic is not None else None,
    )


def _describe_member(group: Group, member: Member) -> GroupMember:
    """Describe a member; at a gateway, which times the sessions, it has no expiry and no holders."""
    return GroupMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        topics=tuple(sorted(member.topics)),
        assigned=member.assigned,
        waits_for=tuple(tp for tp in member.target if tp not in member.held),
        expires_at=None if group.has_members_at_gateway else member.expires_at,
        holders=() if group.has_members_at_gateway else holders(group, member),
    )


def _describe_classic_member(group: Group, member: ClassicMember) -> GroupMember:
    """Describe a member that a gateway keeps: it has no lease, and waits for no partition."""
    protocol_type = group.classic.protocol_type if group.classic is not None else None
    return GroupMember(
        member_id=member.member_id,
        instance_id=member.instance_id,
        topics=tuple(sorted(subscribed_topics(protocol_type, member.subscription) or ())),
        assigned=assigned_partitions(protocol_type, member.assignment),
        waits_for=(),
        expires_at=None,  # The gateway times the session, and does not store it.
        client_id=member.client_id,
        client_host=member.client_host,
    )


def _positions(view: View, name: str, group: Group, members: list[GroupMember]) -> list[GroupPosition]:
    """The positions of a group in the existing partitions where it has offsets or members."""
    owners = {tp: member.member_id for member in members for tp in member.assigned}
    pending_tps = {tp for offsets in group.pending.values() for tp in offsets}
    positions = []
    tps = sorted({*group.offsets, *pending_tps, *owners})
    blocked_by_tp = {part.tp: part for part in blocked_partitions(view, tps)}
    for tp in tps:
        partition = view.partition(tp)
        if partition is None:
            continue
        value = committed(view, name, tp, require_stable=False)
        end = partition.last_stable_offset
        positions.append(
            GroupPosition(
                tp=tp,
                offset=value.offset if value is not None else None,
                metadata=value.metadata if value is not None else "",
                committed_at=group.offsets[tp].committed_at if value is not None else None,
                end=end,
                lag=max(0, end - max(value.offset if value is not None else 0, partition.log_start)),
                high_watermark=partition.high_watermark,
                blocked=blocked_by_tp.get(tp),
                pending=tp in pending_tps,
                member_id=owners.get(tp),
            )
        )
    return positions
