"""The history of a transactional id: its steps in the entries of all chains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, repeat
from operator import itemgetter

from txnstore.core.events import Event
from txnstore.core.expiration import TransactionalIdExpired
from txnstore.core.groups.events import GroupMarkerWritten
from txnstore.core.log.events import MarkerWritten, ProducerFenced
from txnstore.core.model import NO_PRODUCER, Outcome, TopicPartition, value_class
from txnstore.core.state import Observed
from txnstore.core.transactions.events import (
    OffsetsAdded,
    PartitionsAdded,
    ProducerInitialized,
    TxnCompleted,
    TxnDecided,
    TxnPrepared,
)


@value_class()
class HistoryEntry:
    """An entry of a chain with the fields that a history needs. ``timestamp`` is in ms; ``principals``: who asked."""

    chain: int
    sequence: int
    timestamp: int
    writer_id: str
    events: Sequence[Event]
    principals: Sequence[tuple[str, int]] | None = None


@dataclass(frozen=True, slots=True)
class TransactionStep:
    """A step of a transactional id.

    Attributes:
        step: INIT, BEGIN, ADD_PARTITIONS, ADD_OFFSETS, PREPARED (for an external coordinator), PREPARE_COMMIT or
            PREPARE_ABORT, COMMIT(PID) or ABORT(PID) (the markers in a chain), COMMITTED or ABORTED, FENCED, EXPIRED.
        chain: The chain of the entry.
        entry: The sequence number of the entry.
        timestamp: The time of the entry in ms.
        writer_id: The process that wrote the entry.
        producer_id: The producer id of the transaction.
        epoch: The epoch of the transaction; of INIT the granted one, of FENCED the newest one that is refused.
        partitions: The partitions that the step concerns.
        groups: The groups that the step concerns.
        principal: Who asked for it; None: the store did not check rights then.
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
    principal: str | None = None


def principals_of_events(principals: Sequence[tuple[str, int]] | None) -> Iterator[str | None]:
    """Yield the principal of each event of an entry, without end; None where the entry does not name one."""
    for principal, events in principals or ():
        yield from repeat(principal, events)
    yield from repeat(None)


def steps_of(transactional_id: str, chains: Mapping[int, Sequence[HistoryEntry]]) -> list[TransactionStep]:
    """The steps of a transactional id.

    Args:
        chains: For each chain a contiguous range of its entries, in order.
    """
    producer_ids = {
        producer_id
        for entries in chains.values()
        for entry in entries
        for event in entry.events
        for producer_id in _producer_ids(event, transactional_id)
    }
    builder = _StepBuilder(transactional_id, producer_ids)
    return [step for entry in causal_order(chains) for step in builder.steps(entry)]


def causal_order(chains: Mapping[int, Sequence[HistoryEntry]]) -> Iterator[HistoryEntry]:
    """Return the entries by time, each after the entries of other chains that it follows from (``Observed``).

    Time alone does not order them, because the clocks of the writers differ.
    """
    left_by_chain = {chain: list(reversed(entries)) for chain, entries in chains.items() if entries}
    while left_by_chain:
        ready_chains = [chain for chain, entries in left_by_chain.items() if _is_ready(entries[-1], left_by_chain)]
        # An entry follows from earlier entries only, so one is always ready unless the chains are damaged.
        chain = min(ready_chains or left_by_chain, key=lambda number: (left_by_chain[number][-1].timestamp, number))
        yield left_by_chain[chain].pop()
        if not left_by_chain[chain]:
            del left_by_chain[chain]


def _is_ready(entry: HistoryEntry, left_by_chain: Mapping[int, Sequence[HistoryEntry]]) -> bool:
    """Whether all entries that this one has observed in other chains come before it."""
    return not any(
        isinstance(event, Observed)
        and event.chain in left_by_chain
        and left_by_chain[event.chain][-1].sequence <= event.sequence
        for event in entry.events
    )


def _producer_ids(event: Event, transactional_id: str) -> tuple[int, ...]:
    """The producer ids that the event maps to the transactional id."""
    if getattr(event, "transactional_id", None) != transactional_id:
        return ()
    if isinstance(event, TransactionalIdExpired):
        return tuple(event.producer_ids)
    values = [getattr(event, name, NO_PRODUCER) for name in ("producer_id", "next_producer_id")]
    return tuple(producer_id for producer_id in values if producer_id != NO_PRODUCER)


class _StepBuilder:
    """Builds steps from entries; keeps the current identity, and whether its transaction has begun."""

    def __init__(self, transactional_id: str, producer_ids: set[int]) -> None:
        self._id = transactional_id
        self._producer_ids = producer_ids
        #: The granted (producer id, epoch) that has not begun a transaction. None: not known from these entries.
        self._idle_identity: tuple[int, int] | None = None
        self._current_identity: tuple[int, int] | None = None

    def steps(self, entry: HistoryEntry) -> Iterator[TransactionStep]:
        """Yield the steps in an entry, each with its principal."""
        events_with_principal = zip(principals_of_events(entry.principals), entry.events, strict=False)
        for principal, run in groupby(events_with_principal, itemgetter(0)):
            for step in self._steps_of_run(entry, [event for _, event in run]):
                yield replace(step, principal=principal)

    def _steps_of_run(self, entry: HistoryEntry, events: Sequence[Event]) -> Iterator[TransactionStep]:
        """Yield the steps of some events of an entry; neighbouring markers of one transaction are one step."""
        markers: list[MarkerWritten | GroupMarkerWritten] = []
        for event in events:
            if isinstance(event, MarkerWritten | GroupMarkerWritten):
                if event.producer_id in self._producer_ids:
                    if markers and _end_of(markers[-1]) != _end_of(event):
                        yield _marker_step(entry, markers)
                        markers = []
                    markers.append(event)
                continue
            if markers:
                yield _marker_step(entry, markers)
                markers = []
            yield from self._steps_of_event(entry, event)
        if markers:
            yield _marker_step(entry, markers)

    def _steps_of_event(self, entry: HistoryEntry, event: Event) -> Iterator[TransactionStep]:
        """Yield the step of an event, after that of the begin of its transaction if it is the first one."""
        if isinstance(event, ProducerFenced):
            if event.producer_id in self._producer_ids:
                old_identity = (event.producer_id, event.epoch - 1)
                partitions = tuple(event.partitions)
                yield _make_step("FENCED", entry, old_identity, partitions, tuple(event.groups))
            return
        if getattr(event, "transactional_id", None) != self._id:
            return
        match event:
            case ProducerInitialized():
                yield from self._init_step(entry, event)
            case PartitionsAdded():
                yield from self._first_step(entry, (event.producer_id, event.epoch))
                yield _make_step("ADD_PARTITIONS", entry, (event.producer_id, event.epoch), tuple(event.partitions))
            case OffsetsAdded():
                yield from self._first_step(entry, (event.producer_id, event.epoch))
                yield _make_step("ADD_OFFSETS", entry, (event.producer_id, event.epoch), (), (event.group,))
            case TxnPrepared():
                yield _make_step("PREPARED", entry, (event.producer_id, event.epoch))
            case TxnDecided():
                yield _make_step(f"PREPARE_{event.outcome.value}", entry, (event.producer_id, event.epoch))
            case TxnCompleted():
                name = "COMMITTED" if event.outcome is Outcome.COMMIT else "ABORTED"
                yield _make_step(name, entry, (event.producer_id, event.epoch))
                self._idle_identity = self._current_identity = (event.next_producer_id, event.next_epoch)
            case TransactionalIdExpired():
                yield _make_step("EXPIRED", entry, self._current_identity or (max(event.producer_ids), NO_PRODUCER))
                self._idle_identity = self._current_identity = None

    def _init_step(self, entry: HistoryEntry, event: ProducerInitialized) -> Iterator[TransactionStep]:
        """Yield INIT, after FENCED if the producer had another identity that it did not give up itself."""
        granted_identity = (event.producer_id, event.epoch)
        earlier_identity = self._current_identity
        if earlier_identity is None and event.epoch:
            earlier_identity = (event.producer_id, event.epoch - 1)
        # The current instance bumped its own epoch (KIP-360): no fencing.
        is_own_bump = event.last_epoch != NO_PRODUCER
        if earlier_identity is not None and earlier_identity != granted_identity and not is_own_bump:
            yield _make_step("FENCED", entry, earlier_identity)
        yield _make_step("INIT", entry, granted_identity)
        self._current_identity = granted_identity
        if not event.keeps:
            self._idle_identity = granted_identity

    def _first_step(self, entry: HistoryEntry, identity: tuple[int, int]) -> Iterator[TransactionStep]:
        self._current_identity = identity
        if self._idle_identity == identity:
            yield _make_step("BEGIN", entry, identity)
        self._idle_identity = None


def _end_of(event: MarkerWritten | GroupMarkerWritten) -> tuple[int, int, Outcome]:
    """The end of a transaction that a marker is of: producer id, epoch after it, and outcome."""
    return event.producer_id, event.epoch, event.outcome


def _marker_step(entry: HistoryEntry, events: Sequence[MarkerWritten | GroupMarkerWritten]) -> TransactionStep:
    """Build the step of a transaction's markers in a chain; a marker carries the epoch of its transaction plus 1."""
    producer_id, epoch, outcome = _end_of(events[0])
    partitions = tuple(
        TopicPartition(event.topic, event.partition) for event in events if isinstance(event, MarkerWritten)
    )
    groups = tuple(event.group for event in events if isinstance(event, GroupMarkerWritten))
    return _make_step(f"{outcome.value}(PID)", entry, (producer_id, epoch - 1), partitions, groups)


def _make_step(
    name: str,
    entry: HistoryEntry,
    identity: tuple[int, int],
    partitions: tuple[TopicPartition, ...] = (),
    groups: tuple[str, ...] = (),
) -> TransactionStep:
    producer_id, epoch = identity
    return TransactionStep(
        name, entry.chain, entry.sequence, entry.timestamp, entry.writer_id, producer_id, epoch, partitions, groups
    )
