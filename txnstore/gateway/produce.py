"""Produce: staging, flushes, and the commits that append the batches.

A batch goes through these steps: the handler checks it and stages it; a flush takes all that is staged when the commits
under way have taken the commands of the last one, converts it in one pass, and inlines or uploads it; each batch is
then appended by a command of its own (several chains: those of a transaction together), so each fails alone. The
commands are queued in the order of arrival.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any

import pyarrow as pa
from kio.schema.errors import ErrorCode

from txnstore import compute as pc
from txnstore.catalog.settings import TopicConfig
from txnstore.catalog.writing import TopicWriter, topic_writer
from txnstore.core.authorization.rights import write_id, write_topics
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.commands import Append, Appended
from txnstore.core.log.model import NewBatch
from txnstore.core.model import NO_PRODUCER, ProducerIdentity, TopicPartition
from txnstore.core.routing import chain_of_partition
from txnstore.errors import (
    InvalidRecordError,
    InvalidTxnStateError,
    RecordTooLargeError,
    SchemaMismatchError,
    StorageError,
    TxnStoreError,
    UploadExpiredError,
)
from txnstore.gateway.apis import Api
from txnstore.gateway.errors import PRODUCE_V2, EndedMeanwhileError, NotAddedError, RefusedError, code_of, message_of
from txnstore.gateway.hot import HotBatches
from txnstore.gateway.logs import limited_logger, report_failure
from txnstore.gateway.records.batch import (
    BatchError,
    BatchTooLargeError,
    Codec,
    InvalidBatchError,
    RawBatch,
    RecordError,
    check_produced,
    placed,
)
from txnstore.gateway.records.columns import to_table
from txnstore.gateway.records.typed import check_keyed, rows_from_json
from txnstore.gateway.repetitions import ProducerPartition, Repetitions
from txnstore.gateway.server import Client, Fields, Handler
from txnstore.gateway.services import Services, newest_version
from txnstore.gateway.sessions import OUTDATED
from txnstore.gateway.wire import Request, value
from txnstore.producer.records import check_values
from txnstore.producer.upload import deliver, encode_rows

_LOG = limited_logger(__name__)

#: Bytes of batches that one flush takes.
_FLUSH_BYTES = 32 << 20
#: Bytes of batches that share a segment.
_SHARED_BYTES = 8 << 20
#: The first version of Produce with records that zstd compresses.
_ZSTD_FROM = 7
#: Seconds for which an upload is repeated: Kafka's default of ``request.timeout.ms`` of a producer.
_UPLOAD_TIMEOUT = 30.0
#: The refusals after which clients repeat a batch.
_REPEATED = (StorageError, UploadExpiredError, EndedMeanwhileError)
#: The records of a refused batch that the log names.
_LOGGED = 10


@dataclass(eq=False, slots=True)
class StagedBatch:
    """A batch that waits for its commit.

    Attributes:
        raw: The batch as it came.
        session: The identity that its client has for many transactions (v1); None: the same as that of the producer.
            Then the partition must have been added to the transaction before.
        principal: Who asks for it; None: the principal of the gateway.
        appended: Where it was appended.
        has_times: Whether each of its records has a time; the others get that of the write.
        new_batch: Its rows, inlined or uploaded.
        answer: The answer of its commit; None: it was not submitted.
    """

    topic: CatalogTopic
    tp: TopicPartition
    raw: RawBatch
    producer: ProducerIdentity
    session: ProducerIdentity | None
    principal: str | None
    appended: asyncio.Future[Appended]
    has_times: bool = field(default=True)
    new_batch: NewBatch | None = field(default=None)
    answer: asyncio.Future[tuple[Appended, ...]] | None = field(default=None)

    @property
    def sender(self) -> ProducerPartition:
        """Its producer, as the client knows it, and its partition."""
        return _sender(self.raw, self.tp)


class Produce:
    """Appends batches."""

    def __init__(self, services: Services, hot: HotBatches) -> None:
        self._services = services
        self._hot = hot
        #: The batches that no flush has taken, oldest first.
        self._staged: list[StagedBatch] = []
        self._flusher: asyncio.Task[None] | None = None
        #: The batches of each producer and partition that have no answer, oldest first.
        self._unanswered: dict[ProducerPartition, list[StagedBatch]] = {}
        self._repetitions = Repetitions(asyncio.get_running_loop().time)
        #: The flushes, and the batches that they took.
        self.flushes, self.batches = 0, 0
        #: Look-ups of why a batch was refused; the loop keeps only weak references to its tasks.
        self._look_ups: set[asyncio.Task[None]] = set()

    def handlers(self) -> dict[Api, Handler]:
        """The handler of its API."""
        return {Api.PRODUCE: self.produce}

    async def produce(self, request: Request, client: Client) -> Awaitable[Fields | None]:
        """Stage the batches of a request; the response follows when they are committed."""
        body = request.body
        parts = [
            (
                topic,
                [(each, await self._stage(request, topic, each, client)) for each in topic.partition_data],
            )
            for topic in body.topic_data
        ]
        return self._respond(request, parts, client)

    async def _stage(self, request: Request, topic: Any, partition: Any, client: Client) -> StagedBatch | Exception:
        """Check a batch and stage it; returns the error that refuses it."""
        body = request.body
        try:
            if body.acks not in {-1, 0, 1}:
                raise RefusedError(ErrorCode.invalid_required_acks, f"acks must be -1, 0 or 1, not {body.acks}")
            name = value(topic, "name")
            if name is not None:  # Without the right, a client must not learn whether a topic exists.
                self._services.check(client, write_topics([name]))
            found = await self._services.find(name, value(topic, "topic_id"), partition.index)
            self._services.check(client, write_topics([found.name]))
            found, raw = await self._checked(found, partition.records or b"")
            if raw.codec is Codec.ZSTD and request.version < _ZSTD_FROM:
                raise RefusedError(ErrorCode.unsupported_compression_type, "this version of Produce has no zstd")
            transactional_id = body.transactional_id
            if raw.is_transactional and transactional_id is None:
                msg = "a batch of a transaction came without a transactional id"
                raise RefusedError(ErrorCode.transactional_id_authorization_failed, msg)
            if transactional_id is not None:
                self._services.check(client, write_id(transactional_id))
            session = self._session(raw, transactional_id if raw.is_transactional else None)
            tp = TopicPartition(found.name, partition.index)
            if raw.producer_id >= 0:
                self._repetitions.check(_sender(raw, tp), raw.base_sequence)
            is_v1 = raw.is_transactional and request.version < PRODUCE_V2
            producer = await self._identity(session, raw, tp) if is_v1 else session
        except (TxnStoreError, RefusedError) as error:
            return error
        appended = asyncio.get_running_loop().create_future()
        staged = StagedBatch(found, tp, raw, producer, session if is_v1 else None, client.principal, appended)
        self._staged.append(staged)
        if raw.producer_id >= 0:
            self._unanswered.setdefault(staged.sender, []).append(staged)
            appended.add_done_callback(partial(self._answered, staged))
        if self._flusher is None:
            self._flusher = asyncio.get_running_loop().create_task(self._flush_all())
            self._flusher.add_done_callback(report_failure)
        return staged

    async def _checked(self, topic: CatalogTopic, records: bytes) -> tuple[CatalogTopic, RawBatch]:
        """A batch that is not too large for the topic, and the version of the topic that says so."""
        try:
            return topic, check_produced(records, self._max_bytes(writer_of(topic).config))
        except BatchTooLargeError:
            newest = newest_version(await self._services.freshness.since_request(), topic)
            if newest == topic:
                raise
            return newest, check_produced(records, self._max_bytes(writer_of(newest).config))

    async def _identity(self, session: ProducerIdentity, raw: RawBatch, tp: TopicPartition) -> ProducerIdentity:
        """The identity of the transaction of a client of transactions v1; raises as that of the sessions."""
        try:
            return await self._services.sessions.identity(session)
        except _REPEATED as error:
            self._repetitions.expect(_sender(raw, tp), raw.base_sequence, error)
            raise

    def _max_bytes(self, config: TopicConfig) -> int:
        """The largest batch that a client may send to a topic with these settings."""
        is_own = "max.message.bytes" in config.explicit
        return config.max_message_bytes if is_own else self._services.properties.message_max_bytes

    def _session(self, raw: RawBatch, transactional_id: str | None) -> ProducerIdentity:
        if raw.producer_id < 0:
            if raw.is_transactional:
                raise RefusedError(ErrorCode.invalid_record, "a batch of a transaction has no producer id")
            return ProducerIdentity()
        return ProducerIdentity(raw.producer_id, raw.producer_epoch, transactional_id)

    # Flushes ----------------------------------------------------------------------------------------------------------

    async def _flush_all(self) -> None:
        """Flush until nothing is staged; the next batch starts it again."""
        try:
            while self._staged:
                # Converted earlier, batches would only wait for their entry, and share the conversion with fewer.
                await self._services.commits.taken()
                taken = self._take()
                self.flushes += 1
                try:
                    refusals, count = await self._services.in_thread(partial(self._prepare, taken))
                except Exception as error:  # noqa: BLE001 - The clients of these batches get it.
                    refusals, count = dict.fromkeys(range(len(taken)), error), len(taken)
                if await self._are_altered(taken, refusals):
                    self._staged[:0] = taken
                    continue
                self.batches += count
                self._staged[:0] = taken[count:]
                for number, staged in enumerate(taken[:count]):
                    if number in refusals:
                        self._fail(staged, refusals[number])
                    elif not _has_failed(staged):
                        self._commit(staged)
        finally:
            self._flusher = None

    async def _are_altered(self, taken: Sequence[StagedBatch], refusals: dict[int, Exception]) -> bool:
        """Whether a topic of refused batches has a newer version, which may accept them; they then have that one.

        Where the heads or the newer version cannot be read, or the topic was deleted, this is why a batch is refused.
        """
        refused = [number for number, error in refusals.items() if _is_refused(error)]
        if not refused:
            return False
        try:
            view = await self._services.freshness.head()
        except Exception as error:  # noqa: BLE001 - The clients of these batches get it; most repeat them.
            refusals.update(dict.fromkeys(refused, error))
            return False
        altered = False
        for number in refused:
            staged = taken[number]
            try:
                newest = newest_version(view, staged.topic)
                writer_of(newest)  # Else the preparation would fail, for all batches.
            except TxnStoreError as error:
                refusals[number] = error
            else:
                altered |= newest != staged.topic
                staged.topic = newest
        return altered

    def _take(self) -> list[StagedBatch]:
        size, count = 0, 0
        for staged in self._staged:
            size += len(staged.raw.data)
            if count and size > _FLUSH_BYTES:
                break
            count += 1
        taken = self._staged[:count]
        del self._staged[:count]
        return taken

    def _prepare(self, taken: Sequence[StagedBatch]) -> tuple[dict[int, Exception], int]:
        """Convert the records, and inline or upload them. In a thread.

        Returns:
            The errors by number of the batch, and how many batches were taken: those behind need too much memory now.
        """
        rows, refusals, count = _rows_of(taken)
        groups: dict[tuple[str, int, int], list[int]] = {}
        chains = self._services.connection.view(refresh=False).chains
        for number in rows:
            staged = taken[number]
            key = staged.topic.topic_id, staged.topic.version, chain_of_partition(staged.tp, chains)
            groups.setdefault(key, []).append(number)
        uploads: list[list[int]] = []
        for numbers in groups.values():
            config = writer_of(taken[numbers[0]].topic).config
            if sum(len(taken[number].raw.data) for number in numbers) <= config.inline_bytes:
                # In a store with several chains each command may get an entry of its own, with all of its bytes.
                ordered = sorted(numbers, key=lambda number: taken[number].tp.partition)
                for shared in [ordered] if chains == 1 else [[number] for number in numbers]:
                    self._encode(taken, rows, shared, refusals, inlined=True)
            else:
                uploads += _shares(taken, numbers, config.segment_own_bytes)
        pool = self._services.connection.pool
        tasks = [pool.submit(self._upload, taken, rows, numbers, refusals) for numbers in uploads[1:]]
        for numbers in uploads[:1]:
            self._upload(taken, rows, numbers, refusals)
        for task in tasks:
            task.result()
        return refusals, count

    def _upload(
        self,
        taken: Sequence[StagedBatch],
        rows: Mapping[int, pa.Table],
        numbers: Sequence[int],
        refusals: dict[int, Exception],
    ) -> None:
        data = self._encode(taken, rows, numbers, refusals, inlined=False)
        if data is None:
            return
        connection, first = self._services.connection, taken[numbers[0]]
        assert first.new_batch is not None
        key = first.new_batch.segment.object
        try:
            deliver(
                connection.objects, connection.runtime, key, data, f"a segment of {first.tp.topic}", _UPLOAD_TIMEOUT,
                lambda: False, connection.measurements.count_retry,
            )  # fmt: skip
        except TxnStoreError as error:
            refusals.update(dict.fromkeys(numbers, error))

    def _encode(
        self,
        taken: Sequence[StagedBatch],
        rows: Mapping[int, pa.Table],
        numbers: Sequence[int],
        refusals: dict[int, Exception],
        *,
        inlined: bool,
    ) -> bytes | None:
        """Encode batches as one segment, and describe each; returns its bytes, or None if they cannot be encoded."""
        connection = self._services.connection
        writer = writer_of(taken[numbers[0]].topic)
        parts = [(taken[number].tp, rows[number]) for number in numbers]
        try:
            encoded = encode_rows(connection.runtime, writer, parts, connection.chain.now(), inlined=inlined)
        except Exception as error:  # noqa: BLE001 - The clients of these batches get it.
            refusals.update(dict.fromkeys(numbers, error))
            return None
        for number, new_batch in zip(numbers, encoded.batches, strict=True):
            raw = taken[number].raw
            # aiokafka numbers batches from 0 on though no producer id goes with the numbers; brokers look at neither.
            sequence = raw.base_sequence if raw.producer_id >= 0 else NO_PRODUCER
            taken[number].new_batch = replace(new_batch, base_sequence=sequence)
        return encoded.data

    # Commits ----------------------------------------------------------------------------------------------------------

    def _commit(self, staged: StagedBatch) -> None:
        assert staged.new_batch is not None
        append = Append(staged.producer, (staged.new_batch,), added_only=staged.session is not None)
        answer = staged.answer = self._services.commits.submit(append, staged.principal)
        answer.add_done_callback(partial(self._committed, staged))

    def _committed(self, staged: StagedBatch, answer: asyncio.Future[tuple[Appended, ...]]) -> None:
        if answer.cancelled():
            staged.appended.cancel()
        elif (error := answer.exception()) is not None:
            if isinstance(error, OUTDATED) and staged.session is not None:
                self._look_up_refusal(staged, staged.session, error)
            else:
                self._fail(staged, error)
        else:
            (appended,) = answer.result()
            if not staged.appended.done():
                staged.appended.set_result(appended)
            if not appended.duplicate and appended.base_offset >= 0:
                self._keep(staged, appended)

    def _fail(self, staged: StagedBatch, error: BaseException) -> None:
        """Refuse a batch, and, if its client repeats it, those behind it, which the client repeats in their order."""
        _refuse(staged, error)
        if not isinstance(error, _REPEATED):
            return
        if staged.raw.producer_id >= 0:
            self._repetitions.expect(staged.sender, staged.raw.base_sequence, error)
        unanswered = self._unanswered.get(staged.sender, [])
        for behind in unanswered[unanswered.index(staged) + 1 :] if staged in unanswered else ():
            if behind.answer is None or behind.answer.cancel():  # No commit has taken it.
                _refuse(behind, error)

    def _answered(self, staged: StagedBatch, _: asyncio.Future[Appended]) -> None:
        unanswered = self._unanswered[staged.sender]
        unanswered.remove(staged)
        if not unanswered:
            del self._unanswered[staged.sender]

    def _look_up_refusal(self, staged: StagedBatch, session: ProducerIdentity, error: Exception) -> None:
        """Refuse a batch of a transaction that may have ended at another gateway since the batch came."""

        async def look_up() -> None:
            try:
                await self._services.sessions.check_current(session, staged.producer)
            except Exception as refusal:  # noqa: BLE001 - The client of the batch gets it.
                self._fail(staged, refusal)
            else:
                _refuse(staged, NotAddedError(str(error)) if isinstance(error, InvalidTxnStateError) else error)

        task = asyncio.get_running_loop().create_task(look_up())
        self._look_ups.add(task)
        task.add_done_callback(report_failure)
        task.add_done_callback(self._look_ups.discard)

    def _keep(self, staged: StagedBatch, appended: Appended) -> None:
        append_time = appended.timestamp if writer_of(staged.topic).config.append_time else None
        if staged.topic.schema is not None or not (staged.has_times or append_time is not None):
            return  # A later reader gets what is stored, which is not what the client has sent.
        data = placed(staged.raw, appended.base_offset, append_time=append_time)
        self._hot.add(staged.topic.topic_id, staged.tp.partition, appended.base_offset, appended.limit, data)

    # Responses --------------------------------------------------------------------------------------------------------

    async def _respond(
        self,
        request: Request,
        parts: Sequence[tuple[Any, Sequence[tuple[Any, StagedBatch | Exception]]]],
        client: Client,
    ) -> Fields | None:
        responses = []
        failed: BaseException | None = None
        for topic, partitions in parts:
            answers = []
            name, topic_id = value(topic, "name", ""), value(topic, "topic_id")
            for partition, staged in partitions:
                try:
                    if isinstance(staged, Exception):
                        raise staged
                    answers.append(self._answer(partition.index, staged, await staged.appended))
                except asyncio.CancelledError:
                    raise
                except Exception as error:  # noqa: BLE001 - The client gets its code.
                    failed = error
                    answers.append(refusal := _refusal(partition.index, error, request.version))
                    if isinstance(error, BatchError):
                        _log_refusal(error, refusal["error_code"], name or str(topic_id), partition.index, client)
            responses.append({"name": name, "topic_id": topic_id, "partition_responses": answers})
        if request.body.acks == 0:
            if failed is not None:
                # The text of a refusal may have a value of a record, which no log has.
                reason = "a batch was refused" if isinstance(failed, BatchError) else failed
                raise ConnectionAbortedError(f"a request with acks=0 failed: {reason}")
            return None
        return {"responses": responses}

    def _answer(self, index: int, staged: StagedBatch, appended: Appended) -> Fields:
        log = self._services.freshness.view.partition(staged.tp)
        append_time = writer_of(staged.topic).event_time is None
        return {
            "index": index,
            "error_code": ErrorCode.none,
            "base_offset": appended.base_offset,
            "log_append_time": appended.timestamp if append_time else None,
            "log_start_offset": log.log_start if log is not None else -1,
        }

    async def close(self) -> None:
        """Wait for the flush under way."""
        if self._flusher is not None:
            with suppress(asyncio.CancelledError):
                await self._flusher


def _refusal(index: int, error: Exception, version: int) -> Fields:
    records = error.record_errors if isinstance(error, BatchError) else ()
    return {
        "index": index,
        "error_code": code_of(error, Api.PRODUCE, version),
        "base_offset": -1,
        "log_append_time": None,
        "log_start_offset": -1,
        "record_errors": [{"batch_index": each.index, "batch_index_error_message": str(each)} for each in records],
        "error_message": message_of(error),
    }


def _log_refusal(error: BatchError, code: ErrorCode, topic: str, partition: int, client: Client) -> None:
    """Log a batch that is against the rules. Its client gets the whole text, which may have values of records."""
    extra = {
        "client": client.host, "topic": topic, "partition": partition, "reason": code.name,
        "records": [each.index for each in error.record_errors[:_LOGGED]],
    }  # fmt: skip
    _LOG.info("a batch was refused", extra=extra)


def _is_refused(error: Exception) -> bool:
    """Whether the version of the topic is the reason; the bytes of a damaged batch are wrong for each."""
    return isinstance(error, InvalidRecordError | RecordTooLargeError)


def _has_failed(staged: StagedBatch) -> bool:
    """Whether it was refused; the batch of a client that has disconnected was not, and is appended."""
    return staged.appended.done() and not staged.appended.cancelled()


def _sender(raw: RawBatch, tp: TopicPartition) -> ProducerPartition:
    """The producer of a batch, as its client knows it, and its partition."""
    return raw.producer_id, raw.producer_epoch, tp


def _refuse(staged: StagedBatch, error: BaseException) -> None:
    if not staged.appended.done():
        staged.appended.set_exception(error)
        staged.appended.exception()  # A client that has closed its connection does not ask for it.


def _rows_of(taken: Sequence[StagedBatch]) -> tuple[dict[int, pa.Table], dict[int, Exception], int]:
    """The rows of each batch in the stored schema of its topic, by number, and the errors of those that have none.

    Also the number of batches that were decoded: at least one, and not those behind it that take too much memory.
    """
    keyed = {number for number, staged in enumerate(taken) if _needs_keys(writer_of(staged.topic))}
    decoded = to_table([staged.raw for staged in taken], keyed=keyed)
    rows: dict[int, pa.Table] = {}
    refusals: dict[int, Exception] = dict(decoded.errors)
    for number, staged in enumerate(taken[: len(decoded.counts)]):
        if number in refusals:
            continue
        table, writer = decoded.rows(number), writer_of(staged.topic)
        staged.has_times = not table["timestamp"].null_count
        try:
            if writer.schema is not None:
                _check_headers(table)
                table = rows_from_json(table["value"], table["key"], writer.schema, writer.key_column)
                if writer.config.compacts and writer.key_column is not None:
                    check_keyed(table, writer.key_column)
                check_values(writer, table)  # The limit of sizes is that of the batch as it came.
            rows[number] = table
        except SchemaMismatchError as error:
            refusals[number] = InvalidBatchError(str(error))
        except TxnStoreError as error:
            refusals[number] = error
    return rows, refusals, len(decoded.counts)


def _needs_keys(writer: TopicWriter) -> bool:
    """Whether each record needs a key: a typed topic has its keys in a column."""
    return writer.schema is None and writer.config.compacts


def _check_headers(table: pa.Table) -> None:
    """Refuse headers, which a typed topic has no place for: they would vanish."""
    with_headers = pc.greater(pc.fill_null(pc.list_value_length(table["headers"]), 0), 0).to_pylist()
    refused = [
        RecordError(row, "it has headers, which a topic with a schema does not store")
        for row, has_headers in enumerate(with_headers)
        if has_headers
    ]
    if refused:
        raise InvalidBatchError.of_records(refused)


def _shares(taken: Sequence[StagedBatch], numbers: Iterable[int], own_bytes: int) -> list[list[int]]:
    """Which batches share a segment: large ones have one of their own, small ones are together, by partition."""
    shares: list[list[int]] = []
    size = 0
    ordered = sorted(numbers, key=lambda number: (taken[number].tp.partition, number))
    for number in ordered:
        length = len(taken[number].raw.data)
        if length >= own_bytes:
            shares.insert(0, [number])
            continue
        if not size or size + length > _SHARED_BYTES:
            shares.append([])
            size = 0
        shares[-1].append(number)
        size += length
    return shares


def writer_of(topic: CatalogTopic) -> TopicWriter:
    """The decoded schema and settings of a topic, which are kept for its version."""
    return _writer(_Version(topic))


class _Version:
    """A version of a topic, as a key."""

    __slots__ = ("_key", "topic")

    def __init__(self, topic: CatalogTopic) -> None:
        self.topic = topic
        self._key = topic.topic_id, topic.version

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Version) and other._key == self._key


@lru_cache(maxsize=4096)
def _writer(version: _Version) -> TopicWriter:
    return topic_writer(version.topic)
