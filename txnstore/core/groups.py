"""The rules of consumer-group offsets, in and out of transactions."""

from __future__ import annotations

from txnstore.core.commands import ProducerIdentity, TxnOffsets
from txnstore.core.draft import Draft
from txnstore.core.events import OffsetsCommitted
from txnstore.core.model import Group, OffsetAndMetadata, State, TopicPartition
from txnstore.errors import (
    IllegalGenerationError,
    InvalidConfigError,
    OffsetMetadataTooLargeError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)

#: Kafka's ``offset.metadata.max.bytes``.
MAX_METADATA_BYTES = 4096


def commit_offsets(draft: Draft, offsets: TxnOffsets, producer: ProducerIdentity | None = None) -> None:
    """Commit positions at once, or as pending for the transaction of ``producer`` (OFF-02)."""
    if not offsets.offsets:
        return
    group = draft.state.groups.get(offsets.group, Group())
    if offsets.generation >= 0 and offsets.generation != group.generation:
        msg = f"group {offsets.group!r} is at generation {group.generation}, not {offsets.generation}"
        raise IllegalGenerationError(msg)
    for item in offsets.offsets:
        if item.tp not in draft.state.partitions:
            msg = f"group {offsets.group!r} cannot commit an offset of {item.tp}: there is no such partition"
            raise UnknownTopicOrPartitionError(msg)
        if item.offset < 0:
            msg = f"group {offsets.group!r} cannot commit offset {item.offset} of {item.tp}: it must be 0 or more"
            raise InvalidConfigError(msg)
        if len(item.metadata.encode()) > MAX_METADATA_BYTES:
            msg = f"the metadata of {item.tp} in group {offsets.group!r} is over {MAX_METADATA_BYTES} bytes"
            raise OffsetMetadataTooLargeError(msg)
    identity = producer or ProducerIdentity()
    draft.emit(
        OffsetsCommitted(
            group=offsets.group,
            offsets=list(offsets.offsets),
            producer_id=identity.producer_id,
            epoch=identity.epoch,
        ),
    )


def committed(state: State, group: str, tp: TopicPartition, *, require_stable: bool = True) -> OffsetAndMetadata | None:
    """The committed position of a group in a partition, or None.

    Raises :class:`UnstableOffsetCommitError` if an open transaction holds a pending one and ``require_stable`` is set
    (OFF-09, KIP-447), as Kafka's consumer always does.
    """
    known = state.groups.get(group)
    if known is None:
        return None
    if require_stable and any(tp in pending for pending in known.pending.values()):
        msg = f"an open transaction holds an offset of {tp} in group {group!r}"
        raise UnstableOffsetCommitError(msg)
    value = known.offsets.get(tp)
    return value.value if value is not None else None
