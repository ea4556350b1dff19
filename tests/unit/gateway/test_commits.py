"""The order of the commands that a gateway commits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from tests.helpers.chains import process
from tests.helpers.connections import connection_of
from tests.helpers.sessions import inlined
from txnstore.connection import Connection
from txnstore.core.catalog.model import CatalogTopic, CreateTopic
from txnstore.core.log.commands import Append
from txnstore.core.model import Command, Outcome, ProducerIdentity, TopicPartition
from txnstore.core.routing import chain_of_partition, chain_of_producer
from txnstore.core.transactions.commands import EndTxn, InitProducer
from txnstore.gateway.commits import Commits
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.testing import ManualClock

PARTITIONS = [TopicPartition("t", number) for number in range(6)]
PLAIN, IN_TXN = ProducerIdentity(), ProducerIdentity(7, 0, "a")


def batches(tp: TopicPartition, count: int, producer: ProducerIdentity = PLAIN) -> list[Command]:
    """Appends of one record each, in order."""
    numbered = producer.producer_id >= 0
    return [Append(producer, (inlined(tp, number if numbered else -1, str(number)),)) for number in range(count)]


class Recorder:
    """A connection that commits when a test lets it."""

    def __init__(self, chains: int) -> None:
        self.chains = range(chains)
        self.taken: list[list[Command]] = []
        self.release = threading.Semaphore(0)

    def view(self, *, refresh: bool) -> None:
        """Nothing to read."""

    def submit_all(self, asked: Sequence[tuple[Command, str | None]]) -> list[Any]:
        self.taken.append([command for command, _ in asked])
        assert self.release.acquire(timeout=30)
        return [None] * len(asked)


def taken(chains: int, commands: list[Command]) -> tuple[int, list[list[int]]]:
    """How many commits begin at once, if the commands are given one after the other, and which ones each commit has."""
    connection = Recorder(chains)

    async def main() -> int:
        with ThreadPoolExecutor(8) as threads:
            commits = Commits(cast("Connection", connection), threads, lambda: None)
            first = [commits.submit(command, None) for command in commands[:1]]
            await asyncio.sleep(0)
            futures = [*first, *(commits.submit(command, None) for command in commands[1:])]
            await asyncio.sleep(0)
            at_once = commits.commits
            connection.release.release(len(commands))
            await asyncio.gather(*futures)
            return at_once

    at_once = asyncio.run(main())
    places = {id(command): place for place, command in enumerate(commands)}
    return at_once, sorted([places[id(command)] for command in some] for some in connection.taken)


@pytest.mark.parametrize("producer", [PLAIN, IN_TXN], ids=["plain", "transaction"])
@pytest.mark.parametrize("chains", [1, 3])
def test_batches_of_a_partition_keep_their_order(chains: int, producer: ProducerIdentity) -> None:
    assert taken(chains, batches(PARTITIONS[0], 4, producer)) == (1, [[0], [1, 2, 3]])


def test_several_chains_take_their_batches_at_the_same_time() -> None:
    here = PARTITIONS[0]
    there = next(tp for tp in PARTITIONS if chain_of_partition(tp, 3) != chain_of_partition(here, 3))
    (one, two), (three, four) = batches(here, 2), batches(there, 2)
    assert taken(3, [one, three, two, four]) == (2, [[0], [1, 3], [2]])
    assert taken(3, [InitProducer("a"), one, InitProducer("a")]) == (3, [[0], [1], [2]])


@pytest.mark.parametrize("chains", [1, 3])
def test_batches_of_a_chain_share_an_entry(chains: int) -> None:
    """Also those of a topic that the chain does not know yet, and one that is refused is refused alone."""
    clock = ManualClock()
    store = process(MemoryStore(clock=clock), clock, chains=chains)
    connection = connection_of(store)
    connection.chains[0].submit(CreateTopic(CatalogTopic("t", "t-id", 6)))
    for tp in PARTITIONS:
        unknown = TopicPartition("t", 6 + tp.partition)
        commands = [*batches(tp, 3), *batches(unknown, 1), *batches(tp, 3)]
        before = connection.view().sequence
        answers = connection.submit_all([(command, None) for command in commands])
        assert [each[0].base_offset for each in answers if isinstance(each, tuple)] == [*range(6)]
        assert type(answers[3]).__name__ == "UnknownTopicOrPartitionError"
        if tp.partition == 5:
            assert connection.view().sequence == before + 1


def test_batches_of_a_transaction_go_to_all_chains_at_the_same_time() -> None:
    """Two steps, whatever their number: the coordinator's chain adds the partitions, then all others take theirs."""
    clock, objects = ManualClock(), CountingStore(MemoryStore(), log=True)
    store = process(objects, clock, chains=3)
    connection = connection_of(store)
    store.create_topic("t", partitions=6)
    producer = connection.submit(InitProducer("a"))
    commands = [Append(producer, (inlined(tp, number, "v"),)) for tp in PARTITIONS for number in range(3)]

    def entries() -> int:
        requests, _ = objects.log, objects.reset()
        return sum(kind == "put_if_absent" for kind, _ in requests)

    entries()
    connection.submit_all([(command, None) for command in commands])
    other = {chain_of_partition(tp, 3) for tp in PARTITIONS} - {chain_of_producer(producer.producer_id)}
    assert entries() == 1 + len(other) == 3
    again = connection.submit_all([(command, None) for command in commands])
    assert [each[0].base_offset for each in again] == [0, 1, 2] * 6
    assert all(each[0].duplicate for each in again)


def test_a_batch_of_a_transaction_is_refused_alone() -> None:
    clock = ManualClock()
    store = process(MemoryStore(clock=clock), clock, chains=3)
    connection = connection_of(store)
    store.create_topic("t", partitions=6)
    producer = connection.submit(InitProducer("a"))
    appends = [Append(producer, (inlined(tp, 0, "v"),)) for tp in PARTITIONS]
    appends[2:2] = [Append(producer, (inlined(PARTITIONS[0], 7, "after a gap"),))]
    answers = connection.submit_all([(append, None) for append in appends])
    assert type(answers.pop(2)).__name__ == "OutOfOrderSequenceError"
    assert [answer[0].base_offset for answer in answers] == [0] * 6
    connection.submit(EndTxn(producer, Outcome.COMMIT))
    view = connection.view()
    assert [view.partitions[tp].high_watermark for tp in PARTITIONS] == [2] * 6  # A record and a marker.


def test_a_flush_waits_only_for_the_commands_before_it() -> None:
    """Where commands come as fast as they are committed, some always wait."""
    connection = Recorder(3)

    async def main() -> int:
        ended = 0
        with ThreadPoolExecutor(32) as threads:
            commits = Commits(cast("Connection", connection), threads, lambda: None)
            pending = {commits.submit(InitProducer("a"), None) for _ in range(40)}
            await asyncio.sleep(0)
            waiting = asyncio.create_task(commits.wait_until_taken())
            while not waiting.done() and ended < 20:
                connection.release.release()
                done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                ended += len(done)
                pending |= {commits.submit(InitProducer("a"), None) for _ in done}
                await asyncio.sleep(0)
            connection.release.release(len(pending))
            await asyncio.gather(*pending)
            await waiting
        return ended

    assert asyncio.run(main()) <= 10


def test_an_unexpected_error_is_that_of_its_command_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in the batches of a transaction: those before it were appended, and their answers say so."""
    clock = ManualClock()
    store = process(MemoryStore(clock=clock), clock, chains=3)
    connection = connection_of(store)
    store.create_topic("t", partitions=6)
    first, second = (connection.submit(InitProducer(name)) for name in ("a", "b"))
    appends = [Append(producer, (inlined(tp, 0, "v"),)) for producer in (first, second) for tp in PARTITIONS[:2]]
    submit = connection.coordinator.submit

    def failing(command: Command) -> Any:
        if isinstance(command, Append) and command.producer == second and command.batches[-1].tp == PARTITIONS[1]:
            raise RuntimeError("a fault")
        return submit(command)

    monkeypatch.setattr(connection.coordinator, "submit", failing)
    answers = connection.submit_all([(append, None) for append in appends])
    assert type(answers.pop()) is RuntimeError
    assert [answer[0].base_offset for answer in answers] == [0, 0, 1]


def test_what_is_committed_is_answered_so_whatever_fails_after_it() -> None:
    """The view is read ahead for the event loop: its failure is none of the commands."""

    class Failing(Recorder):
        def view(self, *, refresh: bool) -> None:
            raise RuntimeError("a fault")

    connection = Failing(1)
    connection.release.release()

    async def main() -> Any:
        with ThreadPoolExecutor(1) as threads:
            return await Commits(cast("Connection", connection), threads, lambda: None).submit(InitProducer("a"), None)

    assert asyncio.run(main()) is None


def test_an_error_that_no_future_takes_is_answered() -> None:
    """A fault may raise ``StopIteration``: its client, and those behind it, would wait forever."""

    class Failing(Recorder):
        def submit_all(self, asked: Sequence[tuple[Command, str | None]]) -> list[Any]:
            return [StopIteration(), *[None] * (len(asked) - 1)]

    async def main() -> list[Any]:
        answered = asyncio.Event()
        with ThreadPoolExecutor(1) as threads:
            commits = Commits(cast("Connection", Failing(1)), threads, answered.set)
            futures = [commits.submit(command, None) for command in batches(PARTITIONS[0], 2)]
            await answered.wait()
            return [future.exception() if future.done() else "no answer" for future in futures]

    first, second = asyncio.run(main())
    assert (type(first), second) == (RuntimeError, None)
