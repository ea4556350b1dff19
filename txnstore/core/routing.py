"""Which chain leads a partition, and which coordinates a transactional id or a group.

Pure functions of the name and the number of chains, the same in every process and release (COORD-01): the number of
chains is fixed when a store is created (COORD-02). The hash is Kafka's murmur2 of the UTF-8 bytes.
"""

from __future__ import annotations

from txnstore.core.model import TopicPartition
from txnstore.core.partitioner import partition_for_key

#: The chain that holds the catalog: it decides which topics exist. The others have copies of what they need.
CATALOG = 0

#: The most chains that a store may have.
MAX_CHAINS = 256

#: A producer id is the number of the chain that granted it, shifted by so many bits, plus a counter.
_PRODUCER_ID_BITS = 32


def chain_of_partition(tp: TopicPartition, chains: int) -> int:
    """The chain that leads a partition; the partitions of a topic follow each other, so they spread evenly."""
    return (_hash(tp.topic, chains) + tp.partition) % chains if chains > 1 else 0


def chain_of_transactional_id(transactional_id: str, chains: int) -> int:
    """The chain that coordinates a transactional id: the seeds' ``hash(transactional.id) % N`` (D14)."""
    return _hash(transactional_id, chains)


def chain_of_group(group: str, chains: int) -> int:
    """The chain that coordinates a consumer group."""
    return _hash(group, chains)


def first_producer_id(chain: int) -> int:
    """The first producer id that a chain grants: no two chains grant the same one (INIT-06)."""
    return chain << _PRODUCER_ID_BITS


def chain_of_producer(producer_id: int) -> int:
    """The chain that granted a producer id; for a transactional producer its coordinator."""
    return producer_id >> _PRODUCER_ID_BITS


def _hash(name: str, chains: int) -> int:
    return partition_for_key(name.encode(), chains) if chains > 1 else 0
