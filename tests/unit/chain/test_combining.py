"""Flat combining: commands that arrive during the write of an entry share the next one (OBJ-10)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import pytest

from tests.helpers import keys
from tests.helpers.shell import Gate, GatedStore, a_chain, entries, in_threads, names_in_bucket, runtime, topic
from txnstore.chain.chain import Chain
from txnstore.chain.context import ChainContext
from txnstore.core.catalog.model import CreateTopic
from txnstore.core.groups.commands import CommitOffsets, TxnOffsets
from txnstore.core.groups.events import GroupOffset
from txnstore.core.invariants.check import check
from txnstore.core.log.commands import Append
from txnstore.core.log.model import NewBatch, Segment
from txnstore.core.model import Command, Outcome, ProducerIdentity
from txnstore.core.transactions.commands import DecidedTransaction, InitProducer
from txnstore.errors import (
    InvalidConfigError,
    StorageError,
    StorageRefusedError,
    TopicExistsError,
    TxnStoreError,
    UnknownOutcomeError,
)
from txnstore.storage.memory import MemoryStore
from txnstore.testing import Fault, FaultStore, ManualClock, on

THREADS = 64


class Crowd:
    """One thread whose PUT stands at a gate, and others that arrive meanwhile."""

    def __init__(self, chain: Chain, gate: Gate, pool: ThreadPoolExecutor) -> None:
        self._chain, self._gate, self._pool = chain, gate, pool

    def submit(self, first: Command, *others: Command) -> list[Future[Any]]:
        """All of them, in this order; returns when the PUT has passed and all callers have an answer."""
        leader = self._pool.submit(self._chain.submit, first)
        self._gate.wait_for()
        arrived = threading.Semaphore(0)
        self._chain._waiting = _Announced(arrived)
        followers = []
        for command in others:
            followers.append(self._pool.submit(self._chain.submit, command))
            followers[-1].add_done_callback(lambda _: arrived.release())  # It may be refused before it is queued.
            assert arrived.acquire(timeout=240)
        self._gate.open()
        everybody = [leader, *followers]
        for future in everybody:
            future.exception(240)
        return everybody


class _Announced(deque[Any]):
    """A queue that signals each new command."""

    def __init__(self, arrived: threading.Semaphore) -> None:
        super().__init__()
        self._arrived = arrived

    def append(self, item: Any) -> None:
        super().append(item)
        self._arrived.release()


@pytest.fixture
def objects() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def faults(objects: MemoryStore) -> FaultStore:
    return FaultStore(objects)


@pytest.fixture
def chain(faults: FaultStore) -> Iterator[Chain]:
    with a_chain(faults) as chain:
        yield chain


@pytest.fixture
def crowd(faults: FaultStore) -> Iterator[Crowd]:
    gated = GatedStore(faults)
    with a_chain(gated) as chain, ThreadPoolExecutor(THREADS) as pool:
        yield Crowd(chain, gated.hold("put_if_absent"), pool)


def test_commands_arriving_during_a_put_share_the_next_entry(crowd: Crowd, objects: MemoryStore) -> None:
    answers = crowd.submit(*[CreateTopic(topic(f"t{number}")) for number in range(THREADS)])
    assert [answer.result().name for answer in answers] == [f"t{number}" for number in range(THREADS)]
    assert names_in_bucket(objects) == ["t0", "+".join(f"t{number}" for number in range(1, THREADS))]
    assert crowd._chain.metrics.commits == 2
    assert crowd._chain.metrics.commands == THREADS
    assert crowd._chain.metrics.conflicts == 0
    assert check(crowd._chain.state) == []


def test_a_committed_command_does_not_wait_for_the_next_entry(objects: MemoryStore) -> None:
    """Else threads would leave one after the other, an entry each, while others write the next ones."""
    gated = GatedStore(objects)
    with a_chain(gated) as chain, ThreadPoolExecutor(2) as pool:
        gate = gated.hold("put_if_absent", keys.entry(0, 2))
        carried = chain.enqueue(CreateTopic(topic("a")))
        chain.submit(CreateTopic(topic("b")))
        following = pool.submit(chain.submit, CreateTopic(topic("c")))
        gate.wait_for()
        try:
            assert pool.submit(chain.commit_queued, carried).result(60).name == "a"
            assert not following.done()
        finally:
            gate.open()
        assert following.result(240).name == "c"
    assert names_in_bucket(objects) == ["a+b", "c"]


@pytest.mark.parametrize(
    ("threshold", "seconds", "waits"),
    [(2, 240, True), (2, 0.01, False), (3, 240, False)],
    ids=["many", "stuck", "few"],
)
def test_many_callers_yield_to_the_next_leader(
    objects: MemoryStore, monkeypatch: pytest.MonkeyPatch, threshold: int, seconds: float, waits: bool
) -> None:
    """Two callers have their answers; the leader of the next entry stands before its decision, and before its PUT."""
    monkeypatch.setattr("txnstore.chain.group_commit.BATCH_THRESHOLD", threshold)
    monkeypatch.setattr("txnstore.chain.group_commit.MAX_YIELD_SECONDS", seconds)
    gated, clock = GatedStore(objects), ManualClock()
    with a_chain(gated, clock) as chain, ThreadPoolExecutor(3) as pool:
        leaders, arrived = _announce_leaders(monkeypatch, chain), threading.Semaphore(0)
        chain._waiting = _Announced(arrived)
        write = gated.hold("put_if_absent", keys.entry(0, 1))
        with chain._head.own:  # Both are in the first round.
            callers = [pool.submit(chain.submit, CreateTopic(topic("a")))]
            assert leaders.acquire(timeout=240)
            callers.append(pool.submit(chain.submit, CreateTopic(topic("b"))))
            assert all(arrived.acquire(timeout=240) for _ in callers)
        write.wait_for()
        following = pool.submit(chain.submit, CreateTopic(topic("c")))
        assert leaders.acquire(timeout=240)
        clock.advance(60_000)
        # After so long the leader looks at three names before its callers have their answers, and the next leader looks
        # at the head before it decides.
        look = gated.hold("get", after=3)
        next_write = gated.hold("put_if_absent", keys.entry(0, 2))
        write.open()
        look.wait_for()
        try:
            done = wait(callers, 0.2 if waits else 60).done
            assert not done if waits else len(done) == 2
            look.open()
            next_write.wait_for()
            assert len(wait(callers, 60).done) == 2  # Less than they would wait for its write.
            assert not following.done()
        finally:
            look.open()
            next_write.open()
        assert [each.result(240).name for each in (*callers, following)] == ["a", "b", "c"]
    assert names_in_bucket(objects) == ["a+b", "c"]


def test_callers_do_not_wait_for_a_leader_without_an_entry(
    objects: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("txnstore.chain.group_commit.BATCH_THRESHOLD", 1)
    monkeypatch.setattr("txnstore.chain.group_commit.MAX_YIELD_SECONDS", 240)
    gated = GatedStore(objects)
    with a_chain(gated) as chain, ThreadPoolExecutor(2) as pool:
        leaders = _announce_leaders(monkeypatch, chain)
        write = gated.hold("put_if_absent", keys.entry(0, 1))
        first = pool.submit(chain.submit, CreateTopic(topic("a")))
        write.wait_for()
        refused = pool.submit(chain.submit, CreateTopic(topic("a")))
        assert all(leaders.acquire(timeout=240) for _ in range(2))
        write.open()
        assert first.result(60).name == "a"  # Less than it would wait for an entry.
        with pytest.raises(TopicExistsError):
            refused.result(240)


def _announce_leaders(monkeypatch: pytest.MonkeyPatch, chain: Chain) -> threading.Semaphore:
    """Released when a thread has announced that it will commit the next entry."""
    announced, leaders = threading.Semaphore(0), [chain._leader]

    def announce(_: Chain, leader: Any) -> None:
        leaders.append(leader)
        announced.release()

    monkeypatch.setattr(Chain, "_leader", property(lambda _: leaders[-1], announce), raising=False)
    return announced


def test_each_caller_gets_its_own_result(crowd: Crowd) -> None:
    """Producer ids are granted one after the other inside the entry, so no caller gets the id of another."""
    answers = [future.result().producer_id for future in crowd.submit(*[InitProducer()] * 20)]
    assert answers == list(range(20))


def test_a_command_sees_those_before_it_in_the_entry(crowd: Crowd, objects: MemoryStore) -> None:
    """The second batch of a partition gets the offsets after the first, though both are in one entry."""
    batches = [
        Append(ProducerIdentity(), (NewBatch("t", 0, Segment(f"s{number}", "parquet", 1, "", 10), 0, 0),))
        for number in range(5)
    ]
    answers = crowd.submit(CreateTopic(topic("t")), *batches)
    assert [answer.result()[0].base_offset for answer in answers[1:]] == [0, 10, 20, 30, 40]
    assert len(entries(objects)) == 2


def test_a_refused_command_fails_alone(crowd: Crowd, objects: MemoryStore) -> None:
    answers = crowd.submit(*[CreateTopic(topic(name)) for name in ("a", "b", "a", "c", "b")])
    refused = [type(answer.exception()) for answer in answers]
    assert refused == [type(None), type(None), TopicExistsError, type(None), TopicExistsError]
    assert names_in_bucket(objects) == ["a", "b+c"]


def offset_of(epoch: Any) -> CommitOffsets:
    return CommitOffsets(TxnOffsets("g", (GroupOffset(topic="a", partition=0, offset=0, leader_epoch=epoch),)))


@pytest.mark.parametrize(
    "bad",
    [offset_of(None), offset_of(1.5), offset_of("7"), InitProducer("\ud800")],
    ids=["none", "float", "text", "surrogate"],
)
def test_unencodable_command_fails_alone(crowd: Crowd, objects: MemoryStore, bad: Command) -> None:
    """What no reader could read must not get into the entry, and must not take the others with it."""
    answers = crowd.submit(CreateTopic(topic("a")), CreateTopic(topic("b")), bad, CreateTopic(topic("c")))
    assert [type(answer.exception()) for answer in answers] == [type(None), type(None), InvalidConfigError, type(None)]
    assert names_in_bucket(objects) == ["a", "b+c"]


def test_command_that_raises_a_python_error_fails_alone(crowd: Crowd, objects: MemoryStore) -> None:
    nonsense: Any = DecidedTransaction("p", 0, 0, Outcome.COMMIT, (), ())  # Not a command.
    answers = crowd.submit(CreateTopic(topic("a")), nonsense, CreateTopic(topic("b")))
    assert [type(answer.exception()) for answer in answers] == [type(None), KeyError, type(None)]
    assert names_in_bucket(objects) == ["a", "b"]


def test_refused_commands_write_no_entry(crowd: Crowd, objects: MemoryStore) -> None:
    answers = crowd.submit(CreateTopic(topic("a")), *[CreateTopic(topic("a"))] * 5)
    assert [type(answer.exception()) for answer in answers[1:]] == [TopicExistsError] * 5
    assert names_in_bucket(objects) == ["a"]


def test_storage_refusal_is_reported_to_all_callers_of_the_entry(crowd: Crowd, objects: MemoryStore) -> None:
    """The storage refuses the entry: no command took effect, and all callers get the error."""

    def refuse(key: str, data: bytes) -> bool:
        if len(objects.list("chains/")) == 1:
            raise StorageRefusedError("no space left")
        return MemoryStore.put_if_absent(objects, key, data)

    objects.put_if_absent = refuse  # type: ignore[method-assign]
    answers = crowd.submit(*[CreateTopic(topic(name)) for name in ("a", "b", "c")])
    assert [type(answer.exception()) for answer in answers] == [type(None), StorageRefusedError, StorageRefusedError]
    assert names_in_bucket(objects) == ["a"]


def test_interrupt_of_the_leader_does_not_interrupt_followers(crowd: Crowd, objects: MemoryStore) -> None:
    """The followers get an unknown outcome; only the interrupted thread gets the KeyboardInterrupt."""

    def interrupted(key: str, data: bytes) -> bool:
        if len(objects.list("chains/")) == 1:
            raise KeyboardInterrupt
        return MemoryStore.put_if_absent(objects, key, data)

    objects.put_if_absent = interrupted  # type: ignore[method-assign]
    answers = crowd.submit(*[CreateTopic(topic(name)) for name in ("a", "b", "c", "d")])
    raised = [type(answer.exception()) for answer in answers]
    assert raised[0] is type(None)
    assert sorted(kind.__name__ for kind in raised[1:]) == ["KeyboardInterrupt"] + ["UnknownOutcomeError"] * 2


def test_interrupt_of_a_leader_that_has_not_offered_a_command_leaves_it_to_its_own_thread(
    crowd: Crowd, objects: MemoryStore
) -> None:
    """The outcome of "a" is unknown, and the next thread that leads is interrupted too: the other two continue."""
    interrupts = iter([KeyboardInterrupt(), KeyboardInterrupt()])

    def interrupted(key: str, data: bytes) -> bool:
        for interrupt in interrupts:
            raise interrupt
        return MemoryStore.put_if_absent(objects, key, data)

    objects.put_if_absent = interrupted  # type: ignore[method-assign]
    answers = crowd.submit(*[CreateTopic(topic(name)) for name in ("a", "b", "c", "d")])
    raised = {name: answer.exception() for name, answer in zip("abcd", answers, strict=True)}
    assert sorted(type(error).__name__ for error in raised.values()) == ["KeyboardInterrupt"] * 2 + ["NoneType"] * 2
    assert isinstance(raised["a"], KeyboardInterrupt)
    assert names_in_bucket(objects) == ["a", "+".join(name for name, error in raised.items() if error is None)]


def test_unknown_outcome_is_reported_to_all_callers_of_the_entry(
    crowd: Crowd, faults: FaultStore, objects: MemoryStore
) -> None:
    lost = on(Fault.LOST_RESPONSE, "put_if_absent", key_contains="00002.json", times=None)
    unread = on(Fault.ERROR_BEFORE, "get", key_contains="00002.json", times=None)
    faults.plan = lambda n, operation, key: lost(n, operation, key) or unread(n, operation, key)
    answers = crowd.submit(*[CreateTopic(topic(name)) for name in ("a", "b", "c")])
    assert [type(answer.exception()) for answer in answers[1:]] == [UnknownOutcomeError] * 2
    assert names_in_bucket(objects) == ["a", "b+c"]


def test_concurrent_threads_lose_and_duplicate_nothing(chain: Chain, objects: MemoryStore) -> None:
    """No order is arranged here: 32 threads, 10 commands each."""
    answers = in_threads(32, lambda number: [chain.submit(InitProducer(f"{number}-{step}")) for step in range(10)])
    assert not [answer for answer in answers if isinstance(answer, Exception)]
    ids = sorted(identity.producer_id for answer in answers if isinstance(answer, list) for identity in answer)
    assert ids == list(range(320))
    assert chain.metrics.commands == 320
    assert chain.state.sequence == chain.metrics.commits == len(entries(objects))


def test_many_threads_survive_faults_on_every_third_write(faults: FaultStore, objects: MemoryStore) -> None:
    kinds = [Fault.LOST_RESPONSE, Fault.LATE, Fault.CONFLICT_409, Fault.EXISTS_412]
    faults.plan = lambda n, operation, key: kinds[n // 3 % 4] if n % 3 == 0 and operation.startswith("put") else None
    with a_chain(faults) as chain:
        answers = in_threads(16, lambda number: [chain.submit(InitProducer()).producer_id for _ in range(5)])
    assert not [answer for answer in answers if isinstance(answer, Exception)]
    assert sorted(number for answer in answers if isinstance(answer, list) for number in answer) == list(range(80))
    faults.release()
    with a_chain(objects) as again:
        assert again.state == chain.state


def test_timestamps_never_decrease(objects: MemoryStore) -> None:
    """An entry's time is after its predecessor's, also if another process's clock was ahead (OBJ-05)."""
    clock, behind = ManualClock(5_000), ManualClock(1_000)
    with a_chain(objects, clock) as ours, a_chain(objects, behind) as theirs:
        for step, jump in enumerate((0, 250, -4_000, -1, 10_000)):
            clock.advance(jump)
            ours.submit(InitProducer())
            if step == 2:
                theirs.submit(InitProducer())
    assert [entry.timestamp for entry in entries(objects)] == [5_000, 5_250, 5_251, 5_252, 5_253, 11_249]


def test_read_only_chain_writes_no_entry(objects: MemoryStore) -> None:
    with ThreadPoolExecutor(1) as pool:
        chain = Chain(ChainContext(objects, keys.KEYS, runtime(), pool, read_only=True), 0)
        chain.load(None)
        with pytest.raises(TxnStoreError, match="read_only"):
            chain.submit(CreateTopic(topic("a")))
        with pytest.raises(TxnStoreError, match="read_only"):
            chain.checkpoint()
    assert objects.list("") == []


def test_unreachable_storage_fails_a_commit_without_effect(faults: FaultStore, objects: MemoryStore) -> None:
    """A plain StorageError means that nothing happened, so the state is the old one and the bucket is empty."""

    def away(key: str, data: bytes) -> bool:
        raise StorageError("connection refused")

    objects.put_if_absent = away  # type: ignore[method-assign]
    with a_chain(objects) as chain:
        with pytest.raises(StorageError, match="connection refused"):
            chain.submit(CreateTopic(topic("a")))
        assert chain.state.sequence == 0
        assert chain.metrics.commits == 0
    assert objects.list("") == []
