"""The batches that a reader sees, decided from the state alone: readers do not download aborted records."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator

from txnstore.core.log.model import Batch, Layout, Partition
from txnstore.core.log.slices import Slice
from txnstore.core.model import Isolation, TopicPartition
from txnstore.errors import OffsetOutOfRangeError


def visible_slices(
    tp: TopicPartition,
    partition: Partition,
    isolation: Isolation,
    start: int | None = None,
    limit: int | None = None,
) -> list[Slice]:
    """Return the slices of a partition that a reader sees, in offset order.

    Args:
        partition: Its log.
        isolation: The isolation level.
        start: The first offset; None or an offset below the log start: from the log start.
        limit: The offset to stop before; None or an offset above :meth:`Partition.read_limit`: up to that.

    Markers have no records, so no slice contains them (CON-05).
    """
    return list(iterate_visible_slices(tp, partition, isolation, start, limit))


def iterate_visible_slices(
    tp: TopicPartition,
    partition: Partition,
    isolation: Isolation,
    start: int | None = None,
    limit: int | None = None,
) -> Iterator[Slice]:
    """Yield :func:`visible_slices` one at a time; those not asked for are not read from the log's index."""
    start_offset = max(partition.log_start, start if start is not None else partition.log_start)
    limit_offset = partition.read_limit(isolation)
    if limit is not None:
        limit_offset = min(limit_offset, limit)
    is_aborted = aborted_batches(partition) if isolation is Isolation.READ_COMMITTED else None
    for batch in partition.batches.overlapping(start_offset, limit_offset):
        if is_aborted is None or not is_aborted(batch):
            yield Slice(tp, batch, max(start_offset, batch.base_offset), min(limit_offset, batch.limit))


def count_records(partition: Partition, start: int, limit: int) -> int:
    """Return the number of records with offsets in ``[start, limit)``, aborted and open ones included.

    An upper bound if ``start`` or ``limit`` is inside a merged batch with gaps: only its segment has the offsets.
    """
    records = 0
    for batch in partition.batches.overlapping(start, limit):
        records += min(batch.records, min(batch.limit, limit) - max(batch.base_offset, start))
    return records


def is_open(partition: Partition, batch: Batch) -> bool:
    """Whether a batch belongs to an open transaction."""
    first_offset = partition.open_txns.get(batch.producer_id) if batch.transactional else None
    return first_offset is not None and first_offset <= batch.base_offset


class aborted_batches:  # noqa: N801 - used as a function that keeps its index
    """Predicate: whether a batch belongs to an aborted transaction (CON-02, CON-03, LSO-07)."""

    __slots__ = ("_first_offsets", "_last_offsets")

    def __init__(self, partition: Partition) -> None:
        self._first_offsets: dict[int, list[int]] = {}
        self._last_offsets: dict[int, list[int]] = {}
        for entry in partition.aborted:
            self._first_offsets.setdefault(entry.producer_id, []).append(entry.first_offset)
            self._last_offsets.setdefault(entry.producer_id, []).append(entry.last_offset)

    def __call__(self, batch: Batch) -> bool:
        if not batch.transactional or batch.producer_id not in self._first_offsets:
            return False
        # The transactions of a producer do not overlap, so their ranges ascend and at most one contains the batch.
        index = bisect_right(self._first_offsets[batch.producer_id], batch.base_offset) - 1
        return index >= 0 and batch.base_offset <= self._last_offsets[batch.producer_id][index]


def check_offset(tp: TopicPartition, partition: Partition, isolation: Isolation, offset: int) -> None:
    """Refuse an offset outside the log; an offset between LSO and high watermark is valid and reads nothing (LSO-12).

    Raises:
        OffsetOutOfRangeError: The offset is below the log start or above the high watermark.
    """
    if partition.log_start <= offset <= partition.high_watermark:
        return
    msg = (
        f"offset {offset} of {tp} is outside the log, which holds {partition.log_start} up to "
        f"{partition.read_limit(isolation)} ({isolation})"
    )
    raise OffsetOutOfRangeError(msg)


def batch_status(partition: Partition) -> Callable[[Batch], str]:
    """Return a function that gives the status of a batch of this partition: committed, aborted, open or compacted."""
    is_aborted = aborted_batches(partition)

    def status(batch: Batch) -> str:
        if batch.layout is not Layout.APPENDED:
            return "compacted"
        if is_aborted(batch):
            return "aborted"
        return "open" if is_open(partition, batch) else "committed"

    return status
