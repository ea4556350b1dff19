"""Checks of the offsets that a transaction commits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from txnstore.connection import Connection
from txnstore.core.groups.commands import TxnOffsets
from txnstore.core.groups.membership import check_membership
from txnstore.core.groups.model import GroupMetadata, OffsetAndMetadata
from txnstore.core.groups.offsets import group_offset, with_topic_id
from txnstore.core.model import TopicPartition
from txnstore.core.routing import chain_of_group
from txnstore.errors import GroupError, InvalidConfigError
from txnstore.validation import check_id


def txn_offsets(
    offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
    group: str | GroupMetadata,
) -> TxnOffsets:
    """Build the part of a command that commits these offsets to a group.

    Raises:
        InvalidConfigError: The mapping, an offset or the group has a wrong type or value.
    """
    if not isinstance(cast("object", offsets), Mapping):
        msg = f"offsets must be a mapping of TopicPartition to the next offset, not {offsets!r}"
        raise InvalidConfigError(msg)
    if isinstance(group, GroupMetadata):
        items = tuple(with_topic_id(group_offset(tp, value), group.topic_ids) for tp, value in offsets.items())
        return TxnOffsets(check_id("group", group.group), items, group.generation, group.member_id, group.instance_id)
    if not isinstance(cast("object", group), str):
        msg = f"group must be a name or a consumer's group_metadata(), not {group!r}"
        raise InvalidConfigError(msg)
    return TxnOffsets(check_id("group", group), tuple(group_offset(tp, value) for tp, value in offsets.items()))


def check_member(connection: Connection, offsets: TxnOffsets) -> None:
    """Refuse offsets of a consumer that the group has fenced, as far as this process knows (KIP-447).

    Kafka sends the offsets of each ``sendOffsetsToTransaction`` to the group's coordinator, whose answer the call
    raises. Here they travel with the next flush or the commit, whose entry decides. The call compares the membership
    with the cached state of the group, without a request; only if that disagrees, the group's chain is read: either
    this process was behind the consumer, or the consumer is fenced. What has changed since the last read of the chain
    is refused by the flush or the commit.

    Raises:
        UnknownMemberError: The group has no such member.
        FencedInstanceError: Another consumer has taken over the static name.
        IllegalGenerationError: The group has rebalanced, or another member holds a partition.
        StorageError: The chain could not be read.
    """
    if offsets.generation < 0:
        return
    try:
        check_membership(connection.view(refresh=False).groups.get(offsets.group), offsets)
    except GroupError:
        view = connection.view(refresh={chain_of_group(offsets.group, len(connection.chains))})
        check_membership(view.groups.get(offsets.group), offsets)
