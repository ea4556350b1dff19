"""Plans which batches are settled: from the state of a chain alone; no I/O.

A chain that is written in small commits has an inlined batch for each partition of each commit. Those that are decided
are merged into one segment per topic, with the rows of all partitions. Eight such segments of about the same size
become one of the next size, up to the last of :data:`_SIZES`: so a topic has few, and a record is written few times.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise

from txnstore.catalog.settings import TopicConfig
from txnstore.compactor.compact.ages import period
from txnstore.compactor.compact.merge_plan import MergePlan
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Batch, Layout, Partition, Segment
from txnstore.core.log.slices import whole_batch
from txnstore.core.log.visibility import aborted_batches
from txnstore.core.model import TopicPartition, items_of
from txnstore.core.state import State

#: The sizes of settled segments, in bytes: as many as :data:`_FAN` of one size are merged into one of a larger size.
_SIZES = (0, 32 << 10, 256 << 10, 2 << 20, 16 << 20)
_FAN = 8
#: The maximum size in bytes of the settled segments that are merged at a time.
_LARGE = 64 << 20
#: The maximum size in bytes of the segments in entries that are merged at a time, which are in memory together, and
#: what each of them takes besides.
_WINDOW, _OVERHEAD = 16 << 20, 2048
#: So many small batches of a partition are looked at, from its end, so many merged ones, and so many others.
_SMALL, _MERGED, _OTHERS = 16_384, 64, 1024

_Logs = Mapping[TopicPartition, Partition]

#: What identifies a segment: its object and its first byte.
Place = tuple[str, int | None]


@dataclass(frozen=True, slots=True)
class Settlement:
    """What is merged into one segment: runs of adjacent batches of partitions of a topic.

    A run of aborted batches has no sources: it is only removed.
    """

    topic: CatalogTopic
    plans: tuple[MergePlan, ...]


def plan_settling(
    state: State, before: _Logs, config_of: Callable[[CatalogTopic], TopicConfig | None], damaged: Collection[str] = ()
) -> list[Settlement]:
    """Plan what is settled in a chain.

    Args:
        before: The logs of the partitions of which nothing was left to settle: those that are still the same are left
            out.
        config_of: Returns the settings of a topic; None if they cannot be read, so that nothing of it is settled.
        damaged: The objects of settled segments that stay as they are, because a merge could not read them.
    """
    by_topic: dict[str, dict[TopicPartition, Partition]] = {}
    changed: dict[str, list[TopicPartition]] = {}
    for tp, log in items_of(state.partitions):
        by_topic.setdefault(tp.topic, {})[tp] = log
        if before.get(tp) is not log:
            changed.setdefault(tp.topic, []).append(tp)
    settlements: list[Settlement] = []
    for name in sorted(changed):
        topic = state.topics[name]
        config = config_of(topic) if not state.is_closed(topic) else None
        if config is not None:
            settlements += _of_topic(topic, by_topic[name], changed[name], config, damaged)
    return settlements


def _of_topic(
    topic: CatalogTopic,
    logs: _Logs,
    changed: Iterable[TopicPartition],
    config: TopicConfig,
    damaged: Collection[str],
) -> Iterator[Settlement]:
    """The settlements of a topic; none if it has no small commits."""
    tails = {tp: _tail(logs[tp]) for tp in changed}
    if not any(batch.segment.inlined for tail in tails.values() for batch in tail):
        return
    chosen = _to_merge(tails, config, damaged)
    if chosen:  # Also what is in them of partitions that have not changed: else they would stay for these.
        tails |= {tp: _tail(log) for tp, log in logs.items() if tp not in tails}
    windows = _windows(tails.values(), chosen)
    plans: dict[int, list[MergePlan]] = {}
    for tp in sorted(tails):
        for plan in _plans(tp, logs[tp], tails[tp], windows, config):
            plans.setdefault(windows[place_of(plan.removed[0].segment)], []).append(plan)
    for number in sorted(plans):
        yield Settlement(topic, tuple(plans[number]))


def place_of(segment: Segment) -> Place:
    """The place of a segment: quicker to make than its key, and there are many batches."""
    return segment.object, segment.first_byte


def _windows(tails: Iterable[list[Batch]], chosen: set[str]) -> dict[Place, int]:
    """What is merged, by the place of its segment, with the number of the settlement that merges it.

    Each has all that partitions have in some entries, which are then fetched and decoded once. The first one also has
    the chosen segments.
    """
    windows: dict[Place, int] = {(key, None): 0 for key in chosen}
    inlined = (batch.segment for tail in tails for batch in tail if batch.segment.inlined)
    sizes = {place_of(segment): segment.size for segment in inlined}
    number = size = 0
    for place in sorted(sizes):  # In the order of the entries, which is that of the batches of each partition.
        its_size = sizes[place] + _OVERHEAD
        if size and size + its_size > _WINDOW:
            number, size = number + 1, 0
        windows[place] = number
        size += its_size
    return windows


def _tail(log: Partition) -> list[Batch]:
    """The last decided batches of a log, oldest first."""
    tail: list[Batch] = []
    small = merged = others = 0
    last_stable = log.last_stable_offset
    for batch in reversed(log.batches):
        segment = batch.segment
        if segment.inlined:
            small += 1
        elif batch.layout is not Layout.APPENDED:
            merged += 1
        else:
            others += 1
        if small > _SMALL or merged > _MERGED or others > _OTHERS or batch.base_offset < log.log_start:
            break
        if batch.limit <= last_stable:
            tail.append(batch)
    tail.reverse()
    return tail


def _to_merge(tails: Mapping[TopicPartition, list[Batch]], config: TopicConfig, damaged: Collection[str]) -> set[str]:
    """The objects of settled segments that are merged now.

    A compaction leaves each partition a segment of its own. Were it merged with those of other partitions, the next
    compaction would write all of them again. So a segment of one batch counts only with those whose batches it can
    become one with.
    """
    newest: dict[str, tuple[int, Segment]] = {}
    groups: dict[tuple[TopicPartition, int] | None, set[str]] = {None: set()}
    for tp, tail in tails.items():
        for batch in tail:
            key = batch.segment.object
            if config.has_table and batch.alone:
                continue  # The table of the topic uses it where it is.
            if _is_settled(batch) and key not in damaged:
                groups.setdefault((tp, period(batch, config)) if batch.alone else None, set()).add(key)
                if key not in newest or batch.appended_at > newest[key][0]:
                    newest[key] = batch.appended_at, batch.segment
    for group in groups.values():
        keys = sorted(groups[None] | group, key=lambda key: (newest[key][0], key), reverse=True)
        if chosen := _enough([newest[key][1] for key in keys]):
            return {segment.object for segment in chosen}
    return set()


def _is_settled(batch: Batch) -> bool:
    """Whether a batch is in a segment like those that settling writes, which later ones may be merged with."""
    return batch.layout is not Layout.APPENDED and batch.delete_horizon is None and batch.segment.size < _SIZES[-1]


def _enough(newest_first: Sequence[Segment]) -> list[Segment]:
    """The segments of a size, if there are enough, and the smaller ones after the oldest of them.

    Each becomes part of a larger size. So a record is written at most once for each size, and there are always fewer
    than :data:`_FAN` segments of a size, in whatever order they come.
    """
    for least, limit in reversed([*pairwise(_SIZES)]):
        run: list[Segment] = []
        size = count = end = 0
        for segment in newest_first:
            if segment.size >= limit:
                continue
            if size + segment.size > _LARGE:
                return run
            run.append(segment)
            size += segment.size
            if segment.size >= least:
                count, end = count + 1, len(run)
        if count >= _FAN:
            return run[:end]
    return []


def inlined_only(plans: Iterable[MergePlan]) -> Iterator[MergePlan]:
    """Plans without the segments that they merge the small commits with."""
    for plan in plans:
        for inlined, run in groupby(plan.removed, lambda batch: batch.segment.inlined):
            if inlined:
                removed = tuple(run)
                first, limit = removed[0].base_offset, removed[-1].limit
                sources = tuple(source for source in plan.sources if first <= source.start < limit)
                yield replace(plan, removed=removed, sources=sources)


def _plans(
    tp: TopicPartition, log: Partition, tail: Iterable[Batch], windows: Mapping[Place, int], config: TopicConfig
) -> Iterator[MergePlan]:
    """The replacements in a partition, in offset order."""
    is_aborted = aborted_batches(log)
    for run in _runs(tail, log, windows, config):
        sources = tuple(whole_batch(tp, batch) for batch in run if not is_aborted(batch))
        yield MergePlan(tp, tuple(run), sources, log.revision)


def _runs(
    tail: Iterable[Batch], log: Partition, windows: Mapping[Place, int], config: TopicConfig
) -> Iterator[list[Batch]]:
    """Adjacent batches that become one, all of the same settlement. Others stand between runs.

    A batch is clean or dirty as a whole, and no record outlives its retention because it is merged with later ones.
    """
    run: list[Batch] = []
    latest = 0
    current: int | None = None
    for batch in tail:
        window = windows.get(place_of(batch.segment)) if batch.delete_horizon is None else None
        own = period(batch, config)
        crosses = bool(run) and run[-1].base_offset < log.clean_until <= batch.base_offset
        if run and (window != current or crosses or own > latest):
            yield run
            run = []
        if window is not None:
            latest, current = latest if run else own, window
            run.append(batch)
    if run:
        yield run
