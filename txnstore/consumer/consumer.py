"""Consumers: positions in partitions, records from there on, and the positions of a group.

A consumer reads the chain only when it has nothing left to hand out: one GET tells whether there is something new. What
it hands out was decided before it was fetched, so aborted records are never downloaded and undecided ones never wait in
its memory (CON-12).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Literal, Self, overload

import pyarrow as pa

from txnstore.catalog.topics import find_topic
from txnstore.consumer.fetcher import Taken
from txnstore.consumer.group import ConsumerGroup
from txnstore.consumer.membership import Callback, MemberOptions
from txnstore.consumer.polling import Poller
from txnstore.consumer.subscription import Assignment, GroupMetadata, Positions, Reset, parse_reset
from txnstore.core.model import (
    OffsetAndMetadata,
    TopicPartition,
)
from txnstore.core.names import check_id
from txnstore.core.view import View
from txnstore.core.visibility import read_limit
from txnstore.errors import ConsumerClosedError, InvalidConfigError, UnknownTopicOrPartitionError
from txnstore.read.lookup import OffsetAndTimestamp, offset_for_time
from txnstore.read.plan import PartitionOffsets, find_partition, parse_isolation, partition_offsets
from txnstore.read.records import Record, records_of
from txnstore.read.store import Reads

__all__ = ["Consumer", "GroupMetadata", "OffsetAndTimestamp", "PartitionOffsets", "Record", "partition_offsets"]

_ALL_ROWS = 2**63 - 1

#: One partition or several; a plain pair of topic and number does as well.
Pair = tuple[str, int]
Partitions = Pair | Iterable[Pair]


class Consumer:
    """Reads partitions from a position on, in offset order, each record once. For one thread at a time.

    ``topics``: all partitions of them, also those that come later; None: nothing until :meth:`assign`.
    ``group``: begin at its committed offsets, and commit to it. With ``topics`` (or :meth:`subscribe`) the first poll
    joins the group, whose members share the partitions; :meth:`assign` makes it no member, nor is one of a store that
    was opened read_only. ``isolation``: ``"read_committed"`` or ``"read_uncommitted"``.
    ``auto_offset_reset``: where to begin if nothing is committed, or if the offset is gone: ``"earliest"``,
    ``"latest"`` or ``"none"`` (an error).
    ``enable_auto_commit``: commit what earlier polls returned, every ``auto_commit_interval`` seconds at a poll, and at
    the end. Leave it off where the offsets go into transactions: :meth:`group_metadata` refuses then (OFF-19).
    ``max_poll_records``: what :meth:`poll` returns at most. ``poll_interval``: the longest pause between two looks at
    an idle chain, in seconds; each look is one GET.
    ``session_timeout``: a member that does not poll or commit for so many seconds may lose its partitions to others.
    ``assignor``: ``"cooperative-sticky"`` or ``"range"``; the group goes by that of most members.
    ``group_instance_id``: the name of a static member, which gets its partitions back when it comes back within its
    session time-out; :meth:`close` does not leave then. ``on_assigned``, ``on_revoked``: called in a poll with the
    partitions that were given to this consumer, or are about to be taken; offsets can still be committed in the latter.

    A transaction may come in several polls (CON-10), offsets have gaps where markers, aborted and compacted records
    were (CON-09): compare ``position`` with ``end_offsets`` to see whether all is read, never count.
    """

    def __init__(
        self,
        store: Reads,
        topics: Sequence[str] | str | None = None,
        group: str | None = None,
        *,
        isolation: str = "read_committed",
        auto_offset_reset: str = "earliest",
        enable_auto_commit: bool = False,
        auto_commit_interval: float = 5.0,
        max_poll_records: int = 500,
        poll_interval: float = 0.5,
        assignor: str = "cooperative-sticky",
        group_instance_id: str | None = None,
        session_timeout: float = 45.0,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
    ) -> None:
        self.group = check_id("group.id", group) if group is not None else None
        self.isolation = parse_isolation(isolation)
        self._positions = Positions(self.isolation, self.group, parse_reset(auto_offset_reset))
        self._store = store
        interval = _positive("auto_commit_interval", auto_commit_interval)
        options = MemberOptions(assignor, group_instance_id, session_timeout, on_assigned, on_revoked)
        self._shared: ConsumerGroup | None = None
        if self.group is not None:
            self._shared = ConsumerGroup(
                store, self.group, self._positions, options, interval if enable_auto_commit else None
            )
        if enable_auto_commit:
            self._group("commit by itself")
        if group_instance_id is not None:
            self._group("have a group_instance_id")
        self._max_poll_records = int(_positive("max_poll_records", max_poll_records))
        self._poller = Poller(
            store,
            self._positions,
            _positive("poll_interval", poll_interval),
            self._shared.follow if self._shared is not None else None,
        )
        self._pid = os.getpid()
        self._closed = False
        if topics is not None:
            self.subscribe(topics)

    # Which partitions -------------------------------------------------------------------------------------------------

    def subscribe(self, topics: Sequence[str] | str) -> None:
        """Read all partitions of these topics, instead of what was assigned before. One GET.

        With a group: share them with its other members from the next poll on. Partitions that a topic gets later are
        read from their beginning.
        """
        names = [topics] if isinstance(topics, str) else list(topics)
        self._positions.subscribe(self._head(), names)

    def assign(self, partitions: Partitions) -> None:
        """Read exactly these partitions. Those that were assigned before keep their positions.

        A consumer that was a member of a group leaves it: nobody shares what is assigned by hand.
        """
        tps = _flat(partitions)
        self._open()
        try:
            self._positions.assign(self._store.state(refresh=False), tps)
        except UnknownTopicOrPartitionError:
            self._positions.assign(self._store.state(), tps)
        if self._shared is not None:
            self._shared.membership.leave(static=True)

    def assignment(self) -> list[TopicPartition]:
        """The partitions that it reads, in order."""
        return sorted(self._positions.assigned)

    # Records ----------------------------------------------------------------------------------------------------------

    def poll(self, timeout: float = 0.0, max_records: int | None = None) -> list[Record]:
        """The next records, up to ``max_records`` (``max_poll_records``); none if there are none within ``timeout``.

        What was fetched already, or can be planned from what is known, comes without a look at the chain. Otherwise
        that is one GET, repeated until ``timeout`` seconds are over. So ``timeout`` bounds the wait for new records,
        not the call: fetching those that are there, joining the group and repeating a request that failed come on top.
        Raises
        :class:`~txnstore.errors.UnstableOffsetCommitError` if an open transaction holds an offset of the group at
        which to begin, and :class:`~txnstore.errors.OffsetOutOfRangeError` if ``auto_offset_reset`` is ``"none"``.
        After an error the positions are where they were, so no record is skipped.
        """
        rows = self._max_poll_records if max_records is None else int(_positive("max_records", max_records))
        self._open()
        with self._poller.all_or_nothing():
            taken = self._poll(timeout, rows)
            return [
                record for part in taken for record in records_of(part.table, part.projection.topic, part.tp.partition)
            ]

    def poll_table(self, timeout: float = 0.0, max_records: int | None = None) -> pa.Table:
        """The same as a table with the columns of a scan; without ``max_records`` as much as there is, up to 64 MB.

        Topics of different columns come in different polls.
        """
        rows = _ALL_ROWS if max_records is None else int(_positive("max_records", max_records))
        self._open()
        with self._poller.all_or_nothing():
            taken = self._poll(timeout, rows, one_schema=True)
            if taken:
                return pa.concat_tables([part.table for part in taken])
            topics = [tp.topic for tp in self._positions.assigned] or list(self._positions.topics or ())
            topic = find_topic(self._store.state(refresh=False), topics[0])
            return self._positions.projection(topic).schema.empty_table()

    def _poll(self, timeout: float, rows: int, *, one_schema: bool = False) -> list[Taken]:
        if not self._positions.assigned and not self._positions.topics:
            msg = "this consumer reads nothing: give it topics, or call assign() or subscribe()"
            raise InvalidConfigError(msg)
        if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not timeout >= 0:
            msg = f"timeout must be a number of seconds, 0 or more, not {timeout!r}"
            raise InvalidConfigError(msg)
        if self._shared is not None:
            self._shared.commit_by_itself()
        return self._poller.poll(timeout, rows, one_schema=one_schema)

    # Positions --------------------------------------------------------------------------------------------------------

    def position(self, partition: Pair) -> int:
        """The offset of the next record that a poll returns, or a higher one if that was compacted away."""
        part = self._assigned(partition)
        if part.flow is None:
            self._positions.locate(self._poller.caught_up(self._head()), part)
        assert part.flow is not None  # locate has found it
        return part.flow.position

    def seek(self, partition: Pair, offset: int) -> None:
        """Go on at this offset. If it is outside the log, the next poll goes where ``auto_offset_reset`` says."""
        part = self._assigned(partition)
        if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
            msg = f"cannot seek to {offset!r} in {part.tp}: an offset is an integer of at least 0"
            raise InvalidConfigError(msg)
        part.move(offset)
        part.origin, part.sought = offset, True

    def seek_to_beginning(self, *partitions: Partitions) -> None:
        """Go to the first record of these partitions (all by default) at the next poll."""
        for part in self._these(partitions):
            part.move(Reset.EARLIEST)
            part.sought = True

    def seek_to_end(self, *partitions: Partitions) -> None:
        """Go to the end of these partitions (all by default) at the next poll: to the LSO if committed (CON-14)."""
        for part in self._these(partitions):
            part.move(Reset.LATEST)
            part.sought = True

    def rewind_to_committed(self) -> None:
        """Go back to the group's committed offset in every partition, after a transaction was aborted (OFF-20).

        A partition without one goes back to where this consumer began in it, or was last sought to. What was fetched
        is dropped; the offsets are looked up at the next poll, which waits for the stable ones.
        """
        self._group("rewind")
        for part in self._these(()):
            part.move(None)

    def pause(self, *partitions: Partitions) -> None:
        """Return nothing from these partitions (all by default) until they are resumed. Positions stay."""
        for part in self._these(partitions):
            part.paused = True

    def resume(self, *partitions: Partitions) -> None:
        """Go on with partitions (all by default) that were paused."""
        for part in self._these(partitions):
            part.paused = False

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        return {tp for tp, part in self._positions.assigned.items() if part.paused}

    def beginning_offsets(self, *partitions: Partitions) -> dict[TopicPartition, int]:
        """The first offset of the log, of these partitions or of all assigned ones."""
        state = self._head()
        return {tp: find_partition(state, tp).log_start for tp in self._named(partitions)}

    def end_offsets(self, *partitions: Partitions) -> dict[TopicPartition, int]:
        """The offset at which reading ends now: the LSO for read_committed, else the high watermark (LSO-11)."""
        state = self._head()
        return {tp: read_limit(find_partition(state, tp), self.isolation) for tp in self._named(partitions)}

    def offsets_for_times(self, times: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each time (milliseconds), or None if no record that is visible is that late."""
        state = self._head()
        return {
            tp: offset_for_time(self._store.objects, state, tp, self.isolation, timestamp)
            for tp, timestamp in ((TopicPartition(*key), value) for key, value in times.items())
        }

    def lag(self) -> dict[TopicPartition, int]:
        """How many offsets each assigned partition is behind its end (LSO-13). One GET."""
        state = self._poller.caught_up(self._head())
        return {
            tp: max(
                0, read_limit(find_partition(state, tp), self.isolation) - self._positions.locate(state, part).position
            )
            for tp, part in sorted(self._positions.assigned.items())
        }

    # The group --------------------------------------------------------------------------------------------------------

    def commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None) -> None:
        """Commit the positions, or these offsets, to the group: always the *next* offset to read (OFF-19). One PUT.

        Raises :class:`~txnstore.errors.UnknownMemberError` if others have taken over because this consumer did not poll
        for longer than its session time-out, :class:`~txnstore.errors.FencedInstanceError` if another one has its
        static name, and :class:`~txnstore.errors.IllegalGenerationError` for a partition that another member holds.
        """
        self._open()
        self._group("commit").commit(offsets)

    @overload
    def committed(
        self, partition: Pair, *, metadata: Literal[False] = False, require_stable: bool = True, strict: bool = False
    ) -> int | None: ...

    @overload
    def committed(
        self, partition: Pair, *, metadata: Literal[True], require_stable: bool = True, strict: bool = False
    ) -> OffsetAndMetadata | None: ...

    def committed(
        self, partition: Pair, *, metadata: bool = False, require_stable: bool = True, strict: bool = False
    ) -> int | OffsetAndMetadata | None:
        """The group's committed offset, or None; with ``metadata`` as :class:`OffsetAndMetadata` (OFF-15).

        Raises :class:`~txnstore.errors.UnstableOffsetCommitError` while an open transaction holds one (OFF-09), unless
        ``require_stable`` is off; with ``strict`` also if it holds one of any other partition of the group (D3).
        """
        self._open()
        tp = TopicPartition(*partition)
        value = self._group("look up its offsets").committed(tp, require_stable=require_stable, strict=strict)
        return value if metadata or value is None else value.offset

    def group_metadata(self) -> GroupMetadata:
        """What ``send_offsets`` of a producer needs to commit this consumer's offsets in a transaction (KIP-447).

        Generation and member id are those of the last poll: if the members have changed since, the offsets are refused.
        """
        return self._group("take part in a transaction").metadata()

    def _group(self, what: str) -> ConsumerGroup:
        if self._shared is None:
            msg = f"a consumer without a group cannot {what}: create it with group=..."
            raise InvalidConfigError(msg)
        return self._shared

    # Inside -----------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        if self._closed:
            msg = "this consumer is closed"
            raise ConsumerClosedError(msg)
        if self._pid != os.getpid():
            # What was asked for before a fork arrives in the parent only.
            self._pid = os.getpid()
            for part in self._positions.assigned.values():
                if part.flow is not None:
                    part.move(part.flow.position)
            if self._shared is not None:
                self._shared.membership.forget()

    def _head(self) -> View:
        self._open()
        return self._store.state()

    def _assigned(self, partition: Pair) -> Assignment:
        self._open()
        tp = TopicPartition(*partition)
        if tp not in self._positions.assigned:
            known = ", ".join(map(str, self.assignment())) or "no partition"
            msg = f"this consumer does not read {tp}; it reads {known}"
            raise InvalidConfigError(msg)
        return self._positions.assigned[tp]

    def _named(self, partitions: Iterable[Partitions]) -> list[TopicPartition]:
        return [tp for item in partitions for tp in _flat(item)] or self.assignment()

    def _these(self, partitions: Iterable[Partitions]) -> list[Assignment]:
        self._open()
        return [self._assigned(tp) for tp in self._named(partitions)]

    # Life -------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Commit if it commits by itself, leave the group, drop what was fetched, refuse further use."""
        if self._closed:
            return
        try:
            if self._shared is not None and self._pid == os.getpid():
                self._shared.close()
        finally:
            for part in self._positions.assigned.values():
                part.move(None)
            self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _flat(partitions: Partitions) -> list[TopicPartition]:
    """One partition, given as a pair, or several."""
    if isinstance(partitions, tuple) and len(partitions) == 2 and isinstance(partitions[0], str):
        return [TopicPartition(*partitions)]
    return [TopicPartition(*tp) for tp in partitions]


def _positive(name: str, value: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        msg = f"{name} must be a number above 0, not {value!r}"
        raise InvalidConfigError(msg)
    return value
