"""Where records wait: one open batch a partition, and the sealed ones that are being uploaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnstore.catalog.writing import TopicWriter, topic_writer
from txnstore.core.model import NewBatch, TopicPartition
from txnstore.core.partitioner import StickyPartitioner, partition_for_key
from txnstore.errors import (
    InvalidConfigError,
    StorageError,
    UnknownOutcomeError,
    UnknownTopicOrPartitionError,
)
from txnstore.producing.batching import RECORD_OVERHEAD, PendingBatch, RecordFuture, TablePart, fail_all
from txnstore.producing.records import check_record, check_row, check_rows, check_size
from txnstore.producing.uploads import Unstarted, Upload, upload
from txnstore.segment.convert import normalize_batches
from txnstore.segment.partition import key_bytes, partition_array, split_by_partition
from txnstore.segment.schema import fill_timestamps
from txnstore.validation import check_topic_name

if TYPE_CHECKING:
    from txnstore.connection import Connection


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows of the topic's stored schema; ``first`` is the number of the first one in what was sent."""

    writer: TopicWriter
    rows: pa.Table
    first: int


class Accumulator:
    """The buffers of a producer. Its producer's lock guards every call but :meth:`wait`."""

    def __init__(
        self,
        store: Connection,
        batch_bytes: int,
        buffer_bytes: int,
        demand: Callable[[], BaseException | None],
    ) -> None:
        for name, value in (("batch_bytes", batch_bytes), ("buffer_bytes", buffer_bytes)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                msg = f"{name} must be a number of bytes of at least 1, not {value!r}"
                raise InvalidConfigError(msg)
        self._store = store
        self._batch_bytes = min(batch_bytes, buffer_bytes)
        self._buffer_bytes = buffer_bytes
        self._demand = demand
        self._sticky = StickyPartitioner(store.runtime.rng)
        self._open: dict[TopicPartition, PendingBatch] = {}
        self._open_bytes = 0
        self._sealed: list[Upload] = []
        self._unstarted = Unstarted()
        self._writers: dict[str, TopicWriter] = {}

    @property
    def waiting(self) -> bool:
        """Whether something is not registered yet."""
        return bool(self._open or self._sealed)

    @property
    def crowded(self) -> bool:
        """Whether no more may be taken in before an upload has ended."""
        uploading = self._uploading_bytes() if self._sealed else 0
        return self._open_bytes + uploading >= self._buffer_bytes

    # Taking in --------------------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | Mapping[str, Any] | None,
        key: bytes | None,
        partition: int | None,
        headers: Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]] | None,
        timestamp: int | None,
    ) -> RecordFuture:
        """Put one record into its partition's batch."""
        writer = self._writer(topic, partition)
        now = self._store.runtime.clock()
        if writer.schema is None:
            timestamp = now if timestamp is None else timestamp
            record, key_for_partition, size = check_record(topic, value, key, headers, timestamp)
        else:
            record, key_for_partition, size, timestamp = check_row(writer, value, key, headers, timestamp, now)
        check_size(writer, size)
        tp = TopicPartition(writer.topic.name, self._choose(writer, key_for_partition, partition))
        batch = self._batch(tp, writer)
        # Under LogAppendTime the record gets the time of its append, whatever it brought (as in Kafka).
        future = RecordFuture(batch, batch.add_record(record, size), None if writer.config.append_time else timestamp)
        self._grown(batch, size + RECORD_OVERHEAD)
        return future

    def check_partition(self, topic: str, partition: int) -> None:
        """Raise :class:`UnknownTopicOrPartitionError` unless there is this partition."""
        self._choose(self._writer(topic, partition), None, partition)

    def pieces(self, topic: str, data: object, partition: int | None) -> Iterator[Piece]:
        """The rows in pieces that the buffer can take."""
        writer = self._writer(topic, partition)
        most = max(1, self._buffer_bytes // 2)

        def run() -> Iterator[Piece]:
            first = 0
            for table in normalize_batches(data, writer.schema):
                rows = max(1, table.num_rows * most // max(1, table.nbytes))
                for at in range(0, max(1, table.num_rows), rows):
                    yield Piece(writer, table.slice(at, rows), first + at)
                first += table.num_rows

        return run()

    def send_table(self, piece: Piece, partition: int | None) -> list[TablePart]:
        """Put rows into their partitions' batches."""
        writer, table = piece.writer, piece.rows
        check_rows(writer, table)
        if writer.event_time is not None:
            table = fill_timestamps(table, writer.event_time, self._store.runtime.clock())
        numbers = self._partitions(writer, table, partition)
        parts: list[TablePart] = []
        for number, rows in split_by_partition(table, numbers, writer.topic.partitions):
            places = _Places(numbers, number, piece.first)
            parts += self._add(TopicPartition(writer.topic.name, number), writer, rows, places)
        return parts

    def _add(self, tp: TopicPartition, writer: TopicWriter, rows: pa.Table, places: _Places) -> Iterator[TablePart]:
        """Cut the rows so that no batch grows far over its size."""
        at, average = 0, max(1, rows.nbytes // max(1, rows.num_rows))
        while at < rows.num_rows:
            batch = self._batch(tp, writer)
            count = min(rows.num_rows - at, max(1, (self._batch_bytes - batch.bytes) // average + 1))
            piece = rows.slice(at, count)
            times = piece[writer.event_time] if writer.event_time is not None else None
            yield TablePart(batch, batch.add_table(piece), count, places.after(at), times)
            at += count
            self._grown(batch, piece.nbytes)

    def _partitions(self, writer: TopicWriter, table: pa.Table, partition: int | None) -> npt.NDArray[np.int32]:
        count = writer.topic.partitions
        column = writer.key_column
        if partition is not None or column is None:
            return np.full(table.num_rows, self._choose(writer, None, partition), dtype=np.int32)
        numbers = partition_array(key_bytes(table[column], column), count)
        without_key = numbers < 0
        if without_key.any():
            numbers = np.where(without_key, np.int32(self._choose(writer, None, None)), numbers)
        return numbers

    def _writer(self, topic: str, partition: int | None = None) -> TopicWriter:
        """The topic as the chain knows it now; decoded once for each version of it."""
        state = self._store.view(refresh=False)
        writer = self._writers.get(topic) if type(topic) is str else None
        # A state shares the topics that did not change with the states before it.
        current = writer is not None and state.topics.get(topic) is writer.topic
        there = partition is None or (
            type(partition) is int and writer is not None and partition < writer.topic.partitions
        )
        if writer is not None and current and there:
            return writer
        topic = check_topic_name(topic)
        known = state.topics.get(topic)
        if known is None or (isinstance(partition, int) and partition >= known.partitions):
            state = self._store.view()  # Somebody else may have created it, or made it larger.
        found = state.find_topic(topic)
        writer = self._writers.get(topic)
        if writer is None or writer.topic is not found:
            writer = self._writers[topic] = topic_writer(found)
        return writer

    def _choose(self, writer: TopicWriter, key: bytes | None, partition: int | None) -> int:
        """The partition: the given one, the key's, or the sticky one."""
        name, count = writer.topic.name, writer.topic.partitions
        if partition is None:
            return self._sticky.partition(name, count) if key is None else partition_for_key(key, count)
        if isinstance(partition, bool) or not isinstance(partition, int) or partition < 0:
            msg = f"partition must be an integer of at least 0, not {partition!r}"
            raise UnknownTopicOrPartitionError(msg)
        if partition >= count:
            msg = f"topic {name!r} has {count} partitions, so there is no partition {partition}"
            raise UnknownTopicOrPartitionError(msg)
        return partition

    def _batch(self, tp: TopicPartition, writer: TopicWriter) -> PendingBatch:
        batch = self._open.get(tp)
        if batch is not None and batch.writer is not writer:
            self._seal(batch)  # The topic was altered meanwhile: a batch has one schema.
            batch = None
        if batch is None:
            batch = self._open[tp] = PendingBatch(tp, writer, self._store.runtime.clock(), self._demand)
        return batch

    # Sealing and uploading --------------------------------------------------------------------------------------------

    def seal(self) -> None:
        """Close all open batches and start their uploads, but for the last one, which :meth:`wait` does itself."""
        batches = list(self._open.values())
        for batch in batches[:-1]:
            self._seal(batch)
        for batch in batches[-1:]:
            self._close(batch, self._unstarted.add(self._upload, batch, self._chain_time))

    def make_room(self) -> None:
        """See to it that uploads are under way whose end leaves room: open batches may take half of the buffer."""
        for batch in sorted(self._open.values(), key=lambda batch: batch.bytes, reverse=True):
            if self._open_bytes * 2 < self._buffer_bytes:
                return
            self._seal(batch)

    def _grown(self, batch: PendingBatch, size: int) -> None:
        self._open_bytes += size
        if batch.bytes >= self._batch_bytes:
            self._seal(batch)

    def _seal(self, batch: PendingBatch) -> None:
        self._close(batch, self._store.pool.submit(self._upload, batch, self._chain_time))

    @property
    def _chain_time(self) -> int:
        return self._store.view(refresh=False).timestamp

    def _close(self, batch: PendingBatch, future: Future[NewBatch]) -> None:
        # First into the one list, then out of the other, so that an interrupt in between leaves no batch in neither.
        self._sealed.append(Upload(batch, batch.bytes, future))
        del self._open[batch.tp]
        self._open_bytes -= batch.bytes
        self._sticky.new_batch(batch.tp.topic)

    def _upload(self, batch: PendingBatch, chain_time: int) -> NewBatch:
        runtime = self._store.runtime
        rows = batch.take_table(runtime.clock())
        try:
            return upload(self._store.objects, runtime, batch.writer, batch.tp, rows, chain_time)
        except UnknownOutcomeError as error:
            # No entry names the object, so for the caller nothing has happened, whether it is there or not.
            msg = f"a segment of {batch.tp} could not be uploaded: {error}"
            raise StorageError(msg) from error

    def wait(self, *, crowd_only: bool = False) -> list[Upload]:
        """The uploads that have ended, well or not, in the order of their sends.

        Waits for all of them; with ``crowd_only`` for the oldest, until the rest takes less than half of the buffer.
        """
        self._unstarted.run()
        ended = []
        for item in list(self._sealed):
            if crowd_only and not item.future.done() and self._uploading_bytes() * 2 < self._buffer_bytes:
                break
            futures.wait([item.future])
            ended.append(item)
        return ended

    def forget(self, uploads: Sequence[Upload]) -> None:
        """These batches are settled."""
        settled = {id(item) for item in uploads}
        self._sealed = [item for item in self._sealed if id(item) not in settled]

    def drop(self, error: BaseException, kept: Sequence[Upload] = ()) -> None:
        """Give everything up but ``kept``; uploads under way are waited for, so that none is left running."""
        batches, self._open, self._open_bytes = list(self._open.values()), {}, 0
        sealed, self._sealed = [item for item in self._sealed if item not in kept], list(kept)
        self._unstarted.drop(error)
        futures.wait([item.future for item in sealed])
        fail_all([*batches, *(item.batch for item in sealed)], error)

    @property
    def sealed(self) -> tuple[TopicPartition, ...]:
        """The partitions whose batches are on their way, or uploaded and not registered."""
        return tuple(dict.fromkeys(item.batch.tp for item in self._sealed))

    def _uploading_bytes(self) -> int:
        return sum(item.size for item in self._sealed if not item.future.done())


@dataclass(frozen=True, slots=True)
class _Places:
    """Which rows of a sent table went to one partition, worked out when somebody asks."""

    numbers: npt.NDArray[np.int32]
    number: int
    first: int
    skip: int = 0

    def after(self, rows: int) -> _Places:
        return _Places(self.numbers, self.number, self.first, rows)

    def __call__(self, count: int) -> npt.NDArray[np.int64]:
        rows = np.flatnonzero(self.numbers == self.number)[self.skip : self.skip + count]
        return rows + self.first
