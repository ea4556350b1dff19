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
        data = self._kept(topic_id, partition, batch)
        if data is None:
            self.misses += 1
        else:
            self.hits += 1
        return data

    def size_of(self, topic_id: str, partition: int, batch: Batch) -> int | None:
        """The number of bytes that :meth:`find` would return; None: it would return none. Not counted as a look-up."""
        data = self._kept(topic_id, partition, batch)
        return None if data is None else len(data)

    def _kept(self, topic_id: str, partition: int, batch: Batch) -> bytes | None:
        entry = self._batches.find((topic_id, partition, batch.base_offset))
        if entry is None or entry[0] != batch.limit or batch.layout is not Layout.APPENDED:
            return None
        return entry[1]
