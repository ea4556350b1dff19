"""Batches of the log that are not in memory: read from their segments, encoded, and kept for the next consumer.

What is read at a time is a *stretch*: several small batches together, or one piece of a large segment. Consumers that
follow each other through a topic share stretches, so that each costs its requests, its bytes and its conversion once;
those that ask for the same batch at the same time wait for one of them.
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

#: Bytes of encoded batches that are kept: of two of the largest pieces of segments.
KEPT_BYTES = 2 * ROW_GROUP_BYTES
#: Batches that are read at the same time, and their bytes in the segments. A larger batch is read alone, in pieces.
TOGETHER, TOGETHER_BYTES = 16, 1 << 20
#: Bytes of rows that are decoded at the same time, by estimate: the largest piece, or as many small ones.
_DECODED_BYTES = ROW_GROUP_BYTES
#: What is read of a topic without a schema.
_COLUMNS = ("_offset", "_timestamp", "key", "value", "headers")
#: How many times as many bytes rows may have when they are decoded.
_EXPANSION = 4


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """The encoded records with offsets in ``[first, limit)``.

    Attributes:
        names: The batches of the log that have them.
        first: The offset from which on it has all records of these batches.
        limit: The offset up to which it has all of them.
        batches: The records.
    """

    names: tuple[Hashable, ...]
    first: int
    limit: int
    batches: Sequence[EncodedBatch]

    @property
    def size(self) -> int:
        """The bytes of its batches."""
        return sum(len(batch.data) for batch in self.batches)


class ColdBatches:
    """Reads batches of the log from their segments, and keeps what was used last. Used in one event loop.

    Args:
        services: What the handlers share.
        size: Bytes of encoded batches that are kept, or one stretch, if that is larger.
    """

    def __init__(self, services: Services, size: int = KEPT_BYTES) -> None:
        self._services = services
        self._bound, self.size = size, 0
        #: The stretches, the one that was used longest ago first; and those that have records of a batch.
        self._stretches: OrderedDict[Stretch, None] = OrderedDict()
        self._by_name: dict[Hashable, list[Stretch]] = {}
        #: The batches that are being read.
        self._running: dict[Hashable, asyncio.Task[Stretch]] = {}
        self._memory = Budget(_DECODED_BYTES)
        self._caching: RecentObjects | None = None

    async def read(self, topic: CatalogTopic, isolation: Isolation, parts: Sequence[Slice], position: int) -> Stretch:
        """The records from an offset in the first one of these slices on, and perhaps those of further ones.

        Args:
            topic: The topic.
            isolation: Who reads committed records shares nothing with others: their stretches have open transactions.
            parts: Consecutive slices that this reader sees, at least one.
            position: The offset.

        Raises:
            TxnStoreError: The first slice cannot be read.
        """
        names = [_name(topic, isolation, part) for part in parts]
        while True:
            kept = self._find(names[0], position)
            if kept is not None:
                return kept
            running = self._running.get(names[0])
            if running is None:
                break
            await asyncio.wait({running})  # If it fails, or has other records of the batch, this one reads.
        together = takewhile(self._may_join, zip(parts[1:], names[1:], strict=True))
        names = [names[0], *([] if is_large(parts[0]) else [name for _, name in together])]
        task = asyncio.get_running_loop().create_task(self._read(topic, names, parts[: len(names)], position))
        self._running.update(dict.fromkeys(names, task))
        task.add_done_callback(partial(self._ended, names))
        await asyncio.wait({task})  # It continues without this reader.
        return task.result()

    def _may_join(self, further: tuple[Slice, Hashable]) -> bool:
        part, name = further
        return not (is_large(part) or name in self._by_name or name in self._running)

    def _ended(self, names: Sequence[Hashable], task: asyncio.Task[Stretch]) -> None:
        for name in names:
            del self._running[name]
        if not task.cancelled():
            task.exception()  # Its reader may have ended.

    async def _read(
        self, topic: CatalogTopic, names: Sequence[Hashable], parts: Sequence[Slice], position: int
    ) -> Stretch:
        held = self._memory.hold()
        try:
            await held.add(min(_EXPANSION * sum(part.batch.size for part in parts), _DECODED_BYTES))
            call = partial(_encode_first, self._services.connection, self._objects(), topic, parts, position)
            first, limit, batches = await self._services.in_thread(call)
        finally:
            held.release()
        has = sum(part.batch.base_offset < limit for part in parts)
        stretch = Stretch(tuple(names[:has]), first, limit, batches)
        self._keep(stretch)
        return stretch

    def _objects(self) -> RecentObjects:
        """The objects, with what is kept of segments that have several batches, until there is no room for more."""
        objects = self._caching
        if objects is None or objects.read_cache is None or objects.read_cache.is_full:
            objects = self._caching = self._services.connection.objects.with_read_cache()
        return objects

    # What is kept -----------------------------------------------------------------------------------------------------

    def _find(self, name: Hashable, position: int) -> Stretch | None:
        for stretch in self._by_name.get(name, ()):
            if stretch.first <= position < stretch.limit:
                self._stretches.move_to_end(stretch)
                return stretch
        return None

    def _keep(self, stretch: Stretch) -> None:
        self._stretches[stretch] = None
        self.size += stretch.size
        for name in stretch.names:
            self._by_name.setdefault(name, []).append(stretch)
        while self.size > self._bound and len(self._stretches) > 1:
            self._drop(self._stretches.popitem(last=False)[0])

    def _drop(self, stretch: Stretch) -> None:
        self.size -= stretch.size
        for name in stretch.names:
            self._by_name[name].remove(stretch)
            if not self._by_name[name]:
                del self._by_name[name]


def _name(topic: CatalogTopic, isolation: Isolation, part: Slice) -> Hashable:
    return topic.topic_id, topic.version, part.tp.partition, isolation, part.batch.segment.key, part.batch.base_offset


# In threads -----------------------------------------------------------------------------------------------------------

_Encoded = tuple[int, int, Sequence[EncodedBatch]]


def _encode_first(
    connection: Connection, objects: ObjectStore, topic: CatalogTopic, parts: Sequence[Slice], position: int
) -> _Encoded:
    """Read slices, and encode their rows: of all, or, if one of them cannot be read, of the first one."""
    try:
        return _encode(connection, objects, topic, parts, position)
    except Exception:
        if len(parts) == 1:
            raise
    return _encode(connection, objects, topic, parts[:1], position)


def _encode(
    connection: Connection, objects: ObjectStore, topic: CatalogTopic, parts: Sequence[Slice], position: int
) -> _Encoded:
    """The offsets whose records were read, and these."""
    columns = Columns(topic, _COLUMNS if topic.schema is None else None)
    if is_large(parts[0]) and has_footer(parts[0].batch.segment):
        part = parts[0].between(position, parts[0].batch.limit)
        table, limit = _first_piece(open_slice(objects, part, columns, in_parts=True))
        return position, limit, _batches(table, topic, [part]) if table is not None else ()
    # Whole batches, as Kafka returns them: a consumer skips what is before its position.
    whole = [whole_batch(part.tp, part.batch) for part in parts]
    others = [connection.pool.submit(partial(open_slice, objects, part, columns)) for part in whole[1:]]
    opened = [open_slice(objects, whole[0], columns), *(other.result() for other in others)]
    table = read_together(opened, columns)
    return whole[0].start, whole[-1].limit, _batches(table, topic, whole)


def is_large(part: Slice) -> bool:
    """Whether a batch is read alone, and in pieces, if its segment has any that can be read alone."""
    return part.batch.size > TOGETHER_BYTES


def _first_piece(opened: OpenSlice) -> tuple[pa.Table | None, int]:
    """The rows of the first piece with any, or None, and the offset before which the slice has no others."""
    for number in range(len(opened)):
        table = opened.read(number)
        if table.num_rows:
            is_last = number + 1 == len(opened)
            return table, opened.part.limit if is_last else table["_offset"][-1].as_py() + 1
    return None, opened.part.limit


def _batches(table: pa.Table, topic: CatalogTopic, parts: Sequence[Slice]) -> list[EncodedBatch]:
    """The rows of consecutive slices as batches, which end where the time of the append changes."""
    records = _records(table, topic)
    offsets = records["_offset"].to_numpy()
    batches: list[EncodedBatch] = []
    for (at_append, _), group in groupby(parts, partial(_append_time, topic)):
        same = [*group]
        first, limit = np.searchsorted(offsets, [same[0].start, same[-1].limit]).tolist()
        batches += to_batches(records.slice(first, limit - first), append_time=at_append)
    return batches


def _append_time(topic: CatalogTopic, part: Slice) -> tuple[bool, int | None]:
    """Whether the rows have the time of their append, and that time; None: each has its own.

    A compaction stores the time of each row, and not where it came from, which the topic tells. It may merge many
    appends of one record, so its batches do not end where the time changes: nearly all of them would have one record.
    """
    if part.times is Times.STORED:
        return topic.config.get("message.timestamp.type") == "LogAppendTime", None
    at_append = part.times is Times.APPEND
    return at_append, part.batch.appended_at if at_append else None


def _records(table: pa.Table, topic: CatalogTopic) -> pa.Table:
    """The rows as records: those of typed columns are JSON."""
    if topic.schema is None:
        return table
    columns = table.drop_columns(["_topic", "_partition", "_offset", "_timestamp"])
    keys, values = json_rows(columns, topic.key)
    headers = pa.nulls(table.num_rows, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
    arrays = [table["_offset"], table["_timestamp"], keys, values, headers]
    return pa.table(arrays, names=["_offset", "_timestamp", "key", "value", "headers"])
