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

from txnstore.connection import Connection
from txnstore.core.model import TopicPartition
from txnstore.core.partitioner import partition_for_key
from txnstore.producer.batches import RECORD_OVERHEAD, TABLE_OVERHEAD, ProducerBatch, StickyPartitioner
from txnstore.producer.futures import RecordFuture, TablePart, Waits
from txnstore.producer.records import MAX_TIMESTAMP, check_accepted, check_no_envelope, check_record
from txnstore.producer.topics import REFUSALS, TablePiece, Topics, TopicVersion
from txnstore.producer.transaction_manager import TransactionManager
from txnstore.producer.upload import Uploads
from txnstore.segment.convert import copied
from txnstore.segment.partition import key_bytes, partition_array, split_by_partition
from txnstore.segment.schema import fill_timestamps

Headers = Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]]


class RecordAccumulator:
    """The buffers of a producer, guarded by the lock of its transaction manager.

    A batch is in ``_open`` until it is sealed, then in ``sealed`` until it is settled. Methods with an underscore are
    called with the lock held.

    Attributes:
        buffer_bytes: The number of buffered bytes from which :meth:`Producer.send` blocks. Constant.
        buffered: Bytes in open batches and in uploads that had not ended when :meth:`recount` was called. Written with
            the lock; read without, as an estimate.
        unstarted: Sealed batches whose task is not in the pool yet. Each step with it is atomic.
        sealed: All sealed batches that are not settled, in the order of their seals, which is that of their sequence
            numbers in each partition. Written with the lock.
        topics: The topics. Constant.
    """

    def __init__(
        self,
        connection: Connection,
        manager: TransactionManager,
        sender: Waits,
        topics: Topics,
        uploads: Uploads,
        batch_bytes: int,
        buffer_bytes: int,
    ) -> None:
        self._connection = connection
        self._manager = manager
        #: The manager's lock: whether a record is accepted and its place in a batch are decided in one step.
        self._lock = manager.lock
        self._sender = sender
        self._uploads = uploads
        self._clock = connection.runtime.clock
        #: The bytes of a batch from which it is sealed. Constant.
        self._batch_bytes = min(batch_bytes, buffer_bytes)
        self.buffer_bytes = buffer_bytes
        self.buffered = 0
        self.unstarted: deque[ProducerBatch] = deque()
        self.sealed: dict[ProducerBatch, None] = {}
        #: The sealed batches whose bytes count.
        self._uploading: list[ProducerBatch] = []
        #: The batches that take records. Their ``sealed`` is False, but for an interrupt in the middle of a seal.
        self._open: dict[TopicPartition, ProducerBatch] = {}
        #: Chooses partitions for records without a key.
        self._sticky = StickyPartitioner(connection.runtime.rng)
        self.topics = topics

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
        topics = self.topics
        version = topics.known.get(topic) if type(topic) is str else None
        if version is None or partition is not None or version.state is not topics.catalog.state:
            version = topics.find(topic, partition)
        now, given_key = self._clock(), key
        record: Any
        moment: int | None
        try:
            if version.row_format is not None:
                check_no_envelope(version.writer, key, headers, timestamp)
                record, key, size, moment = version.row_format.check(value, now)
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
            if size > version.max_bytes or (version.keyed and key is None):
                check_accepted(version.writer, key, size)
        except REFUSALS:
            if not topics.has_newer(version):
                raise
            return self.send(topic, value, given_key, partition, headers, timestamp)
        with self._lock.own:
            manager = self._manager
            if not manager.takes_records:
                manager.check_send()
            batch = version.sticky if key is None and partition is None else None
            if batch is None or batch.sealed:
                batch = self._batch(version, key, partition, now)
            if type(record) is tuple:
                row = batch.add_record(record, size)
                self.buffered += size + RECORD_OVERHEAD
            else:  # A row that was converted alone.
                row = batch.add_table(record, TABLE_OVERHEAD)
                self.buffered += size + TABLE_OVERHEAD
            if batch.bytes >= self._batch_bytes:
                self._seal(batch)
        return RecordFuture(self._sender, batch, row, moment if version.stamped else None)

    def send_table(self, piece: TablePiece, partition: int | None) -> list[TablePart]:
        """Add rows to the open batches of their partitions."""
        version, table = piece.version, piece.rows
        writer, now = version.writer, self._clock()
        if writer.event_time is not None:
            table = fill_timestamps(table, writer.event_time, now)
        with self._lock.own:
            self._manager.check_send()
            numbers = self._partitions(version, table, partition)
            parts: list[TablePart] = []
            split = split_by_partition(table, numbers, version.partitions)
            if piece.shared and len(split) == 1:  # A split into several tables has copied them.
                split = [(number, copied(rows)) for number, rows in split]
            for number, rows in split:
                parts += self._add(version, number, rows, _Places(numbers, number, piece.first), now)
        return parts

    def _add(
        self, version: TopicVersion, number: int, rows: pa.Table, places: _Places, now: int
    ) -> Iterator[TablePart]:
        """Add the rows to batches, in parts that do not exceed the batch size by much."""
        at, average = 0, max(1, rows.nbytes // max(1, rows.num_rows))
        event_time = version.writer.event_time
        while at < rows.num_rows:
            batch = self._batch(version, None, number, now)
            count = min(rows.num_rows - at, max(1, (self._batch_bytes - batch.bytes) // average + 1))
            piece = rows.slice(at, count)
            times = piece[event_time] if event_time is not None else None
            yield TablePart(batch, batch.add_table(piece), count, places.after(at), times)
            at += count
            self.buffered += piece.nbytes
            if batch.bytes >= self._batch_bytes:
                self._seal(batch)

    def _partitions(self, version: TopicVersion, table: pa.Table, partition: int | None) -> npt.NDArray[np.int32]:
        column = version.writer.key_column
        if partition is not None:
            version.check_number(partition)
            return np.full(table.num_rows, partition, dtype=np.int32)
        sticky = self._sticky.partition(version.topic.name, version.partitions)
        if column is None:
            return np.full(table.num_rows, sticky, dtype=np.int32)
        numbers = partition_array(key_bytes(table[column], column), version.partitions)
        return np.where(numbers < 0, np.int32(sticky), numbers)

    def _batch(self, version: TopicVersion, key: bytes | None, partition: int | None, now: int) -> ProducerBatch:
        """The open batch of the partition: ``partition``, that of the key, or the sticky one."""
        sticky = key is None and partition is None
        if partition is None:
            name, count = version.topic.name, version.partitions
            partition = partition_for_key(key, count) if key is not None else self._sticky.partition(name, count)
        tp = version.tps[partition]
        batch = self._open.get(tp)
        if batch is not None and batch.writer is not version.writer:
            self._seal(batch)  # The topic was altered meanwhile: a batch has one schema.
            batch = None
        if batch is None:
            batch = self._open[tp] = ProducerBatch(tp, version.writer, now)
            self._manager.begin_timeout(self._connection.runtime.monotonic())
        if sticky:
            version.sticky = batch
        return batch

    # Sealing ----------------------------------------------------------------------------------------------------------

    def _seal(self, batch: ProducerBatch) -> None:
        """Close the batch for records and queue its upload. Idempotent, so it can be repeated after an interrupt."""
        if not batch.sealed:
            batch.count()
            batch.upload = self._uploads.task((batch,))
            # An interrupt before this line leaves an open batch; one after it leaves a sealed batch that is still in
            # _open, and perhaps not in unstarted: the call that waits for the upload runs it then.
            self.sealed[batch], batch.sealed = None, True
            self._uploading.append(batch)
            self.unstarted.append(batch)
        version = self.topics.known.get(batch.tp.topic)
        if version is not None:
            version.sticky = None
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

    def recount(self) -> None:
        """Subtract the uploads that have ended from the buffer."""
        with self._lock.own:
            self._recount()

    def _recount(self) -> None:
        self._uploading = [batch for batch in self._uploading if batch.uploaded is None and batch in self.sealed]
        self.buffered = sum(batch.bytes for batch in (*self._open.values(), *self._uploading))

    def forget(self, batches: Sequence[ProducerBatch]) -> None:
        """Remove batches that are settled."""
        with self._lock.own:
            for batch in batches:
                self.sealed.pop(batch, None)
                batch.release()
            self._recount()

    def abandon(self) -> list[ProducerBatch]:
        """Abandon all batches: seal the open ones, start no upload, retry none.

        Returns:
            All batches; they stay in the accumulator until :meth:`forget`.
        """
        with self._lock.own:
            for batch in list(self._open.values()):
                self._seal(batch)
            for batch in self.sealed:
                batch.abandon()
            return list(self.sealed)

    @property
    def sealed_partitions(self) -> tuple[TopicPartition, ...]:
        """The partitions with sealed batches that are not registered."""
        return tuple(dict.fromkeys(batch.tp for batch in list(self.sealed)))


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
