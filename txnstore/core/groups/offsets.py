"""The rules of offset commits, inside and outside of transactions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Protocol

from txnstore.core.authorization.rights import HasGroup, Right, read_group, right_to
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.declaration import command
from txnstore.core.groups.commands import (
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    ExpiredMembers,
    ResetOffsets,
    TxnOffsets,
)
from txnstore.core.groups.consumer_protocol import subscribed_topics
from txnstore.core.groups.events import GroupDeleted, GroupOffset, OffsetsCommitted, OffsetsDeleted
from txnstore.core.groups.membership import check_offset_commit, expire_if_none_live, live_members
from txnstore.core.groups.model import GROUPS, Group, OffsetAndMetadata
from txnstore.core.model import ProducerIdentity, TopicPartition, items_of
from txnstore.core.routes import to_group
from txnstore.core.routing import CATALOG, chain_of_group
from txnstore.core.state import Draft, State, leads_partition, observe
from txnstore.errors import (
    GroupNotEmptyError,
    GroupNotFoundError,
    InvalidConfigError,
    OffsetMetadataTooLargeError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)
from txnstore.validation import check_integer, check_topic_name, is_unicode

#: Kafka's ``offset.metadata.max.bytes``, which is compared with ``String.length()``: UTF-16 code units.
MAX_METADATA_LENGTH = 4096

#: Kafka's ``offsets.retention.minutes``, one week, in ms.
OFFSETS_RETENTION_MS = 7 * 86_400_000

#: The offsets that a group can have: signed 64-bit integers, as in Kafka. A negative one says that it has none.
_OFFSETS = range(-(2**63), 2**63)


class HasGroups(Protocol):
    """A source of groups: the state of a chain, or a view of all chains."""

    @property
    def groups(self) -> Mapping[str, Group]: ...


def group_offset(tp: tuple[str, int], value: int | OffsetAndMetadata) -> GroupOffset:
    """The offset of an application as an entry stores it: with plain ``int`` and ``str``.

    Args:
        tp: The topic and the partition.
        value: The next offset to read: any integer, those of numpy included, or an :class:`OffsetAndMetadata`.

    Raises:
        InvalidConfigError: A value has another type, or the offset is out of range. Only clients of gateways commit
            negative ones, as those of brokers do; Java's consumer refuses them, too.
    """
    committed = value if isinstance(value, OffsetAndMetadata) else OffsetAndMetadata(value)
    try:
        topic, partition = tp
    except (TypeError, ValueError):
        msg = f"the offsets of a group are given by TopicPartition, not by {tp!r}"
        raise InvalidConfigError(msg) from None
    if not isinstance(committed.metadata, str) or not is_unicode(committed.metadata):
        msg = f"the metadata of {topic}-{partition} must be a string of Unicode characters, not {committed.metadata!r}"
        raise InvalidConfigError(msg)
    offset = check_integer(f"the offset of {topic}-{partition}", committed.offset)
    if not 0 <= offset < _OFFSETS.stop:
        msg = f"a group cannot commit offset {offset} of {topic}-{partition}: it must be 0 to 2**63 - 1"
        raise InvalidConfigError(msg)
    return GroupOffset(
        topic=check_topic_name(topic),
        partition=check_integer(f"the partition of {topic!r}", partition),
        offset=offset,
        metadata=committed.metadata,
        leader_epoch=check_integer(f"the leader epoch of {topic}-{partition}", committed.leader_epoch),
    )


def with_topic_id(offset: GroupOffset, topic_ids: Mapping[str, str]) -> GroupOffset:
    """Return the offset with the id of the topic that was read, if it is known."""
    return replace(offset, topic_id=topic_ids.get(offset.topic))


def to_group_of_offsets(command: CommitOffsets | ResetOffsets, chains: int) -> int:
    """Return the chain of the group."""
    return chain_of_group(command.offsets.group, chains)


def partitions_of_offsets(command: CommitOffsets | ResetOffsets) -> Iterator[TopicPartition]:
    """The partitions of the offsets."""
    return (offset.tp for offset in command.offsets.offsets)


def commits_offsets(command: CommitOffsets | ResetOffsets, _: State) -> list[Right]:
    """The rights to be a member of the group, and to read the topics."""
    return [read_group(command.offsets.group), *reads_topics_of((command.offsets,))]


def reads_topics_of(offsets: Iterable[TxnOffsets]) -> list[Right]:
    """The rights to read the topics of offsets."""
    topics = {offset.topic for of_group in offsets for offset in of_group.offsets}
    return [right_to("READ", "TOPIC", *topics)] if topics else []


@command(CommitOffsets, route=to_group_of_offsets, right=commits_offsets, partitions=partitions_of_offsets)
def commit_plain_offsets(draft: Draft, command: CommitOffsets) -> None:
    """Commit offsets outside a transaction."""
    commit_offsets(draft, command.offsets)


def commit_offsets(draft: Draft, offsets: TxnOffsets, producer: ProducerIdentity | None = None) -> None:
    """Emit offsets that take effect at once, or are pending in the transaction of ``producer`` (OFF-02).

    Checks the membership first, which may remove expired members, and the topics. Without offsets it does nothing.
    """
    if not offsets.offsets:
        return
    check_offset_commit(draft, offsets, transactional=producer is not None)
    _emit_offsets(draft, offsets, producer or ProducerIdentity())


@command(ResetOffsets, route=to_group_of_offsets, right=commits_offsets, partitions=partitions_of_offsets)
def reset_offsets(draft: Draft, command: ResetOffsets) -> None:
    """Set offsets as an administrator; refused while the group has live members, which would not see the change."""
    _require_no_live_member(draft, command.offsets.group, command.offsets.expired, "its offsets cannot be reset")
    if command.offsets.offsets:
        _emit_offsets(draft, command.offsets, ProducerIdentity())


def deletes_group(command: HasGroup, _: State) -> list[Right]:
    """The right to delete the group."""
    return [Right("DELETE", "GROUP", (command.group,))]


@command(DeleteGroup, route=to_group, right=deletes_group)
def delete_group(draft: Draft, command: DeleteGroup) -> None:
    """Delete a group with its committed and pending offsets; the end of a transaction restores none (OFF-17)."""
    if not exists(draft.state.groups.get(command.group)):
        msg = f"there is no group {command.group!r}"
        raise GroupNotFoundError(msg)
    _require_no_live_member(draft, command.group, command.expired, "it cannot be deleted")
    draft.emit(GroupDeleted(group=command.group))


def deletes_offsets(command: DeleteOffsets, state: State) -> list[Right]:
    """The rights to delete the group, and to read the topics."""
    topics = tuple(dict.fromkeys(tp.topic for tp in command.partitions))
    return [*deletes_group(command, state), *([Right("READ", "TOPIC", topics)] if topics else [])]


@command(DeleteOffsets, route=to_group, right=deletes_offsets)
def delete_offsets(draft: Draft, command: DeleteOffsets) -> tuple[TopicPartition, ...]:
    """Delete committed and pending offsets of topics that no live member reads; return the partitions left out.

    The end of a transaction restores no pending offset that was deleted (OFF-17).

    Raises:
        GroupNotFoundError: There is no such group.
        GroupNotEmptyError: The group has members whose topics are not known, as Kafka Connect's workers.
    """
    group = draft.state.groups.get(command.group)
    if group is None or not exists(group):
        msg = f"there is no group {command.group!r}"
        raise GroupNotFoundError(msg)
    live = [member for member in group.members.values() if (member.member_id, member.seen_at) not in command.expired]
    topics = {topic for member in live for topic in member.topics} | _topics_at_gateway(command.group, group)
    partitions = sorted(set(command.partitions))
    stored_offsets = (group.offsets, *group.pending.values())
    deleted_tps = [
        tp for tp in partitions if tp.topic not in topics and any(tp in offsets for offsets in stored_offsets)
    ]
    if deleted_tps:
        draft.require(GROUPS)
        draft.emit(OffsetsDeleted(group=command.group, partitions=deleted_tps))
    return tuple(tp for tp in partitions if tp.topic in topics)


def _topics_at_gateway(name: str, group: Group) -> set[str]:
    """Return the topics that members kept by a gateway read."""
    topics = set[str]()
    protocol_type = group.classic.protocol_type if group.classic else None
    for member in group.classic_members:
        topics_of_member = subscribed_topics(protocol_type, member.subscription)
        if topics_of_member is None:
            msg = f"group {name!r} has members, and it is not known what they read, so none of its offsets are deleted"
            raise GroupNotEmptyError(msg)
        topics.update(topics_of_member)
    return topics


def _require_no_live_member(draft: Draft, name: str, expired_members: ExpiredMembers, consequence: str) -> None:
    if not expire_if_none_live(draft, name, expired_members):
        msg = f"group {name!r} has {describe_live_members(draft.state.groups[name])}, so {consequence}"
        raise GroupNotEmptyError(msg)


def describe_live_members(group: Group) -> str:
    """Describe the live members of a group that has some, for messages."""
    if group.has_members_at_gateway:
        return f"{len(group.classic_members or group.members)} members that a gateway keeps"
    return "live members"


def _emit_offsets(draft: Draft, offsets: TxnOffsets, producer: ProducerIdentity) -> None:
    """Check offsets, and emit them: as committed, or as pending in the transaction of the producer."""
    items = [_checked_offset(draft.state, offsets.group, offset) for offset in offsets.offsets]
    _check_catalog(draft, offsets)
    draft.emit(
        OffsetsCommitted(
            group=offsets.group,
            offsets=items,
            producer_id=producer.producer_id,
            epoch=producer.epoch,
            member_id=offsets.member_id,
        ),
    )


def _checked_offset(state: State, group: str, offset: GroupOffset) -> GroupOffset:
    """Return the offset with the id of its topic; refuse it if the topic that was read is deleted (OFF-18).

    Only the catalog's chain can tell the id for certain; elsewhere the caller has looked it up before. If the chain has
    another topic of the name, either its copy or the catalog of the caller is out of date: the caller first copies the
    topic to the chain, or looks it up again.
    """
    if leads_partition(state, offset.tp) and offset.tp not in state.partitions:
        msg = f"group {group!r} cannot commit an offset of {offset.tp}: there is no such partition"
        raise UnknownTopicOrPartitionError(msg)
    if state.chain == CATALOG:
        offset = with_catalog_topic_id(state, group, offset)
    elif leads_partition(state, offset.tp):
        _check_same_topic(state.topics[offset.topic], group, offset)
    check_offset(group, offset)
    return offset


def _check_catalog(draft: Draft, offsets: TxnOffsets) -> None:
    """Refuse to replace an offset by one of another topic of the name, if it was looked up in an outdated catalog.

    A chain that does not lead the partition cannot tell the ids of an old and a recreated topic apart. The first commit
    of an id makes the entry follow from the catalog in which the id was found (``State.seen``). A commit that rests on
    an older catalog, such as one that was delayed, cannot replace an offset with another id, which may be that of the
    newer topic (OFF-18). The caller reads the catalog again, and repeats the command. Where the group has no offset of
    the partition, nothing is replaced: an offset of a deleted topic is hidden by its id, so the age of the catalog does
    not matter, and entries of others in the catalog's chain delay no first commit.

    Raises:
        UnknownTopicOrPartitionError: The catalog of the caller is older than the one that this chain has seen.
    """
    state = draft.state
    if state.chain == CATALOG or offsets.catalog is None:
        return
    group = state.groups.get(offsets.group, Group())
    ids = {
        offset.tp: _stored_ids(group, offset.tp) for offset in offsets.offsets if not leads_partition(state, offset.tp)
    }
    new_items = [offset for offset in offsets.offsets if offset.tp in ids and ids[offset.tp] != {offset.topic_id}]
    replacing_items = [offset for offset in new_items if ids[offset.tp]]
    if replacing_items and offsets.catalog < state.seen.get(CATALOG, 0):
        tp = replacing_items[0].tp
        msg = f"group {offsets.group!r} cannot commit an offset of {tp}: its topic was looked up too long ago"
        raise UnknownTopicOrPartitionError(msg)
    if new_items:
        observe(draft, ((CATALOG, offsets.catalog),))


def _stored_ids(group: Group, tp: TopicPartition) -> set[str | None]:
    """Return the topic ids of the committed and pending offsets of a partition."""
    stored_offsets = (group.offsets, *group.pending.values())
    return {offsets[tp].topic_id for offsets in stored_offsets if tp in offsets}


def check_offset(group: str, offset: GroupOffset) -> None:
    """Check the range of an offset and the size of its metadata.

    Raises:
        InvalidConfigError: The offset is out of range.
        OffsetMetadataTooLargeError: The metadata is longer than :data:`MAX_METADATA_LENGTH`.
    """
    if offset.offset not in _OFFSETS:
        msg = f"group {group!r} cannot commit offset {offset.offset} of {offset.tp}: it is no 64-bit integer"
        raise InvalidConfigError(msg)
    if len(offset.metadata.encode("utf-16-le")) > 2 * MAX_METADATA_LENGTH:
        msg = f"the metadata of {offset.tp} in group {group!r} is longer than {MAX_METADATA_LENGTH} characters"
        raise OffsetMetadataTooLargeError(msg)


def with_catalog_topic_id(catalog: State, group: str, offset: GroupOffset) -> GroupOffset:
    """Return the offset with the id of its topic in the catalog (OFF-18).

    Raises:
        UnknownTopicOrPartitionError: The partition does not exist, or the topic was created again since it was read.
    """
    topic = catalog.topics.get(offset.topic)
    if topic is None or not 0 <= offset.partition < topic.partitions:
        msg = f"group {group!r} cannot commit an offset of {offset.tp}: there is no such partition"
        raise UnknownTopicOrPartitionError(msg)
    _check_same_topic(topic, group, offset)
    return replace(offset, topic_id=topic.topic_id)


def _check_same_topic(topic: CatalogTopic, group: str, offset: GroupOffset) -> None:
    if offset.topic_id is not None and offset.topic_id != topic.topic_id:
        msg = f"group {group!r} cannot commit an offset of {offset.tp}: the topic was deleted and created again since"
        raise UnknownTopicOrPartitionError(msg)


def committed(
    state: HasGroups,
    group: str,
    tp: TopicPartition,
    *,
    require_stable: bool = True,
    strict: bool = False,
) -> OffsetAndMetadata | None:
    """Return the committed offset of a group in a partition; None without one, or if it is negative, as in Kafka.

    Args:
        state: A view, or a state; the state of one of several chains may have offsets of deleted topics (OFF-18).
        require_stable: Refuse if a pending offset of the partition exists (OFF-09, KIP-447). Kafka's consumer always
            sets it.
        strict: Refuse also if a pending offset of any other partition of the group exists.

    Raises:
        UnstableOffsetCommitError: An open transaction has a pending offset.
    """
    record = state.groups.get(group)
    if record is None:
        return None
    if require_stable and any(pending if strict else tp in pending for pending in record.pending.values()):
        where = "a partition" if strict else tp
        msg = f"an open transaction has a pending offset of {where} in group {group!r}"
        raise UnstableOffsetCommitError(msg)
    value = record.offsets.get(tp)
    return value.value if value is not None and value.value.offset >= 0 else None


def expired_offsets(group: Group, now: int, retention_ms: int = OFFSETS_RETENTION_MS) -> list[TopicPartition]:
    """Return the partitions whose committed offset has expired at the time ``now`` (ms) of the chain (OFF-16).

    An offset expires ``retention_ms`` after its commit and after the end of the last member, whichever is later. It
    does not expire while the group has live members or a transaction has a pending offset of the partition.
    """
    if group.has_members_at_gateway or live_members(group, now):
        return []
    empty_since = max([group.emptied_at, *(m.seen_at + m.session_timeout_ms for m in group.members.values())])
    pending = {tp for offsets in group.pending.values() for tp in offsets}
    return sorted(
        tp
        for tp, value in items_of(group.offsets)
        if max(value.committed_at, empty_since) + retention_ms <= now and tp not in pending
    )


def exists(group: Group | None) -> bool:
    """Whether a group exists for its users: it has or had members, or offsets."""
    return group is not None and bool(group.offsets or group.pending or group.members or group.generation >= 0)


def is_dead(group: Group, now: int) -> bool:
    """Whether an expiration deletes a group: no live member, no committed and no pending offset (OFF-16)."""
    has_members = group.has_members_at_gateway or bool(live_members(group, now))
    return not group.offsets and not any(group.pending.values()) and not has_members
