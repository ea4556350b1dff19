"""Fetch sessions (KIP-227): a client names its partitions once, and then only what changes.

A session is advice between one client and one gateway: any gateway may forget it, and the client begins another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias
from uuid import UUID

from kio.schema.errors import ErrorCode

from txnstore.core.authorization.rights import Right
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Partition
from txnstore.core.model import Isolation, TopicPartition
from txnstore.core.view import View
from txnstore.gateway.errors import RefusedError
from txnstore.gateway.freshness import Freshness, Watch
from txnstore.gateway.wire import Request, field_value
from txnstore.validation import MAX_NAME_LENGTH

#: The most sessions, and the most partitions in all of them: about 90 MB, and 150 MB for what they watch.
MAX_SESSIONS, MAX_PARTITIONS = 5_000, 200_000
#: Seconds after which a session that is not used makes room for another one.
UNUSED = 120.0
#: The last version of Fetch that names topics by their names.
LAST_BY_NAME = 12
#: The epochs of requests that begin a session, and that have none, or end it.
_INITIAL, _FINAL = 0, -1
_MAX_EPOCH = 2**31 - 1

#: A partition as requests name it: its topic by name, or by id (None: of all zeros), and its number.
PartitionKey: TypeAlias = tuple[str | UUID | None, int]


@dataclass(slots=True)
class SessionPartition:
    """A partition of a session.

    Attributes:
        requested: What the client asks for, as in its request.
        known_offsets: The high watermark, last stable offset and log start that the client knows; None: none of them.
    """

    requested: Any
    known_offsets: tuple[int, int, int] | None = None

    def has_nothing_new(self, log: Partition, isolation: Isolation) -> bool:
        """Whether the client knows the offsets of a log, and has read it to its end."""
        return (
            self.known_offsets == (log.high_watermark, log.last_stable_offset, log.log_start)
            and log.read_limit(isolation) <= self.requested.fetch_offset <= log.high_watermark
        )


@dataclass(frozen=True, slots=True)
class RequestedPartition:
    """A partition to read, with its topic, or the error that refuses it.

    Attributes:
        key: How the request names it.
        session: What a session knows of it; None: the request has none.
    """

    key: PartitionKey
    tp: TopicPartition
    topic: CatalogTopic | None
    offset: int
    max_bytes: int
    session: SessionPartition | None = None
    error: Exception | None = None


@dataclass(slots=True, eq=False)
class Reading:
    """The partitions that a request reads, and which of them it must look at.

    A session keeps it from one request to the next that changes nothing: a consumer that waits costs the same whatever
    the number of its partitions.

    Attributes:
        catalog: The topics by which the partitions were found.
        right: To read these topics.
        number: Which reading of its session it is: an older one is not kept.
        has_errors: Whether a partition was refused.
    """

    partitions: Sequence[RequestedPartition]
    catalog: Mapping[str, CatalogTopic]
    isolation: Isolation
    right: Right
    number: int
    has_errors: bool = field(init=False)
    #: The partitions that are not known to have nothing new; with a watch also those that it says.
    _pending: set[TopicPartition] = field(default_factory=set)
    _watch: Watch | None = None

    def __post_init__(self) -> None:
        self.has_errors = any(partition.error is not None for partition in self.partitions)

    def due(self) -> Sequence[RequestedPartition]:
        """The partitions to look at, in a view that is read after this call."""
        if self._watch is None:
            self._pending = {partition.tp for partition in self.partitions}
            return self.partitions
        self._pending |= self._watch.take()
        if not self._pending:
            return ()
        return [partition for partition in self.partitions if partition.tp in self._pending]

    def has_nothing_new(self, tp: TopicPartition) -> None:
        """Look at a partition again only when it has changed."""
        self._pending.discard(tp)

    async def wait_for_change(self, freshness: Freshness, view: View, seconds: float) -> bool:
        """Wait until a partition differs from that in the view that was read; False after ``seconds``."""
        if self._watch is None:
            self._watch = freshness.watch([partition.tp for partition in self.partitions], view)
        return await self._watch.wait(seconds)

    def close(self) -> None:
        """Watch no partition any longer."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None


@dataclass(slots=True, eq=False)
class FetchSession:
    """The partitions that a client fetches, in the order in which they are read.

    Attributes:
        number: Its id; never 0.
        epoch: That of its next request.
        used_at: When it was last used, in seconds.
        is_full: Whether the response to the request under way names all partitions, as the first one does.
    """

    number: int
    uses_ids: bool
    used_at: float
    epoch: int = 1
    is_full: bool = True
    partitions: dict[PartitionKey, SessionPartition] = field(default_factory=dict)
    #: The reading of the last request, for the next one; None while a request uses it, and after a change.
    _reading: Reading | None = None
    #: The readings that the session had.
    _readings: int = 0
    _is_ended: bool = False

    def new_reading_number(self) -> int:
        """The number of a reading that a request begins; no earlier one is kept any longer."""
        self._readings += 1
        return self._readings

    def take_reading(self) -> Reading | None:
        """Return the reading that was kept; it is the caller's to keep again, or to close."""
        reading, self._reading = self._reading, None
        return reading

    def keep_reading(self, reading: Reading) -> None:
        """Keep a reading for the next request, or close it if that needs another one."""
        if self._is_ended or reading.number != self._readings or reading.has_errors:
            reading.close()
        else:
            self._reading = reading

    def end(self) -> None:
        """Let go of what the session keeps."""
        self._is_ended = True
        self._drop_reading()

    def _drop_reading(self) -> None:
        if (reading := self.take_reading()) is not None:
            reading.close()

    def change(self, body: Any) -> None:
        """Add, change and forget the partitions that a request names."""
        changed = [*named_partitions(body.topics)]
        forgotten = [*named_partitions(field_value(body, "forgotten_topics_data", ()))]
        if changed or forgotten:
            self._drop_reading()
            self._readings += 1  # One that another request uses now is not kept.
        for key, requested in changed:
            existing = self.partitions.get(key)
            self.partitions[key] = SessionPartition(requested, None if existing is None else existing.known_offsets)
        for key, _ in forgotten:
            self.partitions.pop(key, None)

    def read_last(self, key: PartitionKey) -> None:
        """Read a partition after all others from now on: it had records, and they may have some, too."""
        partition = self.partitions.pop(key, None)
        if partition is not None:
            self.partitions[key] = partition


def named_partitions(topics: Any) -> Iterator[tuple[PartitionKey, Any]]:
    """Yield the partitions of a part of a request, with what it says of each."""
    for topic in topics:
        name = field_value(topic, "topic")
        name_or_id = name if name is not None else field_value(topic, "topic_id")
        for partition in topic.partitions:
            number = partition if isinstance(partition, int) else partition.partition
            yield (name_or_id, int(number)), partition


def _has_long_name(body: Any) -> bool:
    """Whether a request has a name that no topic can have, and that would stay in the memory of the gateway."""
    return any(len(field_value(topic, "topic") or "") > MAX_NAME_LENGTH for topic in body.topics)


class FetchSessions:
    """The sessions of a gateway.

    Args:
        clock: Returns the time in seconds.
        draw: Returns a random number from 1 to 2³¹ - 1, the id of a session.
    """

    def __init__(self, clock: Callable[[], float], draw: Callable[[], int]) -> None:
        self._clock, self._draw = clock, draw
        #: By id, the least recently used first.
        self._sessions: dict[int, FetchSession] = {}
        self._partition_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def of(self, request: Request) -> FetchSession | None:
        """Return the session of a request, which has changed it; None: the request has none, and names all partitions.

        Raises:
            RefusedError: It refers to a session, or a state of it, that does not exist.
        """
        body, uses_ids = request.body, request.version > LAST_BY_NAME
        number, epoch = field_value(body, "session_id", 0), field_value(body, "session_epoch", _FINAL)
        if epoch in (_INITIAL, _FINAL):
            self._remove(number)
            return self._created(body, uses_ids=uses_ids) if epoch == _INITIAL else None
        session = self._sessions.get(number)
        if session is None:
            raise RefusedError(ErrorCode.fetch_session_id_not_found, f"there is no fetch session {number}")
        if session.epoch != epoch:
            message = f"fetch session {number} is at epoch {session.epoch}, not {epoch}"
            raise RefusedError(ErrorCode.invalid_fetch_session_epoch, message)
        if session.uses_ids != uses_ids:
            message = f"fetch session {number} names topics in another way"
            raise RefusedError(ErrorCode.fetch_session_topic_id_error, message)
        before = len(session.partitions)
        session.change(body)
        self._partition_count += len(session.partitions) - before
        if self._partition_count > MAX_PARTITIONS or _has_long_name(body):
            # The client names them all again, and continues without a session.
            self._remove(number)
            raise RefusedError(ErrorCode.fetch_session_id_not_found, f"fetch session {number} is too large")
        session.epoch = epoch % _MAX_EPOCH + 1
        session.is_full, session.used_at = False, self._clock()
        self._sessions[number] = self._sessions.pop(number)
        if not session.partitions:
            self._remove(number)
            return None
        return session

    def _created(self, body: Any, *, uses_ids: bool) -> FetchSession | None:
        """Begin a session; None if there is no room for it, or it has no partitions, or names that no topic has."""
        count = sum(len(topic.partitions) for topic in body.topics)
        now = self._clock()
        if not 0 < count <= MAX_PARTITIONS or _has_long_name(body):
            return None
        while self._sessions and not self._has_room(count):
            oldest = next(iter(self._sessions.values()))
            if now - oldest.used_at <= UNUSED:
                break
            self._remove(oldest.number)
        if not self._has_room(count):
            return None
        number = self._draw()
        while number in self._sessions:
            number = self._draw()
        session = self._sessions[number] = FetchSession(number, uses_ids, now)
        session.change(body)
        self._partition_count += len(session.partitions)
        return session

    def _has_room(self, partitions: int) -> bool:
        return len(self._sessions) < MAX_SESSIONS and self._partition_count + partitions <= MAX_PARTITIONS

    def _remove(self, number: int) -> None:
        session = self._sessions.pop(number, None)
        if session is not None:
            session.end()
            self._partition_count -= len(session.partitions)
