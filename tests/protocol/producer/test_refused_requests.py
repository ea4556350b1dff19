"""What rows cost that do not fit the schema of their topic: one look at the head of the catalog, then a pause."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest

from tests.helpers.connections import connection_of
from txnstore.errors import SchemaMismatchError, TxnStoreError, UnknownTopicOrPartitionError
from txnstore.producer import Producer
from txnstore.runtime import Runtime
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import ManualClock

SCHEMA = pa.schema([pa.field("id", pa.int64())])
WIDER = pa.schema([*SCHEMA, pa.field("name", pa.string())])
BAD: dict[str, Callable[[Producer], object]] = {
    "row": lambda producer: producer.send("typed", {"id": 1, "name": "a"}),
    "table": lambda producer: producer.send_table("typed", [{"id": 1, "name": "a"}]),
}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> Store:
    store = create_on(CountingStore(MemoryStore(clock=clock)), runtime=Runtime(clock=clock, sleep=clock.sleep))
    store.create_topic("typed", schema=SCHEMA)
    return store


def _requests(store: Store) -> int:
    return connection_of(store).counts.snapshot().requests


@pytest.mark.parametrize("what", BAD)
def test_refused_records_in_a_row_cost_one_look(store: Store, clock: ManualClock, what: str) -> None:
    with store.producer(linger=None) as producer:
        producer.send("typed", {"id": 0})
        before = _requests(store)
        for _ in range(100):
            with pytest.raises(SchemaMismatchError):
                BAD[what](producer)
        assert _requests(store) - before == 1
        clock.advance(1000)
        with pytest.raises(TxnStoreError):
            BAD[what](producer)
        assert _requests(store) - before == 2


@pytest.mark.parametrize("what", BAD)
def test_what_another_process_has_changed_is_seen_after_the_pause(store: Store, clock: ManualClock, what: str) -> None:
    other = open_on(connection_of(store).objects, runtime=Runtime(clock=clock, sleep=clock.sleep))
    with store.producer(linger=None) as producer:
        with pytest.raises(TxnStoreError):
            BAD[what](producer)
        other.alter_topic("typed", schema=WIDER)
        clock.advance(1000)
        BAD[what](producer)


def test_topic_or_partition_that_another_process_has_made_is_found_without_a_pause(store: Store) -> None:
    """An application that creates what is missing repeats its send immediately."""
    other = open_on(connection_of(store).objects)
    with store.producer(linger=None) as producer:
        with pytest.raises(UnknownTopicOrPartitionError):
            producer.send("nothing", b"x")
        with pytest.raises(UnknownTopicOrPartitionError):
            producer.send("typed", {"id": 1}, partition=7)
        other.create_topic("nothing")
        other.alter_topic("typed", partitions=8)
        producer.send("nothing", b"x")
        producer.send("typed", {"id": 1}, partition=7)
