"""Committed records that ``read_committed`` readers cannot see yet, and the open transactions that they wait for.

The last stable offset of a partition is the first offset of its earliest open transaction (LSO-01), so later records
wait for the end of that transaction, also if they belong to others (LSO-19).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from txnstore.core.log.model import Partition
from txnstore.core.log.visibility import aborted_batches, is_open
from txnstore.core.model import TopicPartition
from txnstore.core.transactions.model import Transaction
from txnstore.core.view import View

#: An offset for each of some partitions.
Offsets = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class BlockedPartition:
    """A partition with committed records that ``read_committed`` readers cannot see yet.

    Attributes:
        tp: The partition.
        last_stable: The last stable offset, where readers stop.
        records: The number of committed records after it, which wait; those of open and aborted transactions are not
            counted.
        producer_id: The producer of the open transaction that they wait for, the earliest one of the partition.
        transactional_id: Its transactional id; None if the coordinator does not know the transaction.
        since: When the transaction began, in milliseconds since the epoch.
        expires_at: When its timeout has passed, in milliseconds since the epoch: any process may abort it then. None:
            never; an external coordinator ends it (KIP-939), or unknown to its coordinator.
        prepared: Whether an external coordinator decides it.
    """

    tp: TopicPartition
    last_stable: int
    records: int
    producer_id: int
    transactional_id: str | None
    since: int
    expires_at: int | None
    prepared: bool = False


def blocked_partitions(
    view: View,
    partitions: Iterable[TopicPartition] | None = None,
    start: Offsets | None = None,
    end: Offsets | None = None,
) -> tuple[BlockedPartition, ...]:
    """Return the blocked partitions, in order.

    Args:
        view: The view of the store; in it, decided transactions count as ended.
        partitions: The partitions to look at; None: all. Those that do not exist are passed over.
        start: The first offset to read, where it is not the log start; only records from it on are counted.
        end: The offset to read up to, where it is not the end of the log; only records before it are counted.
    """
    tps = view.open_partitions if partitions is None else partitions
    start, end = start or {}, end or {}
    parts = (_blocked_partition(view, tp, start.get(tp), end.get(tp)) for tp in tps)
    return tuple(sorted((part for part in parts if part is not None), key=lambda part: part.tp))


def blocking_producers(view: View, partitions: Iterable[BlockedPartition]) -> set[int]:
    """The producers with open transactions in these partitions: if any of them ends, the others may still block."""
    return {producer_id for part in partitions for producer_id in view.partitions[part.tp].open_txns}


def known_transaction(view: View, tp: TopicPartition, producer_id: int) -> Transaction | None:
    """Return the open transaction of a producer in a partition; None (damage) if its coordinator does not know it."""
    txn = view.owner(producer_id)
    return txn if txn is not None and tp in txn.partitions else None


def _blocked_partition(view: View, tp: TopicPartition, start: int | None, end: int | None) -> BlockedPartition | None:
    """Return the committed records that a partition hides behind its earliest open transaction; None without any."""
    log = view.partition(tp)
    if log is None or not log.open_txns:
        return None
    last_stable, producer_id = min((first_offset, producer_id) for producer_id, first_offset in log.open_txns.items())
    first_offset = max(last_stable, start if start is not None else 0)
    limit = log.high_watermark if end is None else min(log.high_watermark, end)
    records = sum(_count_committed(log, first_offset, limit))
    if not records:
        return None
    txn = known_transaction(view, tp, producer_id)
    started_at = txn.started_at if txn is not None else None
    return BlockedPartition(
        tp=tp,
        last_stable=log.last_stable_offset,
        records=records,
        producer_id=producer_id,
        transactional_id=txn.transactional_id if txn is not None else None,
        since=started_at if started_at is not None else _append_time(log, last_stable),
        expires_at=txn.expires_at if txn is not None else None,
        prepared=txn is not None and txn.is_prepared,
    )


def _count_committed(log: Partition, first_offset: int, limit: int) -> Iterator[int]:
    """Yield the number of committed records in each batch of ``[first, limit)``, which is at or above the LSO.

    A compaction ends at the LSO, so each of these offsets is a record.
    """
    is_aborted = aborted_batches(log)
    for batch in log.batches.overlapping(first_offset, limit):
        if not is_open(log, batch) and not is_aborted(batch):
            yield min(batch.limit, limit) - max(batch.base_offset, first_offset)


def _append_time(log: Partition, offset: int) -> int:
    """Return the time at which the batch at an offset was appended."""
    return next((batch.appended_at for batch in log.batches.overlapping(offset, offset + 1)), 0)
