"""The format of a history: the requests and observations of clients.

A history is a list of events, one JSON object per line. An operation is an ``invoke`` event and, unless its process was
killed, one event of the same process with its outcome: ``ok`` (it happened), ``fail`` (it certainly did not),
``info`` (the outcome is unknown). Between them may be a ``committing`` event: from then on the transaction may be
committed. An operation that never ended is ``info``. A process does one operation at a time, and a new client is a new
process.

A *key* is a partition as ``topic-number``. Every value that is sent is unique in its key. ``time`` is any number that
grows for all processes alike: nanoseconds of the machine's monotonic clock, or the steps of a simulation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

Value = int | str
#: Records of one key, each as its offset and its value, in the order in which they were read.
Records = tuple[tuple[int, Value], ...]


class Type(StrEnum):
    """The types of an event. An operation as a whole is OK, FAIL or INFO."""

    INVOKE = "invoke"
    COMMITTING = "committing"
    OK = "ok"
    FAIL = "fail"
    INFO = "info"


@dataclass(frozen=True, slots=True)
class Send:
    """A record sent. ``offset``: its offset, if known. ``record_key``: the key for log compaction.

    ``source``: the key and offset of the record that it was made of, in a consume-transform-produce job.
    """

    key: str
    value: Value
    offset: int | None = None
    source: tuple[str, int] | None = None
    record_key: str | None = None


@dataclass(frozen=True, slots=True)
class Poll:
    """Records read, by key. A job that reads before it begins its transaction may name them when it is invoked."""

    records: Mapping[str, Records] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Offsets:
    """Positions of a group that go with the operation: the *next* offset to read, by key."""

    group: str
    offsets: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Assign:
    """The keys that a consumer reads from here on; it keeps its position in those it had, except in ``moved``."""

    keys: tuple[str, ...]
    moved: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Bounds:
    """The ends of a key that one reader observed."""

    log_start: int
    lso: int
    hw: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The content of some keys, and of some groups, in one state.

    ``records``: all committed records of a key below its LSO; keys that are not in it were not read. ``unstable``: the
    groups of which an open transaction holds offsets.
    """

    bounds: Mapping[str, Bounds]
    records: Mapping[str, Records] = field(default_factory=dict)
    groups: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    unstable: tuple[str, ...] = ()


MicroOp = Send | Poll | Offsets | Assign | Snapshot


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a history.

    ``f``: the kind of operation: ``init``, ``send``, ``poll``, ``txn``, ``assign``, ``subscribe``, ``snapshot``, or
    a name that the checker ignores. ``transactional_id``, ``producer_id`` and ``epoch``: of the transaction; of an
    ``init`` those that were granted. ``isolation``: of its polls. ``rebalanced``: keys that changed hands during the
    operation. ``final``: it belongs to the last phase, after all faults. ``error``: a text for people.
    """

    process: str
    type: Type
    f: str
    time: int
    value: tuple[MicroOp, ...] = ()
    transactional_id: str | None = None
    producer_id: int | None = None
    epoch: int | None = None
    isolation: str = "read_committed"
    rebalanced: tuple[str, ...] = ()
    final: bool = False
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision read from the chains afterwards: an initialised producer, or the outcome of a transaction.

    ``what``: ``init``, ``commit`` or ``abort``. ``position``: of its entry in the chain of its coordinator, which
    orders all decisions about one transactional id. ``epoch`` is the one that the client held.
    """

    what: str
    transactional_id: str
    producer_id: int
    epoch: int
    position: int


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation from its beginning to its end. ``completed`` and ``committing`` are times, None if never reached."""

    index: int
    process: str
    type: Type
    f: str
    value: tuple[MicroOp, ...]
    invoked: int
    completed: int | None = None
    committing: int | None = None
    transactional_id: str | None = None
    producer_id: int | None = None
    epoch: int | None = None
    isolation: str = "read_committed"
    rebalanced: frozenset[str] = frozenset()
    final: bool = False
    error: str | None = None

    @property
    def sends(self) -> list[Send]:
        """Its records sent, in order."""
        return [item for item in self.value if isinstance(item, Send)]

    @property
    def reads(self) -> list[tuple[str, int, Value]]:
        """Key, offset and value of the records that it polled, in order."""
        return [
            (key, offset, value)
            for item in self.value
            if isinstance(item, Poll)
            for key, records in item.records.items()
            for offset, value in records
        ]

    @property
    def snapshots(self) -> list[Snapshot]:
        """Its snapshots; one, if any."""
        return [item for item in self.value if isinstance(item, Snapshot)]

    @property
    def committed_reads(self) -> bool:
        """Whether its polls were to see committed records only."""
        return self.isolation == "read_committed"

    def __str__(self) -> str:
        name = f" of {self.transactional_id!r}, epoch {self.epoch}" if self.transactional_id else ""
        return f"operation {self.index} ({self.process}: {self.f}{name}, {self.type})"


@dataclass(frozen=True, slots=True)
class History:
    """Operations in the order of their invocation, and the decisions of the chains, if known.

    ``compacted``: keys under log compaction, where only the last record of each record key has to stay.
    """

    operations: tuple[Operation, ...]
    decisions: tuple[Decision, ...] | None = None
    compacted: frozenset[str] = frozenset()


def history_of(
    events: Iterable[Event], decisions: Iterable[Decision] | None = None, compacted: Iterable[str] = ()
) -> History:
    """The history of these events: each invocation with its end, by time. Events of one process come in order."""
    operations = sorted(_operations(events), key=lambda pair: pair[0].time)
    return History(
        tuple(_joined(index, *pair) for index, pair in enumerate(operations)),
        None if decisions is None else tuple(decisions),
        frozenset(compacted),
    )


_Pair = tuple[Event, Event | None, int | None]


def _operations(events: Iterable[Event]) -> Iterator[_Pair]:
    """Invocation, end and time of committing of each operation."""
    running: dict[str, tuple[Event, int | None]] = {}
    for event in events:
        began = running.pop(event.process, None)
        if event.type is Type.INVOKE:
            if began is not None:
                yield began[0], None, began[1]
            running[event.process] = (event, None)
        elif began is None:
            msg = f"process {event.process} ends an operation that it did not begin: {event}"
            raise ValueError(msg)
        elif event.type is Type.COMMITTING:
            running[event.process] = (began[0], event.time)
        else:
            yield began[0], event, began[1]
    for began in running.values():
        yield began[0], None, began[1]


def _joined(index: int, begin: Event, end: Event | None, committing: int | None) -> Operation:
    """A field of the end replaces that of the beginning, if it is set."""
    last = end or begin
    return Operation(
        index=index,
        process=begin.process,
        type=end.type if end is not None else Type.INFO,
        f=begin.f,
        value=last.value or begin.value,
        invoked=begin.time,
        completed=end.time if end is not None else None,
        committing=committing,
        transactional_id=last.transactional_id or begin.transactional_id,
        producer_id=last.producer_id if last.producer_id is not None else begin.producer_id,
        epoch=last.epoch if last.epoch is not None else begin.epoch,
        isolation=begin.isolation,
        rebalanced=frozenset({*begin.rebalanced, *last.rebalanced}),
        final=begin.final,
        error=last.error,
    )
