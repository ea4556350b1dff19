"""Transactions in states that an administrator looks at."""

from __future__ import annotations

from typing import Any

from tests.harness.executors import DeferredExecutor
from tests.helpers.chains import groups_of, ids_of, process, write_everywhere
from tests.helpers.connections import connection_of
from txnstore.core.model import Outcome, ProducerIdentity, TopicPartition
from txnstore.core.transactions.commands import EndTxn
from txnstore.producer import Producer
from txnstore.store import Store
from txnstore.testing import ManualClock

DAY_MS = 86_400_000
PARTITIONS = 6
T0 = TopicPartition("t", 0)
ALL = tuple(TopicPartition("t", number) for number in range(PARTITIONS))


def name_of(store: Store) -> str:
    """A transactional id of the last chain."""
    return ids_of(store, len(connection_of(store).chains) - 1)


def open_everywhere(store: Store, name: str, **options: Any) -> Producer:
    """A producer with an open transaction over all partitions."""
    producer = store.producer(name, **options)
    producer.begin_transaction()
    write_everywhere(producer, b"value")
    producer.flush()
    return producer


def decided(store: Store, clock: ManualClock, outcome: Outcome = Outcome.COMMIT) -> None:
    """A transaction that is decided by a process that dies before it has written to the other chains."""
    dying = process(connection_of(store).counts.inner, clock, background=DeferredExecutor)
    producer = open_everywhere(dying, name_of(store))
    producer.send_offsets({T0: 5}, groups_of(store, 0))
    producer.flush()
    identity = ProducerIdentity(producer.producer_id, producer.epoch, producer.transactional_id)
    connection_of(dying).submit(EndTxn(identity, outcome))
