"""The newest batches in memory, as producers sent them: a consumer near the end costs no GET and no encoding.

Batches of topics with a schema are not kept: the store has rows of them, not bytes, and all readers get the same.
"""

from __future__ import annotations

from txnstore.caches import ByteCache
from txnstore.core.log.model import Batch, Layout

#: The most bytes of batches in memory.
HOT_BYTES = 256 << 20


class HotBatches:
    """Encoded batches by topic id, partition and first offset; used in one thread.

    Args:
        size: The most bytes of batches.
    """

    def __init__(self, size: int = HOT_BYTES) -> None:
        #: The look-ups that found a batch, and those that did not.
        self.hits, self.misses = 0, 0
        #: Encoded batches, each with the offset after its last record.
        self._batches: ByteCache[tuple[str, int, int], tuple[int, bytes]] = ByteCache(size)

    @property
    def size(self) -> int:
        """The bytes of the batches."""
        return self._batches.size

    def add(self, topic_id: str, partition: int, first_offset: int, limit: int, data: bytes) -> None:
        """Keep a batch, whose bytes have its first offset."""
        self._batches.keep((topic_id, partition, first_offset), (limit, data), len(data))

    def find(self, topic_id: str, partition: int, batch: Batch) -> bytes | None:
        """Return the bytes of a batch of the log; None if they are not kept, or a compaction has replaced the batch."""
        entry = self._batches.find((topic_id, partition, batch.base_offset))
        if entry is None or not self.has(topic_id, partition, batch):
            self.misses += 1
            return None
        self.hits += 1
        return entry[1]

    def has(self, topic_id: str, partition: int, batch: Batch) -> bool:
        """Whether :meth:`find` would return a batch; not counted as a look-up."""
        entry = self._batches.find((topic_id, partition, batch.base_offset))
        return entry is not None and entry[0] == batch.limit and batch.layout is Layout.APPENDED
