"""The command that appends batches, and its answer."""

from __future__ import annotations

from txnstore.core.groups.commands import TxnOffsets
from txnstore.core.log.model import NewBatch
from txnstore.core.model import NO_PRODUCER, Command, ProducerIdentity, TopicPartition, value_class


@value_class()
class Append(Command):
    """Append batches in order, all or none. Answered with a tuple of :class:`Appended`, one per batch.

    Attributes:
        producer: The producer; with a transactional id the batches belong to its open transaction.
        offsets: Offsets of groups to commit with the transaction.
        partitions: In the coordinator's chain: partitions of other chains that join the transaction
            (AddPartitionsToTxn).
        groups: In the coordinator's chain: groups of other chains that join the transaction (AddOffsetsToTxn).
        added: In another chain: the evidence that the coordinator has added them.
        topic_ids: Pairs of (topic, topic id) of ``partitions``, where the id is known.
        renews: In the coordinator's chain: write an entry, though the transaction has all partitions and groups, so
            that other chains accept its evidence for another time.
        added_only: Refuse what is not in the open transaction yet, as a client does that adds partitions and groups
            with requests of their own (transactions v1). Batches that repeat earlier ones are not refused.
    """

    producer: ProducerIdentity
    batches: tuple[NewBatch, ...] = ()
    offsets: tuple[TxnOffsets, ...] = ()
    partitions: tuple[TopicPartition, ...] = ()
    groups: tuple[str, ...] = ()
    added: Added | None = None
    topic_ids: tuple[tuple[str, str], ...] = ()
    renews: bool = False
    added_only: bool = False


@value_class()
class Deletion:
    """The new log start of a partition: records below ``offset`` are deleted; -1 is the high watermark.

    ``topic_id``: refused if the topic was created again. None: not checked.

    ``topic_version``: of a deletion that follows from the settings of the topic, the version that has them; refused if
    the topic has another one. None: not checked.
    """

    tp: TopicPartition
    offset: int
    topic_id: str | None = None
    topic_version: int | None = None


@value_class()
class DeleteRecords(Command):
    """Move the log starts of partitions of one chain, all or none (Kafka: ``DeleteRecords``).

    Answered with the log start of each partition, a dict.
    """

    deletions: tuple[Deletion, ...]


@value_class()
class Added:
    """Evidence that the coordinator has the partitions and groups of an append in the open transaction.

    It holds as of entry ``sequence`` of the coordinator's chain ``chain``, at its time ``timestamp`` in ms.
    ``session_epoch``: that of the transaction.
    """

    chain: int
    sequence: int
    timestamp: int
    session_epoch: int = NO_PRODUCER


@value_class()
class Appended:
    """The place at which a batch was appended.

    Attributes:
        base_offset: The offset of the first record; -1 if not known, because an end was repeated after a compaction or
            the deletion of the topic.
        limit: The offset after the last record; -1 if not known.
        timestamp: The time of the append in ms.
        duplicate: An earlier attempt appended the batch.
    """

    tp: TopicPartition
    base_offset: int
    limit: int
    timestamp: int
    duplicate: bool = False
