"""Plans a read on the driver: the slices of one snapshot, in groups of suitable size for a task.

Tasks read no chain, only the segments of their slices.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from txnstore.core.authorization.rights import read_topics
from txnstore.core.blocked import blocked_partitions
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Partition
from txnstore.core.log.slices import Slice
from txnstore.core.log.visibility import check_offset, visible_slices
from txnstore.core.model import Isolation, TopicPartition
from txnstore.core.view import View
from txnstore.errors import OffsetOutOfRangeError, SchemaMismatchError, UnknownTopicOrPartitionError
from txnstore.read.blocked import warn_blocked
from txnstore.read.plan import find_partitions, offset_for_time
from txnstore.read.reader import Share, share_count
from txnstore.read.rows import Columns
from txnstore.spark.options import ReadOptions
from txnstore.spark.values import EARLIEST, LATEST, Offsets

if TYPE_CHECKING:
    from txnstore.connection import Connection

#: The bounds of the bytes of segments per task; small reads get small tasks, so that all cores are used.
_MAX_TASK_BYTES, _MIN_TASK_BYTES = 64 << 20, 4 << 20
#: The tasks of a small read for each processor of the driver, and their bounds. Each task costs Spark some 30 ms of a
#: processor, as much as the transport of 100,000 rows; with two for a processor, unequal ones still fill all of them.
_TASKS_PER_PROCESSOR, _MIN_TASKS, _MAX_TASKS = 2, 4, 16
#: A suitable task may have this part of the mean more bytes.
_SLACK = 8
#: The cost of opening an object, in bytes.
_OPEN_COST = 256 << 10


@dataclass(frozen=True, slots=True)
class SliceGroup:
    """The slices of one task: of one topic, in the order of partitions and offsets.

    Attributes:
        slices: The slices; one if the task reads a share.
        share: The share of the only slice, of a large segment; None for all of the slices.
    """

    topic: CatalogTopic
    slices: tuple[Slice, ...]
    share: Share | None = None


def with_topics(view: View, options: ReadOptions) -> ReadOptions:
    """Return the options with the topics that the pattern matches now; unchanged without a pattern.

    Raises:
        UnknownTopicOrPartitionError: No topic matches.
    """
    if options.pattern is None:
        return options
    matches = re.compile(options.pattern).fullmatch
    topics = tuple(topic.name for topic in view.sorted_topics() if matches(topic.name))
    if not topics:
        msg = f"no topic matches the pattern {options.pattern!r}; a pattern must match whole names"
        raise UnknownTopicOrPartitionError(msg)
    return replace(options, topics=topics)


def projection_schema(view: View, options: ReadOptions) -> pa.Schema:
    """Return the Arrow schema of a read before Spark's types. Its topics must have the same columns."""
    options = with_topics(view, options)
    first_topic, *other_topics = [view.find_topic(name) for name in options.topics]
    schema = Columns(first_topic, options.columns).schema
    for topic in other_topics:
        if not Columns(topic, options.columns).schema.equals(schema):
            msg = f"topics {first_topic.name!r} and {topic.name!r} have different columns and cannot be read together"
            raise SchemaMismatchError(msg)
    return schema


def loaded_view(connection: Connection, options: ReadOptions) -> View:
    """Return the view of the snapshot to read, or the cached one."""
    if options.snapshot is None:
        return connection.view(refresh=False)
    return connection.snapshot(options.snapshot.entry, options.snapshot.timestamp).view


def view_to_read(connection: Connection, options: ReadOptions) -> View:
    """Return the view of the snapshot, or the cached one after blocking expired transactions are ended."""
    view = loaded_view(connection, options)
    if options.snapshot is not None or options.isolation is Isolation.READ_UNCOMMITTED:
        return view
    options = with_topics(view, options)
    tps = [tp for topic in options.topics for tp in find_partitions(view, topic, options.partitions)]
    return connection.unblocked(view, tps)


def plan(connection: Connection, view: View, options: ReadOptions) -> list[SliceGroup]:
    """Group the slices to read, one group per task. Warns of committed records that the read leaves out.

    Raises:
        TopicAuthorizationError: The principal has no right to read a topic.
    """
    options = with_topics(view, options)
    connection.check_rights(read_topics(options.topics))
    slices = [
        (view.find_topic(name), list(_slices_of_topic(connection, view, name, options))) for name in options.topics
    ]
    return group_by_task(slices, options.min_partitions)


def group_by_task(
    slices_of_topics: Sequence[tuple[CatalogTopic, Sequence[Slice]]],
    min_partitions: int | None = None,
    processors: int | None = None,
) -> list[SliceGroup]:
    """Group the slices of each topic by task, in suitable sizes; large segments are split into shares.

    Args:
        slices_of_topics: The topics, each with its slices.
        min_partitions: The number of tasks that is wanted at least; None for what is suitable.
        processors: The number of processors; None for those of this machine, as Spark does not say how many it has.
    """
    total_cost = sum(_read_cost(part) for _, slices in slices_of_topics for part in slices)
    min_bytes = _MIN_TASK_BYTES if min_partitions is None else 1
    suitable_tasks = min(_MAX_TASKS, max(_MIN_TASKS, _TASKS_PER_PROCESSOR * (processors or os.cpu_count() or 1)))
    mean_bytes = total_cost // (min_partitions or suitable_tasks)
    if min_partitions is None:  # Else of partitions that are nearly equal, each above the mean takes a task more.
        mean_bytes += mean_bytes // _SLACK
    target_bytes = min(_MAX_TASK_BYTES, max(min_bytes, mean_bytes))
    return [
        slice_group
        for topic, slices in slices_of_topics
        for run in group(slices, target_bytes)
        for slice_group in _tasks_of_run(topic, run, target_bytes)
    ]


def _tasks_of_run(topic: CatalogTopic, run: tuple[Slice, ...], target: int) -> list[SliceGroup]:
    """Return the tasks for a run of slices: one, or several for a single slice of a large segment."""
    count = share_count(run[0], target, _OPEN_COST) if len(run) == 1 else 1
    if count == 1:
        return [SliceGroup(topic, run)]
    return [SliceGroup(topic, run, Share(number, count)) for number in range(count)]


def group(slices: Iterable[Slice], target: int) -> Iterator[tuple[Slice, ...]]:
    """Group adjacent slices, up to ``target`` bytes per group; a larger slice is a separate group."""
    run: list[Slice] = []
    size = 0
    for part in slices:
        if run and size + _read_cost(part) > target:
            yield tuple(run)
            run, size = [], 0
        run.append(part)
        size += _read_cost(part)
    if run:
        yield tuple(run)


def _read_cost(part: Slice) -> int:
    return part.batch.size + _OPEN_COST


def _slices_of_topic(connection: Connection, view: View, topic: str, options: ReadOptions) -> Iterator[Slice]:
    """Yield the visible slices of a topic between the bounds of the options; warn of blocked records."""
    tps = find_partitions(view, topic, options.partitions)
    for offsets in (options.start, options.end):
        check_partitions(view, offsets)
    bounds = all_bounds(connection, view, tps, options)
    if options.isolation is Isolation.READ_COMMITTED:
        starts, ends = ({tp: pair[side] for tp, pair in bounds.items()} for side in (0, 1))
        pinned_view = None if options.snapshot is None else view
        warn_blocked(connection, blocked_partitions(view, tps, starts, ends), pinned_view)
    for tp, (start, end) in bounds.items():
        yield from visible_slices(tp, view.find_partition(tp), options.isolation, start, end)


def all_bounds(
    connection: Connection, view: View, tps: Sequence[TopicPartition], options: ReadOptions
) -> dict[TopicPartition, tuple[int, int]]:
    """Return the first offset to read in each partition, and the offset to read up to.

    A bound by time reads a segment, usually one per partition; so all partitions are looked up concurrently.
    """
    return dict(
        zip(tps, connection.pool.map(lambda tp: _partition_bounds(connection, view, tp, options), tps), strict=True)
    )


def _partition_bounds(connection: Connection, view: View, tp: TopicPartition, options: ReadOptions) -> tuple[int, int]:
    """Return the first offset to read in a partition, and the offset to read up to."""
    partition = view.find_partition(tp)
    earliest_offset, latest_offset = partition.log_start, partition.high_watermark

    def bound(option: str, offsets: Offsets, moment: int | None, default: int) -> int:
        """Return the offset that an option means: by time, else by offset, else the default."""
        if moment is not None:
            at_time = offset_for_time(connection.objects, view, tp, options.isolation, moment)
            return at_time.offset if at_time is not None else latest_offset
        offset = _resolve_offset(offsets, tp, earliest_offset, latest_offset, default)
        _check_offset(tp, partition, options.isolation, offset, option)
        return offset

    start = bound("startingOffsets", options.start, options.start_ms, earliest_offset)
    end = bound("endingOffsets", options.end, options.end_ms, latest_offset)
    if start > end and options.start_ms is None and options.end_ms is None:
        msg = (
            f"a read of {tp} cannot start at offset {start} and end at {end}, before it: change startingOffsets or "
            "endingOffsets"
        )
        raise OffsetOutOfRangeError(msg)
    return start, end


def _resolve_offset(offsets: Offsets, tp: TopicPartition, earliest: int, latest: int, default: int) -> int:
    """Return the requested offset of a partition; ``default`` if none is given."""
    if isinstance(offsets, str):
        return earliest if offsets == "earliest" else latest
    offset = offsets.get(tp, default)
    return {EARLIEST: earliest, LATEST: latest}.get(offset, offset)


def _check_offset(tp: TopicPartition, partition: Partition, isolation: Isolation, offset: int, option: str) -> None:
    """Raise for an offset outside the log; the message names the option that gives it."""
    try:
        check_offset(tp, partition, isolation, offset)
    except OffsetOutOfRangeError as error:
        msg = f"{error}: change {option}"
        raise OffsetOutOfRangeError(msg) from None


def check_starts(view: View, options: ReadOptions) -> None:
    """Refuse starting offsets that no read of these topics can have, as far as is known without a plan.

    An offset below the log start is accepted: it may be the one at which a stream has started, which continues from its
    checkpoint. A plan refuses it.

    Raises:
        UnknownTopicOrPartitionError: There is no such partition.
        OffsetOutOfRangeError: The offset is above the high watermark.
    """
    if isinstance(options.start, str):
        return
    for tp, offset in sorted(options.start.items()):
        if tp.topic in view.topics:
            partition = view.find_partition(tp)
            if offset > partition.high_watermark:
                _check_offset(tp, partition, options.isolation, offset, "startingOffsets")


def check_partitions(view: View, offsets: Offsets) -> None:
    """Raise for offsets of a partition that does not exist."""
    if not isinstance(offsets, str):
        for tp in sorted(offsets):
            view.find_partition(tp)
