"""The events of a chain: what happened, in Kafka's own words.

An entry of the chain is a list of these. They hold every number a reader needs (offsets, epochs), so that folding
them takes no decision. Times are not repeated here: an event happened at the timestamp of its entry.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from txnstore.core.expiry_events import (
    FencesExpired,
    OffsetsExpired,
    ProducersExpired,
    TransactionalIdExpired,
)
from txnstore.core.group_events import GroupDeleted, GroupRebalanced, MemberJoined, MemberLeft, MemberSeen
from txnstore.core.model import NO_PRODUCER, Batch, Outcome, Topic, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicCreated:
    """A topic exists from now on, with empty partitions."""

    type: Literal["TopicCreated"] = "TopicCreated"
    topic: Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAltered:
    """A topic has a new schema, new settings or more partitions. ``topic`` is the whole new value."""

    type: Literal["TopicAltered"] = "TopicAltered"
    topic: Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicClosed:
    """A topic is being deleted, or is deleted and was not known here.

    A copy of at most this ``revision`` takes no records, and is not made any more.
    """

    type: Literal["TopicClosed"] = "TopicClosed"
    name: str
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDeleted:
    """A topic and its partitions are gone; its segments are garbage."""

    type: Literal["TopicDeleted"] = "TopicDeleted"
    name: str
    topic_id: str
    revision: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What follows in this chain was decided after entry ``sequence`` of another chain, and may rest on it."""

    type: Literal["Observed"] = "Observed"
    chain: int
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerInitialized:
    """A producer id and epoch were granted; every older epoch of a transactional id is fenced.

    ``keeps``: the open transaction goes on, because an outside coordinator decides it (KIP-939).
    """

    type: Literal["ProducerInitialized"] = "ProducerInitialized"
    producer_id: int
    epoch: int
    transactional_id: str | None = None
    timeout_ms: int = 0
    last_epoch: int = NO_PRODUCER
    previous_producer_id: int = NO_PRODUCER
    keeps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionsAdded:
    """Partitions joined a transaction; the first such event begins it (KIP-98's BEGIN).

    ``topic_ids``: of the topics of partitions in other chains, by name, where they are known.
    """

    type: Literal["PartitionsAdded"] = "PartitionsAdded"
    transactional_id: str
    producer_id: int
    epoch: int
    partitions: list[TopicPartition]
    topic_ids: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchAppended:
    """Records got their offsets in a partition; those of an open transaction are not stable yet."""

    type: Literal["BatchAppended"] = "BatchAppended"
    topic: str
    partition: int
    batch: Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsAdded:
    """A consumer group joined a transaction."""

    type: Literal["OffsetsAdded"] = "OffsetsAdded"
    transactional_id: str
    producer_id: int
    epoch: int
    group: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffset:
    """One position of a group: the next offset to read in a partition of the topic with this id (None: not known)."""

    topic: str
    partition: int
    offset: int
    metadata: str = ""
    leader_epoch: int = -1
    topic_id: str | None = None

    @property
    def tp(self) -> TopicPartition:
        """The partition that was consumed."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetsCommitted:
    """A group's offsets were committed: at once, or pending the end of the transaction of ``producer_id``.

    The lease of ``member_id``, if it is a member's, is renewed.
    """

    type: Literal["OffsetsCommitted"] = "OffsetsCommitted"
    group: str
    offsets: list[GroupOffset]
    producer_id: int = NO_PRODUCER
    epoch: int = NO_PRODUCER
    member_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnHeld:
    """All of a transaction is written, and an outside coordinator decides it (KIP-939): it has no timeout any more.

    In another chain than its coordinator's: nothing more of this epoch is accepted there.
    """

    type: Literal["TxnHeld"] = "TxnHeld"
    transactional_id: str
    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerFenced:
    """This chain accepts nothing of an epoch below ``epoch`` from a producer of another chain.

    ``partitions`` and ``groups``: those of its open transaction that are known here.
    """

    type: Literal["ProducerFenced"] = "ProducerFenced"
    producer_id: int
    epoch: int
    partitions: list[TopicPartition]
    groups: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnPrepared:
    """The outcome of a transaction is decided, for ever (PREPARE_COMMIT or PREPARE_ABORT).

    The identity of the next transaction is decided with it (KIP-890), so that its producer need not wait for the end.
    """

    type: Literal["TxnPrepared"] = "TxnPrepared"
    transactional_id: str
    producer_id: int
    epoch: int
    outcome: Outcome
    next_producer_id: int
    next_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkerWritten:
    """The control marker of a transaction took ``offset`` in a partition; ``epoch`` is already the bumped one."""

    type: Literal["MarkerWritten"] = "MarkerWritten"
    topic: str
    partition: int
    producer_id: int
    epoch: int
    outcome: Outcome
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMarkerWritten:
    """The pending offsets of a transaction became the group's offsets (COMMIT), or are gone (ABORT)."""

    type: Literal["GroupMarkerWritten"] = "GroupMarkerWritten"
    group: str
    producer_id: int
    epoch: int
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRecorded:
    """A job committed this version; the same or an older one will do nothing."""

    type: Literal["VersionRecorded"] = "VersionRecorded"
    transactional_id: str
    scope: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnCompleted:
    """All markers are written (the seeds' COMMITTED or ABORTED); the next transaction has its own epoch (KIP-890)."""

    type: Literal["TxnCompleted"] = "TxnCompleted"
    transactional_id: str
    producer_id: int
    epoch: int
    outcome: Outcome
    next_producer_id: int
    next_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentsReplaced:
    """A compaction put ``added`` in the place of the batches that begin at the ``removed`` offsets."""

    type: Literal["SegmentsReplaced"] = "SegmentsReplaced"
    topic: str
    partition: int
    removed: list[int]
    added: list[Batch]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectsDropped:
    """A vacuum is about to delete these segments, which nothing names: no batch may name them any more."""

    type: Literal["ObjectsDropped"] = "ObjectsDropped"
    keys: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectsForgotten:
    """These dropped objects were deleted so long ago that no writer can still mean to name them."""

    type: Literal["ObjectsForgotten"] = "ObjectsForgotten"
    keys: list[str]


Event = (
    TopicCreated
    | TopicAltered
    | TopicClosed
    | TopicDeleted
    | Observed
    | ProducerInitialized
    | PartitionsAdded
    | BatchAppended
    | OffsetsAdded
    | OffsetsCommitted
    | TxnHeld
    | ProducerFenced
    | TxnPrepared
    | MarkerWritten
    | GroupMarkerWritten
    | VersionRecorded
    | TxnCompleted
    | SegmentsReplaced
    | ObjectsDropped
    | ObjectsForgotten
    | MemberJoined
    | MemberLeft
    | MemberSeen
    | GroupRebalanced
    | GroupDeleted
    | ProducersExpired
    | FencesExpired
    | TransactionalIdExpired
    | OffsetsExpired
)
