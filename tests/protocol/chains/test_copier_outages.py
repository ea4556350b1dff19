"""A copier continues through one outage after the other, as through Kafka's rolling restarts of brokers (TST-07).

10,000 records, three partitions, every third transaction aborted. A chain at a time cannot be reached for a while:
requests are refused, do not arrive, or are done and their answers lost.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from typing import TypeVar

import pytest

from tests.helpers.chains import process
from txnstore.consumer import Consumer
from txnstore.errors import TxnStoreError, UnknownOutcomeError
from txnstore.producer import Producer
from txnstore.storage.memory import MemoryStore
from txnstore.storage.retry import RetryingStore
from txnstore.store import Store
from txnstore.testing import Fault, FaultStore, ManualClock, no_faults

T = TypeVar("T")

PARTITIONS, RECORDS, SIZE = 3, 10_000, 200
OUTAGES = (Fault.UNAVAILABLE_503, Fault.ERROR_BEFORE, Fault.LOST_RESPONSE)


def rolling(chains: int) -> Callable[[int, str, str], Fault | None]:
    """Of every 100 requests, the last 50 do not find one of the chains, each chain in turn."""

    def plan(n: int, operation: str, key: str) -> Fault | None:
        turn, place = divmod(n, 100)
        down = place >= 50 and f"/{turn % chains:04d}/" in key
        return OUTAGES[n % len(OUTAGES)] if down else None

    return plan


class Copier:
    """Repeats calls without an answer, aborts refused transactions, and restarts when it is fenced."""

    def __init__(self, store: Store, *, members: bool) -> None:
        self.store, self.members = store, members
        self.errors: list[TxnStoreError] = []
        self.producer = self.insist(self._producer)
        self.consumer = self.insist(self._consumer)

    def _producer(self) -> Producer:
        return self.store.producer("copier")

    def _consumer(self) -> Consumer:
        consumer = self.store.consumer(["in"] if self.members else None, group="copiers")
        if not self.members:
            consumer.assign([("in", number) for number in range(PARTITIONS)])
        return consumer

    def insist(self, call: Callable[[], T]) -> T:
        """Until there is an answer."""
        while True:
            try:
                return call()
            except TxnStoreError as error:
                if not error.retriable:
                    raise
                self.errors.append(error)

    def copy(self, *, commit: bool) -> bool:
        """One transaction; whether there was something to copy."""
        records = self.insist(lambda: self.consumer.poll(max_records=SIZE))
        if not records:
            return False
        try:
            self.insist(self.producer.begin_transaction)
            for record in records:
                self.producer.send("out", record.value, partition=record.partition)
            positions = {tp: self.consumer.position(tp) for tp in self.consumer.assignment()}
            self.producer.send_offsets(positions, self.consumer.group_metadata() if self.members else "copiers")
            self.insist(self.producer.commit_transaction if commit else self.producer.abort_transaction)
        except TxnStoreError as error:
            self.errors.append(error)
            if error.fatal:
                self.producer = self.insist(self._producer)
            else:
                self.insist(self.producer.abort_transaction)
            commit = False
        if not commit:
            self.insist(self.consumer.rewind_to_committed)
        return True


@pytest.mark.slow
@pytest.mark.parametrize("members", [False, True], ids=["by-name", "by-membership"])
@pytest.mark.parametrize("chains", [1, 3])
def test_tst_07_outages_in_turn_cost_no_record(chains: int, *, members: bool) -> None:
    """REC-11: each value is in the output once, in its order, whatever of it was refused or unanswered."""
    clock = ManualClock()
    bucket = MemoryStore(clock=clock)
    faults = FaultStore(bucket, no_faults)
    filled = process(bucket, clock, chains=chains)
    for topic in ("in", "out"):
        filled.create_topic(topic, partitions=PARTITIONS)
    with filled.producer() as producer:
        for number in range(RECORDS):
            producer.send("in", b"%d" % number, partition=number % PARTITIONS)
    store = process(RetryingStore(faults, attempts=3, sleep=clock.sleep, rng=random.Random("copier")), clock)
    faults.plan = rolling(chains)
    copier = Copier(store, members=members)
    for number in count(1):
        if not copier.copy(commit=number % 3 != 0):
            break
    store = process(bucket, clock)
    store.recover()
    rows = store.scan("out").to_table()
    values = list(zip(rows["_partition"].to_pylist(), map(int, rows["value"].to_pylist()), strict=True))
    for partition in range(PARTITIONS):
        assert [value for place, value in values if place == partition] == list(range(partition, RECORDS, PARTITIONS))
    assert sum(position.offset or 0 for position in store.group("copiers").positions) == RECORDS
    assert store.verify(deep=True).ok
    assert any(isinstance(error, UnknownOutcomeError) for error in copier.errors)
