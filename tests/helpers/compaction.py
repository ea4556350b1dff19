"""Logs of many small segments, and what a reader finds in them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable
from typing import Any

from tests.harness.executors import InlineExecutor, never
from tests.helpers import keys
from tests.helpers.connections import connection_of
from tests.helpers.keys import FixedRuntime
from txnstore.chain.keys import LEASES
from txnstore.core.log.model import Batch
from txnstore.core.model import TopicPartition
from txnstore.producer import Producer
from txnstore.read.plan import IsolationLevel
from txnstore.runtime import Runtime
from txnstore.snapshot import Snapshot
from txnstore.storage.base import ObjectStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import ManualClock

T0 = TopicPartition("t", 0)
HOUR_MS = 60 * 60 * 1000
DAY_MS = 24 * HOUR_MS


#: No two stores of a test run have the same ids, as no two stores in the world have.
_SEEDS = itertools.count()


def runtime(clock: ManualClock) -> Runtime:
    """A runtime on a manual clock; commits return with all markers written."""
    return FixedRuntime(clock, clock.sleep, random.Random(next(_SEEDS)), background=InlineExecutor, spawn=never)


def new_store(clock: ManualClock, objects: ObjectStore | None = None, chains: int = 1) -> Store:
    """A new store in memory, whose storage has the same clock."""
    return create_on(objects if objects is not None else MemoryStore(clock=clock), chains, runtime=runtime(clock))


def reopen(store: Store, clock: ManualClock) -> Store:
    """The same store as another process sees it."""
    return open_on(connection_of(store).counts.inner, runtime=runtime(clock))


def lose_leases(objects: ObjectStore) -> None:
    """Delete the leases of all compactors: others take the same partitions, as after the end of a lease."""
    objects.delete([item.key for item in objects.list(LEASES)])


def commit(store: Store, values: Iterable[bytes], topic: str = "t", partition: int = 0, writer: str = "writer") -> None:
    """One committed transaction with these values in one segment."""
    with store.producer(writer) as producer, producer.transaction():
        _send(producer, values, topic, partition)


def abort(store: Store, values: Iterable[bytes], topic: str = "t", partition: int = 0, writer: str = "aborter") -> None:
    """One aborted transaction whose values are in the log."""
    with store.producer(writer) as producer:
        producer.begin_transaction()
        _send(producer, values, topic, partition)
        producer.flush()
        producer.abort_transaction()


def begin(
    store: Store, values: Iterable[bytes], topic: str = "t", partition: int = 0, writer: str = "open"
) -> Producer:
    """A producer whose transaction is open and has these values in the log."""
    producer = store.producer(writer)
    producer.begin_transaction()
    _send(producer, values, topic, partition)
    producer.flush()
    return producer


def _send(producer: Producer, values: Iterable[bytes], topic: str, partition: int) -> None:
    for number, value in enumerate(values):
        producer.send(topic, value, key=b"k%d" % number, partition=partition, timestamp=1_000 + number)


def rows(
    store: Store, topic: str = "t", isolation: IsolationLevel = "read_committed", snapshot: Snapshot | None = None
) -> list[dict[str, Any]]:
    """All rows that a reader finds, with their places."""
    listed: list[dict[str, Any]] = store.scan(topic, isolation, snapshot=snapshot).to_table().to_pylist()
    return listed


def values(store: Store, topic: str = "t", isolation: IsolationLevel = "read_committed") -> list[bytes]:
    """The values that a reader finds."""
    return [row["value"] for row in rows(store, topic, isolation)]


def batches(store: Store, tp: TopicPartition = T0) -> list[Batch]:
    """The batches of a partition as the chain names them now."""
    return list(connection_of(store).view().partitions[tp].batches)


def segment_keys(store: Store) -> set[str]:
    """The keys of all segment objects that are stored, named or not."""
    return {item.key for item in connection_of(store).objects.list("topics/")}


def named_keys(store: Store) -> set[str]:
    """The keys of all segments that the newest state names."""
    return {
        batch.segment.key
        for partition in connection_of(store).view().partitions.values()
        for batch in partition.batches
    }


class HookStore(MemoryStore):
    """A store in memory in which something else happens right after segments were listed, or one was uploaded."""

    after_list: Callable[[], None] | None = None
    after_put: Callable[[], None] | None = None

    def put(self, key: str, data: bytes) -> None:
        super().put(key, data)
        if key.startswith(keys.TOPICS) and self.after_put is not None:
            hook, self.after_put = self.after_put, None
            hook()

    def list(self, prefix: str, start_after: str = "", limit: int | None = None):  # type: ignore[no-untyped-def]  # noqa: ANN201
        objects = super().list(prefix, start_after, limit)
        if prefix == keys.TOPICS and self.after_list is not None:
            hook, self.after_list = self.after_list, None
            hook()
        return objects
