"""The partition of a record: bit for bit the choice of Kafka's Java client.

A topic is therefore co-partitioned with a Kafka topic. Sources: ``org.apache.kafka.common.utils.Utils.murmur2``,
``BuiltInPartitioner.partitionForKey``. The vectorised form for whole Arrow columns is in
:mod:`txnstore.segment.partition`.
"""

from __future__ import annotations

import struct
from functools import lru_cache

#: The constants of MurmurHash2 and the seed that Kafka chose.
SEED = 0x9747B28C
MULTIPLIER = 0x5BD1E995

_MASK = 0xFFFFFFFF


def murmur2(data: bytes) -> int:
    """Return the 32-bit MurmurHash2 of the bytes as a signed integer (Kafka: ``Utils.murmur2``)."""
    length = len(data)
    h = SEED ^ (length & _MASK)
    for word in _word_layout(length >> 2).unpack_from(data):
        k = word * MULTIPLIER & _MASK
        k = (k ^ k >> 24) * MULTIPLIER & _MASK
        h = h * MULTIPLIER & _MASK ^ k
    if tail := length & 3:
        h = (h ^ int.from_bytes(data[-tail:], "little")) * MULTIPLIER & _MASK
    h = (h ^ h >> 13) * MULTIPLIER & _MASK
    h ^= h >> 15
    return h - (1 << 32) if h >> 31 else h


def partition_for_key(key: bytes, partitions: int) -> int:
    """Return the partition, 0 to ``partitions`` - 1, of a key that is not null (Kafka: ``partitionForKey``)."""
    if partitions == 1:
        return 0
    return (murmur2(key) & 0x7FFFFFFF) % partitions


@lru_cache(maxsize=256)
def _word_layout(count: int) -> struct.Struct:
    """Return the layout of ``count`` little-endian 32-bit words."""
    return struct.Struct(f"<{count}I")
