"""Buffers of a producer: one open batch per partition, and the sealed batches that are not registered yet.

Kafka's ``RecordAccumulator``. Each change updates the number of buffered bytes, so the cost of a send does not depend
on the number of batches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnstore.catalog.writing import TopicWriter, topic_writer
from txnstore.connection import Connection
from txnstore.core.authorization.rights import write_topics
from txnstore.core.model import TopicPartition
from txnstore.core.partitioner import partition_for_key
from txnstore.errors import InvalidRecordError, RecordTooLargeError, SchemaMismatchError, UnknownTopicOrPartitionError
from txnstore.producer.batches import RECORD_OVERHEAD, TABLE_OVERHEAD, Flusher, ProducerBatch, StickyPartitioner, Upload
from txnstore.producer.futures import RecordFuture, TablePart
from txnstore.producer.records import (
    MAX_TIMESTAMP,
    RowFormat,
    check_accepted,
    check_no_envelope,
    check_record,
    check_rows,
)
from txnstore.producer.transaction_manager import TransactionManager
from txnstore.segment.convert import copied, normalize, parts_of
from txnstore.segment.partition import key_bytes, partition_array, split_by_partition
from txnstore.segment.schema import fill_timestamps
from txnstore.validation import as_integer, check_topic_name


class TopicBuffer:
    """One version of a topic as ``send`` needs it, decoded once.

    Attributes:
        topic: The version.
        writer: Its schema and settings, decoded.
        partitions: The number of partitions.
        tps: The partitions, by number.
        row_format: Checks and converts rows; None for a topic without a schema.
        max_bytes: The largest size of a record in bytes (``max.message.bytes``).
        keyed: Whether a record without a key is refused.
        stamped: Whether a record has its own timestamp, and not that of its append.
        looked_up_ms: When a lookup at the head of the catalog found no other version than this one, which refused a
            row, by the wall clock; None before one. Written without a lock: at worst a request more.
        state: The newest state of the catalog that has this version, so ``send`` compares one reference. Written
            without a lock: threads write equally good values.
        writable: The newest authorization by which the producer may write to it; None before the first check. Written
            without a lock, as ``state``.
        sticky: The open batch for records without a key, or the last one; read and written with the manager's lock.
    """

    __slots__ = (
        "keyed",
        "looked_up_ms",
        "max_bytes",
        "partitions",
        "row_format",
        "stamped",
        "state",
        "sticky",
        "topic",
        "tps",
        "writable",
        "writer",
    )

    def __init__(self, writer: TopicWriter) -> None:
        self.writer = writer
        self.topic = writer.topic
        self.partitions = writer.topic.partitions
        self.tps = [TopicPartition(writer.topic.name, number) for number in range(self.partitions)]
        self.row_format = RowFormat(writer) if writer.schema is not None else None
        self.max_bytes = writer.config.max_message_bytes
        self.keyed = writer.config.compacts
        # Under LogAppendTime a record gets the time of its append, not its own timestamp (as in Kafka).
        self.stamped = not writer.config.append_time
        self.looked_up_ms: int | None = None
        self.state: object = None
        self.writable: object = None
        self.sticky: ProducerBatch | None = None


@dataclass(frozen=True, slots=True)
class TablePiece:
    """Rows of a sent table, in the topic's stored schema.

    Attributes:
        buffer: The topic.
        rows: The rows.
        first: The number of the first row in the sent data.
        shared: Whether the application may change their memory.
    """

    buffer: TopicBuffer
    rows: pa.Table
    first: int
    shared: bool


#: How a version of a topic refuses rows by its schema and settings: a newer version may accept them.
_REFUSALS = (SchemaMismatchError, InvalidRecordError, RecordTooLargeError)
#: Milliseconds for which the head of the catalog is not read again for a topic whose version there refused a row.
_PAUSE_MS = 1000


Headers = Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]]


class RecordAccumulator:
    """The buffers of a producer, guarded by the lock of its transaction manager.

    A batch is in ``_open`` until it is sealed, then in ``sealed`` until it is settled. Methods with an underscore are
    called with the lock held, but for those that look up topics, which may make requests.

    Attributes:
        buffer_bytes: The number of buffered bytes from which :meth:`Producer.send` blocks. Constant.
        buffered: Bytes in open batches and in uploads that have not ended: the sum of ``bytes`` of the open batches and
            of ``size`` of the uploads with ``buffered``. Written with the lock; read without, as an estimate.
        unstarted: Sealed batches whose upload has not started, in the order of their seals; of those that share
            a segment the first one. Added to with the lock, or with the sender's turn. Any thread takes from it, by an
            atomic step: from then on it alone starts the upload.
        sealed: All sealed batches that are not settled, in the order of their seals, which is that of their sequence
            numbers in each partition. Written with the lock.
        catalog: The chain of the catalog. Replaced after each request, since a store that was closed and used again has
            new chains; written without a lock.
    """

    def __init__(
        self, connection: Connection, manager: TransactionManager, flusher: Flusher, batch_bytes: int, buffer_bytes: int
    ) -> None:
        self._connection = connection
        self._manager = manager
        #: The manager's lock: whether a record is accepted and its place in a batch are decided in one step.
        self._lock = manager.lock
        self._flusher = flusher
        self._clock = connection.runtime.clock
        #: The bytes of a batch from which it is sealed. Constant.
        self._batch_bytes = min(batch_bytes, buffer_bytes)
        self.buffer_bytes = buffer_bytes
        self.buffered = 0
        self.unstarted: deque[Upload] = deque()
        self.sealed: dict[Upload, None] = {}
        #: The batches that take records. Their ``sealed`` is False, but for an interrupt in the middle of a seal.
        self._open: dict[TopicPartition, ProducerBatch] = {}
        #: Chooses partitions for records without a key.
        self._sticky = StickyPartitioner(connection.runtime.rng)
        #: The newest version of each topic that was sent to. Written with the lock, read without.
        self._topics: dict[str, TopicBuffer] = {}
        self.catalog = connection.chain

    @property
    def has_batches(self) -> bool:
        """Whether a batch is not registered yet."""
        return bool(self._open or self.sealed)

    # Adding records ---------------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | Mapping[str, Any] | None,
        key: bytes | None,
        partition: int | None,
        headers: Headers | None,
        timestamp: int | None,
    ) -> RecordFuture:
        """Add one record to the open batch of its partition. Checks it first, so an invalid record fails alone."""
        buffer = self._topics.get(topic) if type(topic) is str else None
        if buffer is None or partition is not None or buffer.state is not self.catalog.state:
            buffer = self._find(topic, partition)
        now, given_key = self._clock(), key
        record: Any
        moment: int | None
        try:
            if buffer.row_format is not None:
                check_no_envelope(buffer.writer, key, headers, timestamp)
                record, key, size, moment = buffer.row_format.check(value, now)
            else:
                moment = now if timestamp is None else timestamp
                if (
                    type(value) is bytes
                    and (key is None or type(key) is bytes)
                    and not headers
                    and type(moment) is int
                    and 0 <= moment <= MAX_TIMESTAMP
                ):
                    record = (key, value, None, moment)
                    size = len(value) if key is None else len(value) + len(key)
                else:
                    record, key, size = check_record(topic, value, key, headers, moment)
                    headers = record[2]  # An iterator gives them once, and the record may be checked again.
            if size > buffer.max_bytes or (buffer.keyed and key is None):
                check_accepted(buffer.writer, key, size)
        except _REFUSALS:
            if not self._has_new_version(buffer):
                raise
            return self.send(topic, value, given_key, partition, headers, timestamp)
        with self._lock.own:
            manager = self._manager
            if not manager.takes_records:
                manager.check_send()
            batch = buffer.sticky if key is None and partition is None else None
            if batch is None or batch.sealed:
                batch = self._batch(buffer, key, partition, now)
            if type(record) is tuple:
                row = batch.add_record(record, size)
                self.buffered += size + RECORD_OVERHEAD
            else:  # A row that was converted alone.
                row = batch.add_table(record, TABLE_OVERHEAD)
                self.buffered += size + TABLE_OVERHEAD
            if batch.bytes >= self._batch_bytes:
                self._seal(batch)
        return RecordFuture(batch, row, moment if buffer.stamped else None)

    def check_partition(self, topic: str, partition: int) -> None:
        """Raise :class:`UnknownTopicOrPartitionError` unless the partition exists."""
        self._check_number(self._find(topic, partition, write=False), partition)

    def pieces(self, topic: str, data: object, partition: int | None) -> Iterator[TablePiece]:
        """Divide the rows into pieces of at most half of the buffer."""
        piece_bytes = max(1, self.buffer_bytes // 2)
        shared = not isinstance(data, Sequence)  # Python values are copied into the table.
        first = 0
        for part in parts_of(data):
            buffer, table = self._fitted(topic, part, partition)
            rows = max(1, table.num_rows * piece_bytes // max(1, table.nbytes))
            for row in range(0, max(1, table.num_rows), rows):
                yield TablePiece(buffer, table.slice(row, rows), first + row, shared)
            first += table.num_rows

    def _fitted(self, topic: str, data: object, partition: int | None) -> tuple[TopicBuffer, pa.Table]:
        """The topic, and the rows in its schema, all of which it accepts."""
        while True:
            buffer = self._find(topic, partition)
            try:
                table = normalize(data, buffer.writer.schema)
                check_rows(buffer.writer, table)
            except _REFUSALS:
                if not self._has_new_version(buffer):
                    raise
            else:
                return buffer, table

    def send_table(self, piece: TablePiece, partition: int | None) -> list[TablePart]:
        """Add rows to the open batches of their partitions."""
        buffer, table = piece.buffer, piece.rows
        writer, now = buffer.writer, self._clock()
        if writer.event_time is not None:
            table = fill_timestamps(table, writer.event_time, now)
        with self._lock.own:
            self._manager.check_send()
            numbers = self._partitions(buffer, table, partition)
            parts: list[TablePart] = []
            split = split_by_partition(table, numbers, buffer.partitions)
            if piece.shared and len(split) == 1:  # A split into several tables has copied them.
                split = [(number, copied(rows)) for number, rows in split]
            for number, rows in split:
                parts += self._add(buffer, number, rows, _Places(numbers, number, piece.first), now)
        return parts

    def _add(self, buffer: TopicBuffer, number: int, rows: pa.Table, places: _Places, now: int) -> Iterator[TablePart]:
        """Add the rows to batches, in parts that do not exceed the batch size by much."""
        at, average = 0, max(1, rows.nbytes // max(1, rows.num_rows))
        event_time = buffer.writer.event_time
        while at < rows.num_rows:
            batch = self._batch(buffer, None, number, now)
            count = min(rows.num_rows - at, max(1, (self._batch_bytes - batch.bytes) // average + 1))
            piece = rows.slice(at, count)
            times = piece[event_time] if event_time is not None else None
            yield TablePart(batch, batch.add_table(piece), count, places.after(at), times)
            at += count
            self.buffered += piece.nbytes
            if batch.bytes >= self._batch_bytes:
                self._seal(batch)

    def _partitions(self, buffer: TopicBuffer, table: pa.Table, partition: int | None) -> npt.NDArray[np.int32]:
        column = buffer.writer.key_column
        if partition is not None:
            self._check_number(buffer, partition)
            return np.full(table.num_rows, partition, dtype=np.int32)
        sticky = self._sticky.partition(buffer.topic.name, buffer.partitions)
        if column is None:
            return np.full(table.num_rows, sticky, dtype=np.int32)
        numbers = partition_array(key_bytes(table[column], column), buffer.partitions)
        return np.where(numbers < 0, np.int32(sticky), numbers)

    # Topics -----------------------------------------------------------------------------------------------------------

    def _find(self, topic: str, partition: int | None = None, *, write: bool = True) -> TopicBuffer:
        """The topic in the cached state of the catalog; reads its head if the topic or the partition is not there.

        Raises:
            UnknownTopicOrPartitionError: There is no such topic or partition.
            TopicAuthorizationError: ``write`` is on, and the principal has no right to write to the topic.
        """
        buffer = self._existing(topic, partition)
        if write and buffer.writable is not self.catalog.state.authorization:
            buffer.writable = self._connection.check_rights(write_topics([topic]))
        return buffer

    def _existing(self, topic: str, partition: int | None) -> TopicBuffer:
        catalog = self.catalog
        state = catalog.state
        buffer = self._topics.get(topic) if type(topic) is str else None
        # A state shares the topics that did not change with the states before it.
        if buffer is not None and state.topics.get(topic) is buffer.topic:
            buffer.state = state
            if partition is None or (type(partition) is int and 0 <= partition < buffer.partitions):
                return buffer
        topic = check_topic_name(topic)
        version = state.topics.get(topic)
        number = as_integer(partition)
        if version is None or (number is not None and number >= version.partitions):
            version = self._connection.view().find_topic(topic)  # Another process may have created or enlarged it.
            self.catalog = self._connection.chain
        buffer = self._topics.get(topic)
        if buffer is None or buffer.topic is not version:
            buffer = TopicBuffer(topic_writer(version))
            with self._lock.own:
                self._topics[topic] = buffer
        if partition is not None:
            self._check_number(buffer, partition)
        return buffer

    def _has_new_version(self, buffer: TopicBuffer) -> bool:
        """Whether the topic has another version at the head of the catalog, or was deleted: its next use finds that."""
        now, last = self._clock(), buffer.looked_up_ms
        # An application that sends one row that is refused sends many: they cost one request per pause and topic.
        # The clock may have been set back: then the time of the lookup tells nothing.
        recent = last is not None and 0 <= now - last < _PAUSE_MS
        self._connection.view(refresh=not recent)
        self.catalog = self._connection.chain
        if self.catalog.state.topics.get(buffer.topic.name) is not buffer.topic:
            return True
        if not recent:
            buffer.looked_up_ms = now
        return False

    def _check_number(self, buffer: TopicBuffer, partition: object) -> None:
        number = as_integer(partition)
        if number is None or number < 0:
            msg = f"partition must be an integer of at least 0, not {partition!r}"
            raise UnknownTopicOrPartitionError(msg)
        if number >= buffer.partitions:
            name, count = buffer.topic.name, buffer.partitions
            msg = f"topic {name!r} has {count} partitions, so there is no partition {number}"
            raise UnknownTopicOrPartitionError(msg)

    def _batch(self, buffer: TopicBuffer, key: bytes | None, partition: int | None, now: int) -> ProducerBatch:
        """The open batch of the partition: ``partition``, that of the key, or the sticky one."""
        sticky = key is None and partition is None
        if partition is None:
            name, count = buffer.topic.name, buffer.partitions
            partition = partition_for_key(key, count) if key is not None else self._sticky.partition(name, count)
        tp = buffer.tps[partition]
        batch = self._open.get(tp)
        if batch is not None and batch.writer is not buffer.writer:
            self._seal(batch)  # The topic was altered meanwhile: a batch has one schema.
            batch = None
        if batch is None:
            batch = self._open[tp] = ProducerBatch(tp, buffer.writer, now, self._flusher)
            self._manager.begin_timeout(self._connection.runtime.monotonic())
        if sticky:
            buffer.sticky = batch
        return batch

    def renew_catalog(self) -> None:
        """Use the current chain object of the connection: a store that was closed and used again has new ones."""
        self.catalog = self._connection.chain

    # Sealing ----------------------------------------------------------------------------------------------------------

    def _seal(self, batch: ProducerBatch) -> None:
        """Close the batch for records and queue its upload. Idempotent, so it can be repeated after an interrupt."""
        if not batch.sealed:
            batch.count()
            upload = Upload(batch)
            # An interrupt before this line leaves an open batch; one after it leaves a sealed batch that is still in
            # _open, and perhaps not in unstarted: the call that waits for the upload runs it then.
            self.sealed[upload], batch.sealed = None, True
            self.unstarted.append(upload)
        buffer = self._topics.get(batch.tp.topic)
        if buffer is not None:
            buffer.sticky = None
        self._open.pop(batch.tp, None)
        self._sticky.new_batch(batch.tp.topic)

    def seal_all(self) -> None:
        """Seal every open batch."""
        with self._lock.own:
            for batch in list(self._open.values()):
                self._seal(batch)

    def make_room(self) -> None:
        """Seal the largest batches until less than half of the buffer is open."""
        with self._lock.own:
            open_bytes = sum(batch.bytes for batch in self._open.values())
            for batch in sorted(self._open.values(), key=lambda batch: batch.bytes, reverse=True):
                if open_bytes * 2 < self.buffer_bytes:
                    return
                open_bytes -= batch.bytes
                self._seal(batch)

    # Removing ---------------------------------------------------------------------------------------------------------

    def released(self, upload: Upload) -> None:
        """Free the buffer space of an upload that has ended. Idempotent."""
        with self._lock.own:
            buffered = max(0, self.buffered - upload.size) if upload.buffered else self.buffered
            # Both in one line, where no interrupt can come between: else the bytes would be subtracted twice, or never.
            upload.buffered, self.buffered = False, buffered
        upload.batch.release()

    def forget(self, uploads: Sequence[Upload]) -> None:
        """Remove batches that are settled."""
        for upload in uploads:
            if upload.buffered:  # An interrupt came between the end of its upload and this.
                self.released(upload)
        with self._lock.own:
            for upload in uploads:
                self.sealed.pop(upload, None)

    def abandon(self) -> list[Upload]:
        """Abandon all batches: seal the open ones, start no upload, retry none.

        Returns:
            All uploads; they stay in the accumulator until :meth:`forget`.
        """
        with self._lock.own:
            for batch in list(self._open.values()):
                self._seal(batch)
            self.unstarted.clear()
            for upload in self.sealed:
                upload.abandoned = True
            return list(self.sealed)

    def row_format(self, batch: ProducerBatch) -> RowFormat | None:
        """The converter from rows to columns for a batch; None for a topic without a schema."""
        if batch.writer.schema is None:
            return None
        buffer = self._topics.get(batch.tp.topic)
        return buffer.row_format if buffer is not None and buffer.writer is batch.writer else RowFormat(batch.writer)

    @property
    def sealed_partitions(self) -> tuple[TopicPartition, ...]:
        """The partitions with sealed batches that are not registered."""
        return tuple(dict.fromkeys(upload.batch.tp for upload in list(self.sealed)))


@dataclass(frozen=True, slots=True)
class _Places:
    """The row numbers of a sent table that went to one partition, computed on demand.

    Attributes:
        numbers: The partition of each row of the piece.
        number: The partition.
        first: The row number of the first row of the piece in the sent table.
        skip: The rows of this partition that are in earlier parts.
    """

    numbers: npt.NDArray[np.int32]
    number: int
    first: int
    skip: int = 0

    def after(self, rows: int) -> _Places:
        return _Places(self.numbers, self.number, self.first, rows)

    def __call__(self, count: int) -> npt.NDArray[np.int64]:
        rows = np.flatnonzero(self.numbers == self.number)[self.skip : self.skip + count]
        return rows + self.first
