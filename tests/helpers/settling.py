"""Settles the small commits of a store now, not when a checkpoint is due."""

from __future__ import annotations

from collections.abc import Iterable

from tests.helpers.connections import connection_of
from txnstore.compactor.settle.settling import Settled, settle
from txnstore.core.log.model import Partition
from txnstore.core.model import Map, TopicPartition
from txnstore.store import Store


def settle_now(store: Store, chain: int = 0, done: Map[TopicPartition, Partition] | None = None) -> Settled:
    """Settle a chain; raises the first error of it."""
    settled = settle_quietly(store, chain, done)
    for error in settled.errors:
        raise error
    return settled


def settle_quietly(store: Store, chain: int = 0, done: Map[TopicPartition, Partition] | None = None) -> Settled:
    """Settle a chain, with its errors in the result."""
    parts = connection_of(store).parts_if_open()
    assert parts is not None
    return settle(parts, parts.chains[chain].refresh(), done or Map())


def send(store: Store, values: Iterable[bytes], topic: str = "t", partitions: Iterable[int] = (0, 1)) -> None:
    """A commit for each value, which goes to each of the partitions."""
    with store.producer() as producer:
        for value in values:
            for partition in partitions:
                producer.send(topic, value, key=b"k", partition=partition, timestamp=1_000)
            producer.flush()


def numbers(count: int, first: int = 0) -> list[bytes]:
    """Values."""
    return [b"%d" % number for number in range(first, first + count)]
