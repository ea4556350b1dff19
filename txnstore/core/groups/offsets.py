"""The rules of committed offsets, inside and outside of transactions."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from txnstore.core.catalog.model import Topic
from txnstore.core.groups.commands import CommitOffsets, DeleteGroup, ResetOffsets, TxnOffsets
from txnstore.core.groups.events import GroupDeleted, GroupOffset, OffsetsCommitted
from txnstore.core.groups.membership import check_commit, empty, live_members
from txnstore.core.groups.model import CommittedOffset, Group, OffsetAndMetadata
from txnstore.core.model import ProducerIdentity, TopicPartition
from txnstore.core.routing import CATALOG
from txnstore.core.state import Draft, State, leads_partition
from txnstore.errors import (
    GroupNotEmptyError,
    GroupNotFoundError,
    InvalidConfigError,
    OffsetMetadataTooLargeError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)
from txnstore.validation import check_topic_name, is_unicode


def commit_plain_offsets(draft: Draft, command: CommitOffsets) -> None:
    commit_offsets(draft, command.offsets)


#: Kafka's ``offset.metadata.max.bytes``.
MAX_METADATA_BYTES = 4096

#: Kafka's ``offsets.retention.minutes``: a week.
OFFSETS_RETENTION_MS = 7 * 86_400_000

#: The largest offset: Kafka's and Arrow's are 64 bits wide.
MAX_OFFSET = 2**63 - 1


class Known(Protocol):
    """A state of a chain, or a view of all: what a lookup of committed offsets needs of it."""

    @property
    def groups(self) -> Mapping[str, Group]: ...

    @property
    def topics(self) -> Mapping[str, Topic]: ...


def group_offset(tp: tuple[str, int], value: int | OffsetAndMetadata) -> GroupOffset:
    """A position as an entry holds it: of exact types, so that every reader of the chain can read it.

    Any integer will do (those of numpy, too). :class:`InvalidConfigError` says what else was given.
    """
    position = value if isinstance(value, OffsetAndMetadata) else OffsetAndMetadata(value)
    try:
        topic, partition = tp
    except (TypeError, ValueError):
        msg = f"the positions of a group are given by TopicPartition, not by {tp!r}"
        raise InvalidConfigError(msg) from None
    if not isinstance(position.metadata, str) or not is_unicode(position.metadata):
        msg = f"the metadata of {topic}-{partition} must be a string of Unicode characters, not {position.metadata!r}"
        raise InvalidConfigError(msg)
    return GroupOffset(
        topic=check_topic_name(topic),
        partition=_integer(f"the partition of {topic!r}", partition),
        offset=_integer(f"the offset of {topic}-{partition}", position.offset),
        metadata=position.metadata,
        leader_epoch=_integer(f"the leader epoch of {topic}-{partition}", position.leader_epoch),
    )


def with_id(item: GroupOffset, topic_ids: Mapping[str, str]) -> GroupOffset:
    """The position with the id of the topic that was read, if that is known."""
    return replace(item, topic_id=topic_ids.get(item.topic))


def _integer(what: str, value: object) -> int:
    try:
        if not isinstance(value, bool):
            return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        pass
    msg = f"{what} must be an integer, not {value!r}"
    raise InvalidConfigError(msg)


def commit_offsets(draft: Draft, offsets: TxnOffsets, producer: ProducerIdentity | None = None) -> None:
    """Commit positions at once, or as pending for the transaction of ``producer`` (OFF-02)."""
    if not offsets.offsets:
        return
    check_commit(draft, offsets, transactional=producer is not None)
    _emit_offsets(draft, offsets, producer or ProducerIdentity())


def reset_offsets(draft: Draft, command: ResetOffsets) -> None:
    """Set positions from outside, which no live member may notice too late."""
    _check_empty(draft, command.offsets.group, "its offsets cannot be reset")
    if command.offsets.offsets:
        _emit_offsets(draft, command.offsets, ProducerIdentity())


def delete_group(draft: Draft, command: DeleteGroup) -> None:
    """Delete a group with its offsets. Pending ones go, too: the end of their transaction brings none back (OFF-17)."""
    if not exists(draft.state.groups.get(command.group)):
        msg = f"there is no group {command.group!r}"
        raise GroupNotFoundError(msg)
    _check_empty(draft, command.group, "it cannot be deleted")
    draft.emit(GroupDeleted(group=command.group))


def _check_empty(draft: Draft, name: str, refused: str) -> None:
    if not empty(draft, name):
        msg = f"group {name!r} has live members, so {refused}"
        raise GroupNotEmptyError(msg)


def _emit_offsets(draft: Draft, offsets: TxnOffsets, producer: ProducerIdentity) -> None:
    draft.emit(
        OffsetsCommitted(
            group=offsets.group,
            offsets=[_checked(draft.state, offsets.group, item) for item in offsets.offsets],
            producer_id=producer.producer_id,
            epoch=producer.epoch,
            member_id=offsets.member_id,
        ),
    )


def _checked(state: State, group: str, item: GroupOffset) -> GroupOffset:
    """The position with the id of its topic; refused if the topic that was read is gone (OFF-18).

    Only the catalog's chain can tell the id for certain; elsewhere it has been looked up before. A chain that has
    another topic of the name is behind the catalog, and is told of the topic first, or the one who looked it up was.
    """
    if leads_partition(state, item.tp) and item.tp not in state.partitions:
        msg = f"group {group!r} cannot commit an offset of {item.tp}: there is no such partition"
        raise UnknownTopicOrPartitionError(msg)
    if state.chain == CATALOG:
        item = with_topic_id(state, group, item)
    elif leads_partition(state, item.tp):
        _check_same_topic(state.topics[item.topic], group, item)
    check_offset(group, item)
    return item


def check_offset(group: str, item: GroupOffset) -> None:
    """What can be wrong with a position by itself: its range (:class:`InvalidConfigError`), too much metadata."""
    if not 0 <= item.offset <= MAX_OFFSET:
        msg = f"group {group!r} cannot commit offset {item.offset} of {item.tp}: it must be 0 to 2**63 - 1"
        raise InvalidConfigError(msg)
    if len(item.metadata.encode()) > MAX_METADATA_BYTES:
        msg = f"the metadata of {item.tp} in group {group!r} is over {MAX_METADATA_BYTES} bytes"
        raise OffsetMetadataTooLargeError(msg)


def with_topic_id(catalog: State, group: str, item: GroupOffset) -> GroupOffset:
    """The position with the id that the catalog has for its topic (OFF-18).

    Raises :class:`UnknownTopicOrPartitionError` if there is no such partition, or if the topic that was read is gone,
    and another one has got its name.
    """
    topic = catalog.topics.get(item.topic)
    if topic is None or not 0 <= item.partition < topic.partitions:
        msg = f"group {group!r} cannot commit an offset of {item.tp}: there is no such partition"
        raise UnknownTopicOrPartitionError(msg)
    _check_same_topic(topic, group, item)
    return replace(item, topic_id=topic.topic_id)


def _check_same_topic(topic: Topic, group: str, item: GroupOffset) -> None:
    if item.topic_id is not None and item.topic_id != topic.topic_id:
        msg = f"group {group!r} cannot commit an offset of {item.tp}: the topic was deleted and created again since"
        raise UnknownTopicOrPartitionError(msg)


def committed(
    state: Known,
    group: str,
    tp: TopicPartition,
    *,
    require_stable: bool = True,
    strict: bool = False,
) -> OffsetAndMetadata | None:
    """The committed position of a group in a partition, or None.

    Raises :class:`UnstableOffsetCommitError` if an open transaction holds a pending one and ``require_stable`` is set
    (OFF-09, KIP-447), as Kafka's consumer always does. ``strict``: also if it holds one of another partition of the
    group, as the first design of transactions had it (D3). Of a topic that was created again nothing is known (OFF-18).
    """
    known = state.groups.get(group)
    if known is None:
        return None
    if require_stable and any(pending if strict else tp in pending for pending in known.pending.values()):
        msg = f"an open transaction holds an offset of {tp if not strict else 'some partition'} in group {group!r}"
        raise UnstableOffsetCommitError(msg)
    value = known.offsets.get(tp)
    return value.value if value is not None and _of_this_topic(state, tp, value) else None


def _of_this_topic(state: Known, tp: TopicPartition, value: CommittedOffset) -> bool:
    topic = state.topics.get(tp.topic)
    return value.topic_id is None or topic is None or value.topic_id == topic.topic_id


def expired_offsets(group: Group, now: int, retention_ms: int = OFFSETS_RETENTION_MS) -> list[TopicPartition]:
    """The positions of a group that have expired at the time ``now`` of the chain (OFF-16).

    ``retention_ms`` after the last member was gone, and after the commit; for a group that never had members after the
    commit alone. None while the group has live members, or a transaction holds a pending offset of the partition.
    """
    if live_members(group, now):
        return []
    empty_since = max([group.emptied_at, *(m.seen_at + m.session_timeout_ms for m in group.members.values())])
    pending = {tp for offsets in group.pending.values() for tp in offsets}
    return sorted(
        tp
        for tp, value in group.offsets.items()
        if max(value.committed_at, empty_since) + retention_ms <= now and tp not in pending
    )


def exists(group: Group | None) -> bool:
    """Whether there is anything about a group that its users know of."""
    return group is not None and bool(group.offsets or group.pending or group.members or group.generation >= 0)


def is_dead(group: Group, now: int) -> bool:
    """Whether nothing is left of a group that anybody could miss: no live member, no offset, none pending (OFF-16)."""
    return not group.offsets and not any(group.pending.values()) and not live_members(group, now)
