"""The history of a transactional id, step by step, from the entries of all chains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from txnstore.core.events import Event
from txnstore.core.expiration import TransactionalIdExpired
from txnstore.core.groups.events import GroupMarkerWritten
from txnstore.core.log.events import MarkerWritten, ProducerFenced
from txnstore.core.model import NO_PRODUCER, Outcome, TopicPartition
from txnstore.core.ordering import Observed
from txnstore.core.transactions.events import (
    OffsetsAdded,
    PartitionsAdded,
    ProducerInitialized,
    TxnCompleted,
    TxnHeld,
    TxnPrepared,
)


@dataclass(frozen=True, slots=True)
class Happened:
    """An entry of a chain, as far as a history needs it."""

    chain: int
    sequence: int
    timestamp: int
    writer_id: str
    events: Sequence[Event]


@dataclass(frozen=True, slots=True)
class TransactionStep:
    """One step, in entry ``entry`` of chain ``chain``, at ``timestamp`` ms of that chain, by the writer ``writer_id``.

    ``step``: INIT, BEGIN, ADD_PARTITIONS, ADD_OFFSETS, PREPARED (for an outside coordinator), PREPARE_COMMIT or
    PREPARE_ABORT, COMMIT(PID) or ABORT(PID) (the markers in a chain), COMMITTED or ABORTED, FENCED, EXPIRED. ``epoch``
    is that of the transaction, with INIT the one that was granted, with FENCED the one that is refused from now on.
    """

    step: str
    chain: int
    entry: int
    timestamp: int
    writer_id: str
    producer_id: int
    epoch: int
    partitions: tuple[TopicPartition, ...] = ()
    groups: tuple[str, ...] = ()


def steps_of(transactional_id: str, chains: Mapping[int, Sequence[Happened]]) -> list[TransactionStep]:
    """The steps of an id in these entries; ``chains``: of each chain some neighbouring entries in order."""
    producer_ids = {
        producer_id
        for entries in chains.values()
        for entry in entries
        for event in entry.events
        for producer_id in _producer_ids(event, transactional_id)
    }
    teller = _Teller(transactional_id, producer_ids)
    return [step for entry in in_order(chains) for step in teller.tell(entry)]


def in_order(chains: Mapping[int, Sequence[Happened]]) -> Iterator[Happened]:
    """The entries by time, but each after those of other chains that it rests on: their clocks may differ."""
    left = {chain: list(reversed(entries)) for chain, entries in chains.items() if entries}
    while left:
        free = [chain for chain, entries in left.items() if _is_free(entries[-1], left)]
        # A chain rests on entries that were there before it; so there is always one, unless the chains are damaged.
        chain = min(free or left, key=lambda number: (left[number][-1].timestamp, number))
        yield left[chain].pop()
        if not left[chain]:
            del left[chain]


def _is_free(entry: Happened, left: Mapping[int, Sequence[Happened]]) -> bool:
    return not any(
        isinstance(event, Observed) and event.chain in left and left[event.chain][-1].sequence <= event.sequence
        for event in entry.events
    )


def _producer_ids(event: Event, transactional_id: str) -> tuple[int, ...]:
    """The producer ids that the event says are the id's."""
    if getattr(event, "transactional_id", None) != transactional_id:
        return ()
    if isinstance(event, TransactionalIdExpired):
        return tuple(event.producer_ids)
    found = [getattr(event, name, NO_PRODUCER) for name in ("producer_id", "next_producer_id")]
    return tuple(producer_id for producer_id in found if producer_id != NO_PRODUCER)


class _Teller:
    """Tells entry by entry; remembers who the producer is, and whether its transaction has begun."""

    def __init__(self, transactional_id: str, producer_ids: set[int]) -> None:
        self._id = transactional_id
        self._producer_ids = producer_ids
        #: The identity that is granted, and has begun nothing yet. None: the window does not tell.
        self._idle: tuple[int, int] | None = None
        self._current: tuple[int, int] | None = None

    def tell(self, entry: Happened) -> Iterator[TransactionStep]:
        markers: list[MarkerWritten | GroupMarkerWritten] = []
        for event in entry.events:
            if isinstance(event, MarkerWritten | GroupMarkerWritten):
                if event.producer_id in self._producer_ids:
                    if markers and _kind(markers[-1]) != _kind(event):
                        yield _markers(entry, markers)
                        markers = []
                    markers.append(event)
                continue
            if markers:
                yield _markers(entry, markers)
                markers = []
            yield from self._told(entry, event)
        if markers:
            yield _markers(entry, markers)

    def _told(self, entry: Happened, event: Event) -> Iterator[TransactionStep]:
        if isinstance(event, ProducerFenced):
            if event.producer_id in self._producer_ids:
                old, where = (event.producer_id, event.epoch - 1), tuple(event.partitions)
                yield _step("FENCED", entry, old, where, tuple(event.groups))
            return
        if getattr(event, "transactional_id", None) != self._id:
            return
        match event:
            case ProducerInitialized():
                yield from self._initialized(entry, event)
            case PartitionsAdded():
                yield from self._begun(entry, (event.producer_id, event.epoch))
                yield _step("ADD_PARTITIONS", entry, (event.producer_id, event.epoch), tuple(event.partitions))
            case OffsetsAdded():
                yield from self._begun(entry, (event.producer_id, event.epoch))
                yield _step("ADD_OFFSETS", entry, (event.producer_id, event.epoch), (), (event.group,))
            case TxnHeld():
                yield _step("PREPARED", entry, (event.producer_id, event.epoch))
            case TxnPrepared():
                yield _step(f"PREPARE_{event.outcome.value}", entry, (event.producer_id, event.epoch))
            case TxnCompleted():
                name = "COMMITTED" if event.outcome is Outcome.COMMIT else "ABORTED"
                yield _step(name, entry, (event.producer_id, event.epoch))
                self._idle = self._current = (event.next_producer_id, event.next_epoch)
            case TransactionalIdExpired():
                yield _step("EXPIRED", entry, self._current or (max(event.producer_ids), NO_PRODUCER))
                self._idle = self._current = None

    def _initialized(self, entry: Happened, event: ProducerInitialized) -> Iterator[TransactionStep]:
        granted = (event.producer_id, event.epoch)
        before = self._current or ((event.producer_id, event.epoch - 1) if event.epoch else None)
        asked = event.last_epoch != NO_PRODUCER  # Its own holder wanted another epoch, and fenced nobody.
        if before is not None and before != granted and not asked:
            yield _step("FENCED", entry, before)
        yield _step("INIT", entry, granted)
        self._current = granted
        if not event.keeps:
            self._idle = granted

    def _begun(self, entry: Happened, identity: tuple[int, int]) -> Iterator[TransactionStep]:
        self._current = identity
        if self._idle == identity:
            yield _step("BEGIN", entry, identity)
        self._idle = None


def _kind(event: MarkerWritten | GroupMarkerWritten) -> tuple[int, int, Outcome]:
    return event.producer_id, event.epoch, event.outcome


def _markers(entry: Happened, events: Sequence[MarkerWritten | GroupMarkerWritten]) -> TransactionStep:
    """The markers of a transaction in a chain; they carry the epoch after it."""
    producer_id, epoch, outcome = _kind(events[0])
    partitions = tuple(
        TopicPartition(event.topic, event.partition) for event in events if isinstance(event, MarkerWritten)
    )
    groups = tuple(event.group for event in events if isinstance(event, GroupMarkerWritten))
    return _step(f"{outcome.value}(PID)", entry, (producer_id, epoch - 1), partitions, groups)


def _step(
    name: str,
    entry: Happened,
    identity: tuple[int, int],
    partitions: tuple[TopicPartition, ...] = (),
    groups: tuple[str, ...] = (),
) -> TransactionStep:
    producer_id, epoch = identity
    return TransactionStep(
        name, entry.chain, entry.sequence, entry.timestamp, entry.writer_id, producer_id, epoch, partitions, groups
    )
