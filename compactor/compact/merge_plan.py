"""What the plans of merges and cleans share: which batches may become one, and what replaces them; no I/O.

:mod:`txnstore.compactor.compact.on_request` plans what a compaction of a partition merges,
:mod:`txnstore.compactor.compact.small_commits` what a process merges in its background.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from txnstore.catalog.settings import TopicConfig
from txnstore.core.log.model import Batch, Partition
from txnstore.core.log.slices import Slice, whole_batch
from txnstore.core.log.visibility import aborted_batches
from txnstore.core.model import TopicPartition

#: ``retention.ms`` and ``min.compaction.lag.ms`` have this many periods each. A merge makes records outlive their
#: retention, or wait for a clean after the lag, by one of them at most.
PERIODS = 8


@dataclass(frozen=True, slots=True)
class Plan:
    """The replacement of adjacent batches of a partition, by a merge or a clean.

    Attributes:
        removed: The batches to replace.
        sources: What is read: the removed batches without the aborted ones, which are dropped unread (CMP-06).
        revision: The revision of the partition that this was planned at; None: not checked.
    """

    tp: TopicPartition
    removed: tuple[Batch, ...]
    sources: tuple[Slice, ...]
    revision: int | None = field(default=None, kw_only=True)

    @property
    def removed_bytes(self) -> int:
        """The size of all removed segments in bytes, including aborted ones."""
        return sum(batch.size for batch in self.removed)

    @property
    def aborted(self) -> int:
        """The number of aborted batches."""
        return len(self.removed) - len(self.sources)


@dataclass(frozen=True, slots=True)
class MergePlan(Plan):
    """A merge of adjacent batches into one; without sources, they are only removed."""

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


class LogOfMerges:
    """A log whose batches are to be merged.

    Args:
        config: The settings of its topic.

    Attributes:
        is_aborted: Whether a batch is aborted: it is dropped unread.
    """

    def __init__(self, tp: TopicPartition, log: Partition, config: TopicConfig) -> None:
        self._tp, self._log, self._config = tp, log, config
        self.is_aborted = aborted_batches(log)

    def runs(self, batches: Iterable[Batch], kind: Callable[[Batch], Hashable]) -> Iterator[list[Batch]]:
        """Adjacent batches of one kind that may become one batch; those of the kind None stand between runs.

        A batch is clean or dirty as a whole, no record outlives its retention, or waits for a clean, because it is
        merged with later ones, and a cleaned segment with tombstones stays, because a merge would lose their delete
        horizons.
        """
        run: list[Batch] = []
        run_kind: Hashable = None
        run_periods: Periods | None = None
        for batch in batches:
            own_kind = kind(batch) if batch.delete_horizon is None else None
            own_periods = None if self.is_aborted(batch) else periods(batch, self._config, self._log.clean_until)
            crosses_checkpoint = bool(run) and run[-1].base_offset < self._log.clean_until <= batch.base_offset
            is_later = own_periods is not None and run_periods is not None and own_periods.is_after(run_periods)
            if run and (own_kind != run_kind or crosses_checkpoint or is_later):
                yield run
                run, run_periods = [], None
            if own_kind is not None:
                run.append(batch)
                run_kind, run_periods = own_kind, own_periods if run_periods is None else run_periods
        if run:
            yield run

    def plan(self, run: Iterable[Batch]) -> MergePlan:
        """The replacement of a run by the records of its batches that are not aborted."""
        removed = tuple(run)
        sources = tuple(whole_batch(self._tp, batch) for batch in removed if not self.is_aborted(batch))
        return MergePlan(self._tp, removed, sources, revision=self._log.revision)


class Periods(NamedTuple):
    """The numbers of the periods with the newest record of a batch; 0 where a setting has no periods.

    A batch is deleted when its newest record is old enough, after all batches before it; a dirty one is cleaned when
    its newest record is. So a batch waits no longer if one of an earlier period is joined to it, and not much longer if
    it is one of the same period. A joined batch is of the same period again: later merges do not add up.
    """

    retention: int
    lag: int

    def is_after(self, other: Periods) -> bool:
        """Whether one of the periods is a later one."""
        return self.retention > other.retention or self.lag > other.lag


def periods(batch: Batch, config: TopicConfig, clean_until: int | None = None) -> Periods:
    """The periods of a batch; ``clean_until``: the cleaner checkpoint of its log, None if the batch is clean."""
    retention = lag = 0
    if config.deletes and config.retention_ms >= 0:
        retention = batch.max_timestamp // max(1, config.retention_ms // PERIODS)
    is_dirty = clean_until is not None and batch.base_offset >= clean_until
    if config.compacts and config.min_compaction_lag_ms > 0 and is_dirty:
        lag = batch.max_timestamp // max(1, config.min_compaction_lag_ms // PERIODS)
    return Periods(retention, lag)


def by_period(sources: Iterable[Slice], config: TopicConfig) -> list[tuple[Slice, ...]]:
    """The sources of each batch that a compaction may write, in order."""
    groups: list[list[Slice]] = []
    group_periods = Periods(0, 0)
    for source in sources:
        own_periods = periods(source.batch, config)
        if not groups or own_periods.is_after(group_periods):
            groups.append([])
            group_periods = own_periods
        groups[-1].append(source)
    return [tuple(group) for group in groups]
