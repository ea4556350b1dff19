"""Logs written step by step, and what readers find in them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable

import pyarrow as pa

from tests.harness.executors import InlineExecutor, never
from tests.helpers.connections import connection_of
from tests.helpers.keys import FixedRuntime
from txnstore.consumer import Consumer
from txnstore.core.log.slices import Slice
from txnstore.core.model import TopicPartition
from txnstore.producer import Producer
from txnstore.read.plan import IsolationLevel
from txnstore.read.reader import open_slice
from txnstore.read.records import Record
from txnstore.read.rows import Columns
from txnstore.runtime import Runtime
from txnstore.storage.base import ObjectStore
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import ManualClock

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
_SEEDS = itertools.count()


def new_store(clock: ManualClock, objects: ObjectStore | None = None, chains: int = 1) -> Store:
    """A new store in memory that keeps a log of its requests."""
    inner = objects if objects is not None else MemoryStore(clock=clock)
    return create_on(CountingStore(inner, log=True), chains, runtime=_runtime(clock))


def another_process(store: Store, clock: ManualClock) -> Store:
    """The same store as another process sees it."""
    return open_on(CountingStore(connection_of(store).counts.inner, log=True), runtime=_runtime(clock))


def read_slice(objects: ObjectStore, part: Slice, columns: Columns) -> pa.Table:
    """All rows of a slice."""
    opened = open_slice(objects, part, columns)
    tables = [opened.read(number) for number in range(len(opened))]
    return pa.concat_tables(tables) if tables else columns.schema.empty_table()


def _runtime(clock: ManualClock) -> Runtime:
    # Ids are unique in the test process, as they are in the world: topics of two stores must not look like one.
    return FixedRuntime(clock, clock.sleep, random.Random(next(_SEEDS)), background=InlineExecutor, spawn=never)


def append(store: Store, *values: str, tp: TopicPartition = T0, timestamp: int | None = None) -> None:
    """Records outside of transactions, in one batch."""
    with store.producer() as producer:
        send(producer, *values, tp=tp, timestamp=timestamp)


def send(producer: Producer, *values: str, tp: TopicPartition = T0, timestamp: int | None = None) -> None:
    """Records in one batch that is in the log when this returns; in the transaction of the producer if it has one."""
    for value in values:
        producer.send(tp.topic, value.encode(), key=b"k-" + value.encode(), partition=tp.partition, timestamp=timestamp)
    producer.flush()


def begin(store: Store, name: str, *values: str, tp: TopicPartition = T0) -> Producer:
    """A producer with an open transaction, with these records in the log."""
    producer = store.producer(name)
    producer.begin_transaction()
    if values:
        send(producer, *values, tp=tp)
    return producer


def commit(store: Store, *values: str, tp: TopicPartition = T0) -> None:
    """A committed transaction of one batch."""
    with store.producer("committer") as producer, producer.transaction():
        send(producer, *values, tp=tp)


def abort(store: Store, *values: str, tp: TopicPartition = T0) -> None:
    """An aborted transaction whose batch is in the log."""
    with begin(store, "aborter", *values, tp=tp) as producer:
        producer.abort_transaction()


def texts(records: Iterable[Record]) -> list[str]:
    """The values of records."""
    return [record.value.decode() for record in records if isinstance(record.value, bytes)]


def scanned(store: Store, isolation: IsolationLevel = "read_committed", topic: str = "t") -> list[str]:
    """The values that a scan finds."""
    return [value.decode() for value in store.scan(topic, isolation).to_table()["value"].to_pylist()]


def read_all(consumer: Consumer, max_records: int | None = None) -> list[Record]:
    """Everything that the consumer finds, until a poll finds nothing."""
    result: list[Record] = []
    while records := consumer.poll(max_records=max_records):
        result += records
    return result


def kinds(store: Store) -> list[str]:
    """The kinds of requests since the last reset, in order."""
    log: list[tuple[str, str]] = list(connection_of(store).counts.log)
    return [kind for kind, _ in log]
