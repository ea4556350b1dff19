"""Routes the rows of a write task to topics and partitions, and uploads them as segments.

A task never commits. Its uploads become part of the log when the driver commits the job.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txnstore.catalog.writing import TopicWriter
from txnstore.core.log.model import NewBatch
from txnstore.core.model import TopicPartition
from txnstore.errors import SchemaMismatchError, UnknownTopicOrPartitionError
from txnstore.producer.records import check_rows
from txnstore.producer.upload import upload
from txnstore.runtime import Runtime
from txnstore.segment.convert import normalize
from txnstore.segment.partition import key_bytes, partition_array, split_by_partition
from txnstore.spark.topics import PARTITION, TOPIC
from txnstore.storage.base import ObjectStore
from txnstore.threads import Workers

#: The system columns that ``systemColumns`` ignores in a write; ``_topic`` names the topic where no option does.
IGNORED = (PARTITION, "_offset", "_timestamp")

#: The size of the chunks in which rows are routed; Spark delivers smaller batches.
_CHUNK_ROWS, _CHUNK_BYTES = 64 * 1024, 16 << 20
#: Bytes in memory of one partition, and of all together, above which a segment is uploaded.
SEGMENT_BYTES, BUFFER_BYTES = 64 << 20, 128 << 20
#: Segments that are encoded or uploaded concurrently.
_UPLOADS = 2


@dataclass(slots=True)
class _RowBuffer:
    """The buffered rows of one partition, or of a chunk."""

    tables: list[pa.Table] = field(default_factory=list)
    size: int = 0

    def add(self, rows: pa.Table) -> None:
        self.tables.append(rows)
        self.size += rows.nbytes


class SegmentRouter:
    """Uploads the rows of a task: one segment per partition, or several for large partitions.

    Args:
        runtime: Clock and ids.
        topics: The topics that may be written.
        only_topic: The topic of all rows; None if each row names its topic in ``_topic``.
        first_partition: That of the first rows without a key; different for each task, to spread the rows of a job.
        segment_bytes: Upload a partition's rows when they have this size in memory.
        buffer_bytes: Upload the largest partition when all have this size in memory.
    """

    def __init__(
        self,
        objects: ObjectStore,
        runtime: Runtime,
        topics: Mapping[str, TopicWriter],
        only_topic: str | None,
        first_partition: int = 0,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        self._objects, self._runtime = objects, runtime
        self._topics, self._only_topic = topics, only_topic
        self._sticky_partition = first_partition
        self._segment_bytes, self._buffer_bytes = segment_bytes, buffer_bytes
        self._chunk = _RowBuffer()
        self._chunk_rows = 0
        self._buffers: dict[TopicPartition, _RowBuffer] = {}
        self._uploads: deque[Future[NewBatch]] = deque()
        self._uploaded_batches: list[NewBatch] = []
        self._pool = Workers(_UPLOADS, "txnstore-write")

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows; raises :class:`SchemaMismatchError`, which names the column, for rows that do not fit."""
        if not batch.num_rows:
            return
        self._chunk.add(pa.table(batch))
        self._chunk_rows += batch.num_rows
        if self._chunk_rows >= _CHUNK_ROWS or self._chunk.size >= _CHUNK_BYTES:
            self._route_chunk()

    def finish(self) -> tuple[NewBatch, ...]:
        """Upload the buffered rows, wait for all uploads, and return their batches in upload order."""
        self._route_chunk()
        for tp in sorted(self._buffers):
            self._upload(tp)
        while self._uploads:
            self._uploaded_batches.append(self._uploads.popleft().result())
        return tuple(self._uploaded_batches)

    def close(self) -> None:
        """Stop and drop the rows that are not uploaded; a vacuum deletes uploads that are never committed."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _route_chunk(self) -> None:
        """Route the collected rows to their partitions, and upload the largest buffers beyond the bound."""
        tables, self._chunk, self._chunk_rows = self._chunk.tables, _RowBuffer(), 0
        if not tables:
            return
        for writer, rows in self._split_by_topic(pa.concat_tables(tables)):
            self._route_rows(writer, rows)
        self._sticky_partition += 1
        while sum(buffer.size for buffer in self._buffers.values()) > self._buffer_bytes:
            self._upload(max(self._buffers, key=lambda tp: self._buffers[tp].size))

    def _split_by_topic(self, table: pa.Table) -> Iterator[tuple[TopicWriter, pa.Table]]:
        """Yield the rows of each topic, without the columns of other topics."""
        if self._only_topic is not None:
            yield self._topics[self._only_topic], _drop_column(table, TOPIC)
            return
        topics = table[TOPIC]
        for name in pc.unique(topics).to_pylist():
            if name not in self._topics:
                raise _unknown_topic_error(name, self._topics)
            rows = _drop_column(table.filter(pc.equal(topics, name)), TOPIC)
            yield self._topics[name], _drop_foreign_columns(rows, self._topics[name])

    def _route_rows(self, writer: TopicWriter, rows: pa.Table) -> None:
        """Convert rows of a topic, and add them to the buffers of their partitions."""
        explicit_column = rows[PARTITION] if PARTITION in rows.column_names else None
        table = normalize(_drop_column(rows, PARTITION), writer.schema)
        check_rows(writer, table)
        numbers = self._choose_partitions(writer, table, explicit_column)
        for number, part in split_by_partition(table, numbers, writer.topic.partitions):
            tp = TopicPartition(writer.topic.name, number)
            buffer = self._buffers.setdefault(tp, _RowBuffer())
            buffer.add(part)
            if buffer.size >= self._segment_bytes:
                self._upload(tp)

    def _choose_partitions(self, writer: TopicWriter, table: pa.Table, explicit_column: Any) -> npt.NDArray[np.int32]:
        """Return the partition of each row: the given one, else by its key, else that of the chunk (KIP-480)."""
        count, column = writer.topic.partitions, writer.key_column
        if column is not None:
            numbers = partition_array(key_bytes(table[column], column), count)
        else:
            numbers = np.full(table.num_rows, -1, np.int32)
        numbers = np.where(numbers < 0, np.int32(self._sticky_partition % count), numbers)
        if explicit_column is None:
            return numbers
        explicit_numbers = _explicit_partitions(explicit_column, writer)
        return np.where(explicit_numbers < 0, numbers, explicit_numbers)

    def _upload(self, tp: TopicPartition) -> None:
        """Upload a partition's rows in the background; wait while too many uploads are in flight."""
        table = pa.concat_tables(self._buffers.pop(tp).tables)
        while len(self._uploads) >= _UPLOADS:
            self._uploaded_batches.append(self._uploads.popleft().result())
        writer = self._topics[tp.topic]
        self._uploads.append(self._pool.submit(upload, self._objects, self._runtime, writer, tp, table))


def _explicit_partitions(column: Any, writer: TopicWriter) -> npt.NDArray[np.int32]:
    """Return the ``_partition`` of each row, -1 where it is null."""
    if not pa.types.is_integer(column.type):
        msg = f"column {PARTITION!r} must be of an integer type, not {column.type}"
        raise SchemaMismatchError(msg)
    count = writer.topic.partitions
    wrong_values = column.filter(pc.or_(pc.less(column, 0), pc.greater_equal(column, count)))
    if len(wrong_values):
        msg = f"topic {writer.topic.name!r} has {count} partitions, so there is no partition {wrong_values[0].as_py()}"
        raise UnknownTopicOrPartitionError(msg)
    numbers: npt.NDArray[np.int32] = pc.fill_null(column.cast(pa.int32()), -1).to_numpy()
    return numbers


def _drop_column(table: pa.Table, column: str) -> pa.Table:
    return table.drop_columns([column]) if column in table.column_names else table


def _drop_foreign_columns(rows: pa.Table, writer: TopicWriter) -> pa.Table:
    """Drop the columns of other topics, which are null in these rows: rows for several topics have all columns."""
    foreign_names = [
        name
        for name in rows.column_names
        if name != PARTITION and name not in writer.stored.names and rows[name].null_count == rows.num_rows
    ]
    return rows.drop_columns(foreign_names)


def _unknown_topic_error(name: str | None, topics: Mapping[str, TopicWriter]) -> Exception:
    if name is None:
        return SchemaMismatchError(f"column {TOPIC!r} is null in a row; it must name the row's topic")
    names = ", ".join(sorted(topics)[:10]) or "none yet"
    return UnknownTopicOrPartitionError(f"there is no topic {name!r}; the topics are: {names}")
