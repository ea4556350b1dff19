"""Two processes on one chain: who wins a slot, what a lost race costs, what each knows (SEQ-23, OBJ-09, OBJ-17)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.helpers.shell import GatedStore, a_chain, entries, in_threads, topic
from txnstore.chain.chain import Chain
from txnstore.core.catalog.model import CreateTopic
from txnstore.core.invariants.check import check
from txnstore.core.log.commands import Append
from txnstore.core.log.model import NewBatch, Segment
from txnstore.core.model import Outcome, ProducerIdentity, TopicPartition
from txnstore.core.transactions.commands import EndTxn, InitProducer
from txnstore.errors import ProducerFencedError
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore

T0 = TopicPartition("t", 0)


class Process:
    """A chain of its own and what its storage is asked for."""

    def __init__(self, chain: Chain, objects: CountingStore) -> None:
        self.chain, self.objects = chain, objects

    def requests(self) -> list[str]:
        """The kinds of requests since the last call."""
        kinds = [kind for kind, _ in self.objects.log]
        self.objects.reset()
        return kinds


@pytest.fixture
def bucket() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def processes(bucket: MemoryStore) -> Iterator[tuple[Process, Process]]:
    counted = CountingStore(bucket, log=True), CountingStore(bucket, log=True)
    with a_chain(counted[0]) as a, a_chain(counted[1]) as b:
        a.submit(CreateTopic(topic("t")))
        b.refresh()
        pair = Process(a, counted[0]), Process(b, counted[1])
        for process in pair:
            process.requests()
        yield pair


_NAMES = iter(range(1_000_000))


def batch(rows: int = 1, sequence: int = -1) -> NewBatch:
    return NewBatch("t", 0, Segment(f"topics/t/0/{next(_NAMES)}.parquet", "parquet", 1, "", rows), 0, 0, sequence)


def append(chain: Chain, rows: int = 1) -> int:
    """Append without a producer id; the base offset."""
    offset: int = chain.submit(Append(ProducerIdentity(), (batch(rows),)))[0].base_offset
    return offset


def test_an_uncontended_commit_is_one_request(processes: tuple[Process, Process]) -> None:
    a, _ = processes
    for _ in range(3):
        append(a.chain)
    assert a.requests() == ["put_if_absent"] * 3


def test_a_lost_race_costs_one_put_and_one_get(processes: tuple[Process, Process]) -> None:
    a, b = processes
    append(a.chain)
    assert b.requests() == []
    assert append(b.chain) == 1
    assert b.requests() == ["put_if_absent", "get", "put_if_absent"]
    assert b.chain.metrics.conflicts == 1


def test_alternating_writers_assign_contiguous_offsets(processes: tuple[Process, Process]) -> None:
    """Each loses the first slot every time, and still only one PUT and one GET more."""
    a, b = processes
    offsets = [append(process.chain, 3) for _ in range(20) for process in (a, b)]
    assert offsets == list(range(0, 120, 3))
    assert a.requests() == ["put_if_absent"] + ["put_if_absent", "get", "put_if_absent"] * 19
    assert b.requests() == ["put_if_absent", "get", "put_if_absent"] * 20
    a.chain.refresh()
    assert a.chain.state == b.chain.state
    assert check(a.chain.state) == []


def test_paused_writer_catches_up_with_many_entries(bucket: MemoryStore, processes: tuple[Process, Process]) -> None:
    """200 entries behind: read in windows, not lost one by one."""
    a, b = processes
    for _ in range(200):
        append(a.chain)
    a.requests()
    assert append(b.chain) == 200
    kinds = b.requests()
    assert kinds.count("put_if_absent") == 3
    assert kinds.count("get") < 300
    assert b.chain.metrics.conflicts == 2
    assert len(entries(bucket)) == 202


def test_concurrent_puts_have_one_winner(bucket: MemoryStore) -> None:
    """SEQ-23: the check was made on a state that is old when the PUT arrives, so it is made again."""
    gated = GatedStore(bucket)
    with a_chain(bucket) as theirs, a_chain(gated) as ours:
        theirs.submit(CreateTopic(topic("t")))
        identity = ours.submit(InitProducer("id"))
        ours.submit(Append(identity, (batch(1, 0),)))
        gate = gated.hold("put_if_absent")

        def work(number: int) -> object:
            if number == 0:
                return ours.submit(Append(identity, (batch(1, 1),)))
            gate.wait_for()
            try:
                return theirs.submit(InitProducer("id"))  # fences, and aborts what is open
            finally:
                gate.open()

        refused, newer = in_threads(2, work)
        assert isinstance(refused, ProducerFencedError)
        assert isinstance(newer, ProducerIdentity)
        assert newer.epoch > identity.epoch
        partition = ours.refresh().partitions[T0]
        assert partition.high_watermark == 2  # the first batch and its abort marker; nothing of the zombie
        assert len(partition.open_txns) == 0


def test_concurrent_commits_of_one_transaction_get_equal_results(
    processes: tuple[Process, Process],
) -> None:
    """A commit that is repeated by another process (a retry after a lost answer) is done once (TV2-02)."""
    a, b = processes
    identity = a.chain.submit(InitProducer("id"))
    end = EndTxn(identity, Outcome.COMMIT, (batch(2, 0),))
    first, second = a.chain.submit(end), b.chain.submit(end)
    assert first.producer == second.producer
    assert first.appended[0].base_offset == second.appended[0].base_offset == 0
    assert a.chain.refresh().partitions[T0].high_watermark == 3


def test_threads_of_two_processes_agree_on_offsets(bucket: MemoryStore) -> None:
    """Nothing is arranged: 2 chains, 8 threads each, 10 appends a thread."""
    with a_chain(bucket) as a, a_chain(bucket) as b:
        a.submit(CreateTopic(topic("t")))
        answers = in_threads(16, lambda number: [append((a, b)[number % 2]) for _ in range(10)])
        assert not [answer for answer in answers if isinstance(answer, Exception)]
        offsets = [offset for answer in answers if isinstance(answer, list) for offset in answer]
        assert sorted(offsets) == list(range(160))
        assert a.refresh() == b.refresh()
        assert check(a.state) == []


def test_an_idle_refresh_is_one_get(processes: tuple[Process, Process]) -> None:
    a, _ = processes
    state = a.chain.state
    assert a.chain.refresh() is state
    assert a.requests() == ["get"]
