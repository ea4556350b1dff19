"""The chain that leads a partition, and the chain that coordinates a transactional id or a group.

Pure functions of the name and the number of chains, the same in every process and release (COORD-01). The number of
chains is fixed when a store is created (COORD-02). The hash is Kafka's murmur2 of the UTF-8 bytes of the name.
"""

from __future__ import annotations

from txnstore.core.model import TopicPartition
from txnstore.core.partitioner import partition_for_key

#: The chain that decides the catalog. The other chains have copies of the topics that they lead partitions of.
CATALOG = 0

#: The greatest number of chains of a store.
MAX_CHAINS = 256

#: A producer id is the number of the granting chain, shifted left by this number of bits, plus a counter.
_PRODUCER_ID_BITS = 32


def chain_of_partition(tp: TopicPartition, chains: int) -> int:
    """Return the chain that leads a partition; consecutive partitions have consecutive chains."""
    return (_chain_by_hash(tp.topic, chains) + tp.partition) % chains if chains > 1 else 0


def chain_of_transactional_id(transactional_id: str, chains: int) -> int:
    """Return the chain that coordinates an id: ``hash(transactional.id) % chains``, as in Kafka (COORD-01)."""
    return _chain_by_hash(transactional_id, chains)


def chain_of_group(group: str, chains: int) -> int:
    """Return the chain that coordinates a consumer group."""
    return _chain_by_hash(group, chains)


def first_producer_id(chain: int) -> int:
    """Return the first producer id that a chain grants; no two chains grant the same one (INIT-06)."""
    return chain << _PRODUCER_ID_BITS


def chain_of_producer(producer_id: int) -> int:
    """Return the chain that granted a producer id, which coordinates the producer's transactions."""
    return producer_id >> _PRODUCER_ID_BITS


def _chain_by_hash(name: str, chains: int) -> int:
    return partition_for_key(name.encode(), chains) if chains > 1 else 0
