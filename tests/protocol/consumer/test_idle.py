"""A poll that finds nothing new costs the same for any number of partitions, and notices all that changes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from txnstore import Consumer, Store, TopicPartition
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on


def calls_of(call: Callable[[], object]) -> int:
    """The number of calls of Python functions in this thread."""
    count = 0

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


def idle(store: Store, topic: str) -> Consumer:
    """A consumer that has read all there is."""
    consumer = store.consumer([topic])
    while consumer.poll():
        pass
    return consumer


@pytest.mark.parametrize("table", [False, True], ids=["records", "table"])
def test_an_idle_poll_makes_as_many_calls_for_200_partitions_as_for_one(*, table: bool) -> None:
    with create_on(MemoryStore()) as store:
        store.create_topic("one")
        store.create_topic("many", partitions=200)
        with store.producer("p").transaction() as txn:
            txn.send("one", b"v")
            for number in range(200):
                txn.send("many", b"v", partition=number)
        calls = []
        for name in ("one", "many"):
            consumer = idle(store, name)
            calls.append(calls_of(consumer.poll_table if table else consumer.poll))
        assert calls[0] == calls[1]


@pytest.fixture
def resting() -> tuple[Store, Consumer]:
    store = create_on(MemoryStore())
    store.create_topic("t", partitions=3)
    with store.producer("first").transaction() as txn:
        for number in range(3):
            txn.send("t", b"%d" % number, partition=number)
    return store, idle(store, "t")


def values(consumer: Consumer) -> list[Any]:
    return sorted(record.value for record in consumer.poll())


def test_records_that_come_after_an_idle_poll_are_returned(resting: tuple[Store, Consumer]) -> None:
    store, consumer = resting
    assert values(consumer) == []
    with store.producer("p").transaction() as txn:
        txn.send("t", b"new", partition=1)
    assert values(consumer) == [b"new"]
    assert values(consumer) == []


def test_a_seek_after_an_idle_poll_is_followed(resting: tuple[Store, Consumer]) -> None:
    _, consumer = resting
    consumer.seek(("t", 1), 0)
    assert values(consumer) == [b"1"]
    consumer.seek_to_beginning()
    assert values(consumer) == [b"0", b"1", b"2"]


def test_partitions_that_are_resumed_after_an_idle_poll_are_read(resting: tuple[Store, Consumer]) -> None:
    _, consumer = resting
    consumer.seek_to_beginning()
    consumer.pause()
    assert values(consumer) == values(consumer) == []
    consumer.resume(("t", 2))
    assert values(consumer) == [b"2"]


def test_partitions_that_are_added_after_an_idle_poll_are_read(resting: tuple[Store, Consumer]) -> None:
    store, consumer = resting
    store.alter_topic("t", partitions=4)
    with store.producer("p").transaction() as txn:
        txn.send("t", b"3", partition=3)
    assert values(consumer) == [b"3"]
    consumer.unsubscribe()
    consumer.assign([("t", 0)])
    assert consumer.assignment() == [TopicPartition("t", 0)]
    consumer.seek(("t", 0), 0)
    assert values(consumer) == [b"0"]


def test_an_open_transaction_is_no_rest(resting: tuple[Store, Consumer]) -> None:
    """A poll looks at its coordinator, and may end it when its timeout has passed."""
    store, consumer = resting
    producer = store.producer("p")
    producer.begin_transaction()
    producer.send("t", b"waits", partition=0)
    producer.flush()
    assert values(consumer) == []
    assert consumer._poller._idle is None
    producer.commit_transaction()
    assert values(consumer) == [b"waits"]
