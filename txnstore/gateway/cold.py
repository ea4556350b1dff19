"""Batches of the log that are not in memory: read from their segments, encoded, and kept for the next consumer.

A *stretch* is read at a time: several small batches together, or one piece of a large segment. Consumers that follow
each other through a topic share stretches, so that each costs its requests, its bytes and its conversion once; those
that fetch the same batch at the same time wait for one read.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, takewhile

import numpy as np
import pyarrow as pa

from txnstore.catalog.settings import TOMBSTONE_COLUMN
from txnstore.connection import Connection
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.slices import Slice, Times, whole_batch
from txnstore.core.model import Isolation
from txnstore.gateway.budget import Budget
from txnstore.gateway.records.columns import EncodedBatch, to_batches
from txnstore.gateway.records.typed import json_rows
from txnstore.gateway.services import Services
from txnstore.read.ranged import has_footer
from txnstore.read.reader import OpenSlice, open_slice, read_together
from txnstore.read.rows import Columns
from txnstore.segment.codec import ROW_GROUP_BYTES
from txnstore.storage.base import ObjectStore
from txnstore.storage.recent import RecentObjects

#: The bytes of cached encoded batches: two of the largest pieces of segments.
CACHED_BYTES = 2 * ROW_GROUP_BYTES
#: Batches that are read at the same time, and their bytes in the segments. A larger batch is read alone, in pieces.
TOGETHER, TOGETHER_BYTES = 16, 1 << 20
#: Bytes of rows that are decoded at the same time, by estimate: the largest piece, or as many small ones.
_DECODED_BYTES = ROW_GROUP_BYTES
#: The columns that are read of a topic without a schema.
_RECORD_COLUMNS = ("_offset", "_timestamp", "key", "value", "headers")
#: The factor by which decoding may enlarge rows.
_EXPANSION = 4


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """The encoded records with offsets in ``[first_offset, limit)``.

    Attributes:
        batch_keys: The keys of the batches of the log that hold them.
        first_offset: The offset from which the stretch has all records of these batches.
        limit: The offset before which it has all of them.
        batches: The encoded records.
    """

    batch_keys: tuple[Hashable, ...]
    first_offset: int
    limit: int
    batches: Sequence[EncodedBatch]

    @property
    def size(self) -> int:
        """The bytes of the encoded batches."""
        return sum(len(batch.data) for batch in self.batches)


class ColdBatches:
    """Reads batches of the log from their segments, and caches them. Used in one event loop.

    Args:
        services: What the handlers share.
        max_bytes: The bytes of cached batches; one stretch is kept even if it is larger.
    """

    def __init__(self, services: Services, max_bytes: int = CACHED_BYTES) -> None:
        self._services = services
        self._max_bytes, self.size = max_bytes, 0
        #: The cached stretches, least recently used first, and those with records of each batch.
        self._stretches: OrderedDict[Stretch, None] = OrderedDict()
        self._by_batch: dict[Hashable, list[Stretch]] = {}
        #: The batches that are being read.
        self._running_reads: dict[Hashable, asyncio.Task[Stretch]] = {}
        self._memory = Budget(_DECODED_BYTES)
        self._caching_objects: RecentObjects | None = None

    async def read(self, topic: CatalogTopic, isolation: Isolation, parts: Sequence[Slice], position: int) -> Stretch:
        """Read the records from an offset in the first of these slices on, and perhaps those of further ones.

        Args:
            topic: The topic.
            isolation: The isolation of the reader; readers of different isolation share no stretches.
            parts: Consecutive slices that are visible to the reader, at least one.
            position: The offset.

        Raises:
            TxnStoreError: The first slice cannot be read.
        """
        batch_keys = [_batch_key(topic, isolation, part) for part in parts]
        while True:
            cached_stretch = self._find(batch_keys[0], position)
            if cached_stretch is not None:
                return cached_stretch
            running_read = self._running_reads.get(batch_keys[0])
            if running_read is None:
                break
            await asyncio.wait({running_read})  # If it fails, or has other records of the batch, this call reads them.
        joined_slices = takewhile(self._may_join, zip(parts[1:], batch_keys[1:], strict=True))
        batch_keys = [batch_keys[0], *([] if is_large(parts[0]) else [key for _, key in joined_slices])]
        task = asyncio.get_running_loop().create_task(self._read(topic, batch_keys, parts[: len(batch_keys)], position))
        self._running_reads.update(dict.fromkeys(batch_keys, task))
        task.add_done_callback(partial(self._on_read_end, batch_keys))
        await asyncio.wait({task})  # It continues without this reader.
        return task.result()

    def _may_join(self, slice_and_key: tuple[Slice, Hashable]) -> bool:
        part, key = slice_and_key
        return not (is_large(part) or key in self._by_batch or key in self._running_reads)

    def _on_read_end(self, batch_keys: Sequence[Hashable], task: asyncio.Task[Stretch]) -> None:
        for name in batch_keys:
            del self._running_reads[name]
        if not task.cancelled():
            task.exception()  # Retrieved: its reader may have been cancelled.

    async def _read(
        self, topic: CatalogTopic, batch_keys: Sequence[Hashable], parts: Sequence[Slice], position: int
    ) -> Stretch:
        """Read and encode slices in a thread, within the memory for decoded rows, and cache the result."""
        reservation = self._memory.new_reservation()
        try:
            await reservation.add(min(_EXPANSION * sum(part.batch.size for part in parts), _DECODED_BYTES))
            call = partial(_encode_slices, self._services.connection, self._objects_with_room(), topic, parts, position)
            first_offset, limit, batches = await self._services.in_thread(call)
        finally:
            reservation.release()
        count = sum(part.batch.base_offset < limit for part in parts)
        stretch = Stretch(tuple(batch_keys[:count]), first_offset, limit, batches)
        self._insert(stretch)
        return stretch

    def _objects_with_room(self) -> RecentObjects:
        """The objects, with a cache for segments that have several batches; a full cache is replaced by a new one."""
        objects = self._caching_objects
        if objects is None or objects.read_cache is None or objects.read_cache.is_full:
            objects = self._caching_objects = self._services.connection.objects.with_read_cache()
        return objects

    # Cache ------------------------------------------------------------------------------------------------------------

    def _find(self, name: Hashable, position: int) -> Stretch | None:
        for stretch in self._by_batch.get(name, ()):
            if stretch.first_offset <= position < stretch.limit:
                self._stretches.move_to_end(stretch)
                return stretch
        return None

    def _insert(self, stretch: Stretch) -> None:
        """Cache a stretch, and evict the oldest ones beyond the bound; the newest one always stays."""
        self._stretches[stretch] = None
        self.size += stretch.size
        for name in stretch.batch_keys:
            self._by_batch.setdefault(name, []).append(stretch)
        while self.size > self._max_bytes and len(self._stretches) > 1:
            self._evict(self._stretches.popitem(last=False)[0])

    def _evict(self, stretch: Stretch) -> None:
        self.size -= stretch.size
        for name in stretch.batch_keys:
            self._by_batch[name].remove(stretch)
            if not self._by_batch[name]:
                del self._by_batch[name]


def _batch_key(topic: CatalogTopic, isolation: Isolation, part: Slice) -> Hashable:
    return topic.topic_id, topic.version, part.tp.partition, isolation, part.batch.segment.key, part.batch.base_offset


# In threads -----------------------------------------------------------------------------------------------------------

_Encoded = tuple[int, int, Sequence[EncodedBatch]]


def _encode_slices(
    connection: Connection, objects: ObjectStore, topic: CatalogTopic, parts: Sequence[Slice], position: int
) -> _Encoded:
    """Read and encode slices: all of them, or only the first one if another cannot be read."""
    try:
        return _encode(connection, objects, topic, parts, position)
    except Exception:
        if len(parts) == 1:
            raise
    return _encode(connection, objects, topic, parts[:1], position)


def _encode(
    connection: Connection, objects: ObjectStore, topic: CatalogTopic, parts: Sequence[Slice], position: int
) -> _Encoded:
    """Return the first offset and the limit of the records that were read, and the records."""
    columns = Columns(topic, _RECORD_COLUMNS if topic.schema is None else None)
    if is_large(parts[0]) and has_footer(parts[0].batch.segment):
        part = parts[0].between(position, parts[0].batch.limit)
        table, limit = _first_piece(open_slice(objects, part, columns, in_parts=True))
        return position, limit, _encode_batches(table, topic, [part]) if table is not None else ()
    # Whole batches, as Kafka returns them: a consumer skips what is before its position.
    whole_slices = [whole_batch(part.tp, part.batch) for part in parts]
    openings = [connection.pool.submit(partial(open_slice, objects, part, columns)) for part in whole_slices[1:]]
    opened_slices = [open_slice(objects, whole_slices[0], columns), *(opening.result() for opening in openings)]
    table = read_together(opened_slices, columns)
    return whole_slices[0].start, whole_slices[-1].limit, _encode_batches(table, topic, whole_slices)


def is_large(part: Slice) -> bool:
    """Whether a batch is read alone, in pieces if its segment has several."""
    return part.batch.size > TOGETHER_BYTES


def _first_piece(opened: OpenSlice) -> tuple[pa.Table | None, int]:
    """Read the first piece with rows, or None; and the offset before which the slice has no other rows."""
    for number in range(len(opened)):
        table = opened.read(number)
        if table.num_rows:
            is_last = number + 1 == len(opened)
            return table, opened.part.limit if is_last else table["_offset"][-1].as_py() + 1
    return None, opened.part.limit


def _encode_batches(table: pa.Table, topic: CatalogTopic, parts: Sequence[Slice]) -> list[EncodedBatch]:
    """Encode the rows of consecutive slices; a batch ends where the time of the append changes."""
    records = _as_records(table, topic)
    offsets = records["_offset"].to_numpy()
    batches: list[EncodedBatch] = []
    for (at_append, _), group in groupby(parts, partial(_append_time, topic)):
        group_slices = [*group]
        first_row, row_limit = np.searchsorted(offsets, [group_slices[0].start, group_slices[-1].limit]).tolist()
        batches += to_batches(records.slice(first_row, row_limit - first_row), append_time=at_append)
    return batches


def _append_time(topic: CatalogTopic, part: Slice) -> tuple[bool, int | None]:
    """Whether the rows have the time of their append, and that time; None if each row has its own.

    A compaction stores the time of each row, and the topic's settings tell its type. It may merge many appends of one
    record, so its batches do not end where the time changes: nearly all of them would have one record.
    """
    if part.times is Times.STORED:
        return topic.config.get("message.timestamp.type") == "LogAppendTime", None
    at_append = part.times is Times.APPEND
    return at_append, part.batch.appended_at if at_append else None


def _as_records(table: pa.Table, topic: CatalogTopic) -> pa.Table:
    """Turn rows into records: typed columns become JSON, and a tombstone has no value."""
    if topic.schema is None:
        return table
    columns = table.drop_columns(["_topic", "_partition", "_offset", "_timestamp"])
    keys, values = json_rows(columns, topic.key, topic.config.get(TOMBSTONE_COLUMN) or None)
    headers = pa.nulls(table.num_rows, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
    arrays = [table["_offset"], table["_timestamp"], keys, values, headers]
    return pa.table(arrays, names=["_offset", "_timestamp", "key", "value", "headers"])
