"""What tests of inlined segments count: requests, and the bytes of payloads."""

from __future__ import annotations

from collections import Counter

from tests.helpers import keys
from tests.helpers.compaction import batches, runtime
from tests.helpers.connections import connection_of
from txnstore.chain.payload import payload_of
from txnstore.core.model import TopicPartition
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on
from txnstore.testing import ManualClock

T0 = TopicPartition("t", 0)


def counted_store(clock: ManualClock, objects: MemoryStore) -> Store:
    """A new store whose requests are counted, with the topic ``t`` and two partitions."""
    store = create_on(CountingStore(objects, log=True), 1, runtime=runtime(clock))
    store.create_topic("t", partitions=2)
    return store


def requests(store: Store) -> Counter[str]:
    """The requests since the last call, by kind."""
    counts = connection_of(store).counts
    kinds = Counter(kind for kind, _ in counts.log)
    counts.reset()
    return kinds


def payloads(objects: MemoryStore) -> dict[str, int]:
    """The sizes of the payloads in the entries of chain 0."""
    sizes = {item.key: len(payload_of(objects.get(item.key))) for item in objects.list(keys.entries(0))}
    return {key: size for key, size in sizes.items() if size}


def inlined(store: Store, tp: TopicPartition = T0) -> list[bool]:
    """Whether the segment of each batch of a partition is inlined, in the order of the offsets."""
    return [batch.segment.inlined for batch in batches(store, tp)]
