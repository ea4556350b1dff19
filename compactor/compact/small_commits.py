"""Plans what a process merges in its background: the small commits of a chain, from its state alone; no I/O.

A chain that is written in small commits has an inlined batch for each partition of each commit. Those that are decided
are merged into one segment per topic, with the rows of all partitions. Eight such segments with about as many rows
become one, up to :data:`_MAX_MERGED_BYTES` bytes: so a topic has few, and a record is written few times.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from txnstore.catalog.settings import TopicConfig
from txnstore.compactor.compact.merge_plan import LogOfMerges, MergePlan, Periods, periods
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Batch, Layout, Partition, Segment
from txnstore.core.model import TopicPartition, items_of
from txnstore.core.state import State

#: So many merged segments of a level are merged into one of a higher level, which has so many times as many rows.
_FAN = 8
#: The size in bytes of a merged segment from which on it is not merged again.
_MAX_MERGED_BYTES = 16 << 20
#: The maximum size in bytes of the merged segments that are merged again at a time.
_MAX_SOURCES_BYTES = 64 << 20
#: The maximum size in bytes of the segments in entries that are merged at a time, which are in memory together, and
#: what each of them takes besides.
_MAX_INLINED_BYTES, _OVERHEAD = 16 << 20, 2048
#: So many small batches of a partition are looked at, from its end, so many merged ones, and so many others.
_SMALL_BATCHES, _MERGED_BATCHES, _OTHER_BATCHES = 16_384, 64, 1024

_Logs = Mapping[TopicPartition, Partition]

#: What identifies a segment: its object and its first byte.
Place = tuple[str, int | None]


@dataclass(frozen=True, slots=True)
class TopicMerge:
    """What is merged into one segment: runs of adjacent batches of partitions of a topic.

    A run of aborted batches has no sources: it is only removed.
    """

    topic: CatalogTopic
    plans: tuple[MergePlan, ...]


def plan_small_commits(
    state: State,
    merged_logs: _Logs,
    config_of: Callable[[CatalogTopic], TopicConfig | None],
    damaged: Collection[str] = (),
) -> list[TopicMerge]:
    """Plan the merges of the small commits of a chain.

    Args:
        merged_logs: The logs of the partitions of which nothing was left to merge: those that are still the same are
            left out.
        config_of: Returns the settings of a topic; None if they cannot be read, so that nothing of it is merged.
        damaged: The objects of merged segments that stay as they are, because a merge could not read them.
    """
    by_topic: dict[str, dict[TopicPartition, Partition]] = {}
    changed: dict[str, list[TopicPartition]] = {}
    for tp, log in items_of(state.partitions):
        by_topic.setdefault(tp.topic, {})[tp] = log
        if merged_logs.get(tp) is not log:
            changed.setdefault(tp.topic, []).append(tp)
    merges: list[TopicMerge] = []
    for name in sorted(changed):
        topic = state.topics[name]
        config = config_of(topic) if not state.is_closed(topic) else None
        if config is not None:
            merges += _topic_merges(topic, by_topic[name], changed[name], config, damaged)
    return merges


def _topic_merges(
    topic: CatalogTopic,
    logs: _Logs,
    changed: Iterable[TopicPartition],
    config: TopicConfig,
    damaged: Collection[str],
) -> Iterator[TopicMerge]:
    """The merges of a topic; none if it has no small commits."""
    tails = {tp: _decided_tail(logs[tp]) for tp in changed}
    if not any(batch.segment.inlined for tail in tails.values() for batch in tail):
        return
    chosen_objects = _objects_to_merge(logs, tails, config, damaged)
    if chosen_objects:  # Also what is in them of partitions that have not changed: else they would stay for these.
        tails |= {tp: _decided_tail(log) for tp, log in logs.items() if tp not in tails}
    merge_numbers = _merge_numbers(tails.values(), chosen_objects)

    def merge_number(batch: Batch) -> int | None:
        return merge_numbers.get(place_of(batch.segment))

    plans: dict[int, list[MergePlan]] = {}
    for tp in sorted(tails):
        log = LogOfMerges(tp, logs[tp], config)
        for run in log.runs(tails[tp], merge_number):
            plans.setdefault(merge_numbers[place_of(run[0].segment)], []).append(log.plan(run))
    for number in sorted(plans):
        yield TopicMerge(topic, tuple(plans[number]))


def place_of(segment: Segment) -> Place:
    """The place of a segment: quicker to make than its key, and there are many batches."""
    return segment.object, segment.first_byte


def _merge_numbers(tails: Iterable[list[Batch]], chosen_objects: set[str]) -> dict[Place, int]:
    """What is merged, by the place of its segment, with the number of the merge that it is in.

    Each has all that partitions have in some entries, which are then fetched and decoded once. The first one also has
    the chosen segments.
    """
    merge_numbers: dict[Place, int] = {(key, None): 0 for key in chosen_objects}
    inlined = (batch.segment for tail in tails for batch in tail if batch.segment.inlined)
    sizes = {place_of(segment): segment.size for segment in inlined}
    number = size = 0
    for place in sorted(sizes):  # In the order of the entries, which is that of the batches of each partition.
        its_size = sizes[place] + _OVERHEAD
        if size and size + its_size > _MAX_INLINED_BYTES:
            number, size = number + 1, 0
        merge_numbers[place] = number
        size += its_size
    return merge_numbers


def _decided_tail(log: Partition) -> list[Batch]:
    """The last decided batches of a log, oldest first."""
    tail: list[Batch] = []
    inlined_count = merged_count = other_count = 0
    for batch in reversed(log.batches):
        if batch.segment.inlined:
            inlined_count += 1
        elif batch.layout is not Layout.APPENDED:
            merged_count += 1
        else:
            other_count += 1
        if (
            inlined_count > _SMALL_BATCHES
            or merged_count > _MERGED_BATCHES
            or other_count > _OTHER_BATCHES
            or batch.base_offset < log.log_start
        ):
            break
        if batch.limit <= log.last_stable_offset:
            tail.append(batch)
    tail.reverse()
    return tail


def _objects_to_merge(
    logs: _Logs, tails: Mapping[TopicPartition, list[Batch]], config: TopicConfig, damaged: Collection[str]
) -> set[str]:
    """The objects of merged segments that are merged again now.

    A compaction leaves each partition a segment of its own. Were it merged with those of other partitions, the next
    compaction would write all of them again. So a segment of one batch counts only with those whose batches it can
    become one with.
    """
    newest: dict[str, tuple[int, Segment]] = {}
    groups: dict[tuple[TopicPartition, Periods] | None, set[str]] = {None: set()}
    for tp, tail in tails.items():
        for batch in tail:
            key = batch.segment.object
            is_used_by_table = config.has_table and batch.alone  # It is used where it is.
            if is_used_by_table or not _is_merged(batch) or key in damaged:
                continue
            group_key = (tp, periods(batch, config, logs[tp].clean_until)) if batch.alone else None
            groups.setdefault(group_key, set()).add(key)
            if key not in newest or batch.appended_at > newest[key][0]:
                newest[key] = batch.appended_at, batch.segment
    for group in groups.values():
        newest_first = sorted(groups[None] | group, key=lambda key: (newest[key][0], key), reverse=True)
        segments = _segments_to_merge([newest[key][1] for key in newest_first])
        if segments:
            return {segment.object for segment in segments}
    return set()


def _is_merged(batch: Batch) -> bool:
    """Whether a batch is in a segment like those that are written here, which later ones may be merged with."""
    return (
        batch.layout is not Layout.APPENDED and batch.delete_horizon is None and batch.segment.size < _MAX_MERGED_BYTES
    )


def _segments_to_merge(newest_first: Sequence[Segment]) -> list[Segment]:
    """The segments of a level, if there are enough, and those of lower levels after the oldest of them.

    Each becomes part of one of a higher level. So a record is written at most once for each level, and there are always
    fewer than :data:`_FAN` segments of a level, in whatever order they come. Rows count, not bytes: equal rows need as
    many bytes after a merge as before, so that a level by bytes would never end.
    """
    levels = [_level(segment.rows) for segment in newest_first]
    for level in sorted(set(levels), reverse=True):
        run: list[Segment] = []
        size = count = end = 0
        for segment, segment_level in zip(newest_first, levels, strict=True):
            if segment_level > level:
                continue
            if size + segment.size > _MAX_SOURCES_BYTES:
                rows = [chosen.rows for chosen in run]
                if count >= _FAN or sum(rows) >= 2 * max(rows):  # Else the same rows would be written each time.
                    return run
                break
            run.append(segment)
            size += segment.size
            if segment_level == level:
                count, end = count + 1, len(run)
        if count >= _FAN:
            return run[:end]
    return []


def _level(rows: int) -> int:
    """The level of a segment: the logarithm of the number of its rows."""
    level = 0
    while rows >= _FAN:
        rows, level = rows // _FAN, level + 1
    return level


def inlined_only(plans: Iterable[MergePlan]) -> Iterator[MergePlan]:
    """Plans without the segments that they merge the small commits with."""
    for plan in plans:
        for inlined, run in groupby(plan.removed, lambda batch: batch.segment.inlined):
            if inlined:
                removed = tuple(run)
                first, limit = removed[0].base_offset, removed[-1].limit
                sources = tuple(source for source in plan.sources if first <= source.start < limit)
                yield replace(plan, removed=removed, sources=sources)
