"""A stream over topics: looks at the store, and plans micro-batches. It knows the store, but not Spark."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from txnstore.core.authorization.rights import read_topics
from txnstore.core.blocked import blocked_partitions
from txnstore.core.groups.commands import CommitOffsets, TxnOffsets
from txnstore.core.groups.events import GroupOffset
from txnstore.core.groups.offsets import committed
from txnstore.core.log.visibility import visible_slices
from txnstore.core.model import Isolation, TopicPartition
from txnstore.core.view import View
from txnstore.errors import (
    InvalidConfigError,
    OffsetOutOfRangeError,
    StorageError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)
from txnstore.read.blocked import warn_blocked
from txnstore.read.plan import find_partitions
from txnstore.spark.options import ReadOptions, StreamOptions
from txnstore.spark.reads.planning import SliceGroup, all_bounds, check_partitions, group_by_task
from txnstore.spark.streams import positions
from txnstore.spark.streams.positions import Log, Logs, Offsets, Position, Step
from txnstore.spark.values import LATEST

if TYPE_CHECKING:
    from txnstore.connection import Connection

_LOG = logging.getLogger(__name__)

#: The pause after the first look that finds nothing new, in milliseconds; it doubles up to ``pollIntervalMs``.
_FIRST_PAUSE_MS = 50
#: The number of losses that an error describes.
_NAMED_LOSSES = 3


@dataclass(slots=True)
class PollingSchedule:
    """The schedule of looks at the store: Spark asks every 10 ms, and each look costs a GET for each chain.

    Attributes:
        longest_ms: The longest pause between two looks.
        looked_at: The time of the last look, in milliseconds.
        pause_ms: The pause after it while there is nothing to read.
    """

    longest_ms: int
    looked_at: int = 0
    pause_ms: int = 0

    def is_due(self, now: int, *, idle: bool) -> bool:
        """Whether to look at the store; ``idle``: all known records are read."""
        return now - self.looked_at >= (self.pause_ms if idle else self.longest_ms)

    def record_look(self, now: int, *, fresh: bool) -> None:
        """Record that a look has ended; ``fresh``: it showed something to read."""
        self.looked_at = now
        self.pause_ms = 0 if fresh else min(self.longest_ms, max(_FIRST_PAUSE_MS, 2 * self.pause_ms))


class Stream:
    """The stream of one query, in the process of the driver that asks for its offsets.

    Args:
        connection: The store, for reading.
    """

    def __init__(self, connection: Connection, options: StreamOptions) -> None:
        self._connection = connection
        self._options = options
        self._polling = PollingSchedule(options.poll_interval_ms)
        #: The position of a query without a checkpoint, once it was determined: a ``latest`` must not move.
        self._initial_position: Position | None = None
        #: The last micro-batch that this process has planned, for versions of Spark that give no start.
        self._last_position: Position | None = None
        #: Where the trigger ``availableNow`` ends; None: the stream is endless.
        self._target_offsets: dict[TopicPartition, int] | None = None
        self._use_view(self._unblocked(connection.view(refresh=False)))

    @property
    def view(self) -> View:
        """The view of the last look."""
        return self._view

    @property
    def read_options(self) -> ReadOptions:
        """The options of a read, with the topics that exist now."""
        return replace(self._options.read, topics=self._existing_topics(self._view))

    # Offsets ----------------------------------------------------------------------------------------------------------

    def initial_position(self) -> Position:
        """Return the position of a query without a checkpoint: that of its group, else as its options say.

        With a group, a start that the group does not have yet is stored in it before it is returned.

        Raises:
            OffsetOutOfRangeError: The options name an offset outside the log.
            UnknownTopicOrPartitionError: They name a partition that does not exist.
            UnstableOffsetCommitError: An open transaction has offsets of the group.
        """
        if self._initial_position is None:
            starts = self._start_offsets()
            group = self._options.group
            logs = self._logs
            if group is not None:
                starts = {**starts, **self._stored_or_commit(group, starts)}
            self._initial_position = positions.initial_position(logs, starts, group)
        return self._initial_position

    def position_after(self, position: Position, max_offsets: int | None = None) -> Position:
        """Return the micro-batch after a position; the position itself if there is nothing new.

        Raises:
            InvalidConfigError: The position is one of another store.
            OffsetOutOfRangeError: Records were deleted before the stream read them.
        """
        self._check_store(position)
        step = self._next_step(position, max_offsets)
        if self._target_offsets is None:  # Else the end is known, and nothing after it is read.
            idle = step.position == position
            now = self._connection.runtime.monotonic()
            if self._polling.is_due(now, idle=idle):
                self._refresh()
                step = self._next_step(position, max_offsets)
                self._polling.record_look(now, fresh=step.position != position)
        return self._check_losses(step)

    def next_without_start(self) -> Position:
        """Return the next micro-batch, where Spark does not say what the query has read (4.0 and 4.1).

        It follows the last one of this process. The first one of a process starts at the initial position, as a new
        query does. Of a query that was started again, Spark gives the true start with the plan, to
        :meth:`plan_without_start`; there is no other sign of it.

        Raises:
            OffsetOutOfRangeError: Records were deleted before the stream read them.
        """
        if self._last_position is None:
            try:
                self._last_position = self.initial_position()
            except (OffsetOutOfRangeError, UnknownTopicOrPartitionError, UnstableOffsetCommitError):
                # Of no matter to a query that has read beyond; for a new one, Spark asks for the initial position next.
                starts = {tp: log.start for tp, log in self._logs.partitions.items()}
                self._last_position = positions.initial_position(self._logs, starts, self._options.group)
        step = self.position_after(self._last_position)
        if step.start != step.end:  # Equal ones are the mark of an initial position.
            self._last_position = step
        return self._last_position

    def stop_at_current_end(self) -> None:
        """Read no further than what exists now (Spark's trigger ``availableNow``)."""
        self._refresh()
        self._target_offsets = self._logs.limits

    def limits(self) -> Offsets:
        """Return the offsets up to which records can be read, as of the last look."""
        return self._logs.limits

    def _next_step(self, position: Position, max_offsets: int | None) -> Step:
        return positions.next_step(position, self._logs, until=self._target_offsets, max_offsets=max_offsets)

    def _start_offsets(self) -> dict[TopicPartition, int]:
        """Return where a new query starts in each partition, by the options."""
        options, view = self.read_options, self._view
        check_partitions(view, options.start)
        tps = list(self._logs.partitions)
        bounds = all_bounds(self._connection, view, tps, replace(options, end="latest", end_ms=None))
        # "latest" is where a reader of this isolation stops: records of open transactions are read when they commit.
        return {
            tp: first_offset
            if _has_start_offset(options, tp)
            else min(first_offset, view.partitions[tp].read_limit(options.isolation))
            for tp, (first_offset, _) in bounds.items()
        }

    def _stored_or_commit(self, group: str, starts: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Return the offsets of the group; commit those that it does not have first."""
        stored_offsets = {tp: committed(self._view, group, tp) for tp in starts}
        offsets = {tp: value.offset for tp, value in stored_offsets.items() if value is not None}
        # A partition that was added to a topic that the group reads is new, and read from its start.
        topics = {tp.topic for tp in offsets}
        missing_offsets = {
            tp: self._logs.partitions[tp].start if tp.topic in topics else start
            for tp, start in starts.items()
            if tp not in offsets
        }
        self._commit_offsets(group, missing_offsets)
        return {**offsets, **missing_offsets}

    # Plans ------------------------------------------------------------------------------------------------------------

    def plan(self, start: Position, end: Position) -> list[SliceGroup]:
        """Return the slices of a micro-batch, one group per task.

        Args:
            start: The end of the micro-batch before.
            end: The micro-batch. If it is the same, it was read before, and there is nothing to read.

        Raises:
            InvalidConfigError: The position is one of another store.
            OffsetOutOfRangeError: Records were deleted before the stream read them.
        """
        self._check_store(end)
        if start == end:
            return []
        self._refresh_up_to(end)
        return self._task_groups(self._check_losses(positions.replay_step(end, self._logs)))

    def plan_without_start(self, start: Position, end: Position) -> list[SliceGroup]:
        """Plan a micro-batch whose start was unknown when its end was given: see :meth:`next_without_start`."""
        self._last_position = end
        if start == end or start.start == start.end:
            return self.plan(start, end)  # The first micro-batch: its start is stored with its end.
        self._check_store(start)
        self._check_store(end)
        self._refresh_up_to(end)
        return self._task_groups(self._check_losses(positions.next_step(start, self._logs, until=end.end)))

    def _refresh_up_to(self, end: Position) -> None:
        """Look at the store unless the known view has all records up to this position."""
        if any(
            tp not in self._logs.partitions or self._logs.partitions[tp].end < offset for tp, offset in end.end.items()
        ):
            self._refresh()

    def _task_groups(self, position: Position) -> list[SliceGroup]:
        """Return the visible slices of a micro-batch, grouped by task."""
        isolation = self._options.read.isolation
        topics, names = [], sorted({tp.topic for tp in position.end})
        self._connection.check_rights(read_topics(names))
        for name in names:
            tps = [tp for tp in sorted(position.end) if tp.topic == name]
            slices = [
                part
                for tp in tps
                for part in visible_slices(
                    tp, self._view.find_partition(tp), isolation, position.start[tp], position.end[tp]
                )
            ]
            topics.append((self._view.find_topic(name), slices))
        return group_by_task(topics, self._options.read.min_partitions)

    # Groups -----------------------------------------------------------------------------------------------------------

    def commit(self, position: Position) -> None:
        """Commit what was read to the group, where it is not committed yet.

        A sink in the same store has committed the offsets with the records, so this costs it a GET at most. For other
        sinks the group follows the query: it may be behind it, but not ahead.
        """
        group = self._options.group
        if group is None or not self._uncommitted_offsets(group, position):
            return
        try:
            self._refresh()
            self._commit_offsets(group, self._uncommitted_offsets(group, position))
        except StorageError as error:
            if not error.retriable:
                raise
            _LOG.warning(
                "offsets not committed; the next micro-batch does: %s",
                error,
                extra={"group": group, "error": str(error)},
            )

    def _uncommitted_offsets(self, group: str, position: Position) -> dict[TopicPartition, int]:
        """Return the offsets above those of the group, of topics that still exist."""
        stored_offsets = {tp: committed(self._view, group, tp, require_stable=False) for tp in position.end}
        return {
            tp: offset
            for tp, offset in position.end.items()
            if positions.is_same(position, self._logs, tp)
            and ((value := stored_offsets[tp]) is None or value.offset < offset)
        }

    def _commit_offsets(self, group: str, offsets: Offsets) -> None:
        """Commit offsets to a group, outside of a transaction."""
        if not offsets:
            return
        ids = self._logs.topic_ids
        items = tuple(
            GroupOffset(topic=tp.topic, partition=tp.partition, offset=offsets[tp], topic_id=ids[tp.topic])
            for tp in sorted(offsets)
        )
        self._connection.submit(CommitOffsets(TxnOffsets(group, items)))
        self._use_view(self._connection.view(refresh=False))  # Other queries of this process may have read more by now.

    # Views ------------------------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        self._use_view(self._unblocked(self._connection.view()))

    def _use_view(self, view: View) -> None:
        """Read this view from now on, together with its logs.

        Spark stores positions elsewhere: after a power cut, a new record would have the offset of a lost one that the
        query has read.
        """
        self._connection.chains.make_durable(view)
        #: The view of the last look, and what of its logs the stream can read; they change together.
        self._view, self._logs = view, self._logs_of(view)

    def _unblocked(self, view: View) -> View:
        """End expired transactions that hold back records of the topics, and return the view after that."""
        if self._options.read.isolation is Isolation.READ_UNCOMMITTED:
            return view
        tps = self._existing_partitions(view)
        view = self._connection.unblocked(view, tps)
        warn_blocked(self._connection, blocked_partitions(view, tps))
        return view

    def _existing_topics(self, view: View) -> tuple[str, ...]:
        """Return the topics that exist; a missing one is a loss only if the stream has read it."""
        if self._options.read.pattern is None:
            return tuple(name for name in self._options.read.topics if name in view.topics)
        matches = re.compile(self._options.read.pattern).fullmatch
        return tuple(topic.name for topic in view.sorted_topics() if matches(topic.name))

    def _existing_partitions(self, view: View) -> list[TopicPartition]:
        numbers = self._options.read.partitions
        return [tp for name in self._existing_topics(view) for tp in find_partitions(view, name, numbers)]

    def _logs_of(self, view: View) -> Logs:
        """Return the offsets that a view shows of the partitions of the stream."""
        options = self._options.read
        logs = {}
        for tp in self._existing_partitions(view):
            log = view.partitions[tp]
            limit = log.read_limit(options.isolation)
            logs[tp] = Log(log.log_start, min(limit, _end_offset(options, tp, limit)), log.high_watermark)
        ids = {name: view.topics[name].topic_id for name in self._existing_topics(view)}
        return Logs(self._connection.store_id, ids, logs)

    # Checks -----------------------------------------------------------------------------------------------------------

    def _check_store(self, position: Position) -> None:
        """Refuse the checkpoint of a stream from another store."""
        if position.store_id != self._connection.store_id:
            msg = (
                f"the checkpoint is of a stream from the store with id {position.store_id}, but {self._connection.url} "
                f"has the id {self._connection.store_id}: give this store, or a new checkpointLocation"
            )
            raise InvalidConfigError(msg)

    def _check_losses(self, step: Step) -> Position:
        """Return the position; refuse it if records were lost and the query must not continue without them."""
        if step.losses and self._options.fail_on_data_loss:
            unnamed_count = len(step.losses) - _NAMED_LOSSES
            more_text = f" (and {unnamed_count} more)" if unnamed_count > 0 else ""
            losses = "; ".join(step.losses[:_NAMED_LOSSES])
            msg = f"{losses}{more_text}. To read what is left, set failOnDataLoss to false"
            raise OffsetOutOfRangeError(msg)
        for loss in step.losses:
            _LOG.warning("records were lost before the stream read them", extra={"loss": loss})
        return step.position


def _has_start_offset(options: ReadOptions, tp: TopicPartition) -> bool:
    """Whether the options name the offset at which a partition starts."""
    return options.start_ms is None and not isinstance(options.start, str) and options.start.get(tp, LATEST) >= 0


def _end_offset(options: ReadOptions, tp: TopicPartition, limit: int) -> int:
    """Return the offset at which the stream ends in a partition; ``limit`` if it does not end."""
    offset = limit if isinstance(options.end, str) else options.end.get(tp, LATEST)
    return offset if offset >= 0 else limit
