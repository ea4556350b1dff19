"""The rules of consumer-group offsets, in and out of transactions."""

from __future__ import annotations

import operator

from txnstore.core.commands import ProducerIdentity, TxnOffsets
from txnstore.core.draft import Draft
from txnstore.core.events import GroupOffset, OffsetsCommitted
from txnstore.core.markers import leads_partition
from txnstore.core.model import NO_PRODUCER, Group, OffsetAndMetadata, State, TopicPartition
from txnstore.core.names import check_topic_name, is_unicode
from txnstore.errors import (
    IllegalGenerationError,
    InvalidConfigError,
    OffsetMetadataTooLargeError,
    ProducerFencedError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)

#: Kafka's ``offset.metadata.max.bytes``.
MAX_METADATA_BYTES = 4096
#: The largest offset: Kafka's and Arrow's are 64 bits wide.
MAX_OFFSET = 2**63 - 1


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
    group = draft.state.groups.get(offsets.group, Group())
    if offsets.generation >= 0 and offsets.generation != group.generation:
        msg = f"group {offsets.group!r} is at generation {group.generation}, not {offsets.generation}"
        raise IllegalGenerationError(msg)
    if producer is not None and producer.epoch < group.fences.get(producer.producer_id, (NO_PRODUCER, 0))[0]:
        msg = f"{producer} is fenced in group {offsets.group!r}: its transaction has ended there"
        raise ProducerFencedError(msg)
    for item in offsets.offsets:
        if leads_partition(draft.state, item.tp) and item.tp not in draft.state.partitions:
            msg = f"group {offsets.group!r} cannot commit an offset of {item.tp}: there is no such partition"
            raise UnknownTopicOrPartitionError(msg)
        if not 0 <= item.offset <= MAX_OFFSET:
            msg = f"group {offsets.group!r} cannot commit offset {item.offset} of {item.tp}: it must be 0 to 2**63 - 1"
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
