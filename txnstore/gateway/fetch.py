"""Fetch: what a consumer reads, from memory or from segments; long polls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from itertools import islice, takewhile
from typing import Any

from kio.schema.errors import ErrorCode

from txnstore.core.authorization.rights import read_topics
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Partition
from txnstore.core.log.slices import Slice
from txnstore.core.log.visibility import check_offset, each_visible
from txnstore.core.model import Isolation, TopicPartition
from txnstore.core.view import View
from txnstore.errors import TxnStoreError
from txnstore.gateway.apis import Api
from txnstore.gateway.cold import TOGETHER, TOGETHER_BYTES, ColdBatches
from txnstore.gateway.errors import RefusedError, code_of
from txnstore.gateway.hot import HotBatches
from txnstore.gateway.records.batch import MAX_DELTA, gap_batch
from txnstore.gateway.records.columns import EncodedBatch
from txnstore.gateway.server import Client, Fields, Handler
from txnstore.gateway.services import Services, check_leader_epoch
from txnstore.gateway.wire import Request, value

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
        self._cold = ColdBatches(services)

    def handlers(self) -> dict[Api, Handler]:
        """The handler of its API."""
        return {Api.FETCH: self.fetch}

    async def fetch(self, request: Request, client: Client) -> Fields:
        """Read partitions from their offsets on; waits for ``min_bytes`` as long as the request allows."""
        body = request.body
        if value(body, "session_epoch", -1) > 0:  # It names only what has changed in a session that is not here.
            return {"error_code": ErrorCode.fetch_session_id_not_found, "session_id": 0, "responses": ()}
        isolation = Isolation.READ_COMMITTED if value(body, "isolation_level", 0) == 1 else Isolation.READ_UNCOMMITTED
        max_wait = min(_milliseconds(value(body, "max_wait", value(body, "max_wait_ms", 0))), _MAX_WAIT_MS)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + max_wait / 1000
        limit = min(value(body, "max_bytes", _MAX_BYTES), _MAX_BYTES)
        await self._services.freshness.recent(_OUTDATED)  # First: names are those of the topics that are read then.
        asked = [await self._asked(topic, partition, client) for topic in body.topics for partition in topic.partitions]
        view = await self._services.view_with(lambda view: not _is_behind(view, asked))
        with self._services.freshness.waiting():
            while True:
                async with client.room.granted(limit) as most:
                    parts, size, is_final = await self._read_all(view, asked, isolation, most)
                remaining = deadline - loop.time()
                if is_final or size >= body.min_bytes or remaining <= 0:
                    if not size:
                        self._services.freshness.look_soon()
                    return self._response(request, asked, parts)
                await self._services.freshness.change(view, remaining)
                view = self._services.freshness.view

    async def _asked(self, topic: Any, partition: Any, client: Client) -> _Asked:
        name, topic_id = value(topic, "topic"), value(topic, "topic_id")
        tp = TopicPartition(str(name or ""), partition.partition)
        try:
            if name is not None:
                self._services.check(client, read_topics([name]))
            found = await self._services.find(name, topic_id, tp.partition)
            self._services.check(client, read_topics([found.name]))
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
                topic = view.topics.get(each.tp.topic)  # Of the view of the log, which may be newer than the request.
                if topic is None or topic.topic_id != each.topic.topic_id:
                    raise RefusedError(ErrorCode.unknown_topic_or_partition, f"{each.tp} was deleted")
                fields, read = await self._read(view, each, topic, isolation, limit - size, first=size == 0)
            except (TxnStoreError, RefusedError) as error:
                fields, read, is_final = _refusal(each, error), 0, True
            parts.append(fields)
            size += read
        return parts, size, is_final

    async def _read(
        self, view: View, asked: _Asked, topic: CatalogTopic, isolation: Isolation, limit: int, *, first: bool
    ) -> tuple[Fields, int]:
        log = view.partition(asked.tp)
        if log is None:
            raise RefusedError(ErrorCode.unknown_topic_or_partition, f"there is no partition {asked.tp}")
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
        try:
            async with aclosing(self._batches(asked, topic, log, isolation)) as batches:
                async for encoded in batches:
                    if encoded.last_offset < position:
                        continue
                    if (data or not first) and size + len(encoded.data) > limit:
                        return data, size
                    if data and encoded.first_offset < position:
                        # Encoded for another reader, from other segments. At the beginning of a response a client skips
                        # what is before its position; further on, librdkafka would take it for new records.
                        return data, size
                    if encoded.first_offset > position:
                        data += _gaps(position, encoded.first_offset)
                    data.append(encoded.data)
                    size += len(encoded.data)
                    position = encoded.last_offset + 1
        except Exception:
            if not data:
                raise
            return data, size  # The client gets what is before it first.
        if position < end:
            data += _gaps(position, end)
            size += len(data[-1])
        return data, size

    async def _batches(
        self, asked: _Asked, topic: CatalogTopic, log: Partition, isolation: Isolation
    ) -> AsyncGenerator[EncodedBatch]:
        """The batches from an offset on: those in memory, and those of segments. They may begin before it."""
        position = asked.offset
        slices = each_visible(asked.tp, log, isolation, position)
        following = partial(_together, slices)
        in_memory = log.batches.in_memory_from(position)
        while parts := following() if in_memory else await self._services.in_thread(following):
            for place, part in enumerate(parts):
                hot = self._hot.find(topic.topic_id, part.tp.partition, part.batch)
                if hot is not None and position < part.limit:
                    position = part.batch.limit
                    yield EncodedBatch(part.batch.base_offset, position - 1, hot)
                while position < part.limit:
                    cold = [part, *takewhile(partial(self._is_cold, topic), parts[place + 1 :])]
                    stretch = await self._cold.read(topic, isolation, cold, max(position, part.start))
                    for batch in stretch.batches:
                        yield batch
                    position = stretch.limit

    def _is_cold(self, topic: CatalogTopic, part: Slice) -> bool:
        return not self._hot.has(topic.topic_id, part.tp.partition, part.batch)

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

    Refused without a look at the head, a consumer would begin again at an end of the log.
    """
    logs = ((view.partition(each.tp), each.offset) for each in asked if each.topic is not None)
    return any(log is None or offset > log.high_watermark for log, offset in logs)


def _together(parts: Iterator[Slice]) -> list[Slice]:
    """The next slices, which may be read at the same time: those of a response, about."""
    together: list[Slice] = []
    size = 0
    for part in islice(parts, TOGETHER):
        together.append(part)
        size += part.batch.size
        if size >= TOGETHER_BYTES:
            break
    return together


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
