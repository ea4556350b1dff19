"""The tables of the schema ``txn`` that the state does not contain: entries of the chains, and compactions.

The entries are read when a query first needs them, with one GET per entry. A chain may have millions of entries, so
only the newest :data:`ENTRIES` are read; ``txnstore log show`` prints older ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa

from txnstore.chain.codec import Entry
from txnstore.chain.keys import Keys
from txnstore.chain.tail import missing_entry, newest, read_entry
from txnstore.core.events import event_name
from txnstore.core.history import HistoryEntry
from txnstore.core.log.dump import Trace, Traces, log_lines
from txnstore.core.maintenance import SegmentsReplaced
from txnstore.core.model import TopicPartition
from txnstore.core.routing import chain_of_partition
from txnstore.core.view import View
from txnstore.segment.schema import TIMESTAMP
from txnstore.sql.inspection import Row, from_rows
from txnstore.storage.base import ObjectStore
from txnstore.threads import ForkLock

#: The maximum number of entries in the tables, in all chains together.
ENTRIES = 1000

SCHEMAS: dict[str, pa.Schema] = {
    "entries": pa.schema(
        [
            ("chain", pa.int32()),
            ("sequence", pa.int64()),
            ("timestamp", TIMESTAMP),
            ("entry_id", pa.string()),
            ("writer_id", pa.string()),
            ("bytes", pa.int64()),
            ("events", pa.int64()),
            ("event_types", pa.map_(pa.string(), pa.int64())),
            ("principals", pa.list_(pa.string())),
        ],
    ),
    "compactions": pa.schema(
        [
            ("chain", pa.int32()),
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


#: The columns of ``txn.log``: the logs with their markers, from the batches of a view and the same entries.
LOG = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("base_offset", pa.int64()),
        ("last_offset", pa.int64()),
        ("kind", pa.string()),
        ("outcome", pa.string()),
        ("records", pa.int64()),
        ("producer_id", pa.int64()),
        ("epoch", pa.int32()),
        ("base_sequence", pa.int64()),
        ("last_sequence", pa.int64()),
        ("transactional", pa.bool_()),
        ("transactional_id", pa.string()),
        ("coordinator", pa.int32()),
        ("min_timestamp", TIMESTAMP),
        ("max_timestamp", TIMESTAMP),
        ("appended_at", TIMESTAMP),
        ("entry", pa.int64()),
        ("segment", pa.string()),
        ("bytes", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True)
class _ReadEntry:
    """An entry, its chain, and its size in bytes."""

    chain: int
    entry: Entry
    size: int

    def in_history(self) -> HistoryEntry:
        """The entry with the fields that a history needs."""
        entry = self.entry
        return HistoryEntry(self.chain, entry.sequence, entry.timestamp, entry.writer_id, entry.events)


class EntryHistory:
    """The newest entries of the chains, read once, when they are first needed. Thread-safe.

    Args:
        pool: Returns the executor of the requests.
        heads: The sequence number of the newest entry to read, by chain.
        deletable_up_to: Returns the last entry of each chain that may be deleted; none if they are not known.
        entries: The maximum number of entries.
    """

    def __init__(
        self,
        objects: ObjectStore,
        keys: Keys,
        pool: Callable[[], Executor],
        heads: Sequence[int],
        deletable_up_to: Callable[[], Sequence[int]] = tuple,
        entries: int = ENTRIES,
    ) -> None:
        self._objects = objects
        self._keys = keys
        self._pool = pool
        self._heads, self._deletable_up_to, self._count = heads, deletable_up_to, entries
        self._lock = ForkLock()
        self._entries: list[_ReadEntry] | None = None

    def table(self, name: str) -> pa.Table:
        """Compute a table of :data:`SCHEMAS`."""
        rows = self._entry_rows() if name == "entries" else self._compaction_rows()
        return from_rows(SCHEMAS[name], rows)

    def log(self, view: View, readable: Callable[[str], bool]) -> pa.Table:
        """Compute the table of :data:`LOG`, of the topics that the caller may read."""
        tps = [tp for tp in sorted(view.partitions) if readable(tp.topic)]
        if not tps:
            return from_rows(LOG, ())
        chain_by_tp = {tp: chain_of_partition(tp, view.chains) for tp in tps}
        traces = [Traces(tp for tp in tps if chain_by_tp[tp] == number) for number in range(view.chains)]
        for stored in reversed(self._read_entries()):
            traces[stored.chain].add(stored.in_history())
        rows = (_log_rows(tp, traces[chain_by_tp[tp]].by_partition[tp], view) for tp in tps)
        return from_rows(LOG, chain.from_iterable(rows))

    def _read_entries(self) -> list[_ReadEntry]:
        """Return the newest entries of all chains, read at the first call."""
        with self._lock.own:
            if self._entries is None:
                ranges = newest(self._heads, self._count, self._deletable_up_to())
                places = [(chain, number) for chain, numbers in enumerate(ranges) for number in numbers]
                entries = self._pool().map(self._read_entry, places)
                self._entries = [entry for entry in entries if entry is not None]
            return self._entries

    def _read_entry(self, place: tuple[int, int]) -> _ReadEntry | None:
        """Read an entry; None if it was deleted since.

        Raises:
            CorruptionError: It is missing, and was not deleted.
        """
        chain, sequence = place
        entry = read_entry(self._objects, self._keys, chain, sequence)
        if entry is not None:
            return _ReadEntry(chain, *entry)
        deletable_up_to = self._deletable_up_to()
        last_deletable = deletable_up_to[chain] if deletable_up_to else 0
        if sequence > last_deletable:
            raise missing_entry(self._keys, chain, sequence, f"entry {self._heads[chain]} exists")
        return None

    def _entry_rows(self) -> Iterator[Row]:
        """The rows of the table ``entries``: each entry with the counts of its events."""
        for stored in self._read_entries():
            entry = stored.entry
            types = Counter(map(event_name, stored.entry.events))
            yield (
                stored.chain, entry.sequence, entry.timestamp, entry.entry_id, entry.writer_id, stored.size,
                len(entry.events), sorted(types.items()),
                None if entry.principals is None else list(dict(entry.principals)),
            )  # fmt: skip

    def _compaction_rows(self) -> Iterator[Row]:
        """The rows of the table ``compactions``: one for each replacement of segments."""
        for stored in self._read_entries():
            for event in stored.entry.events:
                if isinstance(event, SegmentsReplaced):
                    records = sum(batch.records for batch in event.added)
                    size = sum(batch.size for batch in event.added)
                    first = min([*event.removed, *(batch.base_offset for batch in event.added)])
                    limit = max((batch.limit for batch in event.added), default=None)
                    yield (
                        stored.chain, stored.entry.sequence, stored.entry.timestamp, event.topic, event.partition,
                        len(event.removed), len(event.added), records, size, first, limit,
                    )  # fmt: skip


def _log_rows(tp: TopicPartition, traces: Mapping[int, Trace], view: View) -> Iterator[Row]:
    for line in log_lines(view.partitions[tp], traces, view.transactional_ids, view.chains):
        yield (*tp, *(getattr(line, name) for name in LOG.names[2:]))
