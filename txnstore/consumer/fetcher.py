"""Polls: returns fetched records; without any, reads the chain, with pauses, until there are new ones.

Segments are fetched ahead of the application in a bounded window, a slice of each partition in turn (CON-12).
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa

from txnstore.connection import Connection
from txnstore.consumer.flow import Flow
from txnstore.consumer.subscription import Positions
from txnstore.core.authorization.rights import read_group, read_topics
from txnstore.core.authorization.rules import Authorization
from txnstore.core.blocked import BlockedPartition, blocked_partitions
from txnstore.core.model import Isolation, TopicPartition
from txnstore.core.routing import chain_of_partition
from txnstore.core.state import State
from txnstore.core.view import View
from txnstore.errors import CorruptionError, TxnStoreError, UnstableOffsetCommitError, UnsupportedFormatError
from txnstore.read.blocked import warn_blocked
from txnstore.read.readahead import MAX_FETCH_BYTES, MAX_FETCHES
from txnstore.read.reader import is_missing, is_newer
from txnstore.read.records import Headers, Record
from txnstore.read.rows import Columns
from txnstore.storage.base import ObjectStore
from txnstore.storage.recent import RecentObjects

_LOG = logging.getLogger("txnstore.consumer")

T = TypeVar("T")

#: The first pause between two reads of an idle chain, in seconds; it doubles up to the longest one.
_FIRST_PAUSE = 0.01
#: Bytes that one poll returns at most, in addition to the first piece.
_MAX_POLL_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class _IdleState:
    """The chain states in which the partitions have no more records, wait for no transaction, and need no look-up.

    As long as neither the states nor the assignment nor the positions change, a poll has nothing to do in any
    partition: it reads the heads of the chains, and costs the same for any number of partitions.

    Attributes:
        assignment_number: That of :class:`Positions`.
        chains: The chains that the positions depend on.
        positions: The position of each flow.
    """

    states: tuple[State, ...]
    assignment_number: int
    chains: set[int]
    positions: dict[Flow, int]


class Poller:
    """Fetches rows for positions.

    Args:
        positions: The partitions and positions of the consumer.
        longest_pause: The longest pause between two reads of an idle chain, in seconds.
        follow: Applies the group's assignment in a view to the positions, and returns the view after that.
    """

    def __init__(
        self,
        connection: Connection,
        positions: Positions,
        longest_pause: float,
        follow: Callable[[View], View] | None = None,
    ) -> None:
        # All fields are those of the consumer's thread: a poller has no lock.
        self._connection = connection
        self._positions = positions
        #: The authorization by which the principal may read the topics and the group; None before the first check, or
        #: after other topics were chosen.
        self._checked_rules: Authorization | None = None
        self._follow = follow
        #: The longest pause between two reads of an idle chain, and the next one, in seconds. The next one doubles with
        #: each pause, and starts again when records are returned.
        self._longest_pause = longest_pause
        self._pause = min(_FIRST_PAUSE, longest_pause)
        #: When the pause before the next read began, in monotonic ms; None: it has not. News interrupt it, and do not
        #: put off the read: strangers, and other chains, send none.
        self._pause_began: int | None = None
        #: The news of the store before the newest look at it: a later entry ends a pause.
        self._news_seen = 0
        #: The partitions in the order of their next turns, as the last poll left them; new ones follow.
        self._turn_order: list[TopicPartition] = []
        #: The objects with what is kept of those that are being read; None while there is nothing to read.
        self._objects: RecentObjects | None = None
        #: The positions before a call that raised, until they are restored; None if there is nothing to restore.
        self._to_restore: dict[Flow, int] | None = None
        #: Set by a poll without records, while nothing changes. None: a poll looks at every partition.
        self._idle: _IdleState | None = None
        #: Seconds in which the current call has paused.
        self._paused_s = 0.0
        #: The partitions without a position that were logged last.
        self._logged_pending: list[TopicPartition] = []

    def check_rights_again(self) -> None:
        """Let the next poll check the rights: other topics were chosen."""
        self._checked_rules = None

    def _check_readable(self) -> None:
        """Check that the principal may read, unless the rules are still those of the last check.

        Before records are taken: a poll learns of newer rules with the records after them.
        """
        if self._checked_rules is self._connection.chain.state.authorization:
            return
        positions = self._positions
        topics = positions.topics or [tp.topic for tp in positions.assigned]
        group = [read_group(positions.group)] if positions.group is not None else []
        self._checked_rules = self._connection.check_rights(*group, read_topics(topics))

    def end_idle(self) -> None:
        """Let the next poll look at every partition: a call may have changed which they are, or a position."""
        self._idle = None

    def poll(self, timeout: float, rows: int, *, one_schema: bool = False) -> list[PolledRows]:
        """Return up to ``rows`` rows; none if there are none within ``timeout`` seconds.

        Fetched and planned rows are returned without a read of the chain, unless a position is to be looked up there.
        ``timeout`` counts from the first read of the chain; 0: at most one read.
        """
        measurements = self._connection.measurements
        self._paused_s, began_at = 0.0, measurements.clock()
        try:
            return self._poll(timeout, rows, one_schema=one_schema)
        finally:
            measurements.add("poll", began_at, self._paused_s)

    def _poll(self, timeout: float, rows: int, *, one_schema: bool) -> list[PolledRows]:
        """Take rows, or read the chains and pause until there are rows, or the timeout has passed."""
        runtime = self._connection.runtime
        deadline: float | None = None
        view = self._follow_group(self._look())
        is_fresh = False
        planned_again = False
        if not self._is_idle(view) and self._positions.needs_head(view):
            view, is_fresh = self._read_heads(view), True
        while True:
            was_idle = self._is_idle(view)
            if not was_idle:
                self._idle = None
                view = self.catch_up(view)
                self._log_waiting_for(view, self._positions.update(view))
                self._check_readable()
                try:
                    polled_rows = self._take_rows(rows, one_schema=one_schema)
                except CorruptionError as error:
                    # A compaction has replaced a segment of an old plan, and a vacuum deleted it; or a writer of an
                    # earlier release has not made its chain follow from the catalog. Plan again.
                    if planned_again or not (is_missing(error) or is_newer(error)):
                        raise
                    if is_newer(error):
                        view = self._connection.view()
                    view, is_fresh, planned_again = self._read_heads(view), True, True
                    continue
                if polled_rows:
                    self._pause, self._pause_began = min(_FIRST_PAUSE, self._longest_pause), None
                    return polled_rows
                self._idle = self._idle_state(view)
            if is_fresh:
                # The clock may be set back during the wait, so the sum of the pauses counts as well.
                deadline = runtime.clock() + timeout * 1000 if deadline is None else deadline
                remaining_seconds = min((deadline - runtime.clock()) / 1000, timeout - self._paused_s)
                if remaining_seconds <= 0:
                    if not was_idle:
                        warn_blocked(self._connection, self.blocked(view))
                    return []
                if self._pause_before_read(remaining_seconds):
                    view = self.unblocked(self._follow_group(self._look()))  # Its entry was read, or sent.
                    continue
            view, is_fresh = self._read_heads(view), True

    def _pause_before_read(self, remaining_seconds: float) -> bool:
        """Pause before the next read of the chain; pauses grow up to the longest one, or to ``remaining_seconds``.

        Returns:
            Whether this process learned of a new entry meanwhile, which interrupts the pause: no read is needed yet.
        """
        clock = self._connection.runtime.monotonic
        now = clock()
        if self._pause_began is None:
            self._pause_began = now
        passed_seconds = max(0, now - self._pause_began) / 1000
        pause = min(self._pause - passed_seconds, remaining_seconds)
        if pause > 0 and self._connection.chains.news.wait(pause, self._news_seen):
            self._paused_s += min(pause, (clock() - now) / 1000)
            return True
        self._end_pause(pause)
        return False

    def _end_pause(self, seconds: float) -> None:
        """Count a pause that has passed; the next one is longer."""
        self._paused_s += max(0.0, seconds)
        self._pause_began = None
        self._pause = min(self._pause * 2, self._longest_pause)

    def _look(self) -> View:
        """Return the view of what this process has read, without a request if that is consistent."""
        self._news_seen = self._connection.chains.news.count
        return self._connection.view(refresh=False)

    def wait_until_stable(self, look_up: Callable[[], T], timeout: float) -> T:
        """Return committed offsets, looked up again while a transaction holds one of them.

        As Kafka's consumer does for ``committed`` and ``position`` (``UNSTABLE_OFFSET_COMMIT`` is retriable).

        Raises:
            UnstableOffsetCommitError: ``timeout`` seconds have passed.
        """
        self._paused_s, self._pause = 0.0, min(_FIRST_PAUSE, self._longest_pause)
        while True:
            try:
                return look_up()
            except UnstableOffsetCommitError:
                if self._paused_s >= timeout:
                    raise
            pause = min(self._pause, timeout - self._paused_s)
            self._connection.runtime.sleep(pause)
            self._end_pause(pause)

    def _log_waiting_for(self, view: View, tps: list[TopicPartition]) -> None:
        """Log the transactions for which partitions have no position yet, once per change of the partitions."""
        if tps and tps != self._logged_pending:
            producer_ids = self._positions.pending_producers(view)
            # A producer whose transactional id has expired is named by its producer id.
            names = sorted(str(view.transactional_ids.get(pid, pid)) for pid in producer_ids)
            _LOG.info(
                "group %s: the consumer waits for the end of the transaction of %s, which holds the offsets of %s",
                self._positions.group,
                ", ".join(names),
                ", ".join(map(str, tps)),
                extra={"group": self._positions.group, "partitions": list(map(str, tps))},
            )
        self._logged_pending = tps

    def catch_up(self, view: View) -> View:
        """Return a view in which each log reaches the group's committed offset, unless the head does not either.

        Else a consumer that takes a partition over would find the offset out of range, and apply the reset policy.
        """
        known_offsets: dict[TopicPartition, int] = {}
        while (offsets := self._positions.committed_past_end(view)) and offsets != known_offsets:
            known_offsets = offsets
            view = self._connection.view(refresh={chain_of_partition(tp, view.chains) for tp in offsets})
        return view

    def _read_heads(self, view: View) -> View:
        """Return a view at the heads of the chains that these positions depend on: one GET each if nothing is new."""
        idle_state = self._idle
        chains = idle_state.chains if idle_state is not None and self._is_idle(view) else self._positions.chains(view)
        self._connection.view(refresh=chains)
        return self.unblocked(self._follow_group(self._look()))

    def _is_idle(self, view: View) -> bool:
        """Whether nothing has changed since the partitions had no more records to read."""
        idle = self._idle
        return (
            idle is not None
            and idle.assignment_number == self._positions.assignment_number
            and all(state is idle_state for state, idle_state in zip(view.states, idle.states, strict=True))
        )

    def _idle_state(self, view: View) -> _IdleState | None:
        """Return the idle state of this view without records; None if a partition waits or needs a look-up."""
        flows = [part.flow for part in self._positions.assigned.values()]
        if any(flow is None for flow in flows) or self._positions.blocking_producers(view):
            return None
        positions = {flow: flow.position for flow in flows if flow is not None}
        return _IdleState(view.states, self._positions.assignment_number, self._positions.chains(view), positions)

    def unblocked(self, view: View) -> View:
        """End abandoned transactions that hold back records or starting offsets, and return the view after that."""
        if self._is_idle(view):
            return view
        producer_ids = self._positions.blocking_producers(view)
        return self._connection.view(refresh=False) if self._connection.end_abandoned(producer_ids) else view

    def blocked(self, view: View) -> tuple[BlockedPartition, ...]:
        """Return the partitions whose committed records after the position wait for an open transaction."""
        if self._positions.isolation is Isolation.READ_UNCOMMITTED:
            return ()
        assigned = self._positions.assigned
        positions = {tp: part.flow.position for tp, part in assigned.items() if part.flow is not None}
        return blocked_partitions(view, assigned, positions)

    def _follow_group(self, view: View) -> View:
        return self._follow(view) if self._follow is not None else view

    def _take_rows(self, rows: int, *, one_schema: bool) -> list[PolledRows]:
        """Take rows of the partitions that are not paused, beginning with the one that has waited longest."""
        assigned = self._positions.assigned
        turns = dict.fromkeys([tp for tp in self._turn_order if tp in assigned] + list(assigned))
        parts = (assigned[tp] for tp in turns)
        flows = deque(part.flow for part in parts if part.flow is not None and not part.paused)
        cache = self._objects.read_cache if self._objects is not None else None
        if self._objects is None or cache is None or cache.is_full:
            self._objects = self._connection.objects.with_read_cache()
            cache = self._objects.read_cache
        if cache is not None:
            cache.partitions = Counter(flow.tp.topic for flow in flows)
        polled_rows = take_rows(
            flows, self._objects, self._connection.pool, rows, _MAX_POLL_BYTES, one_schema=one_schema
        )
        if not polled_rows:
            self._objects = None
        self._turn_order = [flow.tp for flow in flows]
        return polled_rows

    def all_or_nothing(self, call: Callable[[], T]) -> T:
        """Return the result of a call that takes rows; if it raises, restore the positions, so no record is skipped.

        An error of txnstore leaves each flow consistent, so only moved positions are restored. After any other
        exception all positions are restored, and all fetched rows dropped:

        1. A poll takes rows of a flow, which moves its position after them.
        2. An interrupt ends the call, perhaps between two steps of the flow, and the rows never reach the application.
        3. The position is restored, and the next poll plans the rows again.
        4. If another interrupt ends the restoring, ``_to_restore`` is still set, and every later call continues it.
        """
        self.restore()
        if self._idle is not None:
            positions = self._idle.positions  # The same, without the time to collect them from many partitions.
        else:
            flows = [part.flow for part in self._positions.assigned.values()]
            positions = {flow: flow.position for flow in flows if flow is not None}
        try:
            return call()
        except BaseException as error:
            # Python runs no signal handler between the raise and the first line of this block.
            self._to_restore = positions
            self.restore(drops_rows=not isinstance(error, TxnStoreError))
            raise

    def restore(self, *, drops_rows: bool = True) -> None:
        """Restore the positions before a call that raised, if they are not restored yet.

        ``drops_rows``: also drop the fetched rows of partitions whose position has not moved.
        """
        positions = self._to_restore
        if positions is None:
            return
        self._idle = None
        for part in self._positions.assigned.values():
            flow = part.flow
            if flow is None:
                continue
            position = positions.get(flow, flow.first_position)  # A flow that the call has begun goes back, too.
            if drops_rows or flow.position != position:
                part.move(position)
        self._to_restore = None


def fetch_ahead(flows: Iterable[Flow], objects: ObjectStore, pool: Executor) -> int:
    """Start fetches up to a bounded window, a slice of each partition in turn (CON-12); return their number.

    Costs time for each flow.
    """
    flows = list(flows)
    count = sum(flow.fetches for flow in flows)
    size = sum(flow.fetching_bytes for flow in flows)
    # The flow with the fewest fetches is next.
    queue = deque(sorted((flow for flow in flows if flow.has_unfetched), key=lambda flow: flow.fetches))
    while queue and count < MAX_FETCHES and (count == 0 or size < MAX_FETCH_BYTES):
        flow = queue.popleft()
        bytes_before = flow.fetching_bytes
        flow.fetch_next(objects, pool)
        count, size = count + 1, size + flow.fetching_bytes - bytes_before
        if flow.has_unfetched:
            queue.append(flow)
    return count


@dataclass(frozen=True, slots=True)
class PolledRows:
    """Rows of one partition that a poll returns, with all columns of a read."""

    tp: TopicPartition
    columns: Columns
    table: pa.Table

    def records(self) -> list[Record]:
        """Convert the rows to records."""
        table, topic, partition = self.table, self.columns.topic, self.tp.partition
        offsets = table["_offset"].to_pylist()
        timestamps = table["_timestamp"].cast(pa.int64()).to_pylist()
        name = topic.name
        if topic.schema is None:
            return [
                Record(name, partition, offset, timestamp, key, value, _header_pairs(headers))
                for offset, timestamp, key, value, headers in zip(
                    offsets,
                    timestamps,
                    table["key"].to_pylist(),
                    table["value"].to_pylist(),
                    table["headers"].to_pylist(),
                    strict=True,
                )
            ]
        try:
            rows = table.drop_columns(["_topic", "_partition", "_offset", "_timestamp"]).to_pylist()
        except (OverflowError, ValueError) as error:  # Such as a date after the year 9999, which send refuses by now.
            msg = (
                f"the records of {self.tp} from offset {offsets[0]} to {offsets[-1]} hold a value that Python cannot "
                f"show ({error}): read them with scan().to_table(), or seek past them"
            )
            raise UnsupportedFormatError(msg) from error
        key_column = topic.key
        return [
            Record(name, partition, offset, timestamp, row[key_column] if key_column is not None else None, row)
            for offset, timestamp, row in zip(offsets, timestamps, rows, strict=True)
        ]


def take_rows(
    flows: deque[Flow],
    objects: ObjectStore,
    pool: Executor,
    rows: int,
    size: int,
    *,
    one_schema: bool = False,
) -> list[PolledRows]:
    """Take the next rows of the flows: up to ``rows``, and about ``size`` bytes beyond the first (CON-18).

    A partition has its turn until a slice ends, then the next one has (the deque is turned). ``one_schema``: only rows
    of the same columns. An error is raised only if it comes first; else what came before it is returned, and the
    error comes back with the next call.
    """
    result: list[PolledRows] = []
    schema: pa.Schema | None = None
    taken_slices = refill_at = 0  # The window is filled again when half of it was taken: that looks at all partitions.

    def next_flow() -> Flow | None:
        return next(
            (flow for flow in flows if flow.has_rows and (schema is None or flow.columns.schema == schema)), None
        )

    while rows > 0 and size > 0:
        flow = next_flow() if taken_slices < refill_at else None
        if flow is None:
            taken_slices, refill_at = 0, fetch_ahead(flows, objects, pool) // 2
            flow = next_flow()
        if flow is None:
            break
        taken_slices += 1
        try:
            table = flow.take(rows)
        except TxnStoreError:
            if result:
                break
            raise
        if table is not None:
            result.append(PolledRows(flow.tp, flow.columns, table))
            schema = flow.columns.schema if one_schema else None
            rows -= table.num_rows
            size -= table.nbytes
        if flow.between_slices:
            flows.remove(flow)
            flows.append(flow)
    return result


def _header_pairs(stored_headers: list[dict[str, Any]] | None) -> Headers:
    return tuple((header["key"], header["value"]) for header in stored_headers) if stored_headers else ()
