"""Processor time of the hot paths in one process: deciding and writing an entry, an idle poll, expiration.

No storage but memory: what is measured is the work of this process, which no faster network makes shorter.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.measure import Result
from txnstore.chain.codec import Entry, check, encode
from txnstore.core.catalog.model import CatalogTopic, CreateTopic
from txnstore.core.decide import decide
from txnstore.core.expiration import Expire, is_due
from txnstore.core.log.model import NewBatch, Segment
from txnstore.core.model import Command, Outcome, ProducerIdentity
from txnstore.core.state import State, begin_entry, first_state
from txnstore.core.transactions.commands import EndTxn, InitProducer
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on

PARTITIONS, IDLE = 1_000, 10_000
#: The processor time of a commit over each number of partitions, in ms.
COMMIT_MS = 15.0

#: The processor time of such a transaction with all that a producer does, in ms.
SENT_MS = 40.0


def run() -> Iterator[Result]:
    """The processor time of each path, and how it grows."""
    wide = _in_turns((_committer(PARTITIONS),), 30)[0]
    name = f"entry of {PARTITIONS:,} partitions, ms / {COMMIT_MS:g}"
    yield Result(name, wide / COMMIT_MS, 1.0, at_most=True, detail=f"{wide:.1f} ms")
    sent = _cpu_ms(_sender(PARTITIONS), 20)
    name = f"transaction of a record in each of {PARTITIONS:,} partitions, ms / {SENT_MS:g}"
    yield Result(name, sent / SENT_MS, 1.0, at_most=True, detail=f"{sent:.1f} ms")
    few, many = _in_turns((_committer(1), _committer(1, IDLE)), 2_000)
    detail = f"{few:.3f} ms, {many:.3f} ms"
    yield Result(f"entry beside {IDLE:,} idle transactional ids / none", many / few, 1.3, at_most=True, detail=detail)
    one, thousand = _poll_ms(1), _poll_ms(PARTITIONS)
    detail = f"{one:.3f} ms, {thousand:.3f} ms"
    yield Result(f"idle poll of {PARTITIONS:,} partitions / of one", thousand / one, 1.3, at_most=True, detail=detail)
    state = _idle(first_state(), IDLE)
    due = _cpu_ms(lambda: is_due(state, Expire(), state.timestamp + 1_000), 10)
    yield Result(f"is any of {IDLE:,} ids due, ms / 50", due / 50, 1.0, at_most=True, detail=f"{due:.1f} ms")


def _cpu_ms(call: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        begin = time.process_time()
        call()
        times.append(time.process_time() - begin)
    return statistics.median(times) * 1_000


def _sender(partitions: int) -> Callable[[], None]:
    """A call that sends a record to each partition and commits."""
    store = create_on(MemoryStore())
    store.create_topic("t", partitions=partitions)
    producer = store.producer("p")

    def commit() -> None:
        with producer.transaction() as txn:
            for partition in range(partitions):
                txn.send("t", b"v" * 100, key=b"k", partition=partition)

    commit()
    return commit


def _decided(state: State, command: Command) -> tuple[State, Any]:
    decision = decide(begin_entry(state, state.timestamp + 1), command)
    return decision.state, decision.result


def _idle(state: State, ids: int) -> State:
    for number in range(ids):
        state, _ = _decided(state, InitProducer(f"idle-{number}"))
    return state


def _committer(partitions: int, idle: int = 0) -> Callable[[], float]:
    """A call that checks and decides a transaction with a batch in each partition, and encodes its entry; in s."""
    topic = CatalogTopic(name="t", topic_id="t", partitions=partitions)
    state, _ = _decided(_idle(first_state(), idle), CreateTopic(topic))
    state, producer = _decided(state, InitProducer("p"))
    assert isinstance(producer, ProducerIdentity)
    number = 0

    def commit() -> float:
        nonlocal state, producer, number
        number += 1
        batches = tuple(_batch(partition, number) for partition in range(partitions))
        begin = time.process_time()
        command = EndTxn(producer, Outcome.COMMIT, batches)
        check(command)
        decision = decide(begin_entry(state, state.timestamp + 1), command)
        events = [*decision.events]
        encode(
            Entry(
                sequence=number,
                entry_id="e",
                writer_id="w",
                timestamp=0,
                previous="",
                payload=None,
                requires=None,
                principals=None,
                events=events,
            )
        )
        seconds = time.process_time() - begin
        state, producer = decision.state, decision.result.producer
        return seconds

    return commit


def _in_turns(runs: tuple[Callable[[], float], ...], rounds: int) -> list[float]:
    """The median of each run, in ms."""
    times = [[run() for run in runs] for _ in range(rounds)]
    return [statistics.median(column) * 1_000 for column in zip(*times, strict=True)]


def _batch(partition: int, number: int) -> NewBatch:
    segment = Segment(f"topics/t/{partition}/{number:036d}.parquet", "parquet", 500, "a" * 64, 1)
    return NewBatch("t", partition, segment, 0, 0, 0, None, "t")


def _poll_ms(partitions: int) -> float:
    with create_on(MemoryStore()) as store:
        store.create_topic("t", partitions=partitions)
        consumer = store.consumer(["t"])
        consumer.poll()
        return _cpu_ms(consumer.poll, 500)
