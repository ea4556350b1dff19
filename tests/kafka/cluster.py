"""The part of Kafka's test harness that txnstore needs: a store, clients in processes of their own, an outage."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tests.helpers.shell import runtime
from txnstore import Consumer, Producer, Record, Store, TopicPartition
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on, open_on
from txnstore.testing import Fault, FaultStore, ManualClock, on
from txnstore.testing.faults import no_faults

#: More polls than any test needs: a test that would wait without bound fails instead.
_POLLS = 1_000


class Cluster:
    """A store; every client has a process (a :class:`Store`) of its own, and all share one clock and one storage."""

    def __init__(self, chains: int, clock: ManualClock) -> None:
        self.clock = clock
        self.objects = MemoryStore(clock=clock)
        self.faults = FaultStore(self.objects)
        self._open = ExitStack()
        self.store: Store = self._open.enter_context(create_on(self.faults, chains, runtime=runtime(clock)))

    def process(self) -> Store:
        """The store as another process opens it."""
        return self._open.enter_context(open_on(self.faults, runtime=runtime(self.clock)))

    def producer(self, transactional_id: str | None = None, **options: Any) -> Producer:
        """A producer in a process of its own; not closed in the end, since tests leave fenced ones behind."""
        return self.process().producer(transactional_id, **options)

    def consumer(self, *topics: str, group: str | None = None, **options: Any) -> Consumer:
        """A consumer in a process of its own."""
        return self._open.enter_context(self.process().consumer(topics or None, group, **options))

    @contextmanager
    def outage(self, key_contains: str = "") -> Iterator[None]:
        """The storage answers no write of these keys, and writes nothing."""
        stopped = [
            on(Fault.ERROR_BEFORE, kind, key_contains=key_contains, times=None) for kind in ("put", "put_if_absent")
        ]
        self.faults.plan = lambda n, operation, key: next(
            (fault for plan in stopped if (fault := plan(n, operation, key)) is not None), None
        )
        try:
            yield
        finally:
            self.faults.plan = no_faults

    def close(self) -> None:
        """Close the consumers and the stores."""
        self._open.close()


def send(cluster: Cluster, tp: TopicPartition, count: int, first_time: int | None = None) -> None:
    """Send ``key 0`` … with ``value 0`` … in one batch; their times count up from the first one."""
    with cluster.producer() as producer:
        for number in range(count):
            time = None if first_time is None else first_time + number
            producer.send(tp.topic, b"value %d" % number, b"key %d" % number, partition=tp.partition, timestamp=time)


def consume(consumer: Consumer, count: int) -> list[Record]:
    """Poll until there are ``count`` records or more; then once more, which finds nothing."""
    records: list[Record] = []
    for _ in range(_POLLS):
        records += consumer.poll()
        if len(records) >= count:
            break
    return records + consumer.poll()


def drain(consumer: Consumer) -> list[Record]:
    """All records that are visible now: polls until several in a row are empty, as members join one after another."""
    visible: list[Record] = []
    empty = 0
    while empty < 3:
        records = consumer.poll()
        visible += records
        empty = 0 if records else empty + 1
    return visible


def values(records: list[Record]) -> list[bytes]:
    """The values of records of topics without a schema, sorted."""
    return sorted(record.value for record in records if isinstance(record.value, bytes))


def until(happened: Callable[[], bool]) -> None:
    """Call until it returns True; fails after many calls."""
    assert any(happened() for _ in range(_POLLS))
