"""The buffer of a producer: one open batch per partition, and the sealed batches that are not registered yet.

Each change updates the number of buffered bytes, so the cost of a send does not depend on the number of batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnstore.connection import Connection
from txnstore.core.model import TopicPartition
from txnstore.core.partitioner import partition_for_key
from txnstore.producer.batches import ProducerBatch, StickyPartitioner
from txnstore.producer.futures import TablePart
from txnstore.producer.topics import TablePiece, Topics, TopicVersion
from txnstore.producer.upload import Uploads
from txnstore.segment.convert import copy_rows
from txnstore.segment.partition import key_bytes, partition_array, split_by_partition
from txnstore.segment.schema import as_milliseconds

#: The partition of each row of a table.
_Numbers: TypeAlias = npt.NDArray[np.integer[Any]]


class Buffer:
    """The batches that are not settled. It has no lock: the sender changes it with its own lock.

    A batch is in ``_open`` until it is sealed, then in ``sealed`` until it is settled.

    Attributes:
        batch_bytes: The bytes of a batch from which it is sealed. Constant.
        limit: The number of bytes from which :meth:`Producer.send` blocks. Constant.
        bytes: Bytes in open batches and in uploads that had not ended at the last :meth:`count_bytes`.
        sealed: All sealed batches that are not settled, in the order of their seals, which is that of their sequence
            numbers in each partition.
    """

    def __init__(
        self, connection: Connection, topics: Topics, uploads: Uploads, batch_bytes: int, buffer_bytes: int
    ) -> None:
        self._topics = topics
        self._uploads = uploads
        self.batch_bytes = min(batch_bytes, buffer_bytes)
        self.limit = buffer_bytes
        self.bytes = 0
        self.sealed: dict[ProducerBatch, None] = {}
        #: The sealed batches whose bytes count.
        self._uploading: list[ProducerBatch] = []
        #: The batches that take records. Their ``sealed`` is False, but for an interrupt in the middle of a seal.
        self._open: dict[TopicPartition, ProducerBatch] = {}
        #: Chooses partitions for records without a key.
        self._sticky = StickyPartitioner(connection.runtime.rng)

    @property
    def has_batches(self) -> bool:
        """Whether a batch is not registered yet."""
        return bool(self._open or self.sealed)

    @property
    def sealed_partitions(self) -> tuple[TopicPartition, ...]:
        """The partitions with sealed batches that are not registered."""
        return tuple(dict.fromkeys(batch.tp for batch in list(self.sealed)))

    # Adding records ---------------------------------------------------------------------------------------------------

    def open_batch(self, version: TopicVersion, key: bytes | None, partition: int | None) -> ProducerBatch:
        """Return the open batch of ``partition``, else of the key's partition, else of the sticky one."""
        is_sticky = key is None and partition is None
        if partition is None:
            name, count = version.topic.name, version.partitions
            partition = partition_for_key(key, count) if key is not None else self._sticky.partition(name, count)
        tp = version.tps[partition]
        batch = self._open.get(tp)
        if batch is not None and (batch.sealed or batch.writer is not version.writer):
            self.seal(batch)  # An interrupt ended its seal, or the topic was altered: a batch has one schema.
            batch = None
        if batch is None:
            batch = self._open[tp] = ProducerBatch(tp, version.writer)
        if is_sticky:
            version.sticky = batch
        return batch

    def add_table(self, piece: TablePiece, table: pa.Table, partition: int | None) -> list[TablePart]:
        """Add the rows of a piece to the open batches of their partitions."""
        version = piece.version
        row_partitions = self._row_partitions(version, table, partition)
        parts: list[TablePart] = []
        rows_by_partition = split_by_partition(table, row_partitions, version.partitions)
        if piece.shared and len(rows_by_partition) == 1:  # A split into several tables has copied them.
            rows_by_partition = [(number, copy_rows(rows)) for number, rows in rows_by_partition]
        for number, rows in rows_by_partition:
            parts += self._add_rows(version, number, rows, _RowNumbers(row_partitions, number, piece.first))
        return parts

    def _add_rows(
        self, version: TopicVersion, number: int, rows: pa.Table, row_numbers: _RowNumbers
    ) -> Iterator[TablePart]:
        """Add rows to open batches, in parts that exceed the batch size by little."""
        row, row_bytes = 0, max(1, rows.nbytes // max(1, rows.num_rows))
        event_time = version.writer.event_time
        while row < rows.num_rows:
            batch = self.open_batch(version, None, number)
            count = min(rows.num_rows - row, max(1, (self.batch_bytes - batch.bytes) // row_bytes + 1))
            piece = rows.slice(row, count)
            times = _EventTimes.of(piece[event_time], event_time) if event_time is not None else None
            yield TablePart(batch, batch.add_table(piece), count, row_numbers.skipping(row), times)
            row += count
            self.bytes += piece.nbytes
            if batch.bytes >= self.batch_bytes:
                self.seal(batch)

    def _row_partitions(self, version: TopicVersion, table: pa.Table, partition: int | None) -> _Numbers:
        """Return the partition of each row: the given one, that of its key, or the sticky one."""
        column = version.writer.key_column
        width = np.min_scalar_type(version.partitions - 1)  # The future of the table keeps them.
        if partition is not None:
            version.check_number(partition)
        else:
            partition = self._sticky.partition(version.topic.name, version.partitions)
            if column is not None:
                numbers = partition_array(key_bytes(table[column], column), version.partitions)
                return np.where(numbers < 0, np.int32(partition), numbers).astype(width)
        return np.broadcast_to(np.array(partition, width), table.num_rows)

    # Sealing ----------------------------------------------------------------------------------------------------------

    def seal(self, batch: ProducerBatch) -> None:
        """Close the batch for records and give it an upload. Idempotent, so it can be repeated after an interrupt.

        An interrupted send leaves a batch without rows, which the log does not take: it is removed.
        """
        if not batch.sealed:
            batch.count_rows()
        if batch.rows and not batch.sealed:
            batch.upload = self._uploads.upload_task((batch,))
            # An interrupt before this line leaves an open batch; one after it a sealed batch that is still in _open.
            self.sealed[batch], batch.sealed = None, True
            self._uploading.append(batch)
        version = self._topics.known.get(batch.tp.topic)
        if version is not None:
            version.sticky = None
        self._open.pop(batch.tp, None)
        self._sticky.new_batch(batch.tp.topic)

    def seal_all(self) -> list[ProducerBatch]:
        """Seal every open batch, and return all batches."""
        for batch in list(self._open.values()):
            self.seal(batch)
        return list(self.sealed)

    def seal_largest(self) -> list[ProducerBatch]:
        """Seal the largest batches until less than half of the buffer is open, and return them."""
        sealed: list[ProducerBatch] = []
        open_bytes = sum(batch.bytes for batch in self._open.values())
        for batch in sorted(self._open.values(), key=lambda batch: batch.bytes, reverse=True):
            if open_bytes * 2 < self.limit:
                break
            open_bytes -= batch.bytes
            self.seal(batch)
            sealed.append(batch)
        return sealed

    # Removing ---------------------------------------------------------------------------------------------------------

    def count_bytes(self) -> None:
        """Count the bytes again, without those of uploads that have ended."""
        self._uploading = [batch for batch in self._uploading if batch.uploaded is None and batch in self.sealed]
        self.bytes = sum(batch.bytes for batch in (*self._open.values(), *self._uploading))

    def forget(self, batches: Sequence[ProducerBatch]) -> None:
        """Remove settled batches."""
        for batch in batches:
            self.sealed.pop(batch, None)
            batch.release()
        self.count_bytes()

    def abandon(self) -> list[ProducerBatch]:
        """Abandon all batches: seal the open ones, and neither start nor repeat an upload.

        Returns:
            All batches; they stay in the buffer until :meth:`forget`.
        """
        batches = self.seal_all()
        for batch in batches:
            batch.abandon()
        return batches


@dataclass(frozen=True, slots=True)
class _RowNumbers:
    """The row numbers of a sent table that went to one partition, computed on demand.

    Attributes:
        numbers: The partition of each row of the piece.
        number: The partition.
        first: The row number of the first row of the piece in the sent table.
        skip: The rows of this partition that are in earlier parts.
    """

    numbers: _Numbers
    number: int
    first: int
    skip: int = 0

    def skipping(self, rows: int) -> _RowNumbers:
        return _RowNumbers(self.numbers, self.number, self.first, rows)

    def __call__(self, count: int) -> npt.NDArray[np.int64]:
        rows = np.flatnonzero(self.numbers == self.number)[self.skip : self.skip + count]
        return rows + self.first


@dataclass(frozen=True, slots=True)
class _EventTimes:
    """The event times of rows, kept small: the future of a table has them as long as the application has it.

    Attributes:
        size: The size of the differences in bytes.
        differences: The first time in ms, and the difference of each other one to its predecessor, compressed.
    """

    size: int
    differences: bytes

    @classmethod
    def of(cls, times: pa.ChunkedArray, column: str) -> _EventTimes:
        milliseconds = as_milliseconds(times, column).cast(pa.int64()).to_numpy()
        differences = np.diff(milliseconds, prepend=np.int64(0))
        return cls(differences.nbytes, pa.compress(differences, codec="zstd", asbytes=True))

    def __call__(self) -> list[int]:
        differences = np.frombuffer(pa.decompress(self.differences, self.size, "zstd"), np.int64)
        milliseconds: list[int] = np.cumsum(differences).tolist()
        return milliseconds
