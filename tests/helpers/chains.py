"""Several chains: of the pure core, each step by hand with every check; and of stores that have no threads."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from typing import Any

from tests.harness.executors import InlineExecutor, never
from tests.helpers.connections import connection_of
from tests.helpers.core import check_entry
from tests.helpers.keys import FixedRuntime
from txnstore.core.catalog.model import CatalogTopic, CloseTopic, CopyTopic, CreateTopic, DeleteTopic
from txnstore.core.decide import decide
from txnstore.core.events import Event
from txnstore.core.groups.commands import TxnOffsets
from txnstore.core.invariants.check import check_view
from txnstore.core.log.commands import Added, Append
from txnstore.core.log.model import NewBatch, Segment
from txnstore.core.model import Command, Outcome, ProducerIdentity, TopicPartition
from txnstore.core.routes import chains_of
from txnstore.core.routing import chain_of_group, chain_of_partition, chain_of_transactional_id
from txnstore.core.state import State, begin_entry, first_state
from txnstore.core.transactions.commands import (
    CompleteTxn,
    DecidedTransaction,
    Ended,
    EndTxn,
    InitProducer,
    WriteMarkers,
)
from txnstore.core.view import View
from txnstore.producer import Producer
from txnstore.read.plan import IsolationLevel
from txnstore.storage.base import ObjectStore
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import ManualClock

_PROCESSES = itertools.count()


class Cluster:
    """The states of several chains with one topic ``t`` that all of them know; each command is an entry of its own."""

    def __init__(self, chains: int = 2, partitions: int = 4) -> None:
        self.states = [first_state(number, chains) for number in range(chains)]
        self.now = 1_000
        self._segments = itertools.count()
        self.name = ""
        self.identity = ProducerIdentity()
        self.decided: DecidedTransaction | None = None
        topic: CatalogTopic = self.do(0, CreateTopic(CatalogTopic("t", "t-id", partitions)))
        for number in range(1, chains):
            self.do(number, CopyTopic("t", topic, topic.revision))

    def do(self, number: int, *commands: Command) -> Any:
        """Decide commands in one entry of a chain; the answer to the last. Every invariant holds before and after."""
        self.now += 1
        before = self.states[number]
        state, result = begin_entry(before, self.now), None
        events: list[Event] = []
        for command in commands:
            decision = decide(state, command)
            state, result = decision.state, decision.result
            events += decision.events
        if events:
            self.states[number] = state
            check_entry(before, self.now, events, state)
        return result

    def delete(self, name: str) -> None:
        """Delete a topic in the catalog, closed in the other chains before; the deletion is not copied to them."""
        for number in range(1, len(self.states)):
            self.do(number, CloseTopic(name, self.states[0].topics[name].revision))
        self.do(0, DeleteTopic(name))

    def view(self) -> View:
        """All of it."""
        return View(tuple(self.states))

    def sound(self) -> None:
        """Nothing is wrong, alone or together."""
        assert check_view(self.view()) == []

    def home(self, number: int) -> str:
        """A transactional id that this chain coordinates."""
        names = (f"id-{count}" for count in itertools.count())
        return next(name for name in names if chain_of_transactional_id(name, len(self.states)) == number)

    def led_by(self, number: int) -> list[TopicPartition]:
        """The partitions of ``t`` that this chain leads."""
        partitions = (TopicPartition("t", place) for place in range(self.states[0].topics["t"].partitions))
        return [tp for tp in partitions if chain_of_partition(tp, len(self.states)) == number]

    def batch(self, tp: TopicPartition, sequence: int = 0, records: int = 1) -> NewBatch:
        """A batch that is uploaded."""
        key = f"topics/{tp.topic}/{tp.partition}/{next(self._segments):06}.parquet"
        return NewBatch(tp.topic, tp.partition, Segment(key, "parquet", 10, "0" * 64, records), 7, 8, sequence)

    # The steps of a transaction ---------------------------------------------------------------------------------------

    def begin(self, name: str, *, groups: dict[int, TxnOffsets] | None = None) -> None:
        """Init, then one batch in the first partition of every chain, and offsets where asked for."""
        self.name = name
        home = chain_of_transactional_id(name, len(self.states))
        self.identity = self.do(home, InitProducer(name))
        self.send([self.led_by(number)[0] for number in range(len(self.states))], groups=groups or {})

    def send(self, tps: list[TopicPartition], sequence: int = 0, groups: dict[int, TxnOffsets] | None = None) -> Added:
        """AddPartitions and AddOffsets in the coordinator's chain, then the batches and offsets in their own."""
        home = chain_of_transactional_id(self.name, len(self.states))
        names = tuple(offsets.group for offsets in (groups or {}).values())
        own = tuple(self.batch(tp, sequence) for tp in tps if tp in self.led_by(home))
        mine = tuple(offsets for number, offsets in (groups or {}).items() if number == home)
        self.do(home, Append(self.identity, own, mine, tuple(tps), names))
        added = Added(home, self.states[home].sequence, self.states[home].timestamp)
        for number in range(len(self.states)):
            batches = tuple(self.batch(tp, sequence) for tp in tps if tp in self.led_by(number))
            offsets = tuple(item for chain, item in (groups or {}).items() if chain == number)
            if number != home and (batches or offsets):
                self.do(number, Append(self.identity, batches, offsets, added=added))
        return added

    def prepare(self, outcome: Outcome = Outcome.COMMIT) -> Ended:
        """The decision, with the markers of the coordinator's own chain."""
        home = chain_of_transactional_id(self.name, len(self.states))
        after = tuple((state.chain, state.sequence) for state in self.states if state.chain != home)
        ended = self.do(home, EndTxn(self.identity, outcome, after=after))
        assert isinstance(ended, Ended)
        self.decided = ended.unfinished
        return ended

    def mark(self, number: int) -> None:
        """The markers in one chain."""
        assert self.decided is not None
        home = chain_of_transactional_id(self.name, len(self.states))
        self.do(number, WriteMarkers(self.decided, (home, self.states[home].sequence)))

    def complete(self) -> None:
        """The completion, after all markers."""
        assert self.decided is not None
        home = chain_of_transactional_id(self.name, len(self.states))
        after = tuple((state.chain, state.sequence) for state in self.states if state.chain != home)
        self.do(home, CompleteTxn(self.decided, after))

    def finish(self) -> None:
        """All markers, then the completion."""
        assert self.decided is not None
        home = chain_of_transactional_id(self.name, len(self.states))
        for number in sorted(chains_of(self.decided, len(self.states)) - {home}):
            self.mark(number)
        self.complete()

    def state(self, number: int) -> State:
        return self.states[number]


# The shell ------------------------------------------------------------------------------------------------------------


def process(
    objects: ObjectStore,
    clock: Callable[[], int],
    *,
    chains: int | None = None,
    background: Callable[[], Executor] = InlineExecutor,
    sleep: Callable[[float], None] = lambda _: None,
) -> Store:
    """A process of its own on a store: without threads, so that its requests come in one order.

    ``chains``: create the store first. ``background``: what finishes transactions after their commit has returned.
    """
    rng = random.Random(f"chains/{next(_PROCESSES)}")
    runtime = FixedRuntime(clock, sleep, rng, InlineExecutor, background, spawn=never)
    counted = CountingStore(objects, log=True)
    return open_on(counted, runtime=runtime) if chains is None else create_on(counted, chains, runtime=runtime)


def shared_topic(clock: ManualClock, chains: int = 3, partitions: int = 6) -> MemoryStore:
    """The storage of a store whose chains share the partitions of topic ``t``."""
    objects = MemoryStore(clock=clock)
    process(objects, clock, chains=chains).create_topic("t", partitions=partitions)
    return objects


def sound_store(clock: ManualClock, chains: int, partitions: int = 6) -> Iterator[Store]:
    """For a fixture: a store with topic ``t``, whose invariants are checked after the test."""
    store = process(MemoryStore(clock=clock), clock, chains=chains)
    store.create_topic("t", partitions=partitions)
    yield store
    assert check_view(connection_of(store).view()) == []


def write_everywhere(producer: Producer, value: bytes, topic: str = "t", partitions: int = 6) -> None:
    """One record in each partition, in the open transaction."""
    for number in range(partitions):
        producer.send(topic, value, partition=number)


def value_counts(store: Store, topic: str = "t", isolation: IsolationLevel = "read_committed") -> dict[bytes, int]:
    """In how many records of one snapshot each value is."""
    values = store.scan(topic, isolation).to_table()["value"].to_pylist()
    return {value: values.count(value) for value in sorted(set(values))}


def ids_of(store: Store, chain: int, place: int = 0) -> str:
    """A transactional id that a chain coordinates; another one for each ``place``."""
    count = len(connection_of(store).chains)
    names = (f"id-{number}" for number in itertools.count())
    own = (name for name in names if chain_of_transactional_id(name, count) == chain)
    return next(itertools.islice(own, place, None))


def groups_of(store: Store, chain: int) -> str:
    """A group that a chain coordinates."""
    names = (f"group-{count}" for count in itertools.count())
    return next(name for name in names if chain_of_group(name, len(connection_of(store).chains)) == chain)


def partitions_of(store: Store, chain: int, topic: str = "t") -> list[int]:
    """The partitions of a topic that a chain leads."""
    count = store.topic(topic).partitions
    return [
        number
        for number in range(count)
        if chain_of_partition(TopicPartition(topic, number), len(connection_of(store).chains)) == chain
    ]
