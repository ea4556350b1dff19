"""Kafka's TransactionsBounceTest: a copy in transactions while what it depends on stops again and again."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import pytest

from tests.kafka.cluster import Cluster, drain
from txnstore.errors import TxnStoreError, UnknownOutcomeError
from txnstore.testing.faults import no_faults, seeded

COUNT = 1_000

T = TypeVar("T")


@pytest.mark.parametrize("with_metadata", [False, True])
def test_copying_while_the_storage_fails(cluster: Cluster, *, with_metadata: bool) -> None:
    """TransactionsBounceTest.testWithGroupId, testWithGroupMetadata.

    Every third transaction is aborted. A call whose outcome is unknown is repeated; any other failure aborts.
    """
    with cluster.producer() as seed:
        for number in range(COUNT):
            seed.send("one", b"%d" % number, partition=number % 4)
    consumer = cluster.consumer("one", group="copy", max_poll_records=50)
    producer = cluster.producer("copy")
    rng = random.Random(7)
    cluster.faults.plan = seeded(7, 0.1)
    copied = iteration = 0
    while copied < COUNT:
        records = _repeated(consumer.poll)
        if not records:
            continue
        iteration += 1
        try:
            _repeated(producer.begin_transaction)
            for record in records:
                producer.send("two", record.value, partition=record.partition)
            positions = {tp: consumer.position(tp) for tp in consumer.assignment()}
            group = consumer.group_metadata() if with_metadata else "copy"
            _repeated(partial(producer.send_offsets, positions, group))
            ended = rng.randrange(3) > 0
            _repeated(producer.commit_transaction if ended else producer.abort_transaction)
        except TxnStoreError:
            ended = False
            _repeated(producer.abort_transaction)
        if ended:
            copied += len(records)
        else:
            _repeated(consumer.rewind_to_committed)
    cluster.faults.plan = no_faults
    assert iteration > COUNT // 50
    copies: dict[int, list[int]] = {number: [] for number in range(4)}
    for record in drain(cluster.consumer("two")):
        assert isinstance(record.value, bytes)
        copies[record.partition].append(int(record.value))
    assert copies == {number: list(range(number, COUNT, 4)) for number in range(4)}


def _repeated(call: Callable[[], T]) -> T:
    """The answer of a call that is repeated while its outcome is unknown or it may be retried."""
    for _ in range(100):
        try:
            return call()
        except UnknownOutcomeError:
            continue
        except TxnStoreError as error:
            if not error.retriable:
                raise
    raise AssertionError(f"{call} never succeeded")
