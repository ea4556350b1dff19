"""Which partition a record goes to: the choice that Kafka's Java client makes, bit for bit.

A topic is therefore co-partitioned with its Kafka twin. Source: ``org.apache.kafka.common.utils.Utils.murmur2``,
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
    """The 32-bit MurmurHash2 of the bytes as a signed integer, as Kafka's ``Utils.murmur2`` gives it."""
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
    """The partition, 0 up to ``partitions``, of a key that is not null."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


class Randomness(Protocol):
    """What chooses among partitions: the core has no randomness of its own."""

    def randrange(self, stop: int, /) -> int:
        """A number from 0 to ``stop`` - 1."""
        ...


class StickyPartitioner:
    """Chooses a partition for records without a key: one and the same for a batch, another for the next (KIP-480).

    So the batches of a slow producer are as large as they can be, and in the long run every partition gets its share.
    ``rng`` decides; a seeded one makes the choice repeatable. Not locked: its producer calls it under its own lock.
    """

    __slots__ = ("_current", "_previous", "_rng")

    def __init__(self, rng: Randomness) -> None:
        self._rng = rng
        self._current: dict[str, int] = {}
        self._previous: dict[str, int] = {}

    def partition(self, topic: str, partitions: int) -> int:
        """The partition for the next record of the topic; it stays until :meth:`new_batch`."""
        chosen = self._current.get(topic)
        if chosen is None or chosen >= partitions:
            chosen = self._current[topic] = self._choose(self._previous.get(topic), partitions)
        return chosen

    def new_batch(self, topic: str) -> None:
        """The batch of the topic is closed: the next record goes to another partition, if there is one."""
        chosen = self._current.pop(topic, None)
        if chosen is not None:
            self._previous[topic] = chosen

    def _choose(self, previous: int | None, partitions: int) -> int:
        if previous is None or previous >= partitions or partitions == 1:
            return self._rng.randrange(partitions)
        # One of the others, each with the same chance.
        chosen = self._rng.randrange(partitions - 1)
        return chosen + 1 if chosen >= previous else chosen


@lru_cache(maxsize=256)
def _words(count: int) -> struct.Struct:
    """The layout of ``count`` little-endian 32-bit words."""
    return struct.Struct(f"<{count}I")
