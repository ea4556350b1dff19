"""Plans cleans: which partitions are due, and what a clean reads and replaces; no I/O.

The rules are those of Kafka's ``LogCleanerManager``: a partition is due if its dirty part is large enough or old
enough; a clean stops at the first offset that is undecided or too young.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from txnstore.catalog.settings import TopicConfig
from txnstore.compactor.compact.merge_plan import Plan
from txnstore.core.log.model import Batch, Layout, Partition
from txnstore.core.log.slices import Slice, whole_batch
from txnstore.core.log.visibility import aborted_batches, is_open
from txnstore.core.model import TopicPartition


@dataclass(frozen=True, slots=True)
class CleanPlan(Plan):
    """The clean of one partition: of all batches below ``clean_until``. Only committed records supersede one (CMP-05).

    Attributes:
        clean_until: The cleaner checkpoint after the clean.
        dirty_ratio: The share of the bytes to clean that no clean has covered.
        dirty_from: The first offset that no clean has covered.
        past_hw: Whether the batches are above the transactional high-watermark, between records that are undecided.
    """

    clean_until: int
    dirty_ratio: float
    dirty_from: int
    past_hw: bool = False

    def has_expired_tombstones(self, now: int) -> bool:
        """Whether a source has a tombstone that may be removed at ``now``."""
        horizons = (source.batch.delete_horizon for source in self.sources)
        return any(horizon is not None and horizon <= now for horizon in horizons)


def first_uncleanable_offset(partition: Partition, config: TopicConfig, now: int) -> int:
    """The end of what may be cleaned: the LSO, or the first dirty batch with a record that is too young (CMP-02).

    Args:
        partition: The log.
        config: The settings of its topic, with ``min.compaction.lag.ms``.
        now: The time in ms.
    """
    stable, lag = partition.last_stable_offset, config.min_compaction_lag_ms
    for batch in partition.batches.overlapping(partition.first_dirty_offset, stable):
        if batch.limit > stable or (lag > 0 and batch.max_timestamp > now - lag):
            return max(partition.first_dirty_offset, batch.base_offset)
    return stable


def plan_clean(
    tp: TopicPartition, partition: Partition, config: TopicConfig, now: int, *, force: bool = False
) -> CleanPlan | None:
    """Plan the clean of a partition, if it is due (CMP-20).

    Args:
        partition: Its log.
        config: The settings of its topic.
        now: The time in ms.
        force: Clean also if the dirty part is small.

    Returns:
        The plan; None if there is nothing to clean yet.
    """
    limit = first_uncleanable_offset(partition, config, now)
    removed = tuple(
        batch for batch in partition.batches.overlapping(partition.log_start, limit) if batch.limit <= limit
    )
    dirty = [batch for batch in removed if batch.limit > partition.first_dirty_offset]
    total_bytes, dirty_bytes = (sum(batch.size for batch in batches) for batches in (removed, dirty))
    is_aborted = aborted_batches(partition)
    sources = tuple(
        Slice(tp, batch, max(partition.log_start, batch.base_offset), batch.limit)
        for batch in removed
        if not is_aborted(batch)
    )
    ratio = dirty_bytes / total_bytes if total_bytes else 0.0
    plan = CleanPlan(tp, removed, sources, limit, ratio, partition.first_dirty_offset)
    plan = replace(plan, revision=partition.revision)
    oldest_dirty = min((batch.min_timestamp for batch in dirty), default=now)
    is_overdue = oldest_dirty < now - config.max_compaction_lag_ms
    is_forced = force and bool(dirty or plan.has_expired_tombstones(now))
    return plan if is_forced or is_overdue or ratio > config.min_cleanable_dirty_ratio else None


def plan_past_hw(
    tp: TopicPartition,
    partition: Partition,
    config: TopicConfig,
    now: int,
    *,
    force: bool = False,
    known_clean: Collection[str] = (),
) -> list[CleanPlan]:
    """Plan cleans above the transactional high-watermark, the LSO (CMP-03, CMP-04).

    Each covers a run of decided batches without an undecided one between them. So a record is superseded only by one
    that becomes visible with it: what read_committed sees does not change, wherever the LSO moves to next. The cleaner
    checkpoint stays.

    Args:
        partition: Its log.
        config: The settings of its topic.
        now: The time in ms.
        force: Clean also if few batches of a run are new.
        known_clean: The keys of :class:`KnownClean`: they are not new.
    """
    is_aborted = aborted_batches(partition)
    lag = config.min_compaction_lag_ms
    runs: list[list[Batch]] = [[]]
    for batch in partition.batches.overlapping(partition.last_stable_offset, partition.high_watermark):
        if lag > 0 and batch.max_timestamp > now - lag:
            break
        if is_open(partition, batch):
            runs.append([])
        else:
            runs[-1].append(batch)
    plans = []
    for run in filter(None, runs):
        new_batches = [
            batch for batch in run if batch.layout is Layout.APPENDED and batch.segment.key not in known_clean
        ]
        dirty_bytes = sum(batch.size for batch in new_batches)
        ratio = dirty_bytes / sum(batch.size for batch in run)
        sources = tuple(whole_batch(tp, batch) for batch in run if not is_aborted(batch))
        if sources and (ratio > config.min_cleanable_dirty_ratio or (force and dirty_bytes)):
            start = run[0].base_offset
            plans.append(CleanPlan(tp, tuple(run), sources, partition.clean_until, ratio, start, past_hw=True))
    return [replace(plan, revision=partition.revision) for plan in plans]


class KnownClean:
    """The segments above the LSO in which a clean found nothing to remove.

    Such a clean changes nothing in the log: neither the batches nor the checkpoint tell of it. A compactor that works
    round after round remembers it, or it would read the same segments in each round.
    """

    def __init__(self) -> None:
        self._keys: dict[TopicPartition, frozenset[str]] = {}

    def add(self, plan: CleanPlan) -> None:
        """Note that the clean of this plan had nothing to remove."""
        new_keys = frozenset(batch.segment.key for batch in plan.removed)
        self._keys[plan.tp] = self._keys.get(plan.tp, frozenset()) | new_keys

    def keys_of(self, tp: TopicPartition, partition: Partition) -> frozenset[str]:
        """The keys of these segments of a partition; forgets those that the LSO has passed, or that were replaced."""
        if tp not in self._keys:
            return frozenset()
        undecided = partition.batches.overlapping(partition.last_stable_offset, partition.high_watermark)
        remaining = self._keys.pop(tp).intersection(batch.segment.key for batch in undecided)
        if remaining:
            self._keys[tp] = remaining
        return remaining
