"""The partitions of a consumer: which ones it reads, and where it is in them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence

from txnstore.connection import Connection
from txnstore.consumer.fetcher import Poller
from txnstore.consumer.group import ConsumerGroup
from txnstore.consumer.subscription import Assignment, Positions, Reset
from txnstore.core.blocked import BlockedPartition
from txnstore.core.model import Isolation, TopicPartition
from txnstore.core.view import View
from txnstore.errors import InvalidConfigError
from txnstore.read.blocked import warn_blocked
from txnstore.read.plan import OffsetAndTimestamp, offset_for_time
from txnstore.times import Time, check_time
from txnstore.validation import check_integer, check_mapping, check_names, check_pair, check_seconds, check_topic_name

#: Kafka's ``default.api.timeout.ms``, in seconds.
API_TIMEOUT = 60.0
#: One partition or several, each a :class:`TopicPartition` or a pair of topic and number.
Pair = tuple[str, int]
Partitions = Pair | Iterable[Pair]


_EXCLUSIVE = "this consumer reads what {}() chose: call unsubscribe() before {}()"


class PartitionReader(ABC):
    """The methods of a consumer that choose partitions, and look up and move positions.

    A base of :class:`~txnstore.consumer.consumer.Consumer`, which sets the attributes, polls, and is closed.
    """

    isolation: Isolation
    _connection: Connection
    _positions: Positions
    _poller: Poller
    _shared: ConsumerGroup | None

    @abstractmethod
    def _check_open(self) -> None:
        """Raise if the consumer is closed."""

    @abstractmethod
    def _open(self, *, polls: bool = False) -> None:
        """Check that the consumer is open; after a fork, drop what belongs to the parent process.

        Args:
            polls: The call only polls; any other may change partitions or positions.
        """

    @abstractmethod
    def _put_back(self) -> None:
        """Leave the records that an iteration has taken and not returned to the next poll."""

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
        self._positions.subscribe(self._head(), names)

    def unsubscribe(self) -> None:
        """Read no partitions, and leave the group, after a commit if ``enable_auto_commit`` is on.

        A static member stays in the group until its session timeout (KIP-345).
        """
        self._open()
        if self._shared is not None:
            self._shared.close()
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
        tps = _flat(partitions)
        for tp in tps:
            check_topic_name(tp.topic)
        if not tps:
            self.unsubscribe()
            return
        if self._positions.topics is not None:
            raise InvalidConfigError(_EXCLUSIVE.format("subscribe", "assign"))
        self._open()
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
        part = self._assigned(partition)
        check_seconds("timeout", timeout)
        if part.flow is None:
            self._poller.stable(lambda: self._positions.locate(self._poller.caught_up(self._head()), part), timeout)
        assert part.flow is not None  # set by locate
        return part.flow.position

    def seek(self, partition: Pair, offset: int) -> None:
        """Continue at this offset; if it is outside the log, the next poll applies ``auto_offset_reset``."""
        part = self._assigned(partition)
        offset = check_integer(f"the offset to seek to in {part.tp}", offset, 0)
        part.move(offset)
        part.origin, part.sought = offset, True

    def seek_to_beginning(self, *partitions: Partitions) -> None:
        """Continue at the first record of these partitions (all by default) from the next poll on."""
        for part in self._these(partitions):
            part.move(Reset.EARLIEST)
            part.sought = True

    def seek_to_end(self, *partitions: Partitions) -> None:
        """Continue at the end of these partitions (all by default): for ``read_committed`` the LSO (CON-14)."""
        for part in self._these(partitions):
            part.move(Reset.LATEST)
            part.sought = True

    def rewind_to_committed(self) -> None:
        """Continue at the group's committed offset in every partition, after an aborted transaction (OFF-20).

        A partition without one continues where this consumer began in it, or at its last ``seek``. Fetched records are
        dropped. The next poll looks the offsets up, and waits for pending ones.
        """
        self._group("rewind")
        for part in self._these(()):
            part.move(None)

    def pause(self, *partitions: Partitions) -> None:
        """Return no records of these partitions (all by default) until they are resumed. Positions are kept."""
        for part in self._these(partitions):
            part.paused = True

    def resume(self, *partitions: Partitions) -> None:
        """Resume paused partitions (all by default)."""
        for part in self._these(partitions):
            part.paused = False

    def paused(self) -> set[TopicPartition]:
        """The partitions that are paused."""
        self._check_open()
        return {tp for tp, part in self._positions.assigned.items() if part.paused}

    def beginning_offsets(self, *partitions: Partitions) -> dict[TopicPartition, int]:
        """The first offset of the log, of these partitions or of all assigned ones."""
        view = self._head()
        return {tp: view.find_partition(tp).log_start for tp in self._existing(view, partitions)}

    def end_offsets(self, *partitions: Partitions) -> dict[TopicPartition, int]:
        """The offset at which reads end now: the LSO for ``read_committed``, else the high watermark (LSO-11)."""
        view = self._head(warn=True)
        return {tp: view.find_partition(tp).read_limit(self.isolation) for tp in self._existing(view, partitions)}

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
        view = self._head()
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
        """How many offsets each assigned partition is behind its :meth:`end <end_offsets>` (LSO-13). One GET.

        For ``read_committed`` that is the LSO: records that wait behind an open transaction are not counted, but in
        :attr:`blocked`.
        """
        view = self._poller.caught_up(self._head(warn=True))
        self._put_back()
        return self._poller.all_or_nothing(
            lambda: {tp: self._lag(view, self._positions.assigned[tp]) for tp in self._existing(view, ())}
        )

    def _lag(self, view: View, part: Assignment) -> int:
        end = view.find_partition(part.tp).read_limit(self.isolation)
        return max(0, end - self._positions.locate(view, part).position)

    def blocked(self) -> tuple[BlockedPartition, ...]:
        """The assigned partitions in which committed records wait for an open transaction, as of the last request.

        A poll that finds nothing warns of them (:class:`BlockedReadWarning`). Empty for ``read_uncommitted``.
        """
        self._open()
        return self._poller.blocked(self._connection.view(refresh=False))

    # Inside -----------------------------------------------------------------------------------------------------------

    def _head(self, *, warn: bool = False) -> View:
        """A view at the heads of all chains, without abandoned transactions that block the assigned partitions."""
        self._open()
        view = self._poller.unblocked(self._connection.view())
        if warn:
            warn_blocked(self._connection, self._poller.blocked(view))
        return view

    def _assigned(self, partition: Pair) -> Assignment:
        self._open()
        tp = TopicPartition(*check_pair(partition))
        if tp not in self._positions.assigned:
            known = ", ".join(map(str, self.assignment())) or "no partition"
            msg = f"this consumer does not read {tp}; it reads {known}"
            raise InvalidConfigError(msg)
        return self._positions.assigned[tp]

    def _named(self, partitions: Iterable[Partitions]) -> list[TopicPartition]:
        return [tp for item in partitions for tp in _flat(item)] or self.assignment()

    def _existing(self, view: View, partitions: tuple[Partitions, ...]) -> list[TopicPartition]:
        """These partitions; by default all assigned ones that are not deleted."""
        return (
            self._named(partitions)
            if partitions
            else [tp for tp in self.assignment() if view.partition(tp) is not None]
        )

    def _these(self, partitions: Iterable[Partitions]) -> list[Assignment]:
        self._open()
        return [self._assigned(tp) for tp in self._named(partitions)]

    def _group(self, what: str) -> ConsumerGroup:
        if self._shared is None:
            msg = f"a consumer without a group cannot {what}: create it with group=..."
            raise InvalidConfigError(msg)
        return self._shared


def _flat(partitions: object) -> list[TopicPartition]:
    """One partition, given as a pair, or several."""
    one = isinstance(partitions, tuple) and len(partitions) == 2 and isinstance(partitions[0], str)
    if one or isinstance(partitions, str | bytes) or not isinstance(partitions, Iterable):
        return [TopicPartition(*check_pair(partitions))]
    return [TopicPartition(*check_pair(item)) for item in partitions]
