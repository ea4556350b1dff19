"""The state of a chain, composed of the values of all subjects, and the draft of the entry that is being decided.

A state is the fold of the events of all entries up to ``sequence``. It is immutable: after a conflict the commands are
decided again from the newer state. Its maps are persistent, so the cost of an event depends on what it changes, not on
the size of the state.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

from txnstore.core.authorization.model import ANONYMOUS
from txnstore.core.authorization.rules import NO_AUTHORIZATION, Authorization
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.groups.model import Group
from txnstore.core.log.model import Partition
from txnstore.core.model import (
    NO_FEATURES,
    NO_PRODUCER,
    EntrySpan,
    Features,
    Fence,
    Map,
    TopicPartition,
    sorted_items,
    value_class,
)
from txnstore.core.routing import chain_of_group, chain_of_partition, chain_of_producer, first_producer_id
from txnstore.core.transactions.model import Transaction
from txnstore.errors import InvalidConfigError

if TYPE_CHECKING:
    from dataclasses import replace as replace  # noqa: PLC0414 - exported
else:

    def replace(value: Any, **changes: Any) -> Any:
        """Copy a dataclass with changes, as :func:`dataclasses.replace` does, in a small part of its time.

        Every event that is folded makes several copies. The class must have no ``__post_init__``.
        """
        if not hasattr(value, "__dict__"):
            return dataclasses.replace(value, **changes)
        changed = object.__new__(type(value))
        changed.__dict__.update(value.__dict__, **changes)
        return changed


@dataclass(frozen=True)
class State:
    """The state of a chain after entry ``sequence``.

    Attributes:
        chain: The number of the chain.
        chains: The number of chains of the store.
        sequence: The sequence number of the last folded entry; 0 before the first entry.
        entry_hash: The SHA-256 of the last folded entry.
        timestamp: The time of the last folded entry, in ms; it never decreases.
        next_producer_id: The next producer id that the chain grants.
        next_commit_position: The commit position of the next committed offset (OFF-11).
        topics: The catalog; outside of chain 0 copies of the topics that the chain needs.
        alike: The names of these topics by what SQL, file systems and Kafka's metrics see of them (:func:`folded`):
            an index of ``topics``, by which a new name is compared with all others.
        partitions: The partition logs that the chain leads.
        transactions: The transaction table, by transactional id.
        transactional_ids: The transactional id of each producer id that has one, current or earlier.
        groups: The groups that the chain coordinates.
        dropped: The objects that no batch may name: their only batch was removed, or a vacuum has announced to delete
            them; and the time of that, in ms (:mod:`txnstore.core.log.released`).
        released: The objects with several batches of which some were removed, and the time of the last removal, in ms.
        released_entries: The same of entries with inlined segments, as spans, by time.
        seen: For each other chain the last entry that this state follows from; a cut is closed if it includes them.
        deleted: Outside of chain 0: topics that are deleted or being deleted, with the newest revision concerned. A
            copy with this revision or an older one takes no records (:meth:`is_closed`).
        fences: The fences of producers of other chains, by producer id (:mod:`txnstore.core.fences`).
        requires: The features of the format that the chain uses from some entry on.
        authorization: Who may do what; in chain 0 only.
    """

    chain: int = 0
    chains: int = 1
    sequence: int = 0
    entry_hash: str = ""
    timestamp: int = 0
    next_producer_id: int = 0
    next_commit_position: int = 0
    topics: Map[str, CatalogTopic] = field(default_factory=Map)
    alike: Map[str, tuple[str, ...]] = field(default_factory=Map)
    partitions: Map[TopicPartition, Partition] = field(default_factory=Map)
    transactions: Map[str, Transaction] = field(default_factory=Map)
    transactional_ids: Map[int, str] = field(default_factory=Map)
    groups: Map[str, Group] = field(default_factory=Map)
    dropped: Map[str, int] = field(default_factory=Map)
    released: Map[str, int] = field(default_factory=Map)
    released_entries: tuple[EntrySpan, ...] = ()
    seen: Map[int, int] = field(default_factory=Map)
    deleted: Map[str, int] = field(default_factory=Map)
    fences: Map[int, Fence] = field(default_factory=Map)
    requires: Features = NO_FEATURES
    authorization: Authorization = NO_AUTHORIZATION

    @property
    def journal_watermark(self) -> int:
        """The entry in which the earliest transaction began that is open or not completed; else the next entry.

        As the last stable offset of a partition, it advances when the earliest transaction is completed. A look at
        each transactional id.
        """
        open_from = (txn.first_entry for txn in self.transactions.values() if txn.started_at is not None)
        return min(open_from, default=self.sequence + 1)

    def is_closed(self, topic: CatalogTopic) -> bool:
        """Whether a topic is being deleted: it takes no records, and can be read until the catalog has deleted it."""
        return self.deleted.get(topic.name, -1) >= topic.revision

    def partition(self, tp: TopicPartition) -> Partition | None:
        """Return the partition log, or None if the chain has no such partition."""
        return self.partitions.get(tp)

    def sorted_topics(self) -> list[CatalogTopic]:
        """Return the topics, sorted by name."""
        return [topic for _, topic in sorted_items(self.topics)]

    def partitions_of(self, topic: str) -> Iterator[tuple[TopicPartition, Partition]]:
        """Return the partitions of a topic in order."""
        for number in range(self.topics[topic].partitions):
            tp = TopicPartition(topic, number)
            yield tp, self.partitions[tp]


def first_state(chain: int = 0, chains: int = 1) -> State:
    """Return the state of a chain before its first entry."""
    return State(chain=chain, chains=chains, next_producer_id=first_producer_id(chain))


def begin_entry(state: State, now: int, requires: Features = NO_FEATURES) -> State:
    """Return the state inside the next entry: with its sequence, its time, and the features that it adds.

    Args:
        state: The state after the last entry.
        now: The time of the writer in ms; an entry is never older than the one before it.
        requires: The features that the entry names.
    """
    if requires != NO_FEATURES:
        state = replace(state, requires=state.requires.union(requires))
    return replace(state, sequence=state.sequence + 1, timestamp=max(now, state.timestamp))


E = TypeVar("E")
#: The state after an event of one class.
Fold: TypeAlias = Callable[[State, E], State]
#: The state after consecutive events of one class: that after the first one, the second one, and so on.
RunFold: TypeAlias = Callable[[State, Sequence[E]], State]


class Folds(NamedTuple):
    """The fold of each class of event.

    Attributes:
        single: Of a class that is folded event by event.
        together: Of a class of which consecutive events are folded in one step: the entry of a transaction has one
            batch and one marker per partition.
    """

    single: dict[type, Fold[Any]]
    together: dict[type, RunFold[Any]]

    def state_after(self, state: State, events: Sequence[Any]) -> State:
        """Fold the events, one after the other."""
        for kind, run in groupby(events, type):
            fold_run = self.together.get(kind)
            if fold_run is not None:
                state = fold_run(state, tuple(run))
            else:
                for event in run:
                    state = self.single[kind](state, event)
        return state


#: The folds that are declared so far; ``txnstore.core.evolve`` has those of all events.
DECLARED_FOLDS = Folds({}, {})


def fold(kind: type[E]) -> Callable[[Fold[E]], Fold[E]]:
    """Declare the fold of a class of events, at its function, which is returned unchanged."""

    def declare(function: Fold[E]) -> Fold[E]:
        _check_new(kind)
        DECLARED_FOLDS.single[kind] = function
        return function

    return declare


def fold_together(kind: type[E]) -> Callable[[RunFold[E]], RunFold[E]]:
    """Declare the fold of consecutive events of a class, at its function, which is returned unchanged."""

    def declare(function: RunFold[E]) -> RunFold[E]:
        _check_new(kind)
        DECLARED_FOLDS.together[kind] = function
        return function

    return declare


def _check_new(kind: type) -> None:
    if kind in DECLARED_FOLDS.single or kind in DECLARED_FOLDS.together:
        msg = f"{kind.__name__} has a fold already"
        raise TypeError(msg)


class Draft:
    """The entry that is being decided: its events so far, and the state after them.

    Each event is folded immediately, so that the next check sees its effect. ``folds`` is
    :data:`txnstore.core.evolve.FOLDS`; it is passed in because its modules depend on this one. ``principal`` is who
    asks for the command.
    """

    __slots__ = ("_folds", "events", "principal", "state")

    def __init__(self, state: State, folds: Folds, principal: str = ANONYMOUS) -> None:
        self.state = state
        self.principal = principal
        self.events: list[Any] = []
        self._folds = folds

    def emit(self, *events: object) -> None:
        """Add events and fold them."""
        self.record(*events)
        self.fold(*events)

    def record(self, *events: object) -> None:
        """Add events, to be folded by the caller: in one step with later ones."""
        self.events += events

    def fold(self, *events: object) -> None:
        """Fold recorded events."""
        self.state = self._folds.state_after(self.state, events)

    def require(self, features: Features) -> None:
        """Require features of the format from this entry of the chain on."""
        self.state = replace(self.state, requires=self.state.requires.union(features))


# Among several chains -------------------------------------------------------------------------------------------------


@value_class(kw_only=True)
class Observed:
    """The following events of this chain were decided after entry ``sequence`` of another one, and may rest on it."""

    type: Literal["Observed"] = "Observed"
    chain: int
    sequence: int


@value_class(kw_only=True)
class UnknownEvent:
    """An event of a later release, which no feature that readers must know covers: it changes nothing here."""

    type: Literal["UnknownEvent"] = "UnknownEvent"
    name: str


@fold(UnknownEvent)
def _ignore_unknown(state: State, _: UnknownEvent) -> State:
    return state


@fold(Observed)
def _fold_observed(state: State, event: Observed) -> State:
    check_observed(state, event.chain, event.sequence)
    return replace(state, seen=state.seen.insert(event.chain, max(event.sequence, state.seen.get(event.chain, 0))))


def observe(draft: Draft, after: tuple[tuple[int, int], ...]) -> None:
    """Make this entry follow from entries of other chains, which a reader of this chain must have read."""
    for chain, sequence in after:
        if chain != draft.state.chain and draft.state.seen.get(chain, 0) < sequence:
            check_observed(draft.state, chain, sequence)
            draft.emit(Observed(chain=chain, sequence=sequence))


def check_observed(state: State, chain: int, sequence: int) -> None:
    """Check that an entry that the state rests on may be one of another chain of the store.

    Raises:
        InvalidConfigError: It is not.
    """
    if not 0 <= chain < state.chains:
        msg = f"an entry of chain {chain} is named, but the store has chains 0 to {state.chains - 1}"
        raise InvalidConfigError(msg)
    if chain == state.chain:
        msg = f"entry {sequence} of chain {chain} is named as one of another chain, but it is of this one"
        raise InvalidConfigError(msg)
    if sequence < 1:
        msg = f"entry {sequence} of chain {chain} is named, but the first entry of a chain is 1"
        raise InvalidConfigError(msg)


def leads_partition(state: State, tp: TopicPartition) -> bool:
    """Whether the chain of the state leads the partition."""
    return state.chains == 1 or chain_of_partition(tp, state.chains) == state.chain


def leads_group(state: State, group: str) -> bool:
    """Whether the chain of the state coordinates the group."""
    return state.chains == 1 or chain_of_group(group, state.chains) == state.chain


def is_foreign(state: State, producer_id: int) -> bool:
    """Whether another chain granted the producer id and coordinates its transactions."""
    return state.chains > 1 and producer_id != NO_PRODUCER and chain_of_producer(producer_id) != state.chain
