"""Plans the compaction of a partition from the state of its chain; no I/O.

The planner divides the log below the last stable offset into runs of adjacent batches; each run becomes one merged
segment. A batch that is already large ends a run. Aborted batches do not count towards the size, because they are
dropped without being read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

from txnstore.catalog.settings import TopicConfig
from txnstore.compactor.compact.ages import period
from txnstore.core.log.model import Batch, Partition, Segment
from txnstore.core.log.slices import Slice, whole_batch
from txnstore.core.log.visibility import aborted_batches
from txnstore.core.model import TopicPartition
from txnstore.tables.plan import DIRECT

#: A first segment this many times as large as all others of its run is left out, so that repeated compactions do not
#: rewrite the largest segment each time for a few new records.
_DOMINANT = 4
#: A segment below this size, in bytes, is always merged: rewriting it costs less than reading one more object.
_SMALL = 1 << 20


@dataclass(frozen=True, slots=True)
class MergePlan:
    """One replacement of adjacent batches.

    Attributes:
        removed: The batches to replace, adjacent in the log.
        sources: The removed batches without the aborted ones, to be merged; if empty, the batches are only removed.
        revision: The revision of the partition that this was planned at; None: not checked.
    """

    tp: TopicPartition
    removed: tuple[Batch, ...]
    sources: tuple[Slice, ...]
    revision: int | None = None

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
        """The number of records of the merged segment."""
        return sum(source.batch.records for source in self.sources)

    @property
    def source_bytes(self) -> int:
        """The size of the sources in bytes."""
        return sum(source.batch.size for source in self.sources)

    @property
    def removed_bytes(self) -> int:
        """The size of all removed segments in bytes, including aborted ones."""
        return sum(batch.size for batch in self.removed)

    @property
    def aborted(self) -> int:
        """The number of aborted batches."""
        return len(self.removed) - len(self.sources)


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
    is_aborted = aborted_batches(partition)
    config = config or TopicConfig()
    moves = partial(_moves, config=config, released=released)
    plans: list[MergePlan] = []
    for run in _runs(partition, is_aborted, target_bytes, config):
        rest = _without_dominant(run, is_aborted)
        plans += _unmerged(tp, run[: len(run) - len(rest)], is_aborted, moves)
        sources = tuple(whole_batch(tp, batch) for batch in rest if not is_aborted(batch))
        if len(sources) >= max(2, min_segments) or any(moves(source.batch) for source in sources):
            plans.append(MergePlan(tp, tuple(rest), sources))
        else:
            plans += _unmerged(tp, rest, is_aborted, moves)
    return [replace(plan, revision=partition.revision) for plan in plans]


def _runs(
    partition: Partition, is_aborted: aborted_batches, target_bytes: int, config: TopicConfig
) -> Iterator[list[Batch]]:
    """Runs of stable batches with at most ``target_bytes`` of committed data.

    A large batch is in no run, or if its object has others, or a table cannot use it, in a run of its own, since it may
    have to move.
    """
    run: list[Batch] = []
    size = latest = 0
    for batch in partition.batches.overlapping(partition.log_start, partition.last_stable_offset):
        if batch.base_offset < partition.log_start or batch.limit > partition.last_stable_offset:
            continue
        weight = 0 if is_aborted(batch) else batch.size
        # Cleaned segments with tombstones stay as they are: a merge would lose their delete horizons.
        large = 2 * weight > target_bytes or batch.delete_horizon is not None
        # A batch is clean or dirty as a whole.
        if run and run[-1].base_offset < partition.clean_until <= batch.base_offset:
            yield run
            run, size = [], 0
        later = weight > 0 and period(batch, config) > latest
        if run and (large or size + weight > target_bytes or (size and later)):
            yield run
            run, size = [], 0
        if weight and not size:
            latest = period(batch, config)
        if not large:
            run.append(batch)
            size += weight
        elif not batch.alone or batch.segment.is_range or (config.has_table and not DIRECT.opens(batch)):
            yield [batch]
    if run:
        yield run


def _without_dominant(run: list[Batch], is_aborted: aborted_batches) -> list[Batch]:
    """The run without leading segments that are much larger than all segments after them together."""
    first, remaining = 0, sum(batch.size for batch in run if not is_aborted(batch))
    for at, batch in enumerate(run):
        if is_aborted(batch):
            continue
        remaining -= batch.size
        if batch.size <= max(_SMALL, _DOMINANT * remaining):
            break
        first = at + 1
    return run[first:]


def _unmerged(
    tp: TopicPartition, batches: list[Batch], is_aborted: aborted_batches, moves: Callable[[Batch], bool]
) -> Iterator[MergePlan]:
    """The plans for batches that are not merged: aborted ones go, in adjacent groups, and some ranges move."""
    for aborted, group in groupby(batches, key=is_aborted):
        if aborted:
            yield MergePlan(tp, tuple(group), ())
        else:
            yield from (MergePlan(tp, (batch,), (whole_batch(tp, batch),)) for batch in group if moves(batch))


def _moves(batch: Batch, config: TopicConfig, released: Callable[[Segment], bool]) -> bool:
    """Whether a batch is written to an object of its own, though it is merged with no other one.

    It is in an object with others, or a table cannot use its segment.
    """
    if config.has_table and not DIRECT.opens(batch):
        return True
    limit = config.inline_bytes if batch.segment.inlined else config.segment_own_bytes
    in_company = batch.segment.is_range or not batch.alone
    return in_company and ((batch.shared and limit == 0) or released(batch.segment))
