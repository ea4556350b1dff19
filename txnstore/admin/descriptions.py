"""Descriptions of transactions and producers for operators, which ``admin/transactions.py`` returns (KIP-664).

Descriptions of groups are in ``admin/groups.py``. Times are in milliseconds since the epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

from txnstore.core.history import TransactionStep
from txnstore.core.model import TopicPartition
from txnstore.core.transactions.model import TxnState


@dataclass(frozen=True, slots=True)
class OpenData:
    """The batches of an open transaction in a partition.

    Attributes:
        tp: The partition.
        first_offset: The offset of its first record.
        last_stable: The LSO of the partition: that offset, or an earlier one if another transaction began before.
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
        started_at: When the open or decided transaction began; None if there is none.
        first_entry: The entry of the chain in which that transaction began; None if there is none.
        updated_at: When its record last changed.
        prepared: Whether an external coordinator decides it, so that it has no timeout (KIP-939).
        partitions: The partitions that take part; once the outcome is decided, those that still lack the marker.
        groups: The groups that take part; once the outcome is decided, those that still lack the marker.
        versions: The last version that was committed, for each scope of an idempotent job.
        open: Its batches, in each partition that has any and lacks the marker.
    """

    transactional_id: str
    chain: int
    state: TxnState
    producer_id: int
    epoch: int
    timeout_ms: int
    started_at: int | None
    first_entry: int | None
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
        first_offset: The first offset of its open transaction in the partition; None if none is open.
        transactional_id: The id of the producer; None for one without transactions, and for one whose id has expired.
    """

    producer_id: int
    epoch: int
    last_sequence: int
    last_timestamp: int
    first_offset: int | None
    transactional_id: str | None


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """A hanging transaction in a partition, or in a group whose offsets are pending (ADM-04).

    Attributes:
        tp: The partition; None for a group.
        producer_id: The producer id.
        epoch: Its epoch; -1 if it is not known.
        first_offset: The offset of its first record in the partition, at or after the LSO; None for a group.
        last_timestamp: When the transaction was last written to.
        transactional_id: The id of the producer; None if it is not known.
        reason: ``"unknown"``: no coordinator knows an open transaction of this producer with this partition or group.
            ``"late"``: it is long past its timeout. ``"expired"``: it is past its timeout, and readers wait for it.
        group: The group, whose pending offsets cannot be looked up (OFF-09); None for a partition.
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
        steps: The steps, in order.
        complete: Whether the entries were read from the first one on.
        deleted: For each chain, the last entry that a vacuum may have deleted; 0: none.
        limited: Whether entries of the requested time were left out because of the limit on their number.
    """

    transactional_id: str
    steps: tuple[TransactionStep, ...]
    complete: bool
    deleted: tuple[int, ...] = ()
    limited: bool = False
