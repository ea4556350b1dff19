"""The command that appends batches, and its answer."""

from __future__ import annotations

from dataclasses import dataclass

from txnstore.core.groups.commands import TxnOffsets
from txnstore.core.log.model import NewBatch
from txnstore.core.model import ProducerIdentity, TopicPartition


@dataclass(frozen=True, slots=True)
class Append:
    """Append batches, in order; inside the open transaction if the identity is transactional.

    All or nothing. Answered with a tuple of :class:`Appended`, one a batch. In the coordinator's chain ``partitions``
    and ``groups`` of other chains join the transaction (AddPartitionsToTxn, AddOffsetsToTxn). In another chain
    ``added`` is what the coordinator answered to that. ``topic_ids``: pairs of name and id of the topics of
    ``partitions``, where they are known.
    """

    producer: ProducerIdentity
    batches: tuple[NewBatch, ...] = ()
    offsets: tuple[TxnOffsets, ...] = ()
    partitions: tuple[TopicPartition, ...] = ()
    groups: tuple[str, ...] = ()
    added: Added | None = None
    topic_ids: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Added:
    """The coordinator has partitions and groups of this chain in the open transaction.

    As of entry ``sequence`` of chain ``chain``, at the time ``timestamp`` in ms of that chain.
    """

    chain: int
    sequence: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class Appended:
    """Where a batch landed: offsets ``[base_offset, limit)``. ``duplicate``: an earlier attempt had put it there.

    Both offsets are -1 if an end is repeated so late that a compaction has merged the batch already.
    """

    tp: TopicPartition
    base_offset: int
    limit: int
    timestamp: int
    duplicate: bool = False
