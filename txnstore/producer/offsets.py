"""Checks of the offsets that a transaction commits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from txnstore.core.groups.commands import TxnOffsets
from txnstore.core.groups.model import GroupMetadata, OffsetAndMetadata
from txnstore.core.groups.offsets import group_offset, with_id
from txnstore.core.model import TopicPartition
from txnstore.errors import InvalidConfigError
from txnstore.validation import check_id


def txn_offsets(
    offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
    group: str | GroupMetadata,
) -> TxnOffsets:
    """The part of a command that commits these offsets to a group.

    Raises:
        InvalidConfigError: The mapping, an offset or the group has a wrong type or value.
    """
    if not isinstance(cast("object", offsets), Mapping):
        msg = f"offsets must be a mapping of TopicPartition to the next offset, not {offsets!r}"
        raise InvalidConfigError(msg)
    if isinstance(group, GroupMetadata):
        items = tuple(with_id(group_offset(tp, value), group.topic_ids) for tp, value in offsets.items())
        return TxnOffsets(check_id("group", group.group), items, group.generation, group.member_id, group.instance_id)
    if not isinstance(cast("object", group), str):
        msg = f"group must be a name or a consumer's group_metadata(), not {group!r}"
        raise InvalidConfigError(msg)
    return TxnOffsets(check_id("group", group), tuple(group_offset(tp, value) for tp, value in offsets.items()))
