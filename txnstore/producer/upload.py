"""Upload of sealed batches: they are encoded as segments, stored, and described for the chain."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import TypeAlias

import pyarrow as pa

from txnstore.catalog.writing import TopicWriter
from txnstore.chain import keys
from txnstore.connection import Connection
from txnstore.core.log.model import NewBatch, Segment
from txnstore.core.model import ProducerIdentity, TopicPartition
from txnstore.core.routing import chain_of_partition, chain_of_producer
from txnstore.errors import StorageError, StorageRefusedError
from txnstore.producer.batches import ProducerBatch, convert_batches, split_for_window
from txnstore.producer.sharing import group_for_segments
from txnstore.producer.topics import Topics
from txnstore.runtime import Runtime
from txnstore.segment.codec import encode, encode_stream
from txnstore.segment.schema import fill_timestamps, timestamp_ranges
from txnstore.storage.base import ObjectStore
from txnstore.threads import Task

_LOG = logging.getLogger(__name__)

#: Seconds: upper bounds of the random pause between two attempts of an upload; the bound doubles up to the last one.
_FIRST_PAUSE, _MAX_PAUSE = 0.01, 2.0
_MAX_DOUBLINGS = 10
#: After the upload of a segment of this size in bytes, the allocator returns what it does not use.
_LARGE_BYTES = 1 << 20


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
    table, counts = _with_event_times(writer, table, now), [rows.num_rows for _, rows in parts]
    if inlined:
        encoded, key = encode_stream(table), ""
    else:
        encoded = encode(table, config.segment_format, writer.compression, parts=counts)
        topic, partition = parts[0][0]
        key = keys.segment(topic, partition, runtime.new_id(), config.segment_format)
    segment = encoded.segment(key)
    first_rows = [*accumulate(counts, initial=0)]
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


def _with_event_times(writer: TopicWriter, table: pa.Table, now: int) -> pa.Table:
    """Fill in missing event times with ``now``; for a topic with append times, readers replace all of them."""
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
    is_abandoned: Callable[[], bool],
    on_retry: Callable[[], None],
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
        is_abandoned: Whether the upload is abandoned, so that it is not repeated.
        on_retry: Called before each repetition.

    Raises:
        StorageRefusedError: The storage refused the request and would refuse it again.
        StorageError: The last attempt failed. The log is unchanged, since no entry names the object.
    """
    began_at, paused_seconds, attempts = runtime.monotonic(), 0.0, 0
    while True:
        try:
            objects.put(key, data)
        except StorageRefusedError:
            raise
        except StorageError as error:
            attempts, failure = attempts + 1, str(error)  # The error itself would refer to itself by its traceback.
            if is_abandoned() or max(paused_seconds, (runtime.monotonic() - began_at) / 1000) >= timeout:
                times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
                msg = f"{name} could not be uploaded within {timeout:g} s ({times}): {error}"
                raise StorageError(msg) from error
        else:
            return
        bound = min(_MAX_PAUSE, _FIRST_PAUSE * 2 ** min(attempts, _MAX_DOUBLINGS))
        pause = runtime.rng.uniform(0, bound)
        extra = {"key": key, "attempt": attempts, "error": failure}
        _LOG.debug("upload failed, retrying", extra=extra)
        on_retry()
        runtime.sleep(pause)
        paused_seconds += pause


@dataclass(frozen=True, slots=True)
class Uploads:
    """Makes segments of sealed batches; each batch gets its own outcome.

    Attributes:
        connection: The connection to the store.
        topics: The topics of the producer.
        timeout: Seconds for which a failing upload is repeated (``delivery.timeout.ms``).
    """

    connection: Connection
    topics: Topics
    timeout: float

    def upload_task(self, batches: Sequence[ProducerBatch]) -> Task[None]:
        """Return a task that uploads batches as one segment."""
        return Task(partial(self._upload_batches, batches))

    def group_for_segments(self, batches: Sequence[ProducerBatch]) -> list[Task[None]]:
        """Tasks for batches that have none, or were taken from theirs: small ones share segments."""
        tasks = []
        for group in group_for_segments(batches, len(self.connection.chains)):
            upload_task = self.upload_task(group)
            for batch in group:
                batch.upload = upload_task
            tasks.append(upload_task)
        return tasks

    def inline(self, batches: Sequence[ProducerBatch], producer: ProducerIdentity) -> bool:
        """Encode batches to be written into the entry that commits them, if they are small enough together.

        The entry must also decide them: no reader then fetches an aborted record. So it is that of the chain of the
        transactional id, if there is one.
        """
        remaining_bytes = min((batch.writer.config.inline_bytes for batch in batches), default=0)
        if sum(batch.bytes for batch in batches) > remaining_bytes or len(split_for_window(batches)) > 1:
            return False
        chains = len(self.connection.chains)
        coordinator_chain = chain_of_producer(producer.producer_id)
        if producer.transactional_id is not None and any(
            chain_of_partition(batch.tp, chains) != coordinator_chain for batch in batches
        ):
            return False
        new_batches: list[tuple[ProducerBatch, NewBatch]] = []
        for group in group_for_segments(batches, chains, remaining_bytes):
            try:
                self._convert_batches(group)
                segment = self._encode_parts(
                    [self._converted_rows(batch) for batch in group], group[0].writer, inlined=True
                )
            except Exception:  # noqa: BLE001 - The upload raises it again, and fails its batch alone.
                return False
            remaining_bytes -= len(segment.data)
            if remaining_bytes < 0:
                return False
            new_batches += zip(group, segment.batches, strict=True)
        for batch, new_batch in new_batches:
            batch.end_upload(new_batch)
        return True

    def _convert_batches(self, batches: Sequence[ProducerBatch]) -> None:
        """Convert the records of several batches in one step, if that is possible."""
        convert_batches(batches, self.connection.runtime.clock())

    def _converted_rows(self, batch: ProducerBatch) -> Rows:
        """Convert the rows of a batch; raises the error of a row that does not fit."""
        return batch.tp, batch.table(self.connection.runtime.clock(), self.topics.row_format(batch.writer))

    def _encode_parts(self, parts: Sequence[Rows], writer: TopicWriter, *, inlined: bool = False) -> EncodedRows:
        # Not the chain of the connection: one that was closed loads it, with workers that may all be waiting here.
        chain_time = self.topics.catalog.now()
        return encode_rows(self.connection.runtime, writer, parts, chain_time, inlined=inlined)

    def _upload_batches(self, batches: Sequence[ProducerBatch]) -> None:
        """Upload batches as one segment, in any thread. A batch whose rows do not fit fails alone.

        An interrupt leaves them as they were, and the next call repeats the upload.
        """
        remaining = [batch for batch in batches if batch.uploaded is None and not batch.abandoned]
        self._convert_batches(remaining)
        rows: list[Rows] = []
        converted: list[ProducerBatch] = []
        for batch in remaining:
            try:
                rows.append(self._converted_rows(batch))
                converted.append(batch)
            except Exception as error:  # noqa: BLE001 - the caller that waits for the upload gets it
                batch.end_upload(error)
        if not converted:
            return
        try:
            new_batches = self._put_segment(converted, rows)
        except Exception as error:  # noqa: BLE001 - the caller that waits for the uploads gets it
            for batch in converted:
                batch.end_upload(error)
            return
        for batch, new_batch in zip(converted, new_batches, strict=True):
            batch.end_upload(new_batch)

    def _put_segment(self, batches: Sequence[ProducerBatch], parts: Sequence[Rows]) -> list[NewBatch]:
        """Encode rows as one segment, and PUT it."""
        encoded = self._encode_parts(parts, batches[0].writer)
        connection, tp = self.connection, parts[0][0]
        deliver(
            connection.objects,
            connection.runtime,
            encoded.segment.object,
            encoded.data,
            f"a segment of {tp}" if len(parts) == 1 else f"a segment with {len(parts)} batches of {tp.topic}",
            self.timeout,
            lambda: all(batch.abandoned for batch in batches),
            connection.measurements.count_retry,
        )
        if len(encoded.data) >= _LARGE_BYTES:
            pa.default_memory_pool().release_unused()  # Else the allocator keeps what encoding took.
        return encoded.batches
