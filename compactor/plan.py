"""What a compaction of one partition will do, decided from the chain alone: no I/O.

The log below the transactional high-watermark is cut into runs of neighbouring batches. Aborted batches count nothing,
because they are dropped unread; an unaborted batch that is large already ends a run. A run becomes one merged segment.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from txnstore.core.model import Batch, Partition, TopicPartition
from txnstore.core.visibility import Slice, aborted_batches

#: A first segment this many times as large as all others of its run is left out of it, so that a log that is
#: compacted again and again does not rewrite its largest segment each time for a few new records.
_DOMINANT = 4
#: Below this size, in bytes, a rewrite costs less than one more object to read.
_SMALL = 1 << 20


@dataclass(frozen=True, slots=True)
class MergePlan:
    """One replacement: the batches ``removed``, neighbours in the log, by one segment of the records of ``sources``.

    ``sources`` are the removed batches without the aborted ones. If there are none, nothing comes in their place.
    """

    tp: TopicPartition
    removed: tuple[Batch, ...]
    sources: tuple[Slice, ...]

    @property
    def base_offset(self) -> int:
        """The first offset that the replacement covers."""
        return self.removed[0].base_offset

    @property
    def limit(self) -> int:
        """The offset after the last one that the replacement covers."""
        return self.removed[-1].limit

    @property
    def records(self) -> int:
        """The records that stay."""
        return sum(source.batch.records for source in self.sources)

    @property
    def source_bytes(self) -> int:
        """The bytes to read."""
        return sum(source.batch.segment.size for source in self.sources)

    @property
    def removed_bytes(self) -> int:
        """The bytes of the segments that are replaced, the aborted ones included."""
        return sum(batch.segment.size for batch in self.removed)

    @property
    def aborted(self) -> int:
        """How many aborted batches are dropped."""
        return len(self.removed) - len(self.sources)


def plan_merges(
    tp: TopicPartition,
    partition: Partition,
    target_bytes: int,
    min_segments: int = 2,
) -> list[MergePlan]:
    """The replacements that a merge of a partition makes, in offset order; empty if there is nothing to gain.

    Only batches wholly below the last stable offset take part (CMP-02): nothing of an open transaction, nothing after
    its first record. A merged segment comes from at least ``min_segments`` unaborted ones, with ``target_bytes``
    together at most; one that holds more than half of that is left alone. Aborted batches go in any case (CMP-06).
    """
    is_aborted = aborted_batches(partition)
    plans: list[MergePlan] = []
    for run in _runs(partition, is_aborted, target_bytes):
        rest = _without_dominant(run, is_aborted)
        skipped = run[: len(run) - len(rest)]
        plans += _removals(tp, skipped, is_aborted)
        sources = tuple(_whole(tp, batch) for batch in rest if not is_aborted(batch))
        if len(sources) >= max(2, min_segments):
            plans.append(MergePlan(tp, tuple(rest), sources))
        else:
            plans += _removals(tp, rest, is_aborted)
    return plans


def _runs(partition: Partition, is_aborted: aborted_batches, target_bytes: int) -> Iterator[list[Batch]]:
    """The stable batches in runs of at most ``target_bytes`` of unaborted ones; large ones are in no run."""
    run: list[Batch] = []
    size = 0
    for batch in partition.batches.overlapping(partition.log_start, partition.last_stable_offset):
        if batch.base_offset < partition.log_start or batch.limit > partition.last_stable_offset:
            continue
        weight = 0 if is_aborted(batch) else batch.segment.size
        large = 2 * weight > target_bytes
        if run and (large or size + weight > target_bytes):
            yield run
            run, size = [], 0
        if not large:
            run.append(batch)
            size += weight
    if run:
        yield run


def _without_dominant(run: list[Batch], is_aborted: aborted_batches) -> list[Batch]:
    """The run from after its first segments, as long as they outweigh all that would be merged into them."""
    first, remaining = 0, sum(batch.segment.size for batch in run if not is_aborted(batch))
    for at, batch in enumerate(run):
        if is_aborted(batch):
            continue
        remaining -= batch.segment.size
        if batch.segment.size <= max(_SMALL, _DOMINANT * remaining):
            break
        first = at + 1
    return run[first:]


def _removals(tp: TopicPartition, batches: list[Batch], is_aborted: aborted_batches) -> list[MergePlan]:
    """The plans that only drop the aborted batches: one for each group of neighbours, and nothing is read."""
    groups = groupby(batches, key=is_aborted)
    return [MergePlan(tp, tuple(group), ()) for aborted, group in groups if aborted]


def _whole(tp: TopicPartition, batch: Batch) -> Slice:
    return Slice(tp, batch, batch.base_offset, batch.limit)
