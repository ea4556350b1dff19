"""Fetch: what a consumer reads, from memory or from segments; long polls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from functools import partial
from itertools import islice, takewhile
from typing import Any, TypeAlias
from uuid import UUID

from kio.schema.errors import ErrorCode

from txnstore.core.authorization.rights import read_topics
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Partition
from txnstore.core.log.slices import Slice
from txnstore.core.log.visibility import check_offset, iterate_visible_slices
from txnstore.core.model import Isolation, TopicPartition
from txnstore.core.routing import chain_of_partition
from txnstore.core.view import View
from txnstore.errors import TxnStoreError
from txnstore.gateway.apis import Api
from txnstore.gateway.cold import TOGETHER, TOGETHER_BYTES, ColdBatches
from txnstore.gateway.errors import RefusedError, code_of
from txnstore.gateway.fetch_sessions import (
    FetchSession,
    FetchSessions,
    PartitionKey,
    Reading,
    RequestedPartition,
    SessionPartition,
    named_partitions,
)
from txnstore.gateway.hot import HotBatches
from txnstore.gateway.records.batch import MAX_DELTA, gap_batch
from txnstore.gateway.records.columns import EncodedBatch
from txnstore.gateway.server import Client, Fields, Handler
from txnstore.gateway.services import Services, check_leader_epoch
from txnstore.gateway.wire import Request, field_value

#: The most bytes of a response, whatever the client asks for: Kafka's ``fetch.max.bytes`` of a broker.
_MAX_BYTES = 55 << 20
#: The most milliseconds that a fetch waits for records.
_MAX_WAIT_MS = 30_000
#: Seconds after which a view is read again before a fetch. The gateway looks for entries of others while a client
#: waits; the view of one that had no client for a day names segments that a vacuum may have deleted.
_OUTDATED = 60.0
#: The most bytes of the control batch that stands for a gap.
_MAX_GAP_BYTES = len(gap_batch(0, MAX_DELTA))


#: What was read of a partition: how the request names it, and its fields of the response.
_Result: TypeAlias = tuple[PartitionKey, Fields]


class Fetch:
    """Reads partitions."""

    def __init__(self, services: Services, hot: HotBatches) -> None:
        self._services = services
        self._hot_batches = hot
        self._cold_batches = ColdBatches(services)
        runtime = services.connection.runtime
        self.sessions = FetchSessions(lambda: runtime.monotonic() / 1000, lambda: runtime.rng.randrange(1, 2**31))

    def handlers(self) -> dict[Api, Handler]:
        """The handler of Fetch."""
        return {Api.FETCH: self.fetch}

    async def fetch(self, request: Request, client: Client) -> Fields:
        """Read partitions from their offsets on; wait for ``min_bytes`` as long as the request allows."""
        body = request.body
        try:
            session = self.sessions.of(request)
        except RefusedError as error:
            return {"error_code": error.code, "session_id": 0, "responses": ()}
        isolation = (
            Isolation.READ_COMMITTED if field_value(body, "isolation_level", 0) == 1 else Isolation.READ_UNCOMMITTED
        )
        max_wait = min(_milliseconds(field_value(body, "max_wait", field_value(body, "max_wait_ms", 0))), _MAX_WAIT_MS)
        deadline = asyncio.get_running_loop().time() + max_wait / 1000
        max_bytes = min(field_value(body, "max_bytes", _MAX_BYTES), _MAX_BYTES)
        await self._services.freshness.recent(_OUTDATED)  # First: names are those of the topics that are read then.
        reading = await self._reading(session, body, isolation, client)
        try:
            rack = field_value(body, "rack_id", "")
            if rack and self._is_elsewhere(rack):
                view = await self._services.freshness.recent()
                return _response(session, [self._redirected(partition, view, rack) for partition in reading.partitions])
            return await self._read_or_wait(
                session, reading, min(body.min_bytes, max_bytes), max_bytes, deadline, client
            )
        finally:
            if session is None:
                reading.close()
            else:
                session.keep_reading(reading)

    async def _reading(self, session: FetchSession | None, body: Any, isolation: Isolation, client: Client) -> Reading:
        """Return what the last request of a session has read, if that is still right; else find the partitions."""
        if session is not None and (earlier := session.take_reading()) is not None:
            if (
                earlier.isolation is isolation
                and earlier.catalog is self._services.freshness.view.topics
                and self._services.may(client, earlier.right)
            ):
                return earlier
            earlier.close()
        requested = named_partitions(body.topics) if session is None else session.partitions.items()
        number = 0 if session is None else session.new_reading_number()
        catalog = self._services.freshness.view.topics  # If it changes meanwhile, the next request finds them again.
        partitions = await self._resolve([*requested], client)
        right = read_topics({partition.tp.topic: None for partition in partitions})
        return Reading(partitions, catalog, isolation, right, number)

    async def _read_or_wait(
        self,
        session: FetchSession | None,
        reading: Reading,
        min_bytes: int,
        max_bytes: int,
        deadline: float,
        client: Client,
    ) -> Fields:
        """Read partitions as soon as they have ``min_bytes`` bytes, or at the deadline."""
        loop = asyncio.get_running_loop()
        freshness = self._services.freshness
        partitions = reading.due()
        view = await self._services.view_with(lambda view: not _is_behind(view, partitions))
        with freshness.waiting():
            while True:
                was_read = False
                # Most clients ask for one byte: then what is there is read at once, and not counted before.
                if (
                    min_bytes <= 1
                    or deadline <= loop.time()
                    or not self._is_short(view, partitions, reading.isolation, min_bytes)
                ):
                    async with client.room.grant(max_bytes) as granted_bytes:
                        results, size, is_final = await self._read_all(view, reading, partitions, granted_bytes)
                    was_read = True
                    if is_final or size >= min_bytes or deadline <= loop.time():
                        return self._answer(session, results, size)
                has_changed = await reading.wait_for_change(freshness, view, deadline - loop.time())
                if was_read and not has_changed:
                    return self._answer(session, results, size)
                partitions, view = reading.due(), freshness.view

    def _is_elsewhere(self, rack: str) -> bool:
        """Whether a gateway of the zone of a consumer lives, and this one is of another zone."""
        peers = self._services.peers
        return peers.rack(peers.own) != rack and bool(peers.in_rack(rack))

    def _redirected(self, partition: RequestedPartition, view: View, rack: str) -> _Result:
        """Return the result that sends a consumer to the gateway of its zone (KIP-392), or the error of a partition.

        Without records: librdkafka drops those that come with another replica.
        """
        log, peers = view.partition(partition.tp), self._services.peers
        if partition.error is not None or log is None:
            missing = RefusedError(ErrorCode.unknown_topic_or_partition, f"there is no partition {partition.tp}")
            return partition.key, _error_fields(partition, partition.error or missing)
        node = peers.leader(chain_of_partition(partition.tp, peers.chains), *partition.tp, rack)
        fields = _partition_fields(partition, log, ErrorCode.none)
        return partition.key, {**fields, "preferred_read_replica": node.node_id}

    def _answer(self, session: FetchSession | None, results: Sequence[_Result], size: int) -> Fields:
        """Return the response with these results, of ``size`` bytes."""
        if not size:
            self._services.freshness.request_poll()
        return _response(session, results)

    async def _resolve(self, requested: Sequence[tuple[PartitionKey, Any]], client: Client) -> list[RequestedPartition]:
        """Find the topics of partitions, each once for all that exist, and check that the client may read them."""
        topics: dict[str | UUID | None, CatalogTopic] = {}
        resolved: list[RequestedPartition] = []
        for key, partition in requested:
            session = partition if isinstance(partition, SessionPartition) else None
            fields = partition if session is None else session.requested
            (name_or_id, number), offset = key, fields.fetch_offset
            try:
                topic = topics.get(name_or_id)
                if topic is None or not 0 <= number < topic.partitions:
                    topic = topics[name_or_id] = await self._find(name_or_id, number, client)
                check_leader_epoch(field_value(fields, "current_leader_epoch", -1))
            except (TxnStoreError, RefusedError) as error:
                tp = TopicPartition(name_or_id if isinstance(name_or_id, str) else "", number)
                resolved.append(RequestedPartition(key, tp, None, offset, 0, session, error))
            else:
                tp = TopicPartition(topic.name, number)
                max_bytes = max(1, fields.partition_max_bytes)
                resolved.append(RequestedPartition(key, tp, topic, offset, max_bytes, session))
        return resolved

    async def _find(self, name_or_id: str | UUID | None, partition: int, client: Client) -> CatalogTopic:
        name, topic_id = (name_or_id, None) if isinstance(name_or_id, str) else (None, name_or_id)
        if name is not None:  # Checked first: without the right, a client must not learn whether it exists.
            self._services.check(client, read_topics([name]))
        topic = await self._services.find(name, topic_id, partition)
        if name is None:
            self._services.check(client, read_topics([topic.name]))
        return topic

    # Reading ----------------------------------------------------------------------------------------------------------

    async def _read_all(
        self, view: View, reading: Reading, partitions: Sequence[RequestedPartition], max_bytes: int
    ) -> tuple[list[_Result], int, bool]:
        """Return the result of each partition, their bytes, and whether an error, or a lack of room, ends the wait.

        Without those of which a session knows that they have nothing new.
        """
        results: list[_Result] = []
        size, is_final, isolation = 0, False, reading.isolation
        for partition in partitions:
            try:
                if partition.error is not None or partition.topic is None:
                    raise partition.error or RefusedError(ErrorCode.unknown_topic_or_partition, str(partition.tp))
                topic = view.topics.get(partition.tp.topic)  # By this view, which may be newer than the look-up.
                if topic is None or topic.topic_id != partition.topic.topic_id:
                    raise RefusedError(ErrorCode.unknown_topic_or_partition, f"{partition.tp} was deleted")
                log = view.partition(partition.tp)
                if log is None:
                    raise RefusedError(ErrorCode.unknown_topic_or_partition, f"there is no partition {partition.tp}")
                if partition.session is not None and partition.session.has_nothing_new(log, isolation):
                    reading.has_nothing_new(partition.tp)
                    continue
                fields, nbytes, is_cut = await self._read(
                    view, partition, topic, log, isolation, max_bytes - size, is_first=size == 0
                )
                is_final |= is_cut  # More may never fit.
            except (TxnStoreError, RefusedError) as error:
                fields, nbytes, is_final = _error_fields(partition, error), 0, True
            results.append((partition.key, fields))
            size += nbytes
        return results, size, is_final

    async def _read(
        self,
        view: View,
        partition: RequestedPartition,
        topic: CatalogTopic,
        log: Partition,
        isolation: Isolation,
        max_bytes: int,
        *,
        is_first: bool,
    ) -> tuple[Fields, int, bool]:
        """Return the fields of a partition with its records, their size, and whether records have no room.

        ``is_first``: at least one batch.
        """
        check_offset(partition.tp, log, isolation, partition.offset)
        size, data = 0, list[bytes]()
        available_bytes = min(max_bytes, partition.max_bytes)
        is_cut = partition.offset < log.read_limit(isolation)
        if is_cut and (is_first or available_bytes > 0):  # Else no batch would fit.
            data, size, is_cut = await self._records(
                view, partition, topic, log, isolation, available_bytes, is_first=is_first
            )
        aborted = () if isolation is Isolation.READ_COMMITTED else None
        fields = _partition_fields(partition, log, ErrorCode.none)
        return {**fields, "aborted_transactions": aborted, "records": b"".join(data)}, size, is_cut

    async def _records(
        self,
        view: View,
        partition: RequestedPartition,
        topic: CatalogTopic,
        log: Partition,
        isolation: Isolation,
        max_bytes: int,
        *,
        is_first: bool,
    ) -> tuple[list[bytes], int, bool]:
        """Batches from the requested offset on: up to ``max_bytes`` bytes, or one of any size if ``is_first``.

        Also their bytes, and whether more batches are known that had no room.

        Control batches stand for offsets without a record that the reader sees, so that its position passes them.
        """
        data: list[bytes] = []
        size, position, end = 0, partition.offset, log.read_limit(isolation)
        try:
            async with aclosing(self._batches(partition, topic, log, isolation)) as batches:
                async for encoded_batch in batches:
                    if encoded_batch.last_offset < position:
                        continue
                    if (data or not is_first) and size + len(encoded_batch.data) > max_bytes:
                        return data, size, True
                    if data and encoded_batch.first_offset < position:
                        # Encoded for another reader, from other segments. At the beginning of a response a client skips
                        # what is before its position; further on, librdkafka would take it for new records.
                        return data, size, True
                    if encoded_batch.first_offset > position:
                        data += _gap_batches(position, encoded_batch.first_offset)
                    data.append(encoded_batch.data)
                    size += len(encoded_batch.data)
                    position = encoded_batch.last_offset + 1
        except Exception:
            if not data:
                raise
            return data, size, True  # The client gets what was read; its next fetch meets the error.
        if position < end:
            data += _gap_batches(position, end)
            size += len(data[-1])
        return data, size, False

    async def _batches(
        self, partition: RequestedPartition, topic: CatalogTopic, log: Partition, isolation: Isolation
    ) -> AsyncGenerator[EncodedBatch]:
        """Yield the batches from the requested offset on, from memory and segments; the first may begin before it."""
        position = partition.offset
        slices = iterate_visible_slices(partition.tp, log, isolation, position)
        next_slices = partial(_next_slices, slices)
        in_memory = log.batches.in_memory_from(position)
        while slices_at_once := next_slices() if in_memory else await self._services.in_thread(next_slices):
            for index, part in enumerate(slices_at_once):
                hot = self._hot_batches.find(topic.topic_id, part.tp.partition, part.batch)
                if hot is not None and position < part.limit:
                    position = part.batch.limit
                    yield EncodedBatch(part.batch.base_offset, position - 1, hot)
                while position < part.limit:
                    cold = [part, *takewhile(partial(self._is_cold, topic), slices_at_once[index + 1 :])]
                    stretch = await self._cold_batches.read(topic, isolation, cold, max(position, part.start))
                    for batch in stretch.batches:
                        yield batch
                    position = stretch.limit

    def _is_cold(self, topic: CatalogTopic, part: Slice) -> bool:
        """Whether the batch of a slice must be read from its segment."""
        return self._hot_batches.size_of(topic.topic_id, part.tp.partition, part.batch) is None

    def _is_short(
        self, view: View, partitions: Sequence[RequestedPartition], isolation: Isolation, min_bytes: int
    ) -> bool:
        """Whether a response would certainly have fewer bytes, and no error: what is in memory is counted, not read.

        What is read from the storage has another size in the response: its bytes are known when it is encoded.
        """
        size = 0
        for partition in partitions:
            topic = view.topics.get(partition.tp.topic)
            log = view.partition(partition.tp)
            if partition.topic is None or topic is None or log is None or topic.topic_id != partition.topic.topic_id:
                return False
            position, end = partition.offset, log.read_limit(isolation)
            if not log.log_start <= position <= log.high_watermark or not log.batches.in_memory_from(position):
                return False
            for part in iterate_visible_slices(partition.tp, log, isolation, position):
                nbytes = self._hot_batches.size_of(topic.topic_id, part.tp.partition, part.batch)
                size += min_bytes if nbytes is None else nbytes
                size += _MAX_GAP_BYTES if part.start > position else 0
                if size >= min_bytes:
                    return False
                position = part.limit
            size += _MAX_GAP_BYTES if position < end else 0
        return size < min_bytes


def _response(session: FetchSession | None, results: Sequence[_Result]) -> Fields:
    """Arrange results by topic; those of a session without what its client knows."""
    by_topic: dict[str | UUID | None, list[Fields]] = {}
    for key, fields in results:
        if session is None or _has_news(session, key, fields) or session.is_full:
            by_topic.setdefault(key[0], []).append(fields)
    responses = [
        {"topic": named, "partitions": partitions}
        if isinstance(named, str)
        else {"topic_id": named, "partitions": partitions}
        for named, partitions in by_topic.items()
    ]
    return {
        "error_code": ErrorCode.none,
        "session_id": 0 if session is None else session.number,
        "responses": responses,
    }


def _has_news(session: FetchSession, key: PartitionKey, fields: Fields) -> bool:
    """Whether a response must have the result of a partition, which the client of a session knows then."""
    partition = session.partitions.get(key)
    if partition is None:  # Forgotten meanwhile, by a request of another connection.
        return False
    is_failed = fields["error_code"] is not ErrorCode.none
    offsets = fields["high_watermark"], fields["last_stable_offset"], fields["log_start_offset"]
    is_redirected = fields["preferred_read_replica"] >= 0
    has_news = bool(fields["records"]) or is_failed or is_redirected or offsets != partition.known_offsets
    partition.known_offsets = None if is_failed else offsets
    if fields["records"]:
        session.read_last(key)
    return has_news


def _gap_batches(first_offset: int, offset_limit: int) -> list[bytes]:
    """The control batches that stand for the offsets from ``first_offset`` up to ``offset_limit``."""
    starts = range(first_offset, offset_limit, MAX_DELTA)
    return [gap_batch(start, min(start + MAX_DELTA, offset_limit) - 1) for start in starts]


def _is_behind(view: View, partitions: Sequence[RequestedPartition]) -> bool:
    """Whether a requested offset is after the end of its log in this view: others may have written since.

    Refused without a look at the heads, a consumer would start again at an end of the log.
    """
    logs = ((view.partition(partition.tp), partition.offset) for partition in partitions if partition.topic is not None)
    return any(log is None or offset > log.high_watermark for log, offset in logs)


def _next_slices(remaining_slices: Iterator[Slice]) -> list[Slice]:
    """The next slices to read at the same time, about as many as a response takes."""
    slices: list[Slice] = []
    size = 0
    for next_slice in islice(remaining_slices, TOGETHER):
        slices.append(next_slice)
        size += next_slice.batch.size
        if size >= TOGETHER_BYTES:
            break
    return slices


def _error_fields(partition: RequestedPartition, error: Exception) -> Fields:
    return _partition_fields(partition, None, code_of(error, Api.FETCH, 0))


def _partition_fields(partition: RequestedPartition, log: Partition | None, code: ErrorCode) -> Fields:
    """The fields of a partition without records."""
    return {
        "partition_index": partition.tp.partition,
        "error_code": code,
        "high_watermark": -1 if log is None else log.high_watermark,
        "last_stable_offset": -1 if log is None else log.last_stable_offset,
        "log_start_offset": -1 if log is None else log.log_start,
        "aborted_transactions": None,
        "preferred_read_replica": -1,
        "records": b"",
    }


def _milliseconds(duration: Any) -> int:
    return int(duration.total_seconds() * 1000) if hasattr(duration, "total_seconds") else int(duration)
