"""The events of transactions, in Kafka's words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from txnstore.core.model import NO_PRODUCER, Outcome, TopicPartition


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
class OffsetsAdded:
    """A consumer group joined a transaction."""

    type: Literal["OffsetsAdded"] = "OffsetsAdded"
    transactional_id: str
    producer_id: int
    epoch: int
    group: str


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
