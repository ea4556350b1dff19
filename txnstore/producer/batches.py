"""Batches: records of one partition that become one segment and have one outcome."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

import pyarrow as pa

from txnstore.catalog.writing import TopicWriter
from txnstore.core.log.commands import Appended
from txnstore.core.log.model import WINDOW, NewBatch
from txnstore.core.model import TopicPartition
from txnstore.producer.records import RowFormat
from txnstore.segment.schema import RecordTuple, records_to_table
from txnstore.threads import Task

#: Estimated memory of a record in addition to its bytes; counts towards the size of a batch.
RECORD_OVERHEAD = 32
#: The same for a row that is kept as an Arrow table of its own.
TABLE_OVERHEAD = 1024
#: Fewer batches are not worth a common conversion.
_MIN_BATCHES = 2


class StickyPartitioner:
    """Chooses a partition for records without a key: the same one until a batch ends (KIP-480).

    So the batches of a slow producer are as large as they can be, and in the long run every partition gets its share.
    ``rng`` decides; a seeded one makes the choice repeatable. Not locked: its producer calls it under its own lock.
    """

    __slots__ = ("_current_partitions", "_previous_partitions", "_rng")

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        #: The partition of the open batch of each topic; none after :meth:`new_batch`.
        self._current_partitions: dict[str, int] = {}
        #: The partition of the batch before it, which is not chosen again.
        self._previous_partitions: dict[str, int] = {}

    def partition(self, topic: str, partitions: int) -> int:
        """Return the partition for the next record of the topic; it stays until :meth:`new_batch`."""
        partition = self._current_partitions.get(topic)
        if partition is None or partition >= partitions:
            partition = self._choose_partition(self._previous_partitions.get(topic), partitions)
            self._current_partitions[topic] = partition
        return partition

    def new_batch(self, topic: str) -> None:
        """Choose another partition for the topic, if there is one: its batch is closed."""
        partition = self._current_partitions.pop(topic, None)
        if partition is not None:
            self._previous_partitions[topic] = partition

    def _choose_partition(self, previous: int | None, partitions: int) -> int:
        if previous is None or previous >= partitions or partitions == 1:
            return self._rng.randrange(partitions)
        # One of the others, each with the same chance.
        partition = self._rng.randrange(partitions - 1)
        return partition + 1 if partition >= previous else partition


class ProducerBatch:
    """Records of one partition (Kafka: ``ProducerBatch``): filled, sealed, uploaded, settled.

    The buffer fills and seals it with the sender's lock. It is settled once: with its offsets, or with an error,
    which is never an interrupt.

    Attributes:
        tp: The partition.
        writer: The version of the topic that its rows fit.
        bytes: Its estimated memory in bytes: the records with an overhead for each.
        rows: The number of rows; 0 until the batch is sealed.
        sealed: Whether it takes no more rows.
        upload: The task that uploads it, alone or with others; None until it is sealed, and when it is in the log.
        uploaded: How its upload ended: the segment, described for the chain, or the error. Set once; None again when
            it is in the log.
        abandoned: Whether its upload is neither begun nor repeated.
        outcome: The place in the log, or the error; None until it is settled. Written by the thread that settles, with
            the sender's turn or, for a refused record, without; never reset.
        waiters: A queue for each thread that waits for the outcome. Appended to by each of them, and read by the one
            that settles after it has set the outcome: a waiter that it does not see, sees the outcome.
    """

    __slots__ = ("_callbacks", "_first_row", "_pieces", "_rows", "_table", "abandoned", "bytes",
                 "outcome", "rows", "sealed", "tp", "upload", "uploaded", "waiters", "writer")  # fmt: skip

    def __init__(self, tp: TopicPartition, writer: TopicWriter) -> None:
        self.tp = tp
        self.writer = writer
        self.bytes = 0
        self.rows = 0
        self.sealed = False
        self.upload: Task[None] | None = None
        self.uploaded: NewBatch | Exception | None = None
        self.abandoned = False
        #: The rows: lists of rows and tables, each with the number of its first row, so that one atomic step adds a row
        #: and fixes its number: after an interrupt the row is in the batch or not, and the rows after it have the right
        #: numbers in both cases. Empty once the rows are in ``_table``.
        self._pieces: list[tuple[int, list[Any] | pa.Table]] = []
        #: The last piece, if it is a list of rows, and the number of its first row.
        self._rows: list[Any] | None = None
        self._first_row = 0
        #: All rows, from the first attempt to upload them until its upload ends.
        self._table: pa.Table | None = None
        self.outcome: Appended | Exception | None = None
        self.waiters: list[SimpleQueue[Exception | None]] = []
        #: Callbacks that have not been called. Each is taken by an atomic step, so one thread calls it.
        self._callbacks: list[Callable[[], None]] = []

    def add_record(self, record: Any, size: int) -> int:
        """Add a record, or a row as :class:`RowFormat` returns it; return its row number."""
        rows = self._rows
        if rows is None:
            rows = self._new_rows()
        row = self._first_row + len(rows)
        self.bytes += size + RECORD_OVERHEAD
        rows.append(record)
        return row

    def _new_rows(self) -> list[Any]:
        rows: list[Any] = []
        first_row = self._row_count()
        self._pieces.append((first_row, rows))
        self._first_row, self._rows = first_row, rows
        return rows

    def add_table(self, table: pa.Table, overhead: int = 0) -> int:
        """Add rows of the topic's stored schema; return the number of the first one."""
        first_row = self._row_count()
        self._rows = None
        self.bytes += table.nbytes + overhead
        self._pieces.append((first_row, table))
        return first_row

    def _row_count(self) -> int:
        if not self._pieces:
            return 0
        first_row, piece = self._pieces[-1]
        return first_row + len(piece)

    def count_rows(self) -> None:
        """Set ``rows`` to the number of rows. Called when the batch is sealed."""
        self.rows = self._row_count()

    def table(self, now_ms: int, row_format: RowFormat | None = None) -> pa.Table:
        """Return all rows as one table, which stays until :meth:`end_upload`, so that an upload can be repeated."""
        if self._table is None:
            tables = [self._as_table(piece, now_ms, row_format) for _, piece in self._pieces if len(piece)]
            self.keep_table(pa.concat_tables(tables or [self.writer.stored.empty_table()]))
        return self._table

    @property
    def records(self) -> list[RecordTuple] | None:
        """All rows as Kafka records if they were sent one by one and are not converted yet, else None."""
        pieces = self._pieces
        if self.writer.schema is not None or self._table is not None or len(pieces) != 1:
            return None
        piece = pieces[0][1]
        return piece if isinstance(piece, list) else None

    def keep_table(self, table: pa.Table) -> None:
        """Keep all rows as a table, as :meth:`table` does."""
        self._table = table
        self._pieces, self._rows = [], None

    def end_upload(self, uploaded: NewBatch | Exception) -> None:
        """Record the result of the upload, and drop the rows."""
        self.uploaded = self.uploaded or uploaded
        self.release()

    def release(self) -> None:
        """Drop the rows."""
        self._pieces, self._rows, self._table = [], None, None

    def forget_upload(self) -> None:
        """Drop the upload of a registered batch: a future keeps its batch, which would keep inlined bytes."""
        self.upload = self.uploaded = None

    @property
    def new_batch(self) -> NewBatch:
        """The uploaded segment, described for the chain."""
        assert isinstance(self.uploaded, NewBatch)
        return self.uploaded

    @property
    def is_registrable(self) -> bool:
        """Whether the batch is uploaded and not settled."""
        return isinstance(self.uploaded, NewBatch) and not self.settled

    def take_upload(self) -> bool:
        """Take the batch from a task that did not begin, or was interrupted; False if it needs no other task."""
        assert self.upload is not None
        was_taken = self.upload.cancel() or self.upload.done()
        # The result is read last: it is set before the task is done.
        return was_taken and self.uploaded is None and not self.abandoned

    def abandon(self) -> None:
        """Prevent the upload from being started or repeated."""
        assert self.upload is not None
        self.abandoned = True
        self.upload.cancel()

    def _as_table(self, piece: list[Any] | pa.Table, now_ms: int, row_format: RowFormat | None) -> pa.Table:
        """Convert a piece of the batch, records or rows, to a table."""
        if isinstance(piece, pa.Table):
            return piece
        if self.writer.schema is None:
            records: Sequence[RecordTuple] = piece
            return records_to_table(records, now_ms)
        return (row_format or RowFormat(self.writer)).table(piece)

    # Settling ---------------------------------------------------------------------------------------------------------

    @property
    def settled(self) -> bool:
        """Whether its outcome is known."""
        return self.outcome is not None

    def settle(self, outcome: Appended | Exception) -> bool:
        """Set the outcome, unless there is one, and wake the waiters; return whether this is the outcome."""
        if self.outcome is None:
            self.outcome = outcome
        for waiter in tuple(self.waiters):  # One that gives up removes itself.
            waiter.put(None)
        return self.outcome is outcome

    def call_back(self) -> None:
        """Call the registered callbacks. Each is called once, also if several threads call this method."""
        while self._callbacks:
            try:
                callback = self._callbacks.pop(0)
            except IndexError:  # pragma: no cover - another thread took the last one
                return
            callback()

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` when the batch is settled; immediately if it is settled already."""
        self._callbacks.append(callback)
        if self.settled:
            self.call_back()


def convert_batches(batches: Sequence[ProducerBatch], now_ms: int) -> None:
    """Convert the records of several batches of a topic in one step, which is faster for small batches.

    Batches with rows of another kind are left out. If the records cannot be converted, each batch is left to its own
    conversion, which fails it alone.
    """
    records_by_batch = [(batch, records) for batch in batches if (records := batch.records)]
    if len(records_by_batch) < _MIN_BATCHES:
        return
    try:
        table = records_to_table([record for _, records in records_by_batch for record in records], now_ms)
    except Exception:  # noqa: BLE001 - the conversion of the batch alone raises it again
        return
    first_row = 0
    for batch, records in records_by_batch:
        batch.keep_table(table.slice(first_row, len(records)))
        first_row += len(records)


def split_for_window(batches: Sequence[ProducerBatch]) -> list[list[ProducerBatch]]:
    """Split batches into rounds in which no partition has more than its producer window remembers.

    A repeated append is recognised by that window, so one entry carries at most five batches per partition.
    """
    rounds: list[list[ProducerBatch]] = []
    counts: dict[TopicPartition, int] = {}
    for batch in batches:
        if not rounds or counts.get(batch.tp, 0) >= WINDOW:
            rounds.append([])
            counts = {}
        rounds[-1].append(batch)
        counts[batch.tp] = counts.get(batch.tp, 0) + 1
    return rounds
