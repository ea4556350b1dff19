"""Which batches may become one batch without living longer than the retention allows."""

from __future__ import annotations

from collections.abc import Iterable

from txnstore.catalog.settings import TopicConfig
from txnstore.core.log.model import Batch
from txnstore.core.log.slices import Slice

#: ``retention.ms`` has this many periods. A compaction makes records outlive their retention by one of them at most.
PERIODS = 8


def period(batch: Batch, config: TopicConfig) -> int:
    """The number of the period with the newest record of a batch; the same for all without a retention by age.

    A batch goes when its newest record is old enough, after all batches before it. So a batch lives no longer if one of
    an earlier period is joined to it, and not much longer if it is one of the same period. A joined batch is of the
    same period again: later compactions do not add up.
    """
    if not config.deletes or config.retention_ms < 0:
        return 0
    return batch.max_timestamp // max(1, config.retention_ms // PERIODS)


def by_period(sources: Iterable[Slice], config: TopicConfig) -> list[tuple[Slice, ...]]:
    """The sources of each batch that a compaction may write, in order."""
    groups: list[list[Slice]] = []
    latest = 0
    for source in sources:
        own = period(source.batch, config)
        if not groups or own > latest:
            groups.append([])
            latest = own
        groups[-1].append(source)
    return [tuple(group) for group in groups]
