"""What a producer keeps for one epoch: its sequences, what it has sent, the command that nobody has answered yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, cast

from txnstore.core.commands import Append, EndTxn, ProducerIdentity, TxnOffsets
from txnstore.core.groups import group_offset, with_id
from txnstore.core.model import WINDOW, NewBatch, OffsetAndMetadata, TopicPartition, next_sequence
from txnstore.errors import InvalidConfigError
from txnstore.producing.uploads import Upload
from txnstore.validation import check_id


class GroupMetadata(Protocol):
    """A consumer's membership, as :meth:`Consumer.group_metadata` gives it (KIP-447)."""

    @property
    def group(self) -> str: ...

    @property
    def generation(self) -> int: ...

    @property
    def member_id(self) -> str: ...


@dataclass(slots=True)
class Pending:
    """A command that has been begun, and whose batches it carries: it is done before anything else.

    ``unknown``: the attempt is over, and nobody could tell its outcome, so it is to be repeated.
    """

    command: Append | EndTxn
    uploads: list[Upload]
    unknown: bool = False


@dataclass(slots=True)
class Session:
    """What lasts for one epoch: sequences, and what the open transaction has sent so far.

    ``started``: the chain may know of the transaction, so it has to be ended there.
    """

    identity: ProducerIdentity
    sequences: dict[TopicPartition, int] = field(default_factory=dict)
    offsets: list[TxnOffsets] = field(default_factory=list)
    started: bool = False

    def numbered(self, uploads: Sequence[Upload]) -> tuple[NewBatch, ...]:
        """The batches with their sequence numbers: contiguous in each partition, from 0 in each epoch (SEQ-01)."""
        batches, following = [], dict(self.sequences)
        for upload in uploads:
            sequence = following.get(upload.batch.tp, 0)
            batches.append(replace(upload.new_batch, base_sequence=sequence))
            following[upload.batch.tp] = next_sequence(sequence, upload.batch.rows)
        return tuple(batches)

    def append(self, uploads: Sequence[Upload]) -> Append:
        """The command that registers the batches, with the offsets that are not sent yet."""
        return Append(self.identity, self.numbered(uploads), tuple(self.offsets))

    def advance(self, command: Append | EndTxn) -> None:
        """The command is in the chain. May be told again after an interrupt."""
        self.started = True
        sent = {id(offsets) for offsets in command.offsets}
        self.offsets = [offsets for offsets in self.offsets if id(offsets) not in sent]
        for batch in command.batches:
            self.sequences[batch.tp] = next_sequence(batch.base_sequence, batch.records)


def rounds(uploads: Sequence[Upload]) -> list[list[Upload]]:
    """Batches in order, cut where a partition would get more of them than its producer window remembers.

    A repeated append is recognised by that window, so one entry carries at most five batches a partition.
    """
    found: list[list[Upload]] = []
    counts: dict[TopicPartition, int] = {}
    for upload in uploads:
        tp = upload.batch.tp
        if not found or counts.get(tp, 0) >= WINDOW:
            found.append([])
            counts = {}
        found[-1].append(upload)
        counts[tp] = counts.get(tp, 0) + 1
    return found


def txn_offsets(
    offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
    group: str | GroupMetadata,
) -> TxnOffsets:
    """Positions as a command carries them. :class:`InvalidConfigError` says what is wrong with one."""
    if not isinstance(cast("object", offsets), Mapping):
        msg = f"offsets must be a mapping of TopicPartition to the next offset, not {offsets!r}"
        raise InvalidConfigError(msg)
    name = group if isinstance(group, str) else getattr(group, "group", None)
    if name is None:
        msg = f"group must be a name or a consumer's group_metadata(), not {group!r}"
        raise InvalidConfigError(msg)
    name = check_id("group", name)
    topic_ids: Mapping[str, str] = getattr(group, "topic_ids", {})
    items = tuple(with_id(group_offset(tp, value), topic_ids) for tp, value in offsets.items())
    if isinstance(group, str):
        return TxnOffsets(name, items)
    return TxnOffsets(name, items, group.generation, group.member_id, getattr(group, "instance_id", None))
