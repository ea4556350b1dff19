"""Plans what a compaction merges in a partition, from the state of its chain; no I/O.

The log below the last stable offset is divided into runs of adjacent batches, each of which becomes a segment of its
own. A batch that is already large ends a run. Aborted batches do not count towards the size, because they are dropped
without being read.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import partial
from itertools import groupby

from txnstore.catalog.settings import TopicConfig
from txnstore.compactor.compact.merge_plan import LogOfMerges, MergePlan
from txnstore.core.log.model import Batch, Partition, Segment
from txnstore.core.model import TopicPartition
from txnstore.tables.plan import DIRECT

#: A first segment this many times as large as all others of its run is left out, so that repeated compactions do not
#: rewrite the largest segment each time for a few new records.
_DOMINANT = 4
#: A segment below this size, in bytes, is always merged: rewriting it costs less than reading one more object.
_SMALL = 1 << 20


def plan_merges(
    tp: TopicPartition,
    partition: Partition,
    target_bytes: int,
    min_segments: int = 2,
    config: TopicConfig | None = None,
    released: Callable[[Segment], bool] = lambda _: False,
) -> list[MergePlan]:
    """Plan the replacements of a compaction of a partition.

    Only batches entirely below the last stable offset take part (CMP-02). Aborted batches are always removed (CMP-06).

    Args:
        partition: Its log.
        target_bytes: The maximum size of the sources of a merge. A segment larger than half of it is not merged.
        min_segments: The minimum number of committed segments of a merge, at least 2.
        config: The settings of its topic: a merge joins no records that the retention deletes at very different times,
            and where nothing is to be inlined, or to share a segment, it writes even one such batch to an object of its
            own. None: all defaults.
        released: Whether a batch was removed from the object of a segment. Other batches in it are written to objects
            of their own, so that a vacuum can delete it.

    Returns:
        The replacements in offset order.
    """
    config = config or TopicConfig()
    log = LogOfMerges(tp, partition, config)
    must_move = partial(_must_move, config=config, released=released)
    plans: list[MergePlan] = []
    for run in _runs(partition, log, target_bytes, config):
        rest = _without_dominant(run, log)
        plans += _plans_of_unmerged(run[: len(run) - len(rest)], log, must_move)
        plan = log.plan(rest)
        if len(plan.sources) >= max(2, min_segments) or any(must_move(source.batch) for source in plan.sources):
            plans.append(plan)
        else:
            plans += _plans_of_unmerged(rest, log, must_move)
    return plans


def _runs(partition: Partition, log: LogOfMerges, target_bytes: int, config: TopicConfig) -> Iterator[list[Batch]]:
    """Divide the stable batches into runs with at most ``target_bytes`` of committed data.

    A large batch is in no run, or if :func:`_must_move` may say so, in a run of its own.
    """

    def committed_bytes(batch: Batch) -> int:
        return 0 if log.is_aborted(batch) else batch.size

    def kind(batch: Batch) -> Hashable:  # Batches of one kind share runs; those of the kind None are in no run.
        if 2 * committed_bytes(batch) <= target_bytes:
            return "small"
        may_move = _is_part_of_object(batch) or (config.has_table and not DIRECT.opens(batch))
        return batch.base_offset if may_move else None

    first, limit = partition.log_start, partition.last_stable_offset
    overlapping = partition.batches.overlapping(first, limit)
    stable_batches = (batch for batch in overlapping if batch.base_offset >= first and batch.limit <= limit)
    for long_run in log.runs(stable_batches, kind):
        run: list[Batch] = []
        size = 0
        for batch in long_run:
            if run and size + committed_bytes(batch) > target_bytes:
                yield run
                run, size = [], 0
            run.append(batch)
            size += committed_bytes(batch)
        yield run


def _without_dominant(run: list[Batch], log: LogOfMerges) -> list[Batch]:
    """The run without leading segments that are much larger than all segments after them together."""
    first_merged = 0
    remaining = sum(batch.size for batch in run if not log.is_aborted(batch))
    for number, batch in enumerate(run):
        if log.is_aborted(batch):
            continue
        remaining -= batch.size
        if batch.size <= max(_SMALL, _DOMINANT * remaining):
            break
        first_merged = number + 1
    return run[first_merged:]


def _plans_of_unmerged(
    batches: Iterable[Batch], log: LogOfMerges, must_move: Callable[[Batch], bool]
) -> Iterator[MergePlan]:
    """The plans for batches that are not merged: aborted ones go, in adjacent groups, and some ranges move."""
    for aborted, group in groupby(batches, key=log.is_aborted):
        if aborted:
            yield log.plan(group)
        else:
            yield from (log.plan([batch]) for batch in group if must_move(batch))


def _must_move(batch: Batch, config: TopicConfig, released: Callable[[Segment], bool]) -> bool:
    """Whether a batch is written to an object of its own, though it is merged with no other one.

    It is in an object with others, or a table cannot use its segment.
    """
    if config.has_table and not DIRECT.opens(batch):
        return True
    limit = config.inline_bytes if batch.segment.inlined else config.segment_own_bytes
    return _is_part_of_object(batch) and ((batch.shared and limit == 0) or released(batch.segment))


def _is_part_of_object(batch: Batch) -> bool:
    """Whether the object of the batch has other rows, or may have."""
    return batch.segment.is_range or not batch.alone
