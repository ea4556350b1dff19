"""What a write task does with its rows: to their topics and partitions, into segments, to the storage.

A task uploads; it never commits. What it uploaded is nobody's until the driver names it in the job's one entry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from txnstore.catalog.writing import TopicWriter
from txnstore.core.model import NewBatch, TopicPartition
from txnstore.errors import SchemaMismatchError, UnknownTopicOrPartitionError
from txnstore.ids import Runtime
from txnstore.producing.records import check_rows
from txnstore.producing.uploads import upload
from txnstore.segment.convert import normalize
from txnstore.segment.partition import key_bytes, partition_array, split_by_partition
from txnstore.storage.base import ObjectStore

TOPIC, PARTITION = "_topic", "_partition"

#: Rows are routed in chunks of this size; Spark delivers them in smaller batches.
_CHUNK_ROWS, _CHUNK_BYTES = 64 * 1024, 16 << 20
#: A segment is uploaded when a partition has so much, in memory; and the largest, when all have so much together.
SEGMENT_BYTES, BUFFER_BYTES = 64 << 20, 128 << 20
#: Segments that are encoded or uploaded at a time, beside the one that is being filled.
_UPLOADS = 2


@dataclass(slots=True)
class _Buffer:
    """Rows that wait for one partition."""

    tables: list[pa.Table] = field(default_factory=list)
    size: int = 0

    def add(self, rows: pa.Table) -> None:
        self.tables.append(rows)
        self.size += rows.nbytes


class SegmentRouter:
    """Takes the rows of a task and uploads them: one segment a partition, more where they are large.

    ``topics``: what may be written. ``only``: the topic of all rows; None: each row names its own in ``_topic``.
    ``first``: where rows without a key begin; tasks that begin at different partitions spread a job over all.
    """

    def __init__(
        self,
        objects: ObjectStore,
        runtime: Runtime,
        topics: Mapping[str, TopicWriter],
        only: str | None,
        first: int = 0,
        *,
        segment_bytes: int = SEGMENT_BYTES,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        self._objects, self._runtime = objects, runtime
        self._topics, self._only = topics, only
        self._sticky = first
        self._segment_bytes, self._buffer_bytes = segment_bytes, buffer_bytes
        self._chunk = _Buffer()
        self._chunk_rows = 0
        self._buffers: dict[TopicPartition, _Buffer] = {}
        self._uploading: deque[Future[NewBatch]] = deque()
        self._uploaded: list[NewBatch] = []
        self._pool = ThreadPoolExecutor(_UPLOADS, thread_name_prefix="txnstore-write")

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows. Raises what is wrong with them, naming the column."""
        if not batch.num_rows:
            return
        self._chunk.add(pa.table(batch))
        self._chunk_rows += batch.num_rows
        if self._chunk_rows >= _CHUNK_ROWS or self._chunk.size >= _CHUNK_BYTES:
            self._route_chunk()

    def finish(self) -> tuple[NewBatch, ...]:
        """Upload what is left, wait for all uploads, and describe them in the order of their rows."""
        self._route_chunk()
        for tp in sorted(self._buffers):
            self._upload(tp)
        while self._uploading:
            self._uploaded.append(self._uploading.popleft().result())
        return tuple(self._uploaded)

    def close(self) -> None:
        """Stop: what was not uploaded is dropped, what was is garbage if nobody commits it."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _route_chunk(self) -> None:
        tables, self._chunk, self._chunk_rows = self._chunk.tables, _Buffer(), 0
        if not tables:
            return
        for writer, rows in self._by_topic(pa.concat_tables(tables)):
            self._route(writer, rows)
        self._sticky += 1
        while sum(buffer.size for buffer in self._buffers.values()) > self._buffer_bytes:
            self._upload(max(self._buffers, key=lambda tp: self._buffers[tp].size))

    def _by_topic(self, table: pa.Table) -> Iterator[tuple[TopicWriter, pa.Table]]:
        if self._only is not None:
            yield self._topics[self._only], _without(table, TOPIC)
            return
        topics = table[TOPIC]
        for name in pc.unique(topics).to_pylist():
            if name not in self._topics:
                raise _unknown_topic(name, self._topics)
            rows = _without(table.filter(pc.equal(topics, name)), TOPIC)
            yield self._topics[name], _without_foreign(rows, self._topics[name])

    def _route(self, writer: TopicWriter, rows: pa.Table) -> None:
        explicit = rows[PARTITION] if PARTITION in rows.column_names else None
        table = normalize(_without(rows, PARTITION), writer.schema)
        check_rows(writer, table)
        numbers = self._partitions(writer, table, explicit)
        for number, part in split_by_partition(table, numbers, writer.topic.partitions):
            tp = TopicPartition(writer.topic.name, number)
            buffer = self._buffers.setdefault(tp, _Buffer())
            buffer.add(part)
            if buffer.size >= self._segment_bytes:
                self._upload(tp)

    def _partitions(self, writer: TopicWriter, table: pa.Table, explicit: Any) -> npt.NDArray[np.int32]:
        """The partition of each row: the given one, else the key's as Kafka chooses it, else the chunk's (KIP-480)."""
        count, column = writer.topic.partitions, writer.key_column
        if column is not None:
            numbers = partition_array(key_bytes(table[column], column), count)
        else:
            numbers = np.full(table.num_rows, -1, np.int32)
        numbers = np.where(numbers < 0, np.int32(self._sticky % count), numbers)
        if explicit is None:
            return numbers
        given = _explicit(explicit, writer)
        return np.where(given < 0, numbers, given)

    def _upload(self, tp: TopicPartition) -> None:
        """Encode and upload a partition's rows beside the work; wait if too much is on its way."""
        table = pa.concat_tables(self._buffers.pop(tp).tables)
        while len(self._uploading) >= _UPLOADS:
            self._uploaded.append(self._uploading.popleft().result())
        writer = self._topics[tp.topic]
        self._uploading.append(self._pool.submit(upload, self._objects, self._runtime, writer, tp, table))


def _explicit(column: Any, writer: TopicWriter) -> npt.NDArray[np.int32]:
    """The ``_partition`` of each row, -1 where it is null."""
    if not pa.types.is_integer(column.type):
        msg = f"column {PARTITION!r} must hold integers, not {column.type}"
        raise SchemaMismatchError(msg)
    count = writer.topic.partitions
    wrong = column.filter(pc.or_(pc.less(column, 0), pc.greater_equal(column, count)))
    if len(wrong):
        msg = f"topic {writer.topic.name!r} has {count} partitions, so there is no partition {wrong[0].as_py()}"
        raise UnknownTopicOrPartitionError(msg)
    numbers: npt.NDArray[np.int32] = pc.fill_null(column.cast(pa.int32()), -1).to_numpy()
    return numbers


def _without(table: pa.Table, column: str) -> pa.Table:
    return table.drop_columns([column]) if column in table.column_names else table


def _without_foreign(rows: pa.Table, writer: TopicWriter) -> pa.Table:
    """Rows for several topics have the columns of all: those of other topics are empty here, and left out."""
    foreign = [
        name
        for name in rows.column_names
        if name != PARTITION and name not in writer.stored.names and rows[name].null_count == rows.num_rows
    ]
    return rows.drop_columns(foreign)


def _unknown_topic(name: str | None, topics: Mapping[str, TopicWriter]) -> Exception:
    if name is None:
        return SchemaMismatchError(f"column {TOPIC!r} is null in a row, so nobody knows where it goes")
    known = ", ".join(sorted(topics)[:10]) or "none yet"
    return UnknownTopicOrPartitionError(f"there is no topic {name!r}; the topics are: {known}")
