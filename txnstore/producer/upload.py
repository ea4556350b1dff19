"""Sealed batches: each becomes a segment that is uploaded and described for the chain, and has one outcome."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeAlias

import pyarrow as pa

from txnstore.catalog.writing import TopicWriter
from txnstore.chain import keys
from txnstore.connection import Connection
from txnstore.core.log.model import NewBatch, Segment
from txnstore.core.model import ProducerIdentity, TopicPartition
from txnstore.core.routing import chain_of_partition, chain_of_producer
from txnstore.errors import StorageError, StorageRefusedError, TransactionAbortedError
from txnstore.producer.accumulator import RecordAccumulator
from txnstore.producer.batches import ProducerBatch, Upload, convert_together, rounds
from txnstore.producer.sharing import grouped
from txnstore.producer.transaction_manager import TransactionManager
from txnstore.runtime import Runtime
from txnstore.segment.codec import encode, encode_stream
from txnstore.segment.schema import fill_timestamps, timestamp_ranges
from txnstore.storage.base import ObjectStore

_LOG = logging.getLogger(__name__)

#: Seconds: upper bounds of the random pause between two attempts of an upload; the bound doubles up to the last one.
_FIRST_PAUSE, _MAX_PAUSE = 0.01, 2.0
_MAX_DOUBLINGS = 10
#: After the upload of a segment of this size in bytes, the allocator returns what it does not use.
_LARGE = 1 << 20


#: Rows of a partition.
Rows: TypeAlias = tuple[TopicPartition, pa.Table]


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """The bytes of a segment, and the batches in it, described for the chain."""

    data: bytes
    batches: list[NewBatch]

    @property
    def segment(self) -> Segment:
        """The segment; its key is unique."""
        return self.batches[0].segment


def encode_rows(
    runtime: Runtime, writer: TopicWriter, parts: Sequence[Rows], chain_time: int, *, inlined: bool = False
) -> EncodedRows:
    """Encode rows of the topic's stored schema as one segment.

    Args:
        runtime: Clock and ids.
        writer: The topic.
        parts: The rows of each batch, in the order of their partitions.
        chain_time: The time of the last entry that was read, in milliseconds since the epoch.
        inlined: Encode it for an entry: as an Arrow stream, in a fiftieth of the time that a Parquet file takes. The
            batches have its bytes, and get its place from the entry. Else it has a unique key.
    """
    now, config = runtime.clock(), writer.config
    # The rows of many batches in one chunk: each step with a table takes a time that grows with its chunks.
    table = parts[0][1] if len(parts) == 1 else pa.concat_tables([rows for _, rows in parts]).combine_chunks()
    table, counts = _with_times(writer, table, now), [rows.num_rows for _, rows in parts]
    if inlined:
        encoded, key = encode_stream(table), ""
    else:
        encoded = encode(table, config.segment_format, writer.compression, parts=counts)
        topic, partition = parts[0][0]
        key = keys.segment(topic, partition, runtime.new_id(), config.segment_format)
    segment, first_rows = encoded.segment(key), [*accumulate(counts, initial=0)]
    batches = [
        NewBatch(
            tp.topic,
            tp.partition,
            segment,
            first,
            last,
            uploaded_at=None if inlined else max(now, chain_time),
            topic_id=writer.topic.topic_id,
            topic_version=writer.topic.version,
            data=encoded.data if inlined else None,
            first_row=first_row,
            rows=rows.num_rows,
            timestamp_type="LogAppendTime" if writer.event_time is None else "CreateTime",
        )
        for (tp, rows), first_row, (first, last) in zip(
            parts, first_rows, timestamp_ranges(table, writer.timestamp_column, now, counts), strict=False
        )
    ]
    return EncodedRows(encoded.data, batches)


def _with_times(writer: TopicWriter, table: pa.Table, now: int) -> pa.Table:
    """The rows with an event time each: those of the append have ``now`` here, which readers replace."""
    column = writer.timestamp_column
    if column is None:
        return table
    if writer.event_time is None:
        moments = table.schema.field(column)
        table = table.set_column(table.schema.names.index(column), moments, pa.nulls(table.num_rows, moments.type))
    return fill_timestamps(table, column, now)


def upload(
    objects: ObjectStore,
    runtime: Runtime,
    writer: TopicWriter,
    tp: TopicPartition,
    table: pa.Table,
    chain_time: int = 0,
) -> NewBatch:
    """Upload rows of the topic's stored schema as one segment, and describe it. One PUT.

    The object has a unique name and is invisible until an entry of the chain names it.

    Args:
        objects: The object storage.
        runtime: Clock and ids.
        writer: The topic.
        tp: The partition.
        table: The rows.
        chain_time: The time of the last entry that was read, in milliseconds since the epoch. The age of an upload is
            measured in the time of the chain, which may be ahead of this process's clock.
    """
    encoded = encode_rows(runtime, writer, [(tp, table)], chain_time)
    objects.put(encoded.segment.object, encoded.data)
    return encoded.batches[0]


def deliver(
    objects: ObjectStore,
    runtime: Runtime,
    key: str,
    data: bytes,
    name: str,
    timeout: float,
    given_up: Callable[[], bool],
    retried: Callable[[], None],
) -> None:
    """PUT a segment; repeat it after a transient error.

    Every attempt writes the same bytes under the same name, so a delayed one changes nothing.

    Args:
        objects: The object storage.
        runtime: Clock, randomness and pauses.
        key: The key of the object.
        data: Its bytes.
        name: What it is, for an error.
        timeout: Seconds for which the upload is repeated (``delivery.timeout.ms``), by the runtime's monotonic clock,
            or by the sum of the pauses if that stands still.
        given_up: Whether the upload is abandoned, so that it is not repeated.
        retried: Called before each repetition.

    Raises:
        StorageRefusedError: The storage refused the request and would refuse it again.
        StorageError: The last attempt failed. The log is unchanged, since no entry names the object.
    """
    began, paused, tries = runtime.monotonic(), 0.0, 0
    while True:
        try:
            objects.put(key, data)
        except StorageRefusedError:
            raise
        except StorageError as error:
            tries, failure = tries + 1, error
            if given_up() or max(paused, (runtime.monotonic() - began) / 1000) >= timeout:
                times = "1 attempt" if tries == 1 else f"{tries} attempts"
                msg = f"{name} could not be uploaded within {timeout:g} s ({times}): {error}"
                raise StorageError(msg) from error
        else:
            return
        bound = min(_MAX_PAUSE, _FIRST_PAUSE * 2 ** min(tries, _MAX_DOUBLINGS))
        pause = runtime.rng.uniform(0, bound)
        extra = {"key": key, "attempt": tries, "error": str(failure)}
        _LOG.debug("upload failed, retrying", extra=extra)
        retried()
        runtime.sleep(pause)
        paused += pause


class Uploader:
    """Uploads the sealed batches of the accumulator, and repeats a failing upload for ``delivery_timeout`` seconds.

    It has no state of its own: an :class:`~txnstore.producer.batches.Upload` has its task and its outcome, and the
    accumulator has the uploads.
    """

    def __init__(self, connection: Connection, accumulator: RecordAccumulator, delivery_timeout: float) -> None:
        self._connection = connection
        self._accumulator = accumulator
        self._delivery_timeout = delivery_timeout

    def start(self, *, keep_last: bool = False, ends: ProducerIdentity | None = None) -> None:
        """Begin the uploads of sealed batches; with ``keep_last`` all but one, which :meth:`wait_for` does itself.

        The caller then waits for all of them, so that small ones share segments. ``ends``: the producer whose next
        command commits all of them, so that small ones are inlined; None: not.
        """
        if ends is not None:
            self._inline(chain_of_producer(ends.producer_id) if ends.transactional_id is not None else None)
        unstarted, pool = self._accumulator.unstarted, None
        if keep_last and len(unstarted) > 1:
            unstarted.extend(self._shared(self._take_unstarted()))
        while len(unstarted) > keep_last:
            try:
                upload = unstarted.popleft()
            except IndexError:  # pragma: no cover - another thread took the last one
                return
            pool = pool or self._connection.pool
            try:
                upload.task = pool.submit(self._upload, upload)
            except RuntimeError:  # No thread can start: the call that waits for the upload runs it.
                unstarted.appendleft(upload)
                return

    def collect(self, *, until_room: bool = False) -> tuple[list[Upload], list[Upload]]:
        """Wait for the uploads of all sealed batches, or, with ``until_room``, of the oldest until there is room.

        Uploads that have not begun run in the calling thread.

        Returns:
            The uploads whose batches can be registered, and the others: failed, abandoned, or settled already. Both in
            the order of the seals.
        """
        accumulator = self._accumulator
        registrable: list[Upload] = []
        others: list[Upload] = []
        while not until_room:
            try:
                upload = accumulator.unstarted[0]
            except IndexError:  # All have begun, or another thread has begun the last one.
                break
            self.wait_for(upload)
        for upload in list(accumulator.sealed):
            if until_room and not upload.ended and accumulator.buffered * 2 < accumulator.buffer_bytes:
                break
            self.wait_for(upload)
            is_registrable = upload.new_batch is not None and not upload.batch.settled
            (registrable if is_registrable else others).append(upload)
        return registrable, others

    def _inline(self, coordinator_chain: int | None) -> None:
        """Encode all sealed batches to be written into the entry that commits them, if they are small enough together.

        Else they stay to be uploaded. The entry must also decide them: no reader then fetches an aborted record.

        Args:
            coordinator_chain: The chain whose next entry commits the transaction; None without a transaction.
        """
        uploads = list(self._accumulator.sealed)
        limit = min((upload.batch.writer.config.inline_bytes for upload in uploads), default=0)
        chains = len(self._connection.chains)
        if sum(upload.size for upload in uploads) > limit or len(rounds(uploads)) > 1:
            return
        if coordinator_chain is not None and any(
            chain_of_partition(upload.batch.tp, chains) != coordinator_chain for upload in uploads
        ):
            return
        unstarted = self._take_unstarted()
        batches = self._encode_all(uploads, limit) if set(unstarted).issuperset(uploads) else None
        if batches is None:
            self._accumulator.unstarted.extendleft(reversed(unstarted))
            return
        for upload, new_batch in batches:
            upload.new_batch = new_batch
            self._accumulator.released(upload)

    def _shared(self, uploads: Sequence[Upload]) -> list[Upload]:
        """What remains to be started: the first upload of each group that shares a segment, which runs for all."""
        started = [upload for upload in uploads if upload.members]
        groups = grouped((upload for upload in uploads if not upload.members), len(self._connection.chains))
        for members in groups:
            if len(members) > 1:
                for upload in members:
                    upload.members = tuple(members)
        return started + [members[0] for members in groups]

    def _take_unstarted(self) -> list[Upload]:
        """Take the batches whose upload has not started: from here on, no other thread begins it."""
        queue, uploads = self._accumulator.unstarted, list[Upload]()
        with suppress(IndexError):
            while True:
                uploads.append(queue.popleft())
        return uploads

    def _encode_all(self, uploads: Sequence[Upload], limit: int) -> list[tuple[Upload, NewBatch]] | None:
        """The batches of these uploads, to be inlined: one segment for each topic.

        None: they have more than ``limit`` bytes, or one cannot be encoded.
        """
        batches: list[tuple[Upload, NewBatch]] = []
        for group in grouped(uploads, len(self._connection.chains), limit):
            try:
                self._convert(group)
                encoded = self._encode(group, [self._rows(upload) for upload in group], inlined=True)
            except Exception:  # noqa: BLE001 - The upload raises it again, and fails its batch alone.
                return None
            limit -= len(encoded.data)
            if limit < 0:
                return None
            batches += zip(group, encoded.batches, strict=True)
        return batches

    def _convert(self, uploads: Sequence[Upload]) -> None:
        """Convert the records of several batches in one step, if that is possible."""
        convert_together([upload.batch for upload in uploads], self._connection.runtime.clock())

    def _rows(self, upload: Upload) -> Rows:
        """The rows of a batch; raises what keeps one of them from being converted."""
        batch = upload.batch
        table = batch.table(self._connection.runtime.clock(), self._accumulator.topics.row_format(batch.writer))
        return batch.tp, table

    def _encode(self, uploads: Sequence[Upload], parts: Sequence[Rows], *, inlined: bool = False) -> EncodedRows:
        # Not the chain of the connection: one that was closed loads it, with workers that may all be waiting here.
        chain_time = self._accumulator.topics.catalog.now()
        return encode_rows(self._connection.runtime, uploads[0].batch.writer, parts, chain_time, inlined=inlined)

    def _upload(self, upload: Upload) -> None:
        """Upload one batch, or all that share its segment, in any thread.

        An interrupt leaves it as it was, and the next call repeats it. A batch whose rows do not fit fails alone.
        """
        uploads: list[Upload] = []
        parts: list[Rows] = []
        remaining = [each for each in upload.members or (upload,) if not (each.ended or each.abandoned)]
        self._convert(remaining)
        for each in remaining:
            try:
                rows = self._rows(each)
                if rows[1].num_rows == each.batch.rows:  # Else another thread has just uploaded it.
                    uploads.append(each)
                    parts.append(rows)
            except Exception as error:  # noqa: BLE001 - the caller that waits for the upload gets it
                each.error = error
                self._accumulator.released(each)
        if uploads:
            self._deliver(uploads, parts)

    def _deliver(self, uploads: Sequence[Upload], parts: Sequence[Rows]) -> None:
        """Encode rows as one segment, and PUT it."""
        connection = self._connection

        def given_up() -> bool:
            return all(upload.abandoned for upload in uploads)

        try:
            encoded = self._encode(uploads, parts)
            runtime, retried = connection.runtime, connection.measurements.count_retry
            tp, key = parts[0][0], encoded.segment.object
            name = f"a segment of {tp}" if len(parts) == 1 else f"a segment with {len(parts)} batches of {tp.topic}"
            deliver(connection.objects, runtime, key, encoded.data, name, self._delivery_timeout, given_up, retried)
            for upload, new_batch in zip(uploads, encoded.batches, strict=True):
                upload.new_batch = upload.new_batch or new_batch
            if len(encoded.data) >= _LARGE:
                pa.default_memory_pool().release_unused()  # Else the allocator keeps what encoding took.
        except Exception as error:  # noqa: BLE001 - the caller that waits for the uploads gets it
            for upload in uploads:
                upload.error = error
        for upload in uploads:
            self._accumulator.released(upload)

    def wait_for(self, upload: Upload) -> None:
        """Wait until an upload has ended; do it here if no thread has begun it."""
        runner = upload.runner
        if runner.task is None and not upload.ended:
            with suppress(ValueError):
                self._accumulator.unstarted.remove(runner)
            self._upload(runner)
        elif runner.task is not None:
            try:
                runner.task.result()
            finally:
                if runner.task is not None and runner.task.done() and not upload.ended:
                    runner.task = None  # An interrupt ended it: the next call runs it again.


class Outcomes:
    """Settled batches whose callbacks have not been called, and failures that no call has reported."""

    def __init__(self, manager: TransactionManager, accumulator: RecordAccumulator) -> None:
        self._manager = manager
        self._accumulator = accumulator
        #: Settled batches whose callbacks have not been called, in the order in which they were settled. Appended to by
        #: the threads that settle, taken by any thread that holds no lock; each step of a deque is atomic.
        self._settled: deque[ProducerBatch] = deque()
        #: The failed batches that no call of the application has reported yet, with their errors. Changed with the
        #: sender's turn, and by a refused record, which only appends.
        self._failed: list[tuple[ProducerBatch, Exception]] = []

    def fail_and_forget(self, uploads: Sequence[Upload], error: Exception) -> None:
        """Fail the batches of these uploads and remove them from the accumulator."""
        self.fail(uploads, error)
        for upload in uploads:  # An upload that was abandoned before it began has not left the buffer.
            self._accumulator.released(upload)
        self._accumulator.forget(uploads)

    def fail(self, uploads: Sequence[Upload], error: Exception) -> None:
        """Fail the batches of these uploads that are not settled."""
        for upload in uploads:
            if not upload.batch.settled:
                upload.batch.fail(error)
                self._failed.append((upload.batch, error))
        self.settled([upload.batch for upload in uploads])

    def settled(self, batches: Sequence[ProducerBatch]) -> None:
        """Queue the callbacks of settled batches for :meth:`call_back`."""
        self._settled += batches

    def failures_reported(self) -> None:
        """Forget the failures that the current call reports. The caller holds the sender's turn.

        A failure after that is reported by the next call.
        """
        self._failed.clear()

    def take_failures(self) -> list[tuple[ProducerBatch, Exception]]:
        """The failures that no call has reported, for the caller to report. The caller holds the sender's turn."""
        failures, self._failed = self._failed, []
        return failures

    def call_back(self) -> None:
        """Call the done callbacks of settled batches. The caller must hold no lock."""
        while not self._manager.forked:
            try:
                batch = self._settled.popleft()
            except IndexError:
                return
            try:
                batch.call_back()
            except BaseException:
                self._settled.appendleft(batch)
                raise


def failure_of(error: BaseException) -> Exception:
    """The error of records that ``error`` keeps from being written; an interrupt is replaced by an exception."""
    if isinstance(error, Exception):
        return error
    return TransactionAbortedError("the call that sent this record was interrupted before the record was written")
