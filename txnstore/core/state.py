"""The state of a chain, composed of the subjects' values, and the draft of the entry that is being decided.

A state is the fold of the events of all entries up to ``sequence``. It is immutable: a commit that loses its race drops
the state that it had prepared. Its maps are persistent (they share what did not change), so an event costs what it
touches, not what exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from txnstore.core.catalog.model import Topic
from txnstore.core.groups.model import Group
from txnstore.core.log.model import Partition
from txnstore.core.model import Fence, Map, TopicPartition
from txnstore.core.routing import chain_of_group, chain_of_partition, first_producer_id
from txnstore.core.transactions.model import Transaction


@dataclass(frozen=True, slots=True)
class State:
    """The state of a chain after entry ``sequence``: the fold of the events of entries 1 … ``sequence``.

    ``chain`` is its number, of ``chains`` in the store. ``seen``: of each other chain the last entry that this state
    follows from; a cut over all chains is consistent if it goes at least as far. ``deleted``, in a chain that has only
    copies of the catalog: topics that are deleted, or being deleted, and the newest revision that this concerns. No
    copy of at most that revision takes anything (:meth:`is_closed`). ``fences``: by producer id, for producers of other
    chains (:mod:`txnstore.core.fences`).
    """

    chain: int = 0
    chains: int = 1
    sequence: int = 0
    entry_hash: str = ""
    timestamp: int = 0
    next_producer_id: int = 0
    next_offset_position: int = 0
    topics: Map[str, Topic] = field(default_factory=Map)
    partitions: Map[TopicPartition, Partition] = field(default_factory=Map)
    transactions: Map[str, Transaction] = field(default_factory=Map)
    transactional_ids: Map[int, str] = field(default_factory=Map)
    groups: Map[str, Group] = field(default_factory=Map)
    dropped: Map[str, int] = field(default_factory=Map)
    seen: Map[int, int] = field(default_factory=Map)
    deleted: Map[str, int] = field(default_factory=Map)
    fences: Map[int, Fence] = field(default_factory=Map)

    def is_closed(self, topic: Topic) -> bool:
        """Whether a topic is being deleted: its records can be read until the catalog has deleted it."""
        return self.deleted.get(topic.name, -1) >= topic.revision

    def partition(self, tp: TopicPartition) -> Partition | None:
        """The partition log, or None if there is no such partition."""
        return self.partitions.get(tp)

    def sorted_topics(self) -> list[Topic]:
        """The topics by name."""
        return sorted(self.topics.values(), key=lambda topic: topic.name)

    def partitions_of(self, topic: str) -> Iterator[tuple[TopicPartition, Partition]]:
        """The partitions of a topic in order."""
        for number in range(self.topics[topic].partitions):
            tp = TopicPartition(topic, number)
            yield tp, self.partitions[tp]


def first_state(chain: int = 0, chains: int = 1) -> State:
    """The state of a chain before its first entry."""
    return State(chain=chain, chains=chains, next_producer_id=first_producer_id(chain))


def begin_entry(state: State, now: int) -> State:
    """The state in which the events of the next entry are folded: its number and its time, which never goes back."""
    return replace(state, sequence=state.sequence + 1, timestamp=max(now, state.timestamp))


#: How a class of event changes a state.
Fold = Callable[[State, Any], State]


class Draft:
    """The entry that is being decided: its events so far, and the state that they lead to.

    Each event is folded immediately, so that the next rule sees what the last one decided. ``folds``: how each class of
    event changes a state (:data:`txnstore.core.evolve.FOLDS`).
    """

    __slots__ = ("_folds", "events", "state")

    def __init__(self, state: State, folds: Mapping[type, Fold]) -> None:
        self.state = state
        self.events: list[Any] = []
        self._folds = folds

    def emit(self, event: object) -> None:
        """Add an event."""
        self.events.append(event)
        self.state = self._folds[type(event)](self.state, event)


def leads_partition(state: State, tp: TopicPartition) -> bool:
    """Whether this is the chain of the partition."""
    return chain_of_partition(tp, state.chains) == state.chain


def leads_group(state: State, group: str) -> bool:
    """Whether this is the chain of the group."""
    return chain_of_group(group, state.chains) == state.chain
