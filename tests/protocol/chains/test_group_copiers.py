"""TST-21, TST-22, OFF-06, OFF-10, REC-11: copiers that share a group, with aborts, crashes, pauses and rebalances.

Each one polls, sends what it read, commits its positions with it, and continues; between any two of its steps the
others may do anything. Whatever happens, every record of the input is in the output exactly once.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.harness.executors import never
from tests.helpers.connections import connection_of
from tests.helpers.keys import FixedRuntime
from tests.helpers.reading import texts
from txnstore.consumer import Consumer
from txnstore.consumer.membership import AssignorName
from txnstore.core.invariants.check import check_view
from txnstore.core.model import TopicPartition
from txnstore.errors import TxnStoreError
from txnstore.storage.base import ObjectStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import ManualClock

PARTITIONS, RECORDS, SESSION, TIMEOUT = 5, 60, 9.0, 15.0


class Copier:
    """A process that copies; it has a transactional id of its own, so only its group fences it (KIP-447)."""

    def __init__(self, objects: ObjectStore, clock: ManualClock, name: str, rng: random.Random) -> None:
        self.name = name
        self.store = _open(objects, clock, name)
        self.rng = rng
        self.consumer = self._consumer()
        self.steps = self._work()

    def _consumer(self) -> Consumer:
        names: list[AssignorName] = ["range", "cooperative-sticky"]
        assignor = self.rng.choice(names)
        return self.store.consumer(["in"], group="copiers", session_timeout=SESSION, assignor=assignor)

    def _work(self) -> Iterator[str]:
        producer = self.store.producer(self.name, transaction_timeout=TIMEOUT)
        while True:
            yield "idle"
            records = self.consumer.poll(max_records=self.rng.choice((1, 2, 7)))
            if not records:
                continue
            yield "polled"
            try:
                producer.begin_transaction()
                for record in records:
                    producer.send("out", record.value, key=record.key, partition=record.partition)
                if self.rng.random() < 0.5:
                    producer.flush()
                    yield "flushed"
                partitions = {TopicPartition(record.topic, record.partition) for record in records}
                positions = {tp: self.consumer.position(tp) for tp in partitions}
                producer.send_offsets(positions, self.consumer.group_metadata())
                if self.rng.random() < 0.5:
                    producer.flush()
                    yield "sent"
                if self.rng.random() < 0.25:
                    producer.abort_transaction()
                    self.consumer.rewind_to_committed()
                    continue
                producer.commit_transaction()
            except TxnStoreError as error:
                if not (error.abortable or error.fatal):
                    raise
                if error.fatal:  # Its transaction was past its timeout, and another process aborted it.
                    producer = self.store.producer(self.name, transaction_timeout=TIMEOUT)
                else:
                    producer.abort_transaction()
                self.consumer.rewind_to_committed()

    def close(self) -> None:
        self.steps = iter(())
        self.consumer.close()


def _open(objects: ObjectStore, clock: ManualClock, seed: str) -> Store:
    return open_on(objects, runtime=FixedRuntime(clock, clock.sleep, random.Random(seed), spawn=never))


def _filled(objects: ObjectStore, clock: ManualClock, chains: int) -> Store:
    store = create_on(
        objects, chains=chains, runtime=FixedRuntime(clock, clock.sleep, random.Random("filler"), spawn=never)
    )
    store.create_topic("in", partitions=PARTITIONS)
    store.create_topic("out", partitions=PARTITIONS)
    with store.producer() as producer:
        for number in range(RECORDS):
            producer.send("in", b"%d" % number, key=b"k", partition=number % PARTITIONS)
            if number % 7 == 0:
                producer.flush()
    return store


def _lag(store: Store) -> int:
    groups = {group.group: group for group in store.groups()}
    offsets = (
        {position.tp.partition: position.offset or 0 for position in groups["copiers"].positions}
        if "copiers" in groups
        else {}
    )
    return RECORDS - sum(offsets.values())


@pytest.mark.slow
@pytest.mark.parametrize("chains", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_tst_21_copiers_of_a_group_copy_every_record_once(chains: int, seed: int) -> None:
    """Set equality and order in each partition, as Kafka's ``group_mode_transactions_test`` asserts."""
    rng, clock = random.Random(f"copiers/{chains}/{seed}"), ManualClock()
    objects = MemoryStore(clock=clock)
    store = _filled(objects, clock, chains)
    names = iter(f"copier-{number}" for number in range(1_000))
    copiers = [Copier(objects, clock, next(names), rng) for _ in range(3)]
    counts: dict[str, int] = {}
    for turn in range(2_000):
        copier = rng.choice(copiers)
        step = next(copier.steps)
        counts[step] = counts.get(step, 0) + 1
        clock.advance(rng.choice((1, 10, 300)))
        fate = rng.random() if turn < 400 else 1.0
        if fate < 0.01:  # It crashes: its transaction and its lease are left to the others.
            copiers.remove(copier)
        elif fate < 0.02:
            copiers.remove(copier)
            copier.close()
        elif fate < 0.03:
            clock.advance(int(1_000 * SESSION) + 1)
        elif fate < 0.035:
            clock.advance(int(1_000 * TIMEOUT) + 1)
        if len(copiers) < 2 or (fate > 0.99 and fate < 1.0 and len(copiers) < 5):
            copiers.append(Copier(objects, clock, next(names), rng))
        if turn % 50 == 49 and _lag(store) == 0:
            break
    for copier in copiers:
        copier.close()
    clock.advance(int(1_000 * TIMEOUT) + 1)
    assert store.recover().failed == ()
    state = connection_of(store).view()
    assert check_view(state) == []
    assert _lag(store) == 0
    with store.consumer(["out"], auto_offset_reset="earliest") as consumer:
        copied = consumer.poll(max_records=10 * RECORDS)
    assert sorted(map(int, texts(copied))) == list(range(RECORDS))
    for number in range(PARTITIONS):
        values = [int(text) for text in texts(record for record in copied if record.partition == number)]
        assert all(before < after for before, after in pairwise(values)), values
    assert {"polled", "flushed", "sent"} <= set(counts)
    assert state.groups["copiers"].generation > 3
