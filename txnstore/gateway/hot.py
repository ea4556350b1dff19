"""The newest batches in memory, as they came: a consumer that follows them costs no GET and no encoding.

Not those of topics with a schema: their rows are stored, not their bytes, and an offset reads the same from anywhere.
"""

from __future__ import annotations

from collections import OrderedDict

from txnstore.core.log.model import Batch, Layout

#: The bytes that they may have together.
HOT_BYTES = 256 << 20


class HotBatches:
    """Encoded batches by topic id, partition and first offset; the oldest is dropped first. Used in one thread.

    Args:
        size: The bytes that they may have together.
    """

    def __init__(self, size: int = HOT_BYTES) -> None:
        self._limit, self.size = size, 0
        #: The batches of the log that were found, and those that were not.
        self.hits, self.misses = 0, 0
        #: Each with the offset after its last record.
        self._batches: OrderedDict[tuple[str, int, int], tuple[int, bytes]] = OrderedDict()

    def add(self, topic_id: str, partition: int, first_offset: int, limit: int, data: bytes) -> None:
        """Keep a batch, with its first offset in it."""
        key = topic_id, partition, first_offset
        self._forget(key)
        self._batches[key] = limit, data
        self.size += len(data)
        while self.size > self._limit and self._batches:
            self._forget(next(iter(self._batches)))

    def find(self, topic_id: str, partition: int, batch: Batch) -> bytes | None:
        """The bytes of a batch of the log; None if they are not kept, or a compaction has replaced it since."""
        kept = self._batches.get((topic_id, partition, batch.base_offset))
        if kept is None or not self.has(topic_id, partition, batch):
            self.misses += 1
            return None
        self.hits += 1
        return kept[1]

    def has(self, topic_id: str, partition: int, batch: Batch) -> bool:
        """Whether :meth:`find` has a batch of the log; not counted."""
        kept = self._batches.get((topic_id, partition, batch.base_offset))
        return kept is not None and kept[0] == batch.limit and batch.layout is Layout.APPENDED

    def _forget(self, key: tuple[str, int, int]) -> None:
        kept = self._batches.pop(key, None)
        if kept is not None:
            self.size -= len(kept[1])
