"""The tables of the schema ``txn`` that the state does not hold: the entries of the chain, and its compactions.

They are read from the chain when a query first asks, one GET an entry, the newest :data:`ENTRIES` only; a chain may
have millions. ``txnstore log show`` prints any others.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Executor

import pyarrow as pa

from txnstore.chain import keys
from txnstore.chain.codec import Entry, decode
from txnstore.core.events import SegmentsReplaced
from txnstore.errors import ObjectNotFoundError
from txnstore.segment.schema import TIMESTAMP
from txnstore.sql.inspection import Row, from_rows
from txnstore.storage.base import ObjectStore

#: How many entries back from the snapshot the tables look.
ENTRIES = 1000

SCHEMAS: dict[str, pa.Schema] = {
    "entries": pa.schema(
        [
            ("sequence", pa.int64()),
            ("timestamp", TIMESTAMP),
            ("entry_id", pa.string()),
            ("writer_id", pa.string()),
            ("bytes", pa.int64()),
            ("events", pa.int64()),
            ("event_types", pa.map_(pa.string(), pa.int64())),
        ],
    ),
    "compactions": pa.schema(
        [
            ("sequence", pa.int64()),
            ("timestamp", TIMESTAMP),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("removed_batches", pa.int64()),
            ("added_segments", pa.int64()),
            ("records", pa.int64()),
            ("bytes", pa.int64()),
            ("base_offset", pa.int64()),
            ("limit_offset", pa.int64()),
        ],
    ),
}


class History:
    """The newest entries up to ``sequence`` of a chain, read once and when they are first needed."""

    def __init__(
        self,
        objects: ObjectStore,
        pool: Callable[[], Executor],
        chain: int,
        sequence: int,
        entries: int = ENTRIES,
    ) -> None:
        self._objects = objects
        self._pool = pool
        self._chain = chain
        self._sequences = range(max(1, sequence - entries + 1), sequence + 1)
        self._lock = threading.Lock()
        self._entries: list[tuple[Entry, int]] | None = None

    def table(self, name: str) -> pa.Table:
        """One of the tables of :data:`SCHEMAS`."""
        rows = self._entry_rows() if name == "entries" else self._compaction_rows()
        return from_rows(SCHEMAS[name], rows)

    def _read(self) -> list[tuple[Entry, int]]:
        with self._lock:
            if self._entries is None:
                found = self._pool().map(self._entry, self._sequences)
                self._entries = [item for item in found if item is not None]
            return self._entries

    def _entry(self, sequence: int) -> tuple[Entry, int] | None:
        """An entry and its size in bytes; None if it is below the boundary of the chain and gone."""
        key = keys.entry(self._chain, sequence)
        try:
            data = self._objects.get(key)
        except ObjectNotFoundError:
            return None
        return decode(Entry, key, data), len(data)

    def _entry_rows(self) -> Iterator[Row]:
        for entry, size in self._read():
            types = Counter(event.type for event in entry.events)
            yield (
                entry.sequence, entry.timestamp, entry.entry_id, entry.writer_id, size, len(entry.events),
                sorted(types.items()),
            )  # fmt: skip

    def _compaction_rows(self) -> Iterator[Row]:
        for entry, _ in self._read():
            for event in entry.events:
                if isinstance(event, SegmentsReplaced):
                    records = sum(batch.records for batch in event.added)
                    size = sum(batch.segment.size for batch in event.added)
                    first = min([*event.removed, *(batch.base_offset for batch in event.added)])
                    limit = max((batch.limit for batch in event.added), default=None)
                    yield (
                        entry.sequence, entry.timestamp, event.topic, event.partition, len(event.removed),
                        len(event.added), records, size, first, limit,
                    )  # fmt: skip
