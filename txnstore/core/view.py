"""The view of all chains of a store, which readers use.

The states are a closed cut: each state includes the entries that the others follow from (``State.seen``). A reader
therefore never sees a marker without its decision, nor a decision without its batches. A decided transaction counts as
ended before its markers are written, so readers see a transaction as a whole or not at all, in all partitions of all
chains (``docs/internals/design/chains.md``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Generic, TypeVar

from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.groups.fold import end_pending_offsets, existing_offsets
from txnstore.core.groups.model import Group
from txnstore.core.log.model import AbortedTxn, Partition
from txnstore.core.model import Outcome, TopicPartition, items_of
from txnstore.core.routing import (
    CATALOG,
    chain_of_group,
    chain_of_partition,
    chain_of_producer,
    chain_of_transactional_id,
)
from txnstore.core.state import State
from txnstore.core.transactions.model import DECIDED, Transaction
from txnstore.errors import UnknownTopicOrPartitionError
from txnstore.validation import nearest

K = TypeVar("K")
V = TypeVar("V")


class View:
    """A closed cut over all chains, with the read attributes of a :class:`~txnstore.core.state.State`.

    Args:
        states: One state per chain, in order of the chains.
    """

    def __init__(self, states: tuple[State, ...]) -> None:
        self.states = states
        self.chains = len(states)

    @cached_property
    def topics(self) -> Mapping[str, CatalogTopic]:
        """The catalog."""
        return self.states[CATALOG].topics

    @property
    def sequence(self) -> int:
        """The number of entries in all chains together."""
        return sum(state.sequence for state in self.states)

    @property
    def timestamp(self) -> int:
        """The time of the newest entry, in ms."""
        return max(state.timestamp for state in self.states)

    @cached_property
    def partitions(self) -> Mapping[TopicPartition, Partition]:
        """The partition logs; decided transactions count as ended."""
        if self.chains == 1:
            return self.states[0].partitions
        return _Partitions(self)

    @cached_property
    def open_partitions(self) -> Sequence[TopicPartition]:
        """The partitions with open transactions, behind which committed records may wait (LSO-01)."""
        return [tp for tp, log in items_of(self.partitions) if log.open_txns]

    @cached_property
    def transactions(self) -> Mapping[str, Transaction]:
        """The transactions by transactional id."""
        return self._route_maps([state.transactions for state in self.states], chain_of_transactional_id)

    @cached_property
    def transactional_ids(self) -> Mapping[int, str]:
        """The transactional id of each producer id that has one."""
        return self._route_maps(
            [state.transactional_ids for state in self.states], lambda key, _: chain_of_producer(key)
        )

    @cached_property
    def groups(self) -> Mapping[str, Group]:
        """The groups; decided transactions count as ended, and deleted topics have no offsets."""
        if self.chains == 1:
            return self.states[0].groups
        return _Groups(self)

    @cached_property
    def removals(self) -> Mapping[str, int]:
        """The objects that batches were removed from or a vacuum has announced, and when this was last, in ms."""
        times: dict[str, int] = {}
        for state in self.states:
            for key, removed_at in (*items_of(state.released), *items_of(state.dropped)):
                times[key] = max(removed_at, times.get(key, removed_at))
        return times

    def _route_maps(self, maps: list[Mapping[K, V]], chain_of: Callable[[K, int], int]) -> Mapping[K, V]:
        return maps[0] if self.chains == 1 else _Routed(maps, chain_of)

    def find_topic(self, name: str) -> CatalogTopic:
        """Return the topic.

        Raises:
            UnknownTopicOrPartitionError: The topic does not exist; the message lists existing ones.
        """
        topic = self.topics.get(str(name)) if isinstance(name, str) else None
        if topic is None:
            names = ", ".join(sorted(self.topics)[:10]) or "none"
            more_text = ", …" if len(self.topics) > 10 else ""
            msg = f"there is no topic {name!r}; the store has {names}{more_text}{nearest(name, self.topics)}"
            raise UnknownTopicOrPartitionError(msg)
        return topic

    def find_partition(self, tp: TopicPartition) -> Partition:
        """Return the partition log; decided transactions count as ended.

        Raises:
            UnknownTopicOrPartitionError: The partition does not exist.
        """
        topic = self.find_topic(tp.topic)
        log = self.partitions.get(tp)
        if log is None:
            known_numbers = f"0 to {topic.partitions - 1}"
            msg = f"topic {tp.topic!r} has no partition {tp.partition!r}: its partitions are {known_numbers}"
            raise UnknownTopicOrPartitionError(msg)
        return log

    def partition(self, tp: TopicPartition) -> Partition | None:
        """Return the partition log, or None if it does not exist; decided transactions count as ended."""
        return self.partitions.get(tp)

    def log(self, tp: TopicPartition) -> Partition | None:
        """Return the partition log in the state of its chain, or None; a transaction is open until its marker."""
        topic = self.topics.get(tp.topic)
        if topic is None or not 0 <= tp.partition < topic.partitions:
            return None
        state = self.states[chain_of_partition(tp, self.chains)]
        copy = state.topics.get(tp.topic)
        log = state.partitions.get(tp) if copy is not None and copy.topic_id == topic.topic_id else None
        return log if log is not None else Partition()

    def sorted_topics(self) -> list[CatalogTopic]:
        """The topics, sorted by name."""
        return self.states[CATALOG].sorted_topics()

    def partitions_of(self, topic: str) -> Iterator[tuple[TopicPartition, Partition]]:
        """The partitions of a topic in order."""
        for number in range(self.topics[topic].partitions):
            tp = TopicPartition(topic, number)
            yield tp, self.partitions[tp]

    def owner(self, producer_id: int) -> Transaction | None:
        """Return the transaction whose current producer id this is, or None."""
        coordinator = chain_of_producer(producer_id)
        if not 0 <= coordinator < self.chains:
            return None
        state = self.states[coordinator]
        txn = state.transactions.get(state.transactional_ids.get(producer_id, ""))
        return txn if txn is not None and txn.producer_id == producer_id else None

    def with_decided_ended(self, partition: Partition) -> Partition:
        """Return the log in which decided transactions count as ended, also before their markers are written."""
        open_txns, aborted = partition.open_txns, partition.aborted
        for producer_id, first_offset in sorted(partition.open_txns.items()):
            txn = self.owner(producer_id)
            if txn is None or txn.state not in DECIDED:
                continue
            open_txns = open_txns.remove(producer_id)
            if DECIDED[txn.state] is Outcome.ABORT:
                # The marker is not written yet: all of the log may have data of the transaction.
                last_offset = partition.high_watermark - 1
                aborted = (*aborted, AbortedTxn(producer_id, first_offset, last_offset, partition.last_stable_offset))
        if open_txns is partition.open_txns:
            return partition
        return replace(partition, open_txns=open_txns, aborted=aborted)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, View) and self.states == other.states

    def __hash__(self) -> int:
        return hash(tuple((state.chain, state.entry_hash) for state in self.states))

    def __repr__(self) -> str:
        return f"View({', '.join(f'{state.chain}: {state.sequence}' for state in self.states)})"


class _Routed(Mapping[K, V], Generic[K, V]):
    """The maps of all chains as one map; ``chain_of`` gives the chain of a key."""

    def __init__(self, maps: list[Mapping[K, V]], chain_of: Callable[[K, int], int]) -> None:
        self._maps = maps
        self._chain_of = chain_of

    def __getitem__(self, key: K) -> V:
        chain = self._chain_of(key, len(self._maps))
        if not 0 <= chain < len(self._maps):
            raise KeyError(key)
        return self._maps[chain][key]

    def __iter__(self) -> Iterator[K]:
        for values in self._maps:
            yield from values

    def __len__(self) -> int:
        return sum(len(values) for values in self._maps)


class _Partitions(Mapping[TopicPartition, Partition]):
    """The partition logs of the topics of the catalog, each looked up in its chain on first use.

    A transaction that is decided counts as ended in each of them, also where its marker is not written yet.
    """

    def __init__(self, view: View) -> None:
        self._view = view
        #: The logs that were looked up.
        self._logs: dict[TopicPartition, Partition] = {}

    def __getitem__(self, tp: TopicPartition) -> Partition:
        known_log = self._logs.get(tp)
        if known_log is not None:
            return known_log
        log = self._view.log(tp)
        if log is None:
            raise KeyError(tp)
        self._logs[tp] = self._view.with_decided_ended(log) if log.open_txns else log
        return self._logs[tp]

    def __iter__(self) -> Iterator[TopicPartition]:
        for topic in self._view.topics.values():
            for number in range(topic.partitions):
                yield TopicPartition(topic.name, number)

    def __len__(self) -> int:
        return sum(topic.partitions for topic in self._view.topics.values())


class _Groups(Mapping[str, Group]):
    """The groups of all chains, each computed on first use.

    Pending offsets of decided transactions are applied or removed. Offsets of deleted topics are left out: the chain of
    a group does not learn of each deletion (OFF-18).
    """

    def __init__(self, view: View) -> None:
        self._view = view
        self._by_key: dict[str, Group] = {}

    def __getitem__(self, name: str) -> Group:
        existing_group = self._by_key.get(name)
        if existing_group is None:
            group = self._view.states[chain_of_group(name, self._view.chains)].groups[name]
            for producer_id in sorted(group.pending):
                txn = self._view.owner(producer_id)
                if txn is not None and txn.state in DECIDED:
                    group = end_pending_offsets(group, producer_id, txn.epoch + 1, DECIDED[txn.state])
            existing_group = self._by_key[name] = existing_offsets(group, self._view.topics)
        return existing_group

    def __iter__(self) -> Iterator[str]:
        for state in self._view.states:
            yield from state.groups

    def __len__(self) -> int:
        return sum(len(state.groups) for state in self._view.states)
