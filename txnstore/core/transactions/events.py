"""The events of transactions, with the terms of Kafka's protocol."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from txnstore.core.model import NO_PRODUCER, Outcome, TopicPartition, value_class


@value_class(kw_only=True)
class ProducerInitialized:
    """A producer id and epoch were granted; all older epochs of the transactional id are fenced.

    ``timeout_ms``: the timeout of its transactions. ``last_epoch`` and ``previous_producer_id``: the identity that the
    caller asked to bump (KIP-360), so that a retry is recognised. ``keeps``: the prepared transaction stays open
    (KIP-939).
    """

    type: Literal["ProducerInitialized"] = "ProducerInitialized"
    producer_id: int
    epoch: int
    transactional_id: str | None = None
    timeout_ms: int = 0
    last_epoch: int = NO_PRODUCER
    previous_producer_id: int = NO_PRODUCER
    keeps: bool = False


@value_class(kw_only=True)
class PartitionsAdded:
    """Partitions joined a transaction; the first such event begins it (KIP-98).

    ``topic_ids``: the ids of the topics of partitions in other chains, by name, where they are known.
    """

    type: Literal["PartitionsAdded"] = "PartitionsAdded"
    transactional_id: str
    producer_id: int
    epoch: int
    partitions: list[TopicPartition]
    topic_ids: dict[str, str] = field(default_factory=dict)


@value_class(kw_only=True)
class OffsetsAdded:
    """A group joined a transaction; the first such event begins it."""

    type: Literal["OffsetsAdded"] = "OffsetsAdded"
    transactional_id: str
    producer_id: int
    epoch: int
    group: str


@value_class(kw_only=True)
class TxnPrepared:
    """A transaction was prepared: an external coordinator decides it, and it has no timeout (KIP-939).

    In another chain than its coordinator's: the chain refuses further batches and offsets of this epoch.
    """

    type: Literal["TxnPrepared"] = "TxnPrepared"
    transactional_id: str
    producer_id: int
    epoch: int


@value_class(kw_only=True)
class TxnDecided:
    """The outcome of a transaction was decided, irrevocably (Kafka: PREPARE_COMMIT or PREPARE_ABORT).

    The event also grants the identity of the next transaction (KIP-890), so the producer does not wait for the
    completion.
    """

    type: Literal["TxnDecided"] = "TxnDecided"
    transactional_id: str
    producer_id: int
    epoch: int
    outcome: Outcome
    next_producer_id: int
    next_epoch: int


@value_class(kw_only=True)
class SessionContinued:
    """The client of a decided transaction continues with the epoch that it has (transactions v1).

    It stands before the markers of the transaction in the chain, and keeps the windows that these empty.

    ``epoch``: that of the transaction. ``outcome``: how it ends. ``session_epoch``: that of the client. ``partitions``:
    those of this chain with batches of the transaction.
    """

    type: Literal["SessionContinued"] = "SessionContinued"
    transactional_id: str
    producer_id: int
    epoch: int
    outcome: Outcome
    session_epoch: int
    partitions: list[TopicPartition]


@value_class(kw_only=True)
class VersionRecorded:
    """A job committed this version; a later commit of this version or an older one has no effect."""

    type: Literal["VersionRecorded"] = "VersionRecorded"
    transactional_id: str
    scope: str
    version: int


@value_class(kw_only=True)
class TxnCompleted:
    """All markers of a transaction are written (Kafka: COMPLETE_COMMIT or COMPLETE_ABORT).

    ``next_producer_id`` and ``next_epoch`` are the identity of the next transaction (KIP-890).
    """

    type: Literal["TxnCompleted"] = "TxnCompleted"
    transactional_id: str
    producer_id: int
    epoch: int
    outcome: Outcome
    next_producer_id: int
    next_epoch: int
