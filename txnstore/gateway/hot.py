"""The newest batches in memory, as they came: a consumer that follows them costs no GET and no encoding.

Not those of topics with a schema: their rows are stored, not their bytes, and an offset reads the same from anywhere.
"""

from __future__ import annotations

from txnstore.caches import ByteCache
from txnstore.core.log.model import Batch, Layout

#: The bytes that they may have together.
HOT_BYTES = 256 << 20


class HotBatches:
    """Encoded batches by topic id, partition and first offset; used in one thread.

    Args:
        size: The bytes that they may have together.
    """

    def __init__(self, size: int = HOT_BYTES) -> None:
        #: The batches of the log that were found, and those that were not.
        self.hits, self.misses = 0, 0
        #: Each with the offset after its last record.
        self._batches: ByteCache[tuple[str, int, int], tuple[int, bytes]] = ByteCache(size)

    @property
    def size(self) -> int:
        """Their bytes."""
        return self._batches.size

    def add(self, topic_id: str, partition: int, first_offset: int, limit: int, data: bytes) -> None:
        """Keep a batch, with its first offset in it."""
        self._batches.keep((topic_id, partition, first_offset), (limit, data), len(data))

    def find(self, topic_id: str, partition: int, batch: Batch) -> bytes | None:
        """The bytes of a batch of the log; None if they are not kept, or a compaction has replaced it since."""
        kept = self._batches.find((topic_id, partition, batch.base_offset))
        if kept is None or not self.has(topic_id, partition, batch):
            self.misses += 1
            return None
        self.hits += 1
        return kept[1]

    def has(self, topic_id: str, partition: int, batch: Batch) -> bool:
        """Whether :meth:`find` has a batch of the log; not counted."""
        kept = self._batches.find((topic_id, partition, batch.base_offset))
        return kept is not None and kept[0] == batch.limit and batch.layout is Layout.APPENDED
