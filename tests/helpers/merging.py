"""Merges the small commits of a store now, not when a checkpoint is due."""

from __future__ import annotations

from collections.abc import Iterable

from tests.helpers.connections import connection_of
from txnstore.compactor.compact.background import BackgroundReport, merge_small_commits
from txnstore.core.log.model import Partition
from txnstore.core.model import Map, TopicPartition
from txnstore.store import Store


def merge_now(store: Store, chain: int = 0, done: Map[TopicPartition, Partition] | None = None) -> BackgroundReport:
    """Merge the small commits of a chain; raises the first error of it."""
    report = merge_quietly(store, chain, done)
    for error in report.errors:
        raise error
    return report


def merge_quietly(store: Store, chain: int = 0, done: Map[TopicPartition, Partition] | None = None) -> BackgroundReport:
    """Merge the small commits of a chain, with its errors in the result."""
    parts = connection_of(store).parts_if_open()
    assert parts is not None
    return merge_small_commits(parts, parts.chains[chain].refresh(), done or Map())


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
