"""Descriptions of transactions and producers (KIP-664). Times are in milliseconds since the epoch."""

from __future__ import annotations

from dataclasses import dataclass

from txnstore.core.history import TransactionStep
from txnstore.core.model import TopicPartition
from txnstore.core.transactions.model import TxnState


@dataclass(frozen=True, slots=True)
class OpenData:
    """The open data of a transaction in a partition.

    Attributes:
        tp: The partition.
        first_offset: Where the open data begins.
        last_stable: The LSO, where ``read_committed`` readers stop.
        high_watermark: The offset of the next record that is appended.
    """

    tp: TopicPartition
    first_offset: int
    last_stable: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """The last transaction of a transactional id, as its coordinator knows it (ADM-02).

    Attributes:
        transactional_id: The id.
        chain: The chain that coordinates it.
        state: Kafka's state of the transaction.
        producer_id: The producer id.
        epoch: The epoch of the current or next transaction.
        timeout_ms: Milliseconds after which any process may abort it (``transaction.timeout.ms``).
        started_at: When it began; None if none is open.
        updated_at: When its state last changed.
        prepared: Whether an external coordinator decides it, so that it has no timeout (KIP-939).
        partitions: The partitions that take part; once the outcome is decided, those that still lack the marker.
        groups: The groups that take part; once the outcome is decided, those that still lack the marker.
        versions: The last version that was committed for each scope of a job.
        open: Its open data in each partition.
    """

    transactional_id: str
    chain: int
    state: TxnState
    producer_id: int
    epoch: int
    timeout_ms: int
    started_at: int | None
    updated_at: int
    prepared: bool
    partitions: tuple[TopicPartition, ...]
    groups: tuple[str, ...]
    versions: dict[str, int]
    open: tuple[OpenData, ...]


@dataclass(frozen=True, slots=True)
class ProducerDescription:
    """The state of a producer in a partition (ADM-03, PST-16).

    Attributes:
        producer_id: The producer id.
        epoch: The epoch of its last batch or marker.
        last_sequence: The sequence of its last record; -1 if there is none in this epoch.
        last_timestamp: When it last appended.
        first_offset: Where its open transaction begins, or None.
        transactional_id: None for a producer without transactions, and for one whose id has expired.
    """

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    first_offset: int | None
    transactional_id: str | None


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """A hanging transaction: open data of a partition, or pending offsets of a group (ADM-04).

    Attributes:
        tp: The partition; None for pending offsets.
        producer_id: The producer id.
        epoch: Its epoch; -1 if it is not known.
        first_offset: Where readers stop; None for pending offsets.
        last_timestamp: When it was last written to.
        transactional_id: The id of the producer, if it is known.
        reason: ``"unknown"``: no coordinator knows an open transaction of this producer with this partition or group.
            ``"late"``: it is long past its timeout. ``"expired"``: it is past its timeout, and readers wait for it.
        group: The group whose offsets cannot be looked up (OFF-09); None for open data.
    """

    tp: TopicPartition | None
    producer_id: int
    epoch: int
    first_offset: int | None
    last_timestamp: int
    transactional_id: str | None
    reason: str
    group: str | None = None


@dataclass(frozen=True, slots=True)
class TransactionHistory:
    """The steps of the transactions of an id.

    Attributes:
        transactional_id: The id.
        steps: What happened, in order.
        complete: Whether the entries were read from the first one on.
        deleted: The last entry of each chain whose history a vacuum has deleted; 0 without one.
        limited: Whether the limit has left out entries that exist, of the time that was asked for.
    """

    transactional_id: str
    steps: tuple[TransactionStep, ...]
    complete: bool
    deleted: tuple[int, ...] = ()
    limited: bool = False
