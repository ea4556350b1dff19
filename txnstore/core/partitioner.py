"""The partition of a record: bit for bit the choice of Kafka's Java client.

A topic is therefore co-partitioned with a Kafka topic. Sources: ``org.apache.kafka.common.utils.Utils.murmur2``,
``BuiltInPartitioner.partitionForKey``, KIP-480 (sticky). The vectorised form for whole Arrow columns is in
:mod:`txnstore.segment.partition`.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Protocol

#: The constants of MurmurHash2 and the seed that Kafka chose.
SEED = 0x9747B28C
MULTIPLIER = 0x5BD1E995

_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """The 32-bit MurmurHash2 of the bytes as a signed integer (Kafka: ``Utils.murmur2``)."""
    length = len(data)
    h = SEED ^ (length & _MASK)
    for word in _words(length >> 2).unpack_from(data):
        k = word * MULTIPLIER & _MASK
        k = (k ^ k >> 24) * MULTIPLIER & _MASK
        h = h * MULTIPLIER & _MASK ^ k
    if tail := length & 3:
        h = (h ^ int.from_bytes(data[-tail:], "little")) * MULTIPLIER & _MASK
    h = (h ^ h >> 13) * MULTIPLIER & _MASK
    h ^= h >> 15
    return h - (1 << 32) if h >> 31 else h


def partition_for_key(key: bytes, partitions: int) -> int:
    """The partition, 0 to ``partitions`` - 1, of a key that is not null (Kafka: ``partitionForKey``)."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class Randomness(Protocol):
    """The source of randomness, which the caller passes in: the core has none."""

    def randrange(self, stop: int, /) -> int:
        """A random number from 0 to ``stop`` - 1."""
        ...


class StickyPartitioner:
    """Chooses the partition of records without a key: one partition per batch, another for the next batch (KIP-480).

    Batches are therefore as large as possible, and records spread evenly over time. A seeded ``rng`` makes the choice
    repeatable. Not thread-safe: the producer calls it under its own lock.
    """

    __slots__ = ("_current", "_previous", "_rng")

    def __init__(self, rng: Randomness) -> None:
        self._rng = rng
        self._current: dict[str, int] = {}
        self._previous: dict[str, int] = {}

    def partition(self, topic: str, partitions: int) -> int:
        """The partition of the next record of the topic, the same until :meth:`new_batch`."""
        chosen = self._current.get(topic)
        if chosen is None or chosen >= partitions:
            chosen = self._current[topic] = self._choose(self._previous.get(topic), partitions)
        return chosen

    def new_batch(self, topic: str) -> None:
        """Close the batch of the topic: the next record goes to another partition if the topic has several."""
        chosen = self._current.pop(topic, None)
        if chosen is not None:
            self._previous[topic] = chosen

    def _choose(self, previous: int | None, partitions: int) -> int:
        if previous is None or previous >= partitions or partitions == 1:
            return self._rng.randrange(partitions)
        # One of the other partitions, with equal probability.
        chosen = self._rng.randrange(partitions - 1)
        return chosen + 1 if chosen >= previous else chosen


@lru_cache(maxsize=256)
def _words(count: int) -> struct.Struct:
    """The layout of ``count`` little-endian 32-bit words."""
    return struct.Struct(f"<{count}I")
