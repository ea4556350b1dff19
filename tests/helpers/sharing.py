"""Stores with shared segments: what is sent to them, and what lies where."""

from __future__ import annotations

from tests.helpers import keys
from tests.helpers.compaction import batches
from txnstore.core.log.model import Segment
from txnstore.core.model import TopicPartition
from txnstore.producer import Producer
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store

PARTITIONS = 4


def send(producer: Producer, text: str, topic: str = "p", partitions: int = PARTITIONS) -> None:
    for number in range(partitions):
        producer.send(topic, b"%s %d" % (text.encode(), number), partition=number)


def segments(store: Store, topic: str = "p", partitions: int = PARTITIONS) -> list[Segment]:
    """The segments of a topic, partition by partition."""
    by_partition = [batches(store, TopicPartition(topic, number)) for number in range(partitions)]
    return [batch.segment for each in by_partition for batch in each]


def rows_of(store: Store, topic: str, partition: int) -> list[tuple[int, int]]:
    """The row ranges that the batches of a partition are of their segments: first row and number of rows."""
    return [(batch.first_row, batch.records) for batch in batches(store, TopicPartition(topic, partition))]


def stored(objects: MemoryStore) -> list[str]:
    """The objects with segments."""
    return [item.key for item in objects.list(keys.TOPICS)]
