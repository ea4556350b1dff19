"""Plans which batches are settled: from the state of a chain alone; no I/O.

A chain that is written in small commits has an inlined batch for each partition of each commit. Those that are decided
are merged into one segment per topic, with the rows of all partitions. Eight such segments of about the same size
become one of the next size, up to :data:`_LARGE`: so a topic has few, and a record is written few times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from txnstore.catalog.settings import TopicConfig
from txnstore.compactor.compact.ages import period
from txnstore.compactor.compact.merge_plan import MergePlan
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Batch, Partition, Segment
from txnstore.core.log.visibility import Slice, aborted_batches
from txnstore.core.model import TopicPartition, items_of
from txnstore.core.state import State

#: The sizes below which settled segments of a topic are merged, in bytes: as many as :data:`_FAN` of the same one.
_SIZES = (256 << 10, 2 << 20, 16 << 20)
_FAN = 8
#: The maximum size of what is merged at a time.
_LARGE = 64 << 20
#: So many batches of a partition are looked at, from its end, of which so many may be of another kind.
_LOOKED_AT, _OTHERS = 4096, 32


@dataclass(frozen=True, slots=True)
class Settlement:
    """What is merged into one segment: adjacent batches of partitions of a topic."""

    topic: CatalogTopic
    plans: tuple[MergePlan, ...]

    @property
    def records(self) -> int:
        """The number of records."""
        return sum(plan.records for plan in self.plans)


def plan_settling(
    state: State, before: State | None, config_of: Callable[[CatalogTopic], TopicConfig]
) -> list[Settlement]:
    """Plan what is settled in a chain.

    Args:
        state: The state of the chain.
        before: The state at which it was last planned: partitions that have not changed since are left out. None: all
            partitions are looked at.
        config_of: Returns the settings of a topic.
    """
    by_topic: dict[str, dict[TopicPartition, Partition]] = {}
    for tp, log in items_of(state.partitions):
        if before is None or before.partitions.get(tp) is not log:
            by_topic.setdefault(tp.topic, {})[tp] = log
    settlements: list[Settlement] = []
    for name in sorted(by_topic):
        topic, logs = state.topics[name], by_topic[name]
        if not state.is_closed(topic):
            settlements += _of_topic(topic, logs, config_of(topic))
    return settlements


def _of_topic(
    topic: CatalogTopic, logs: Mapping[TopicPartition, Partition], config: TopicConfig
) -> Iterator[Settlement]:
    """The settlement of a topic, if there is something to merge."""
    tails = {tp: _tail(logs[tp]) for tp in sorted(logs)}
    if not any(batch.segment.inlined for tail in tails.values() for batch in tail):
        return
    chosen = _to_merge([batch.segment for tail in tails.values() for batch in tail if _is_settled(batch)])
    plans: list[MergePlan] = []
    size = 0
    for tp, tail in tails.items():
        is_aborted = aborted_batches(logs[tp])
        for run in _runs(tail, logs[tp], chosen, config):
            sources = tuple(Slice(tp, batch, batch.base_offset, batch.limit) for batch in run if not is_aborted(batch))
            size += sum(source.batch.size for source in sources)
            if sources and (size <= _LARGE or not plans):
                plans.append(MergePlan(tp, tuple(run), sources, logs[tp].revision))
    if plans:
        yield Settlement(topic, tuple(plans))


def _tail(log: Partition) -> list[Batch]:
    """The last decided batches of a log, oldest first."""
    tail: list[Batch] = []
    others = 0
    for looked_at, batch in enumerate(reversed(log.batches)):
        others += not batch.segment.inlined
        if looked_at >= _LOOKED_AT or others > _OTHERS or batch.base_offset < log.log_start:
            break
        if batch.limit <= log.last_stable_offset:
            tail.append(batch)
    tail.reverse()
    return tail


def _is_settled(batch: Batch) -> bool:
    """Whether a batch is in a segment like those that settling writes, which later ones may be merged with."""
    return batch.segment.explicit_offsets and batch.delete_horizon is None and batch.segment.size < _SIZES[-1]


def _to_merge(segments: list[Segment]) -> set[str]:
    """The objects of settled segments that are merged now: the newest ones of a size, if there are enough.

    Larger ones than a size are not merged with those, so a run of small ones ends there.
    """
    newest_first = list({segment.object: segment for segment in reversed(segments)}.values())
    for limit in reversed(_SIZES):
        run: list[Segment] = []
        for segment in newest_first:
            if segment.size >= limit:
                break
            run.append(segment)
        if len(run) >= _FAN and sum(segment.size for segment in run) <= _LARGE and _fills(run, limit):
            return {segment.object for segment in run}
    return set()


def _fills(run: list[Segment], limit: int) -> bool:
    """Whether at least :data:`_FAN` segments are of this size, and not only of smaller ones."""
    smaller = max((size for size in _SIZES if size < limit), default=0)
    return sum(segment.size >= smaller for segment in run) >= _FAN


def _runs(tail: list[Batch], log: Partition, chosen: set[str], config: TopicConfig) -> Iterator[list[Batch]]:
    """Adjacent batches that become one: inlined ones, and those of chosen segments. Others stand between runs.

    A batch is clean or dirty as a whole, and no record outlives its retention because it is merged with later ones.
    """
    run: list[Batch] = []
    for batch in tail:
        joins = batch.segment.inlined or batch.segment.object in chosen
        crosses = bool(run) and run[-1].base_offset < log.clean_until <= batch.base_offset
        later = bool(run) and period(batch, config) > period(run[0], config)
        if run and (not joins or crosses or later):
            yield run
            run = []
        if joins:
            run.append(batch)
    if run:
        yield run
