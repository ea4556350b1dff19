"""Processes that take turns on one chain (OBJ-10): requests, races and combined commands, on a slow storage."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.harness.executors import InlineExecutor
from tests.helpers import keys
from tests.helpers.keys import FixedRuntime, entry_sequence
from tests.helpers.shell import topic
from txnstore.chain.chain import Chain
from txnstore.chain.context import ChainContext
from txnstore.chain.group_commit import QueuedCommand
from txnstore.chain.turns import JOIN, Wait
from txnstore.core.catalog.model import CreateTopic
from txnstore.storage.base import ObjectStore
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.testing import Fault, FaultStore, ManualClock, on

#: Milliseconds of a PUT, and of a GET: without threads, the GETs of a poll do not overlap.
PUT, GET = 20, 2


class Slow(CountingStore):
    """Each request takes a while by a manual clock."""

    def __init__(self, inner: ObjectStore, clock: ManualClock) -> None:
        super().__init__(inner, log=True)
        self._clock = clock

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        self._clock.advance(GET)
        return super().get(key, start, end)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._clock.advance(PUT)
        return super().put_if_absent(key, data)


class Process:
    """A chain in a process of its own, without threads."""

    def __init__(self, bucket: ObjectStore, clock: ManualClock) -> None:
        self.faults = FaultStore(bucket)
        self.objects = Slow(self.faults, clock)
        self.on_sleep: Callable[[], object] = lambda: None

        def sleep(seconds: float) -> None:
            clock.advance(round(1000 * seconds))
            self.on_sleep()

        runtime = FixedRuntime(clock, sleep, random.Random(str(id(self))))
        self.chain = Chain(ChainContext(self.objects, keys.KEYS, runtime, InlineExecutor()), 0)
        self.chain.load(None)

    def commit(self, name: str) -> list[str]:
        """Create a topic; returns the kinds of its requests."""
        self.objects.reset()
        self.chain.submit(CreateTopic(topic(name)))
        return [kind for kind, _ in self.objects.log]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def pair(clock: ManualClock) -> tuple[Process, Process]:
    """Two processes that know each other's ids and turns."""
    bucket = MemoryStore(clock=clock)
    a, b = Process(bucket, clock), Process(bucket, clock)
    for number in range(4):
        a.commit(f"a{number}")
        b.commit(f"b{number}")
    return a, b


def test_a_lone_writer_makes_one_request_a_commit(clock: ManualClock) -> None:
    alone = Process(MemoryStore(clock=clock), clock)
    before = clock()
    assert [alone.commit(f"t{number}") for number in range(10)] == [["put_if_absent"]] * 10
    assert clock() - before == 10 * PUT


def test_writers_that_know_each_other_lose_no_race(pair: tuple[Process, Process]) -> None:
    """The one that comes back from its own commit reads the entry of the other before its PUT."""
    a, b = pair
    lost = a.chain.metrics.conflicts + b.chain.metrics.conflicts
    for number in range(4, 10):
        for process, name in ((a, "a"), (b, "b")):
            assert process.commit(f"{name}{number}").count("put_if_absent") == 1
    assert a.chain.metrics.conflicts + b.chain.metrics.conflicts == lost


def test_a_writer_that_vanished_costs_one_wait(pair: tuple[Process, Process]) -> None:
    a, _ = pair
    a.commit("a5")
    waited = a.commit("a6")
    assert waited.count("get") > 1
    assert waited[-1] == "put_if_absent"
    assert a.commit("a7") == ["put_if_absent"]


def test_polls_that_fail_do_not_fail_the_commit(pair: tuple[Process, Process]) -> None:
    a, _ = pair
    a.commit("a5")
    a.faults.plan = on(Fault.ERROR_BEFORE, "get")
    assert "get" in a.commit("a6")
    assert "a6" in a.chain.state.topics


def test_a_writer_that_has_lost_in_a_quiet_chain_puts_again_at_once(clock: ManualClock) -> None:
    """It looks for the entries that a busy chain would have by now, finds none, and polls no longer."""
    bucket = MemoryStore(clock=clock)
    a, b = Process(bucket, clock), Process(bucket, clock)
    a.commit("a")
    kinds = b.commit("b")
    assert kinds.count("put_if_absent") == 2
    assert JOIN < kinds.count("get") <= 2 * JOIN


def test_an_entry_that_a_poll_has_missed_is_read_with_the_one_after_it(
    pair: tuple[Process, Process], clock: ManualClock
) -> None:
    """The newcomer has lost entry 9, and entry 10 exists; those up to the one that it polls come in the midst of it."""
    a, b = pair
    newcomer = Process(a.faults, clock)
    a.commit("a4")
    asked: list[str] = []

    def others_commit(_: int, operation: str, key: str) -> None:
        if operation != "get":
            return
        asked.append(key)
        if key == keys.entry(0, 9):
            b.commit("b4")
        elif key > keys.entry(0, 11) and keys.entry(0, 11) in asked:
            newcomer.faults.plan = lambda *_: None
            for number in range((entry_sequence(key) or 0) - 10):
                a.commit(f"more{number}")

    newcomer.faults.plan = others_commit
    newcomer.commit("c")
    assert "c" in a.chain.refresh().topics
    assert {"b4", "more0", "more1"} <= set(newcomer.chain.state.topics)
    assert newcomer.chain.metrics.conflicts == 1


def test_commands_that_come_during_a_wait_share_the_entry(pair: tuple[Process, Process]) -> None:
    a, _ = pair
    a.commit("a5")
    queued = QueuedCommand(CreateTopic(topic("late")))

    def enqueue() -> None:
        if not queued.done and queued not in a.chain._waiting:
            a.chain._waiting.append(queued)

    a.on_sleep = enqueue
    a.commit("a6")
    assert queued.answer().name == "late"
    assert a.objects.log[-1][0] == "put_if_absent"
    assert a.chain.metrics.commands == a.chain.metrics.commits + 1


@pytest.mark.parametrize("target", range(1, 6))
@pytest.mark.parametrize("ahead", range(8))
@pytest.mark.parametrize("polls", [1.0, 20.0, 45.0, 200.0])
def test_polls_of_a_newcomer_fold_each_entry_once(clock: ManualClock, target: int, ahead: int, polls: float) -> None:
    """However many requests the time of the polls allows, and however far the head is, beyond the entry polled too."""
    bucket = MemoryStore(clock=clock)
    newcomer, other = Process(bucket, clock), Process(bucket, clock)
    newcomer.chain.refresh()
    for number in range(ahead):
        other.commit(f"t{number}")
    newcomer.chain._turns.latency = float(PUT)
    pacing, before = newcomer.chain._pacing, newcomer.chain.state.sequence
    published = pacing._poll_entry(lambda: newcomer.chain.state, Wait(polls=polls, overlap=JOIN, target=target))
    state = newcomer.chain.state
    assert published is (state.sequence > before) is (ahead > 0)
    assert state.sequence <= before + min(ahead, target)
    assert len(state.topics) == state.sequence - before
    if polls == 200.0:  # Long enough for all entries on the way.
        assert state.sequence == before + min(ahead, target)
