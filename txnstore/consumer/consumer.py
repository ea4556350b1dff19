"""The consumer of applications: reads partitions from a position on, alone or as a member of a group.

A consumer reads the chain only when it has no fetched or planned records left; one GET shows whether there are new
ones. Aborted records are never downloaded, records of open transactions never buffered (CON-12).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from itertools import chain
from typing import Literal, Self, overload

import pyarrow as pa

from txnstore.connection import Connection
from txnstore.consumer.fetcher import PolledRows, Poller
from txnstore.consumer.group import ConsumerGroup
from txnstore.consumer.leases import leave_when_collected
from txnstore.consumer.membership import AssignorName, Callback, MemberOptions
from txnstore.consumer.prefetched import PrefetchedRecords
from txnstore.consumer.subscription import AssignedPartition, Positions, Reset, ResetPolicy, parse_reset
from txnstore.core.authorization.rights import read_group, read_topics
from txnstore.core.blocked import BlockedPartition
from txnstore.core.groups.model import GroupMetadata, OffsetAndMetadata, PartitionHolder
from txnstore.core.model import Isolation, TopicPartition
from txnstore.core.view import View
from txnstore.errors import ConsumerClosedError, InvalidConfigError
from txnstore.read.blocked import warn_blocked
from txnstore.read.plan import IsolationLevel, OffsetAndTimestamp, offset_for_time
from txnstore.read.records import Record
from txnstore.times import Time, check_time
from txnstore.validation import (
    check_choice,
    check_id,
    check_integer,
    check_mapping,
    check_names,
    check_pair,
    check_seconds,
    check_topic_name,
)

#: Kafka's ``default.api.timeout.ms``, in seconds.
API_TIMEOUT = 60.0
#: One partition or several, each a :class:`TopicPartition` or a pair of topic and number.
Pair = tuple[str, int]
Partitions = Pair | Iterable[Pair]


_EXCLUSIVE = "this consumer reads what {}() chose: call unsubscribe() before {}()"


class Consumer:
    """Reads partitions from a position on, in offset order. Not thread-safe: use it in one thread at a time.

    Several polls may return the records of one transaction (CON-10), and offsets have gaps for markers, aborted and
    compacted records (CON-09): compare ``position`` with ``end_offsets`` to see whether all is read; do not count.

    Args:
        connection: The connection to the store.
        topics: Read all partitions of these topics, also those added later, as :meth:`subscribe` does; None: none
            until :meth:`subscribe` or :meth:`assign`.
        group: Begin at its committed offsets, and commit to it. With ``topics`` (or :meth:`subscribe`) the first poll
            joins the group, whose members share the partitions; with :meth:`assign`, or a store that was opened
            read_only, the consumer is no member.
        isolation: ``"read_committed"`` or ``"read_uncommitted"`` (``isolation.level``).
        auto_offset_reset: Where to begin without a committed offset, or if it is out of range: ``"earliest"``,
            ``"latest"``, ``"none"``, which raises (CON-13), or ``"by_duration:PT24H"`` for the first record of the last
            24 hours, by the clock of this process, else the end (KIP-1106; ISO 8601).
        enable_auto_commit: Commit what earlier polls returned, at a poll and on close. Leave it off where offsets go
            into transactions: :meth:`group_metadata` raises then (OFF-19).
        auto_commit_interval: Seconds between two such commits (``auto.commit.interval.ms``).
        max_poll_records: How many records :meth:`poll` returns at most.
        poll_interval: The longest pause between two reads of an idle chain, in seconds; each read is one GET.
        assignor: ``"cooperative-sticky"`` or ``"range"``; the group uses that of most members (KIP-848).
        group_instance_id: The name of a static member (KIP-345): it gets its partitions back if it returns within its
            session timeout, and :meth:`close` does not leave the group.
        session_timeout: Seconds without a heartbeat after which a member may lose its partitions
            (``session.timeout.ms``). Polls, commits, and a timer between them renew its lease; a process that is killed
            or cannot reach the storage does not.
        max_poll_interval: Seconds without a poll after which a member leaves the group (``max.poll.interval.ms``): the
            longest time that the work on the records of one poll may take. In an iteration each record counts as a
            poll.
        consumer_timeout: Seconds without a new record after which ``for record in consumer`` ends
            (kafka-python: ``consumer_timeout_ms``); by default it does not end.
        on_assigned: Called in a poll with the partitions that this consumer was given.
        on_revoked: Called in a poll, ``unsubscribe`` or ``close`` with the partitions that it is about to lose; their
            offsets can still be committed.

    Raises:
        InvalidConfigError: An option is of a wrong type, out of range, or needs a group.
        InvalidTopicError: A topic has a name that no topic can have.
        GroupAuthorizationError: The principal has no right to read the group.
        TopicAuthorizationError: The principal has no right to read a topic.
    """

    def __init__(
        self,
        connection: Connection,
        topics: Sequence[str] | str | None = None,
        group: str | None = None,
        *,
        isolation: IsolationLevel = "read_committed",
        auto_offset_reset: ResetPolicy = "earliest",
        enable_auto_commit: bool = False,
        auto_commit_interval: float = 5.0,
        max_poll_records: int = 500,
        poll_interval: float = 0.5,
        assignor: AssignorName = "cooperative-sticky",
        group_instance_id: str | None = None,
        session_timeout: float = 45.0,
        max_poll_interval: float = 300.0,
        consumer_timeout: float = math.inf,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
    ) -> None:
        self.group = check_id("group.id", group) if group is not None else None
        self.isolation = check_choice("isolation", isolation, Isolation)
        self._connection = connection
        first_since = partial(_first_offset_since, connection, self.isolation)
        self._positions = Positions(self.isolation, self.group, parse_reset(auto_offset_reset), first_since)
        # The options of a group are checked without a group, too.
        auto_commit_interval = check_seconds("auto_commit_interval", auto_commit_interval, above=0)
        options = MemberOptions(
            assignor, group_instance_id, session_timeout, max_poll_interval, on_assigned, on_revoked
        )
        self._consumer_group = self._make_group(options, auto_commit_interval if enable_auto_commit else None)
        if enable_auto_commit:
            self._require_group("commit by itself")
        if group_instance_id is not None:
            self._require_group("have a group_instance_id")
        self._consumer_timeout = check_seconds("consumer_timeout", consumer_timeout)
        #: The records of an iteration that were not returned; None outside of an iteration.
        self._prefetched: PrefetchedRecords | None = None
        self._max_poll_records = check_integer("max_poll_records", max_poll_records, 1)
        poll_interval = check_seconds("poll_interval", poll_interval, above=0)
        follow_group = self._consumer_group.follow if self._consumer_group is not None else None
        self._poller = Poller(connection, self._positions, poll_interval, follow_group)
        if self.group is not None:
            connection.check_rights(read_group(self.group))
        #: The process that used it last: after a fork the child joins as another member.
        self._pid = os.getpid()
        self._is_closed = False
        if topics is not None:
            self.subscribe(topics)

    def _make_group(self, options: MemberOptions, auto_commit_interval: float | None) -> ConsumerGroup | None:
        """Return the group, which the consumer leaves when it is collected; None without one. Nothing is joined yet."""
        if self.group is None:
            return None
        consumer_group = ConsumerGroup(self._connection, self.group, self._positions, options, auto_commit_interval)
        leave_when_collected(self, consumer_group.membership.lease)
        return consumer_group

    # Which partitions -------------------------------------------------------------------------------------------------

    def subscribe(self, topics: Sequence[str] | str) -> None:
        """Read all partitions of these topics, instead of what was assigned before. One GET.

        With a group, its members share them from the next poll on. Partitions that a topic gets later are read from
        their beginning, also those of a topic that does not exist yet: its name is logged as a warning, and the
        consumer waits for it. Without topics it is :meth:`unsubscribe`.

        Raises:
            InvalidConfigError: Partitions were assigned by hand; :meth:`unsubscribe` first.
            InvalidTopicError: A topic has a name that no topic can have.
        """
        self._check_open()
        names = [topics] if isinstance(topics, str) else check_names("topics", topics)
        names = [check_topic_name(name) for name in names]
        if not names:
            self.unsubscribe()
            return
        if self._positions.topics is None and self._positions.assigned:
            raise InvalidConfigError(_EXCLUSIVE.format("assign", "subscribe"))
        self._connection.check_rights(read_topics(names))
        self._poller.check_rights_again()
        self._positions.subscribe(self._view_at_heads(), names)

    def unsubscribe(self) -> None:
        """Read no partitions, and leave the group, after a commit if ``enable_auto_commit`` is on.

        A static member stays in the group until its session timeout (KIP-345).
        """
        self._check_usable()
        if self._consumer_group is not None:
            self._consumer_group.close()
        self._positions.assign(self._connection.view(refresh=False), [])

    def assign(self, partitions: Partitions) -> None:
        """Read exactly these partitions, without sharing them. Those that were assigned before keep their positions.

        A partition that does not exist is logged as a warning, and read from its beginning as soon as it does. Without
        partitions it is :meth:`unsubscribe`.

        Raises:
            InvalidConfigError: Topics are subscribed; :meth:`unsubscribe` first.
            InvalidTopicError: A topic has a name that no topic can have.
        """
        self._check_open()
        tps = _as_partitions(partitions)
        for tp in tps:
            check_topic_name(tp.topic)
        if not tps:
            self.unsubscribe()
            return
        if self._positions.topics is not None:
            raise InvalidConfigError(_EXCLUSIVE.format("subscribe", "assign"))
        self._check_usable()
        self._connection.check_rights(read_topics(tp.topic for tp in tps))
        self._poller.check_rights_again()
        view = self._connection.view(refresh=False)
        if any(view.partition(tp) is None for tp in tps):
            view = self._connection.view()
        self._positions.assign(view, tps)

    def assignment(self) -> list[TopicPartition]:
        """The partitions that it reads, in order."""
        self._check_open()
        return sorted(self._positions.assigned)

    # Positions --------------------------------------------------------------------------------------------------------

    def position(self, partition: Pair, timeout: float = API_TIMEOUT) -> int:
        """The next offset to read; the next record has this offset, or a higher one after a gap.

        Args:
            partition: The partition.
            timeout: Seconds to wait for the end of a transaction that holds the offset to begin at
                (``default.api.timeout.ms``).

        Raises:
            UnstableOffsetCommitError: The transaction did not end within ``timeout``.
        """
        part = self._find_assigned(partition)
        check_seconds("timeout", timeout)
        if part.flow is None:
            self._poller.wait_until_stable(
                lambda: self._positions.locate(self._poller.catch_up(self._view_at_heads()), part), timeout
            )
        assert part.flow is not None  # set by locate
        return part.flow.position

    def seek(self, partition: Pair, offset: int) -> None:
        """Continue at this offset; if it is outside the log, the next poll applies ``auto_offset_reset``."""
        part = self._find_assigned(partition)
        offset = check_integer(f"the offset to seek to in {part.tp}", offset, 0)
        part.move(offset)
        part.origin, part.sought = offset, True

    def seek_to_beginning(self, *partitions: Partitions) -> None:
        """Continue at the first record of these partitions (all by default) from the next poll on."""
        for part in self._selected_assigned(partitions):
            part.move(Reset.EARLIEST)
            part.sought = True

    def seek_to_end(self, *partitions: Partitions) -> None:
        """Continue at the end of these partitions (all by default): for ``read_committed`` the LSO (CON-14)."""
        for part in self._selected_assigned(partitions):
            part.move(Reset.LATEST)
            part.sought = True

    def rewind_to_committed(self) -> None:
        """Continue at the group's committed offset in every partition, after an aborted transaction (OFF-20).

        A partition without one continues where this consumer began in it, or at its last ``seek``. Fetched records are
        dropped. The next poll looks the offsets up, and waits for pending ones.
        """
        self._require_group("rewind")
        for part in self._selected_assigned(()):
            part.move(None)

    def pause(self, *partitions: Partitions) -> None:
        """Return no records of these partitions (all by default) until they are resumed. Positions are kept."""
        for part in self._selected_assigned(partitions):
            part.paused = True

    def resume(self, *partitions: Partitions) -> None:
        """Resume paused partitions (all by default)."""
        for part in self._selected_assigned(partitions):
            part.paused = False

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        self._check_open()
        return {tp for tp, part in self._positions.assigned.items() if part.paused}

    def beginning_offsets(self, *partitions: Partitions) -> dict[TopicPartition, int]:
        """The first offset of the log, of these partitions or of all assigned ones."""
        view = self._view_at_heads()
        return {tp: view.find_partition(tp).log_start for tp in self._selected_existing(view, partitions)}

    def end_offsets(self, *partitions: Partitions) -> dict[TopicPartition, int]:
        """The offset at which reads end now: the LSO for ``read_committed``, else the high watermark (LSO-11)."""
        view = self._view_at_heads(warn=True)
        return {
            tp: view.find_partition(tp).read_limit(self.isolation) for tp in self._selected_existing(view, partitions)
        }

    def offsets_for_times(
        self, times: Mapping[TopicPartition, Time]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first visible record at or after each time; None if there is none.

        Args:
            times: Each time in ISO 8601 (UTC without a zone), as a ``datetime`` with a time zone, or in milliseconds
                since the epoch.

        Raises:
            InvalidConfigError: A time is before 1970, as in Kafka, or a ``datetime`` without a zone.
        """
        view = self._view_at_heads()
        return {
            tp: offset_for_time(self._connection.objects, view, tp, self.isolation, timestamp)
            for tp, timestamp in (
                (
                    TopicPartition(*check_pair(key)),
                    check_integer(f"the time for {key}", check_time(f"the time for {key}", value, round_up=True), 0),
                )
                for key, value in check_mapping("times", times).items()
            )
        }

    def lag(self) -> dict[TopicPartition, int]:
        """Return how many offsets each assigned partition is behind its :meth:`end <end_offsets>` (LSO-13). One GET.

        For ``read_committed`` that is the LSO: records that wait behind an open transaction are not counted, but in
        :attr:`blocked`.
        """
        view = self._poller.catch_up(self._view_at_heads(warn=True))
        self._put_back()
        return self._poller.all_or_nothing(
            lambda: {tp: self._lag_of(view, self._positions.assigned[tp]) for tp in self._selected_existing(view, ())}
        )

    def _lag_of(self, view: View, part: AssignedPartition) -> int:
        end_offset = view.find_partition(part.tp).read_limit(self.isolation)
        return max(0, end_offset - self._positions.locate(view, part).position)

    def blocked(self) -> tuple[BlockedPartition, ...]:
        """The assigned partitions in which committed records wait for an open transaction, as of the last request.

        A poll that finds nothing warns of them (:class:`BlockedReadWarning`). Empty for ``read_uncommitted``.
        """
        self._check_usable()
        return self._poller.blocked(self._connection.view(refresh=False))

    # Records ----------------------------------------------------------------------------------------------------------

    def poll(self, timeout: float = 0.0, max_records: int | None = None) -> list[Record]:
        """The next records. An error leaves the positions unchanged, so no record is skipped.

        Records that are fetched, or that the cached state shows, are returned without a read of the chain. Else
        the chain is read until there are records or ``timeout`` has passed, with one GET each time.

        A partition whose committed offset is pending in an open transaction is not read before the end of that
        transaction (OFF-09); the others are.

        Args:
            timeout: Seconds to wait for new records, counted from the first read of the chain. Fetching
                records that exist, joining the group and repeating failed requests are not part of it.
            max_records: The largest number of records; None: ``max_poll_records``.

        Returns:
            Records in offset order in each partition; an empty list if there were none within ``timeout``.

        Raises:
            OffsetOutOfRangeError: A position is outside the log and ``auto_offset_reset`` is ``"none"`` (CON-13).
            FencedInstanceError: Another consumer has taken over the ``group_instance_id`` (KIP-345).
            TopicAuthorizationError: The principal has no right to read a topic, or no longer.
            GroupAuthorizationError: The same of its group.
            ConsumerClosedError: The consumer is closed.
        """
        rows = self._max_poll_records if max_records is None else check_integer("max_records", max_records, 1)
        self._check_usable(polls=True)
        self._put_back()
        return self._poller.all_or_nothing(
            lambda: [record for part in self._poll(timeout, rows) for record in part.records()]
        )

    def poll_table(self, timeout: float = 0.0, max_records: int | None = None) -> pa.Table:
        """Poll as a table with the columns of a scan; topics with different columns come in different calls.

        Args:
            timeout: Seconds to wait for new records, as for :meth:`poll`.
            max_records: The largest number of rows; None: all, up to 64 MB.
        """
        rows = _ALL_ROWS if max_records is None else check_integer("max_records", max_records, 1)
        self._check_usable(polls=True)
        self._put_back()
        return self._poller.all_or_nothing(lambda: self._poll_table(timeout, rows))

    def _poll_table(self, timeout: float, rows: int) -> pa.Table:
        """Poll as one table; without rows an empty one with the columns of the first topic that exists."""
        polled_rows = self._poll(timeout, rows, one_schema=True)
        if polled_rows:
            return pa.concat_tables([part.table for part in polled_rows])
        topics = self._connection.view(refresh=False).topics
        names = chain((tp.topic for tp in self._positions.assigned), self._positions.topics or ())
        topic = next((topics[name] for name in names if name in topics), None)
        return self._positions.columns(topic).schema.empty_table() if topic is not None else pa.table({})

    def _poll(self, timeout: float, rows: int, *, one_schema: bool = False) -> list[PolledRows]:
        """Poll, as a member of a group between the renewals of its lease and with automatic commits."""
        if not self._positions.assigned and not self._positions.topics:
            msg = "this consumer has no partitions to read: give it topics, or call assign() or subscribe()"
            raise InvalidConfigError(msg)
        check_seconds("timeout", timeout)
        if self._consumer_group is None:
            return self._poller.poll(timeout, rows, one_schema=one_schema)
        lease = self._consumer_group.membership.lease
        lease.begin_poll()
        try:
            self._consumer_group.auto_commit_if_due()
            polled_rows = self._poller.poll(timeout, rows, one_schema=one_schema)
            if not polled_rows:
                self._consumer_group.membership.log_waiting()
            return polled_rows
        finally:
            lease.end_poll()

    def __iter__(self) -> Iterator[Record]:
        """Iterate over all records, also those that come later: ``for record in consumer``.

        The loop waits for new records. It ends after ``consumer_timeout`` seconds without one, when the consumer is
        closed, and by ``break``, an exception or Ctrl-C. The position of a partition is after the last record that the
        loop has seen: a :meth:`commit` in the loop commits exactly these, and another loop or poll continues there.
        """
        return self

    def __next__(self) -> Record:
        """The next record of an iteration.

        Raises:
            StopIteration: ``consumer_timeout`` has passed, or the consumer is closed.
        """
        if self._is_closed:
            raise StopIteration
        self._check_usable(polls=True)
        if self._consumer_group is not None:
            self._consumer_group.membership.lease.end_poll()  # Not later: an interrupt would lose the record.
        remaining_seconds = self._consumer_timeout
        while True:
            record = self._prefetched.next() if self._prefetched is not None else None
            if record is not None:
                return record
            wait = min(remaining_seconds, _ITERATION_WAIT)
            remaining_seconds -= wait
            if not self._prefetch(wait) and remaining_seconds <= 0:
                raise StopIteration

    def _prefetch(self, timeout: float) -> bool:
        """Poll for the iteration; return whether there are records."""
        return self._poller.all_or_nothing(lambda: self._poll_records(timeout))

    def _poll_records(self, timeout: float) -> bool:
        polled_rows = self._poll(timeout, self._max_poll_records)
        self._prefetched = PrefetchedRecords(polled_rows, self._positions.assigned)
        return bool(polled_rows)

    def _put_back(self) -> None:
        if self._prefetched is not None:
            self._prefetched.put_back()
            self._prefetched = None

    # The group --------------------------------------------------------------------------------------------------------

    def commit(self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata] | None = None) -> None:
        """Commit the positions, or these offsets, to the group: always the *next* offset to read (OFF-19). One PUT.

        A position is what the last poll or a later :meth:`seek` set. Beside others, positions in deleted topics are
        not committed, which is logged.

        Args:
            offsets: An offset, or an :class:`OffsetAndMetadata`, for each partition; None: all positions.

        Raises:
            UnknownMemberError: Others have taken over: this consumer did not poll within its ``max_poll_interval``, or
                its heartbeats failed for its session timeout (Kafka: ``CommitFailedException``).
            FencedInstanceError: Another consumer has its static name.
            IllegalGenerationError: Another member holds one of the partitions.
            InvalidConfigError: The consumer has no group, or an offset is out of range.
            UnknownTopicOrPartitionError: A partition of ``offsets`` does not exist, or no topic exists any more.
        """
        self._check_usable()
        self._require_group("commit").commit(offsets)

    @overload
    def committed(
        self,
        partition: Pair,
        *,
        metadata: Literal[False] = False,
        require_stable: bool = True,
        strict: bool = False,
        timeout: float = API_TIMEOUT,
    ) -> int | None: ...

    @overload
    def committed(
        self,
        partition: Pair,
        *,
        metadata: Literal[True],
        require_stable: bool = True,
        strict: bool = False,
        timeout: float = API_TIMEOUT,
    ) -> OffsetAndMetadata | None: ...

    def committed(
        self,
        partition: Pair,
        *,
        metadata: bool = False,
        require_stable: bool = True,
        strict: bool = False,
        timeout: float = API_TIMEOUT,
    ) -> int | OffsetAndMetadata | None:
        """The group's committed offset in a partition, or None; None also for a partition that does not exist.

        Args:
            partition: The partition.
            metadata: Return an :class:`OffsetAndMetadata` (OFF-15).
            require_stable: Wait while an open transaction holds an offset of the partition (OFF-09, KIP-447).
            strict: Wait also while it holds one of any other partition of the group (D3).
            timeout: Seconds to wait for the end of that transaction (``default.api.timeout.ms``).

        Raises:
            UnstableOffsetCommitError: The transaction did not end within ``timeout``.
        """
        self._check_usable()
        tp = TopicPartition(*check_pair(partition))
        check_seconds("timeout", timeout)
        group = self._require_group("look up its offsets")
        value = self._poller.wait_until_stable(
            lambda: group.committed(tp, require_stable=require_stable, strict=strict), timeout
        )
        return value if metadata or value is None else value.offset

    def group_metadata(self) -> GroupMetadata:
        """The argument of ``send_offsets`` for this consumer (KIP-447): generation and member id of its last poll.

        Raises:
            InvalidConfigError: The consumer has no group, or has auto-commit on (OFF-19).
            ConsumerClosedError: The consumer is closed: it has left its group.
        """
        self._check_open()
        return self._require_group("take part in a transaction").metadata()

    @property
    def waiting_for(self) -> tuple[PartitionHolder, ...]:
        """The members that hold the partitions that this one waits for, and until when, as of the last poll.

        A member that does not poll any more, such as that of a killed process, holds its partitions until its lease
        expires. Empty if this consumer waits for no member. An empty poll also logs it, by the logger
        ``txnstore.consumer`` at level INFO.
        """
        return self._consumer_group.membership.waiting_for if self._consumer_group is not None else ()

    # Life -------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Commit if ``enable_auto_commit`` is on, call ``on_revoked``, leave the group, and refuse further use.

        After an interrupt, such as Ctrl-C, the call can be repeated.
        """
        if not self._is_closed and self._consumer_group is not None and self._pid == os.getpid():
            self._poller.restore()
            try:
                self._consumer_group.close()
            except Exception:
                self._is_closed = True
                raise
        self._is_closed = True
        for part in self._positions.assigned.values():
            part.move(None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        group = f" in group {self.group!r}" if self.group is not None else ""
        if self._is_closed:
            return f"<txnstore.Consumer{group}, closed>"
        topics = f" of {', '.join(self._positions.topics)}" if self._positions.topics else ""
        positions = sorted((tp, part.position) for tp, part in self._positions.assigned.items())
        texts = [str(tp) if position is None else f"{tp} at {position}" for tp, position in positions[:_MAX_SHOWN]]
        more = f" and {len(positions) - _MAX_SHOWN} more" if len(positions) > _MAX_SHOWN else ""
        return f"<txnstore.Consumer{topics}{group}, reads {', '.join(texts) or 'no partition'}{more}>"

    # Inside -----------------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closed:
            msg = "this consumer is closed"
            raise ConsumerClosedError(msg)

    def _check_usable(self, *, polls: bool = False) -> None:
        """Check that the consumer is open, restore positions of an interrupted call, and reset it after a fork."""
        self._check_open()
        self._poller.restore()
        if not polls or self._pid != os.getpid():
            self._poller.end_idle()
        if self._pid != os.getpid():
            # The answers to requests from before a fork arrive in the parent only.
            self._pid = os.getpid()
            for part in self._positions.assigned.values():
                if part.flow is not None:
                    part.move(part.flow.position)
            if self._consumer_group is not None:
                self._consumer_group.membership.reset()

    def _view_at_heads(self, *, warn: bool = False) -> View:
        """Return a view at the heads of all chains, after abandoned transactions that block it are ended."""
        self._check_usable()
        view = self._poller.unblocked(self._connection.view())
        if warn:
            warn_blocked(self._connection, self._poller.blocked(view))
        return view

    def _find_assigned(self, partition: Pair) -> AssignedPartition:
        self._check_usable()
        tp = TopicPartition(*check_pair(partition))
        if tp not in self._positions.assigned:
            assigned_text = ", ".join(map(str, self.assignment())) or "no partition"
            msg = f"this consumer does not read {tp}; it reads {assigned_text}"
            raise InvalidConfigError(msg)
        return self._positions.assigned[tp]

    def _selected_partitions(self, partitions: Iterable[Partitions]) -> list[TopicPartition]:
        return [tp for partition in partitions for tp in _as_partitions(partition)] or self.assignment()

    def _selected_existing(self, view: View, partitions: tuple[Partitions, ...]) -> list[TopicPartition]:
        """Return these partitions; by default all assigned ones that are not deleted."""
        return (
            self._selected_partitions(partitions)
            if partitions
            else [tp for tp in self.assignment() if view.partition(tp) is not None]
        )

    def _selected_assigned(self, partitions: Iterable[Partitions]) -> list[AssignedPartition]:
        self._check_usable()
        return [self._find_assigned(tp) for tp in self._selected_partitions(partitions)]

    def _require_group(self, call: str) -> ConsumerGroup:
        """Return the group; without one, raise an error that names what the consumer cannot do."""
        if self._consumer_group is None:
            msg = f"a consumer without a group cannot {call}: create it with group=..."
            raise InvalidConfigError(msg)
        return self._consumer_group


def _as_partitions(partitions: object) -> list[TopicPartition]:
    """Return the partitions of an argument that is one pair, or several pairs."""
    is_one_pair = isinstance(partitions, tuple) and len(partitions) == 2 and isinstance(partitions[0], str)
    if is_one_pair or isinstance(partitions, str | bytes) or not isinstance(partitions, Iterable):
        return [TopicPartition(*check_pair(partitions))]
    return [TopicPartition(*check_pair(pair)) for pair in partitions]


_ALL_ROWS = 2**63 - 1
#: Seconds that one poll of an iteration waits; then it logs for whom a member waits, and polls again.
_ITERATION_WAIT = 5.0
#: How many partitions a consumer shows as text.
_MAX_SHOWN = 8


def _first_offset_since(
    connection: Connection, isolation: Isolation, view: View, tp: TopicPartition, age: timedelta
) -> int | None:
    """Return the offset of the first visible record that is at most this old, or None."""
    oldest_time = max(0, connection.runtime.clock() - age // timedelta(milliseconds=1))
    first_record = offset_for_time(connection.objects, view, tp, isolation, oldest_time)
    return first_record.offset if first_record is not None else None
