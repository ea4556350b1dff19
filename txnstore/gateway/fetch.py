"""Fetch: what a consumer reads, from memory or from segments; long polls."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any

import pyarrow as pa
from kio.schema.errors import ErrorCode

from txnstore.connection import Connection
from txnstore.core.authorization.rights import read_topics
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Partition
from txnstore.core.log.visibility import Slice, check_offset, each_visible
from txnstore.core.model import Isolation, TopicPartition
from txnstore.core.view import View
from txnstore.errors import TxnStoreError
from txnstore.gateway.apis import Api
from txnstore.gateway.errors import RefusedError, code_of
from txnstore.gateway.hot import HotBatches
from txnstore.gateway.records.batch import MAX_DELTA, gap_batch
from txnstore.gateway.records.columns import EncodedBatch, to_batches
from txnstore.gateway.records.typed import json_rows
from txnstore.gateway.server import Fields, Handler, Peer
from txnstore.gateway.services import Services, check_leader_epoch
from txnstore.gateway.wire import Request, value
from txnstore.read.reader import Projection, open_slice

#: Bytes of encoded batches of segments that are kept.
_COLD_BYTES = 64 << 20
#: Slices of segments that are read at the same time, and their bytes.
_TOGETHER, _TOGETHER_BYTES = 16, 1 << 20
#: The most bytes of a response, whatever the client asks for: Kafka's ``fetch.max.bytes`` of a broker.
_MAX_BYTES = 55 << 20
#: The most milliseconds that a fetch waits for records.
_MAX_WAIT_MS = 30_000
#: Seconds after which a view is read again before a fetch. The gateway looks for entries of others while a client
#: waits; the view of one that had no client for a day names segments that a vacuum may have deleted.
_OUTDATED = 60.0
#: The last version of Fetch that names topics by their names.
_BY_NAME = 12


@dataclass(frozen=True, slots=True)
class _Asked:
    """A partition of a request: what is asked for, and the topic, or why there is none."""

    tp: TopicPartition
    topic: CatalogTopic | None
    offset: int
    max_bytes: int
    error: Exception | None = None


class Fetch:
    """Reads partitions."""

    def __init__(self, services: Services, hot: HotBatches) -> None:
        self._services = services
        self._hot = hot
        self._cold = _EncodedSlices()

    def handlers(self) -> dict[Api, Handler]:
        """The handler of its API."""
        return {Api.FETCH: self.fetch}

    async def fetch(self, request: Request, peer: Peer) -> Fields:
        """Read partitions from their offsets on; waits for ``min_bytes`` as long as the request allows."""
        body = request.body
        if value(body, "session_epoch", -1) > 0:  # It names only what has changed in a session that is not here.
            return {"error_code": ErrorCode.fetch_session_id_not_found, "session_id": 0, "responses": ()}
        isolation = Isolation.READ_COMMITTED if value(body, "isolation_level", 0) == 1 else Isolation.READ_UNCOMMITTED
        max_wait = min(_milliseconds(value(body, "max_wait", value(body, "max_wait_ms", 0))), _MAX_WAIT_MS)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + max_wait / 1000
        limit = min(value(body, "max_bytes", _MAX_BYTES), _MAX_BYTES)
        asked = [await self._asked(topic, partition, peer) for topic in body.topics for partition in topic.partitions]
        await self._services.freshness.recent(_OUTDATED)
        view = await self._services.view_with(lambda view: not _is_behind(view, asked))
        with self._services.freshness.waiting():
            while True:
                async with peer.room.granted(limit) as most:
                    parts, size, is_final = await self._read_all(view, asked, isolation, most)
                remaining = deadline - loop.time()
                if is_final or size >= body.min_bytes or remaining <= 0:
                    if not size:
                        self._services.freshness.look_soon()
                    return self._response(request, asked, parts)
                await self._services.freshness.change(view, remaining)
                view = self._services.freshness.view

    async def _asked(self, topic: Any, partition: Any, peer: Peer) -> _Asked:
        name, topic_id = value(topic, "topic"), value(topic, "topic_id")
        tp = TopicPartition(str(name or ""), partition.partition)
        try:
            if name is not None:
                self._services.check(peer, read_topics([name]))
            found = await self._services.find(name, topic_id, tp.partition)
            self._services.check(peer, read_topics([found.name]))
            check_leader_epoch(value(partition, "current_leader_epoch", -1))
        except (TxnStoreError, RefusedError) as error:
            return _Asked(tp, None, partition.fetch_offset, 0, error)
        tp = TopicPartition(found.name, tp.partition)
        return _Asked(tp, found, partition.fetch_offset, max(1, partition.partition_max_bytes))

    # Reading ----------------------------------------------------------------------------------------------------------

    async def _read_all(
        self, view: View, asked: Sequence[_Asked], isolation: Isolation, limit: int
    ) -> tuple[list[Fields], int, bool]:
        """The answers for all partitions, their bytes, and whether they are to be sent at once, as one is an error."""
        parts: list[Fields] = []
        size, is_final = 0, False
        for each in asked:
            try:
                if each.error is not None or each.topic is None:
                    raise each.error or RefusedError(ErrorCode.unknown_topic_or_partition, str(each.tp))
                fields, read = await self._read(view, each, each.topic, isolation, limit - size, first=size == 0)
            except (TxnStoreError, RefusedError) as error:
                fields, read, is_final = _refusal(each, error), 0, True
            parts.append(fields)
            size += read
        return parts, size, is_final

    async def _read(
        self, view: View, asked: _Asked, topic: CatalogTopic, isolation: Isolation, limit: int, *, first: bool
    ) -> tuple[Fields, int]:
        log = view.partition(asked.tp)
        if log is None or view.topics[asked.tp.topic].topic_id != topic.topic_id:
            raise RefusedError(ErrorCode.unknown_topic_or_partition, f"{asked.tp} was deleted")
        check_offset(asked.tp, log, isolation, asked.offset)
        size, data = 0, list[bytes]()
        end = log.read_limit(isolation)
        most = min(limit, asked.max_bytes)
        if asked.offset < end and (first or most > 0):  # Else what is read would not be returned.
            data, size = await self._records(view, asked, topic, log, isolation, most, first=first)
        return {
            "partition_index": asked.tp.partition,
            "error_code": ErrorCode.none,
            "high_watermark": log.high_watermark,
            "last_stable_offset": log.last_stable_offset,
            "log_start_offset": log.log_start,
            "aborted_transactions": () if isolation is Isolation.READ_COMMITTED else None,
            "preferred_read_replica": -1,
            "records": b"".join(data),
        }, size

    async def _records(
        self,
        view: View,
        asked: _Asked,
        topic: CatalogTopic,
        log: Partition,
        isolation: Isolation,
        limit: int,
        *,
        first: bool,
    ) -> tuple[list[bytes], int]:
        """Batches from an offset on: up to ``limit`` bytes, and the first batch whatever its size, if it is the first.

        Offsets without a record that the reader sees become control batches, so that its position passes them.
        """
        data: list[bytes] = []
        size, position, end = 0, asked.offset, log.read_limit(isolation)
        parts = each_visible(asked.tp, log, isolation, asked.offset)
        in_memory = log.batches.in_memory_from(asked.offset)
        while True:
            following = partial(_together, parts, limit - size)
            together = following() if in_memory else await self._services.in_thread(following)
            if not together:
                break
            for encoded in chain.from_iterable(await self._encoded(topic, together)):
                if isinstance(encoded, Exception):
                    if data:  # The client gets what is before it first.
                        return data, size
                    raise encoded
                if encoded.last_offset < position:
                    continue
                if (data or not first) and size + len(encoded.data) > limit:
                    return data, size
                if encoded.first_offset > position:
                    data += _gaps(position, encoded.first_offset)
                data.append(encoded.data)
                size += len(encoded.data)
                position = encoded.last_offset + 1
        if position < end:
            data += _gaps(position, end)
            size += len(data[-1])
        return data, size

    async def _encoded(self, topic: CatalogTopic, parts: Sequence[Slice]) -> list[Sequence[EncodedBatch | Exception]]:
        """The batches of each slice: those in memory, or encoded from its segment, or why they cannot be read."""
        known = [self._in_memory(topic, part) for part in parts]
        if missing := [number for number, batches in enumerate(known) if batches is None]:
            # Whole batches, as Kafka returns them: a consumer skips what is before its position.
            whole = [Slice(part.tp, part.batch, part.batch.base_offset, part.batch.limit) for part in parts]
            read = partial(_encode_all, self._services.connection, topic, [whole[number] for number in missing])
            for number, batches in zip(missing, await self._services.in_thread(read), strict=True):
                if isinstance(batches, Exception):
                    known[number] = [batches]
                else:
                    known[number] = batches
                    self._cold.keep(_key(topic, parts[number]), batches)
        return [batches or () for batches in known]

    def _in_memory(self, topic: CatalogTopic, part: Slice) -> Sequence[EncodedBatch | Exception] | None:
        batch = part.batch
        hot = self._hot.find(topic.topic_id, part.tp.partition, batch)
        if hot is not None:
            return [EncodedBatch(batch.base_offset, batch.limit - 1, hot)]
        return self._cold.find(_key(topic, part))

    # Responses --------------------------------------------------------------------------------------------------------

    def _response(self, request: Request, asked: Sequence[_Asked], parts: Sequence[Fields]) -> Fields:
        following = iter(parts)
        responses = [
            {
                "topic": value(topic, "topic", ""),
                "topic_id": value(topic, "topic_id"),
                "partitions": [next(following) for _ in topic.partitions],
            }
            for topic in request.body.topics
        ]
        return {"error_code": ErrorCode.none, "session_id": 0, "responses": responses}


def _gaps(first: int, limit: int) -> list[bytes]:
    """The control batches that stand for the offsets from ``first`` up to ``limit``."""
    starts = range(first, limit, MAX_DELTA)
    return [gap_batch(start, min(start + MAX_DELTA, limit) - 1) for start in starts]


def _is_behind(view: View, asked: Sequence[_Asked]) -> bool:
    """Whether an offset is after the end of its log in this view: the client may know of entries that it lacks.

    Refused without a look at the head, a consumer would begin anew at an end of the log.
    """
    logs = ((view.partition(each.tp), each.offset) for each in asked if each.topic is not None)
    return any(log is None or offset > log.high_watermark for log, offset in logs)


def _together(parts: Iterator[Slice], most: int) -> list[Slice]:
    """The next slices, which are read at the same time: about as many as fit into ``most`` bytes of a response."""
    together: list[Slice] = []
    size, most = 0, min(most // 2, _TOGETHER_BYTES)  # Segments are compressed, responses are not.
    for part in islice(parts, _TOGETHER):
        together.append(part)
        size += part.batch.segment.size * part.batch.records // max(1, part.batch.segment.rows)
        if size >= most:
            break
    return together


def _key(topic: CatalogTopic, part: Slice) -> Any:
    return topic.topic_id, part.tp.partition, part.batch.segment.key, part.batch.base_offset


def _encode_all(
    connection: Connection, topic: CatalogTopic, parts: Sequence[Slice]
) -> list[Sequence[EncodedBatch] | Exception]:
    """Read slices at the same time, and encode their rows; an error takes the place of its slice. In a thread."""

    def read(part: Slice) -> Sequence[EncodedBatch] | Exception:
        try:
            return _encode(connection.objects, topic, part)
        except Exception as error:  # noqa: BLE001 - The client gets it, if it reads so far.
            return error

    others = [connection.pool.submit(partial(read, part)) for part in parts[1:]]
    return [read(parts[0]), *(other.result() for other in others)]


def _encode(objects: Any, topic: CatalogTopic, part: Slice) -> Sequence[EncodedBatch]:
    """Read a slice of a segment, and encode its rows. In a thread."""
    projection = Projection(topic)
    opened = open_slice(objects, part, projection)
    batches: list[EncodedBatch] = []
    for number in range(len(opened)):
        table = opened.read(number)
        if topic.schema is not None:
            table = _as_json(table, topic)
        batches += to_batches(table)
    return batches


def _as_json(table: pa.Table, topic: CatalogTopic) -> pa.Table:
    columns = table.drop_columns(["_topic", "_partition", "_offset", "_timestamp"])
    keys, values = json_rows(columns, topic.key)
    headers = pa.nulls(table.num_rows, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])))
    arrays = [table["_offset"], table["_timestamp"], keys, values, headers]
    return pa.table(arrays, names=["_offset", "_timestamp", "key", "value", "headers"])


class _EncodedSlices:
    """Encoded slices of segments, by what they are; the one that was not used for longest is dropped first."""

    def __init__(self) -> None:
        self._slices: OrderedDict[Any, Sequence[EncodedBatch]] = OrderedDict()
        self._size = 0

    def find(self, key: Any) -> Sequence[EncodedBatch] | None:
        encoded = self._slices.get(key)
        if encoded is not None:
            self._slices.move_to_end(key)
        return encoded

    def keep(self, key: Any, encoded: Sequence[EncodedBatch]) -> None:
        if key in self._slices:
            return
        self._slices[key] = encoded
        self._size += sum(len(each.data) for each in encoded)
        while self._size > _COLD_BYTES and len(self._slices) > 1:
            _, dropped = self._slices.popitem(last=False)
            self._size -= sum(len(each.data) for each in dropped)


def _refusal(asked: _Asked, error: Exception) -> Fields:
    return {
        "partition_index": asked.tp.partition,
        "error_code": code_of(error, Api.FETCH, 0),
        "high_watermark": -1,
        "last_stable_offset": -1,
        "log_start_offset": -1,
        "aborted_transactions": None,
        "preferred_read_replica": -1,
        "records": b"",
    }


def _milliseconds(duration: Any) -> int:
    return int(duration.total_seconds() * 1000) if hasattr(duration, "total_seconds") else int(duration)
