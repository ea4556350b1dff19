"""Produce: staging, flushes, and the commits that append the batches.

A batch goes through these steps: the handler checks it and stages it; a flush takes all that is staged when the commits
under way have taken the commands of the last one, converts it in one pass, and inlines or uploads it; each batch is
then appended by a command of its own (several chains: those of a transaction together), so each fails alone. The
commands are queued in the order of arrival.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import Any, TypeAlias

import pyarrow as pa
from kio.schema.errors import ErrorCode

from txnstore import compute as pc
from txnstore.catalog.settings import TopicConfig
from txnstore.catalog.writing import TopicWriter, topic_writer
from txnstore.core.authorization.rights import write_id, write_topics
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.commands import Append, Appended
from txnstore.core.log.model import NewBatch
from txnstore.core.model import ProducerIdentity, TopicPartition
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
    at_offset,
    check_produced,
)
from txnstore.gateway.records.columns import to_table
from txnstore.gateway.records.typed import check_keyed, rows_from_json, tombstone_values
from txnstore.gateway.repetitions import ProducerPartition, Repetitions
from txnstore.gateway.server import Client, Fields, Handler
from txnstore.gateway.services import Services, newest_version
from txnstore.gateway.sessions import OUTDATED
from txnstore.gateway.wire import Request, field_value
from txnstore.producer.records import check_values
from txnstore.producer.upload import deliver, encode_rows

_LOG = limited_logger(__name__)

#: Bytes of batches that one flush takes.
_MAX_FLUSH_BYTES = 32 << 20
#: Batches, and bytes, of a flush that the event loop converts itself: handing them to a thread costs as much.
_QUICK_BATCHES, _QUICK_BYTES = 4, 8 << 10
#: Bytes of batches that share a segment.
_MAX_SHARED_BYTES = 8 << 20
#: The first version of Produce with records that zstd compresses.
_ZSTD_FROM = 7
#: Seconds for which an upload is retried: Kafka's default of ``request.timeout.ms`` of a producer.
_UPLOAD_TIMEOUT = 30.0
#: The errors after which clients send a batch again.
_RETRIABLE = (StorageError, UploadExpiredError, EndedMeanwhileError)
#: The most records of a refused batch in a line of the log.
_MAX_LOGGED_RECORDS = 10


@dataclass(eq=False, slots=True)
class StagedBatch:
    """A batch that waits for its commit.

    Attributes:
        raw_batch: The batch as it came.
        session: The identity that a client of transactions v1 keeps for many transactions; the partition must have been
            added to the transaction before. None: a client of v2, or no transaction.
        principal: The principal that writes it; None: that of the gateway.
        has_times: Whether each of its records has a time; a record without one gets that of the write.
        new_batch: Its rows, inlined or uploaded.
        answer: The answer of its commit; None: it was not submitted.
        outcome: Its place in the log, or the error that refuses it; None: neither is known.
        on_end: Called when its outcome is known.
    """

    topic: CatalogTopic
    tp: TopicPartition
    raw_batch: RawBatch
    producer: ProducerIdentity
    session: ProducerIdentity | None
    principal: str | None
    has_times: bool = field(default=True)
    new_batch: NewBatch | None = field(default=None)
    answer: asyncio.Future[tuple[Appended, ...]] | None = field(default=None)
    outcome: Appended | BaseException | None = field(default=None)
    on_end: list[Callable[[], None]] = field(default_factory=list)

    @property
    def sender(self) -> ProducerPartition:
        """The producer, as the client knows it, and the partition."""
        return _producer_partition(self.raw_batch, self.tp)

    def end(self, outcome: Appended | BaseException) -> None:
        """Note the outcome, unless it has one, and tell it to what waits for it."""
        if self.outcome is None:
            self.outcome = outcome
            calls, self.on_end = self.on_end, []  # They refer to the batch: only the collector of cycles would end it.
            for call in calls:
                call()


#: A topic of a request, with its partitions, and the batch of each, or the error that refuses it.
_StagedTopic: TypeAlias = tuple[Any, Sequence[tuple[Any, StagedBatch | Exception]]]


class Produce:
    """Appends batches."""

    def __init__(self, services: Services, hot: HotBatches) -> None:
        self._services = services
        self._hot_batches = hot
        #: The batches that no flush has taken, oldest first.
        self._staged_batches: list[StagedBatch] = []
        self._flusher: asyncio.Task[None] | None = None
        #: The batches of each producer and partition that have no answer, oldest first.
        self._unanswered_batches: dict[ProducerPartition, list[StagedBatch]] = {}
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
        topics: list[_StagedTopic] = []
        for topic in request.body.topic_data:
            partitions = topic.partition_data
            topics.append((topic, [(part, await self._stage(request, topic, part, client)) for part in partitions]))
        fields: asyncio.Future[Fields | None] = asyncio.get_running_loop().create_future()
        open_batches = [
            batch
            for _, partitions in topics
            for _, batch in partitions
            if isinstance(batch, StagedBatch) and batch.outcome is None
        ]
        remaining = len(open_batches)

        def on_end() -> None:
            nonlocal remaining
            remaining -= 1
            if remaining <= 0 and not fields.done():
                try:
                    fields.set_result(self._response_fields(request, topics, client))
                except asyncio.CancelledError:
                    fields.cancel()
                except ConnectionAbortedError as error:  # Its traceback would keep the request, after its bytes count.
                    fields.set_exception(error.with_traceback(None))
                except Exception as error:  # noqa: BLE001 - The connection gets it.
                    fields.set_exception(error)

        for batch in open_batches:
            batch.on_end.append(on_end)
        if not open_batches:
            on_end()
        return fields

    async def _stage(self, request: Request, topic: Any, partition: Any, client: Client) -> StagedBatch | Exception:
        """Check a batch and stage it; returns the error that refuses it."""
        try:
            batch = await self._checked_batch(request, topic, partition, client)
        except (TxnStoreError, RefusedError) as error:
            return error
        self._staged_batches.append(batch)
        if batch.raw_batch.producer_id >= 0:
            self._unanswered_batches.setdefault(batch.sender, []).append(batch)
            batch.on_end.append(partial(self._on_answer, batch))
        if self._flusher is None:
            self._flusher = asyncio.get_running_loop().create_task(self._flush_all())
            self._flusher.add_done_callback(report_failure)
        return batch

    async def _checked_batch(self, request: Request, topic: Any, partition: Any, client: Client) -> StagedBatch:
        """Check the rights, the topic, the records and the producer of a batch.

        Raises:
            RefusedError: The request or the batch is refused.
            TxnStoreError: As above, or the storage does not answer.
        """
        body = request.body
        if body.acks not in {-1, 0, 1}:
            raise RefusedError(ErrorCode.invalid_required_acks, f"acks must be -1, 0 or 1, not {body.acks}")
        name = field_value(topic, "name")
        if name is not None:  # Without the right, a client must not learn whether a topic exists.
            self._services.check(client, write_topics([name]))
        catalog_topic = await self._services.find(name, field_value(topic, "topic_id"), partition.index)
        self._services.check(client, write_topics([catalog_topic.name]))
        catalog_topic, raw_batch = await self._check_batch(catalog_topic, partition.records or b"")
        if raw_batch.codec is Codec.ZSTD and request.version < _ZSTD_FROM:
            raise RefusedError(ErrorCode.unsupported_compression_type, "this version of Produce has no zstd")
        transactional_id = body.transactional_id
        if raw_batch.is_transactional and transactional_id is None:
            msg = "a batch of a transaction came without a transactional id"
            raise RefusedError(ErrorCode.transactional_id_authorization_failed, msg)
        if transactional_id is not None:
            self._services.check(client, write_id(transactional_id))
        identity = self._client_identity(raw_batch, transactional_id if raw_batch.is_transactional else None)
        tp = TopicPartition(catalog_topic.name, partition.index)
        if raw_batch.producer_id >= 0:
            self._repetitions.check(_producer_partition(raw_batch, tp), raw_batch.base_sequence)
        producer, session = identity, None
        if raw_batch.is_transactional and request.version < PRODUCE_V2:
            # A client of transactions v1 keeps its epoch: the chain has another one for each of its transactions.
            producer, session = await self._transaction_identity(identity, raw_batch, tp), identity
        return StagedBatch(catalog_topic, tp, raw_batch, producer, session, client.principal)

    async def _check_batch(self, topic: CatalogTopic, records: bytes) -> tuple[CatalogTopic, RawBatch]:
        """Check a batch; return it and the version of the topic by which it is not too large."""
        try:
            return topic, check_produced(records, self._max_bytes(writer_of(topic).config))
        except BatchTooLargeError:
            newest_topic = newest_version(await self._services.freshness.since_request(), topic)
            if newest_topic == topic:
                raise
            return newest_topic, check_produced(records, self._max_bytes(writer_of(newest_topic).config))

    async def _transaction_identity(
        self, session: ProducerIdentity, raw: RawBatch, tp: TopicPartition
    ) -> ProducerIdentity:
        """Look up the identity of the transaction of a v1 client; raises as :meth:`Sessions.identity`."""
        try:
            return await self._services.sessions.identity(session)
        except _RETRIABLE as error:
            self._repetitions.expect(_producer_partition(raw, tp), raw.base_sequence, error)
            raise

    def _max_bytes(self, config: TopicConfig) -> int:
        """The largest batch that a client may send to a topic with these settings."""
        is_own = "max.message.bytes" in config.explicit
        return config.max_message_bytes if is_own else self._services.properties.message_max_bytes

    def _client_identity(self, raw: RawBatch, transactional_id: str | None) -> ProducerIdentity:
        if raw.producer_id < 0:
            if raw.is_transactional:
                raise RefusedError(ErrorCode.invalid_record, "a batch of a transaction has no producer id")
            return ProducerIdentity()
        return ProducerIdentity(raw.producer_id, raw.producer_epoch, transactional_id)

    # Flushes ----------------------------------------------------------------------------------------------------------

    async def _flush_all(self) -> None:
        """Flush until nothing is staged; the next batch starts it again."""
        try:
            while self._staged_batches:
                # Earlier, a conversion would have fewer batches, which would only wait for their entry.
                await self._services.commits.wait_until_taken()
                batches = self._take_staged()
                self.flushes += 1
                prepare = partial(self._prepare, batches)
                try:
                    refusals, count = prepare() if _is_quick(batches) else await self._services.in_thread(prepare)
                except Exception as error:  # noqa: BLE001 - The clients of these batches get it.
                    refusals, count = dict.fromkeys(range(len(batches)), error), len(batches)
                if await self._adopt_newer_versions(batches, refusals):
                    self._staged_batches[:0] = batches  # Prepare all of them again.
                    continue
                self.batches += count
                self._staged_batches[:0] = batches[count:]  # They need too much memory now.
                for index, batch in enumerate(batches[:count]):
                    if index in refusals:
                        self._fail(batch, refusals[index])
                    elif batch.outcome is None:
                        self._commit(batch)
        finally:
            self._flusher = None

    async def _adopt_newer_versions(self, batches: Sequence[StagedBatch], refusals: dict[int, Exception]) -> bool:
        """Give refused batches the newest version of their topic; return whether one differs and may accept them.

        If the heads or a version cannot be read, or the topic was deleted, that error replaces the refusal.
        """
        refused_indexes = [index for index, error in refusals.items() if _depends_on_topic(error)]
        if not refused_indexes:
            return False
        try:
            view = await self._services.freshness.head()
        except Exception as error:  # noqa: BLE001 - The clients of these batches get it; most repeat them.
            refusals.update(dict.fromkeys(refused_indexes, error))
            return False
        differs = False
        for index in refused_indexes:
            batch = batches[index]
            try:
                newest_topic = newest_version(view, batch.topic)
                writer_of(newest_topic)  # If it cannot be read, the preparation would fail for all batches.
            except TxnStoreError as error:
                refusals[index] = error
            else:
                differs |= newest_topic != batch.topic
                batch.topic = newest_topic
        return differs

    def _take_staged(self) -> list[StagedBatch]:
        """Take the staged batches of the next flush, up to 32 MiB, at least one."""
        size, count = 0, 0
        for batch in self._staged_batches:
            size += len(batch.raw_batch.data)
            if count and size > _MAX_FLUSH_BYTES:
                break
            count += 1
        batches = self._staged_batches[:count]
        del self._staged_batches[:count]
        return batches

    def _prepare(self, batches: Sequence[StagedBatch]) -> tuple[dict[int, Exception], int]:
        """Convert the records, and inline or upload them; in a thread, unless they are quick.

        Returns:
            The errors by number of the batch, and the number of decoded batches: those behind need too much memory now.
        """
        decoded = _decode_rows(batches)
        indexes_by_writer: dict[tuple[str, int, int], list[int]] = {}
        chains = len(self._services.connection.chains)
        for index in decoded.rows:
            batch = batches[index]
            key = batch.topic.topic_id, batch.topic.version, chain_of_partition(batch.tp, chains)
            indexes_by_writer.setdefault(key, []).append(index)
        uploads: list[list[int]] = []
        for indexes in indexes_by_writer.values():
            config = writer_of(batches[indexes[0]].topic).config
            if sum(len(batches[index].raw_batch.data) for index in indexes) <= config.inline_bytes:
                # In a store with several chains each command may get an entry of its own, with all of its bytes.
                ordered_indexes = sorted(indexes, key=lambda index: batches[index].tp.partition)
                for shared_indexes in [ordered_indexes] if chains == 1 else [[index] for index in indexes]:
                    self._encode(decoded, shared_indexes, inlined=True)
            else:
                uploads += _segment_groups(batches, indexes, config.segment_own_bytes)
        pool = self._services.connection.pool
        tasks = [pool.submit(self._upload, decoded, indexes) for indexes in uploads[1:]]
        for indexes in uploads[:1]:
            self._upload(decoded, indexes)
        for task in tasks:
            task.result()
        return decoded.refusals, decoded.count

    def _upload(self, decoded: _DecodedBatches, indexes: Sequence[int]) -> None:
        """Encode these batches, which have one topic, as one segment and upload it; an error refuses each."""
        data = self._encode(decoded, indexes, inlined=False)
        if data is None:
            return
        connection, first_batch = self._services.connection, decoded.batches[indexes[0]]
        assert first_batch.new_batch is not None
        key, what = first_batch.new_batch.segment.object, f"a segment of {first_batch.tp.topic}"
        try:
            deliver(
                connection.objects, connection.runtime, key, data, what, _UPLOAD_TIMEOUT,
                lambda: False, connection.measurements.count_retry,
            )  # fmt: skip
        except TxnStoreError as error:  # Its traceback would keep the batches, after their bytes count.
            decoded.refuse(indexes, error.with_traceback(None))

    def _encode(self, decoded: _DecodedBatches, indexes: Sequence[int], *, inlined: bool) -> bytes | None:
        """Encode these batches, which have one topic, as one segment, and set the ``new_batch`` of each.

        Returns:
            The bytes of the segment; None if they cannot be encoded, and the error refuses each.
        """
        connection, batches = self._services.connection, decoded.batches
        writer = writer_of(batches[indexes[0]].topic)
        tables = [(batches[index].tp, decoded.rows[index]) for index in indexes]
        try:
            encoded_segment = encode_rows(connection.runtime, writer, tables, connection.chain.now(), inlined=inlined)
        except Exception as error:  # noqa: BLE001 - The clients of these batches get it.
            decoded.refuse(indexes, error)
            return None
        for index, new_batch in zip(indexes, encoded_segment.batches, strict=True):
            raw_batch = batches[index].raw_batch
            # aiokafka numbers batches from 0 on though no producer id goes with the numbers; brokers look at neither.
            if raw_batch.producer_id >= 0:
                new_batch = replace(new_batch, base_sequence=raw_batch.base_sequence)
            batches[index].new_batch = new_batch
        return encoded_segment.data

    # Commits ----------------------------------------------------------------------------------------------------------

    def _commit(self, batch: StagedBatch) -> None:
        assert batch.new_batch is not None
        append = Append(batch.producer, (batch.new_batch,), added_only=batch.session is not None)
        answer = batch.answer = self._services.commits.submit(append, batch.principal)
        answer.add_done_callback(partial(self._on_commit, batch))

    def _on_commit(self, batch: StagedBatch, answer: asyncio.Future[tuple[Appended, ...]]) -> None:
        """End a batch with the outcome of its commit; one that its session may explain is looked up first."""
        if answer.cancelled():
            batch.end(asyncio.CancelledError("its command was withdrawn"))
            return
        error = answer.exception()
        if error is None:
            (appended,) = answer.result()
            batch.end(appended)
            if not appended.duplicate and appended.base_offset >= 0:
                self._keep_hot(batch, appended)
        elif isinstance(error, OUTDATED) and batch.session is not None:
            self._look_up_refusal(batch, batch.session, error)
        else:
            self._fail(batch, error)

    def _fail(self, batch: StagedBatch, error: BaseException) -> None:
        """Refuse a batch, and, if its client sends it again, those behind it, which it then repeats in order."""
        unanswered = [*self._unanswered_batches.get(batch.sender, ())]
        batch.end(error)
        if not isinstance(error, _RETRIABLE):
            return
        if batch.raw_batch.producer_id >= 0:
            self._repetitions.expect(batch.sender, batch.raw_batch.base_sequence, error)
        for later_batch in unanswered[unanswered.index(batch) + 1 :] if batch in unanswered else ():
            if later_batch.answer is None or later_batch.answer.cancel():  # No commit has taken it.
                later_batch.end(error)

    def _on_answer(self, batch: StagedBatch) -> None:
        unanswered = self._unanswered_batches[batch.sender]
        unanswered.remove(batch)
        if not unanswered:
            del self._unanswered_batches[batch.sender]

    def _look_up_refusal(self, batch: StagedBatch, session: ProducerIdentity, error: Exception) -> None:
        """Refuse a batch of a transaction that may have ended at another gateway since the batch came."""

        async def look_up() -> None:
            try:
                await self._services.sessions.check_current(session, batch.producer)
            except Exception as refusal:  # noqa: BLE001 - The client of the batch gets it.
                self._fail(batch, refusal)
            else:
                batch.end(NotAddedError(str(error)) if isinstance(error, InvalidTxnStateError) else error)

        task = asyncio.get_running_loop().create_task(look_up())
        self._look_ups.add(task)
        task.add_done_callback(report_failure)
        task.add_done_callback(self._look_ups.discard)

    def _keep_hot(self, batch: StagedBatch, appended: Appended) -> None:
        append_time = appended.timestamp if writer_of(batch.topic).config.append_time else None
        if batch.topic.schema is not None or not (batch.has_times or append_time is not None):
            return  # The stored batch differs from the sent one, and all readers must get the same.
        data = at_offset(batch.raw_batch, appended.base_offset, append_time=append_time)
        self._hot_batches.add(batch.topic.topic_id, batch.tp.partition, appended.base_offset, appended.limit, data)

    # Responses --------------------------------------------------------------------------------------------------------

    def _response_fields(self, request: Request, topics: Sequence[_StagedTopic], client: Client) -> Fields | None:
        """Return the response to a request whose batches have their outcomes; None for acks=0."""
        responses = []
        last_error: BaseException | None = None
        for topic, partitions in topics:
            answers = []
            name, topic_id = field_value(topic, "name", ""), field_value(topic, "topic_id")
            for partition, batch in partitions:
                outcome = batch.outcome if isinstance(batch, StagedBatch) else batch
                if isinstance(batch, StagedBatch) and isinstance(outcome, Appended):
                    answers.append(self._success_fields(partition.index, batch, outcome))
                    continue
                if not isinstance(outcome, Exception):
                    raise asyncio.CancelledError("its command was withdrawn")
                last_error = outcome
                answers.append(refusal := _refusal_fields(partition.index, outcome, request.version))
                if isinstance(outcome, BatchError):
                    _log_refusal(outcome, refusal["error_code"], name or str(topic_id), partition.index, client)
            responses.append({"name": name, "topic_id": topic_id, "partition_responses": answers})
        if request.body.acks == 0:
            if last_error is not None:
                # The text of a refusal may have a value of a record, which no log has.
                reason = "a batch was refused" if isinstance(last_error, BatchError) else last_error
                raise ConnectionAbortedError(f"a request with acks=0 failed: {reason}")
            return None
        return {"responses": responses}

    def _success_fields(self, index: int, batch: StagedBatch, appended: Appended) -> Fields:
        """Return the fields of an appended batch; the append time unless its records have times of their own."""
        log = self._services.freshness.view.partition(batch.tp)
        append_time = writer_of(batch.topic).event_time is None
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


def _refusal_fields(index: int, error: Exception, version: int) -> Fields:
    """Return the fields of a partition whose batch was refused."""
    records = error.record_errors if isinstance(error, BatchError) else ()
    return {
        "index": index,
        "error_code": code_of(error, Api.PRODUCE, version),
        "base_offset": -1,
        "log_append_time": None,
        "log_start_offset": -1,
        "record_errors": [
            {"batch_index": record_error.index, "batch_index_error_message": str(record_error)}
            for record_error in records
        ],
        "error_message": message_of(error),
    }


def _log_refusal(error: BatchError, code: ErrorCode, topic: str, partition: int, client: Client) -> None:
    """Log a refused batch. Only its client gets the whole text, which may have values of records."""
    extra = {
        "client": client.host, "topic": topic, "partition": partition, "reason": code.name,
        "records": [record_error.index for record_error in error.record_errors[:_MAX_LOGGED_RECORDS]],
    }  # fmt: skip
    _LOG.info("a batch was refused", extra=extra)


def _depends_on_topic(error: Exception) -> bool:
    """Whether another version of the topic might accept the batch: its bytes are not damaged."""
    return isinstance(error, InvalidRecordError | RecordTooLargeError)


def _producer_partition(raw: RawBatch, tp: TopicPartition) -> ProducerPartition:
    """The producer of a batch, as its client knows it, and its partition."""
    return raw.producer_id, raw.producer_epoch, tp


def _is_quick(batches: Sequence[StagedBatch]) -> bool:
    """Whether batches are converted without a request, in about a millisecond."""
    if len(batches) > _QUICK_BATCHES:  # Each may have a topic or a chain of its own, and be encoded alone.
        return False
    size = sum(len(batch.raw_batch.data) for batch in batches)
    if size > _QUICK_BYTES or any(batch.raw_batch.codec is not Codec.NONE for batch in batches):
        return False
    writers = [writer_of(batch.topic) for batch in batches]
    return all(writer.schema is None and size <= writer.config.inline_bytes for writer in writers)


@dataclass(frozen=True, slots=True)
class _DecodedBatches:
    """The batches of a flush and what is known of each, by its index in ``batches``. Threads refuse different ones.

    Attributes:
        rows: The rows of those that were decoded, in the stored schemas of their topics.
        refusals: The errors of the others.
        count: How many were tried: at least one, without those at the end that need too much memory now.
    """

    batches: Sequence[StagedBatch]
    rows: Mapping[int, pa.Table]
    refusals: dict[int, Exception]
    count: int

    def refuse(self, indexes: Sequence[int], error: Exception) -> None:
        """Refuse these batches."""
        self.refusals.update(dict.fromkeys(indexes, error))


def _decode_rows(batches: Sequence[StagedBatch]) -> _DecodedBatches:
    """Decode batches into rows of the stored schemas of their topics, and note the error of each other one."""
    keyed_batches = {index for index, batch in enumerate(batches) if _needs_keys(writer_of(batch.topic))}
    decoded_records = to_table([batch.raw_batch for batch in batches], keyed_batches=keyed_batches)
    rows: dict[int, pa.Table] = {}
    refusals: dict[int, Exception] = dict(decoded_records.errors)
    for index, batch in enumerate(batches[: len(decoded_records.counts)]):
        if index in refusals:
            continue
        table, writer = decoded_records.rows(index), writer_of(batch.topic)
        batch.has_times = not table["timestamp"].null_count
        try:
            if writer.schema is not None:
                _check_headers(table)
                values = table["value"]
                if values.null_count and writer.tombstone_column is not None:
                    values = tombstone_values(table, writer)
                table = rows_from_json(values, table["key"], writer.schema, writer.key_column)
                if writer.config.compacts and writer.key_column is not None:
                    check_keyed(table, writer.key_column)
                check_values(writer, table)  # Its size was checked as it came.
            rows[index] = table
        except SchemaMismatchError as error:
            refusals[index] = InvalidBatchError(str(error))
        except TxnStoreError as error:
            refusals[index] = error
    return _DecodedBatches(batches, rows, refusals, len(decoded_records.counts))


def _needs_keys(writer: TopicWriter) -> bool:
    """Whether each record needs a key: a typed topic has its keys in a column."""
    return writer.schema is None and writer.config.compacts


def _check_headers(table: pa.Table) -> None:
    """Refuse headers, which a typed topic has no place for: they would vanish."""
    with_headers = pc.greater(pc.fill_null(pc.list_value_length(table["headers"]), 0), 0).to_pylist()
    record_errors = [
        RecordError(row, "it has headers, which a topic with a schema does not store")
        for row, has_headers in enumerate(with_headers)
        if has_headers
    ]
    if record_errors:
        raise InvalidBatchError.of_records(record_errors)


def _segment_groups(
    batches: Sequence[StagedBatch], positions: Iterable[int], own_segment_bytes: int
) -> list[list[int]]:
    """Group batches into segments; return their positions in `batches`.

    A batch of at least `own_segment_bytes` gets its own segment, first in the result: the longest uploads start first.
    Smaller ones, ordered by partition, share segments of up to 8 MiB.
    """
    own_groups: list[list[int]] = []
    shared_groups: list[list[int]] = []
    size = 0
    for position in sorted(positions, key=lambda position: (batches[position].tp.partition, position)):
        length = len(batches[position].raw_batch.data)
        if length >= own_segment_bytes:
            own_groups.append([position])
            continue
        if not size or size + length > _MAX_SHARED_BYTES:
            shared_groups.append([])
            size = 0
        shared_groups[-1].append(position)
        size += length
    return [*own_groups, *shared_groups]


def writer_of(topic: CatalogTopic) -> TopicWriter:
    """The decoded schema and settings of a topic, cached by version."""
    return _cached_writer(_TopicVersion(topic))


class _TopicVersion:
    """A version of a topic as a cache key."""

    __slots__ = ("_key", "topic")

    def __init__(self, topic: CatalogTopic) -> None:
        self.topic = topic
        self._key = topic.topic_id, topic.version

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _TopicVersion) and other._key == self._key


@lru_cache(maxsize=4096)
def _cached_writer(version: _TopicVersion) -> TopicWriter:
    return topic_writer(version.topic)
