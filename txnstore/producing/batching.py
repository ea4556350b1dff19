"""Records on their way: batches that fill up, and the futures of those who wait for their offsets."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnstore.catalog.writing import TopicWriter
from txnstore.core.commands import Appended
from txnstore.core.model import TopicPartition
from txnstore.segment.convert import normalize
from txnstore.segment.schema import RecordTuple, as_milliseconds, records_to_table

_LOG = logging.getLogger(__name__)

#: What a record costs in memory beside its bytes; for the estimate that fills a batch.
RECORD_OVERHEAD = 32


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """Where a record landed. ``timestamp`` in ms: its event time, which is that of the send if none was given.

    If the topic has none (``message.timestamp.type=LogAppendTime``, or a schema without a timestamp column), it is the
    time of the append: what a reader finds as ``_timestamp``.

    ``offset`` is -1 if the answer to a commit was lost, and a compaction merged the record before it was repeated.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int


class PendingBatch:
    """Records for one partition that become one segment and one batch.

    Filled by its producer under a lock, then sealed, uploaded by a thread of the pool, and settled once: with the
    offsets it got, or with the error that ended it.
    """

    __slots__ = ("_appended", "_callbacks", "_demand", "_error", "_lock", "_pieces", "_settled", "bytes", "opened_at",
                 "rows", "tp", "writer")  # fmt: skip

    def __init__(
        self,
        tp: TopicPartition,
        writer: TopicWriter,
        opened_at: int,
        demand: Callable[[], BaseException | None],
    ) -> None:
        self.tp = tp
        self.writer = writer
        self.opened_at = opened_at
        self.rows = 0
        self.bytes = 0
        self._demand = demand
        self._pieces: list[list[Any] | pa.Table] = []
        self._appended: Appended | None = None
        self._error: BaseException | None = None
        self._settled: threading.Event | None = None
        self._callbacks: list[Callable[[], None]] = []
        self._lock = threading.Lock()

    def add_record(self, record: Any, size: int) -> int:
        """Add a record (or a row of a typed topic, as a dict); returns its row number."""
        if not self._pieces or not isinstance(self._pieces[-1], list):
            self._pieces.append([])
        self._pieces[-1].append(record)
        self.rows += 1
        self.bytes += size + RECORD_OVERHEAD
        return self.rows - 1

    def add_table(self, table: pa.Table) -> int:
        """Add rows that have the topic's stored schema; returns the number of the first."""
        first = self.rows
        self._pieces.append(table)
        self.rows += table.num_rows
        self.bytes += table.nbytes
        return first

    def take_table(self, now_ms: int) -> pa.Table:
        """All rows as one table; the batch lets go of them."""
        pieces, self._pieces = self._pieces, []
        return pa.concat_tables([self._as_table(piece, now_ms) for piece in pieces])

    def _as_table(self, piece: list[Any] | pa.Table, now_ms: int) -> pa.Table:
        if isinstance(piece, pa.Table):
            return piece
        if self.writer.schema is None:
            records: Sequence[RecordTuple] = piece
            return records_to_table(records, now_ms)
        return normalize(piece, self.writer.schema)

    # Settling ---------------------------------------------------------------------------------------------------------

    @property
    def settled(self) -> bool:
        """Whether its outcome is known."""
        return self._appended is not None or self._error is not None

    def resolve(self, appended: Appended) -> None:
        """The batch is in the log. See :func:`resolve_all`."""
        self._settle(appended, None)

    def fail(self, error: BaseException) -> None:
        """The batch will not get into the log. The first outcome stays. See :func:`fail_all`."""
        self._settle(None, error)

    def _settle(self, appended: Appended | None, error: BaseException | None) -> None:
        with self._lock:
            if self.settled:
                return
            self._appended, self._error = appended, error
            self._pieces = []
            if self._settled is not None:
                self._settled.set()

    def call_back(self) -> None:
        """Call those who asked to be told of the outcome."""
        with self._lock:
            callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback()

    def wait(self, timeout: float | None = None) -> Appended:
        """Where the batch landed. Asks the producer to flush if nothing is under way; raises what ended it."""
        if not self.settled:
            with self._lock:
                if self._settled is None:
                    self._settled = threading.Event()
                event = self._settled
            hindrance = self._demand()
            if hindrance is not None and not self.settled:
                raise hindrance
            if not self.settled and not event.wait(timeout):
                msg = f"no answer for a batch of {self.tp} within {timeout} s"
                raise TimeoutError(msg)
        if self._error is not None:
            raise self._error
        assert self._appended is not None
        return self._appended

    def when_settled(self, callback: Callable[[], None]) -> None:
        """Call back once the outcome is known; at once if it is."""
        with self._lock:
            if not self.settled:
                self._callbacks.append(callback)
                return
        callback()


def resolve_all(batches: Sequence[PendingBatch], appended: Sequence[Appended]) -> None:
    """These batches are in the log. Callbacks come last, so that each finds all of them settled."""
    for batch, landed in zip(batches, appended, strict=True):
        batch.resolve(landed)
    for batch in batches:
        batch.call_back()


def fail_all(batches: Sequence[PendingBatch], error: BaseException) -> None:
    """These batches will not get into the log."""
    for batch in batches:
        batch.fail(error)
    for batch in batches:
        batch.call_back()


T = TypeVar("T")


class _SendFuture(Generic[T]):
    """What ``concurrent.futures.Future`` offers to the one who waits, without the cost of one a record."""

    __slots__ = ()

    def _batches(self) -> Sequence[PendingBatch]:
        raise NotImplementedError

    def _value(self, timeout: float | None) -> T:
        raise NotImplementedError

    def done(self) -> bool:
        """Whether the outcome is known."""
        return all(batch.settled for batch in self._batches())

    def running(self) -> bool:
        """Whether it is still on its way."""
        return not self.done()

    def cancelled(self) -> bool:
        """False: what was sent is taken back only by aborting the transaction."""
        return False

    def cancel(self) -> bool:
        """False: see :meth:`cancelled`."""
        return False

    def result(self, timeout: float | None = None) -> T:
        """The outcome. Waiting for it flushes the producer. Raises the error of the send, or :class:`TimeoutError`."""
        return self._value(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error of the send, or None."""
        try:
            self._value(timeout)
        except TimeoutError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever ended the send is the answer
            return error
        return None

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call ``callback(self)`` when the outcome is known; what it raises is ignored (API-10)."""
        left = len(self._batches())
        lock = threading.Lock()

        def settled() -> None:
            nonlocal left
            with lock:
                left -= 1
                if left > 0:
                    return
            try:
                callback(self)
            except Exception:  # noqa: BLE001 - a callback must not break the send of others
                _LOG.exception("a done callback failed")

        if left == 0:
            settled()
        for batch in self._batches():
            batch.when_settled(settled)


class RecordFuture(_SendFuture[RecordMetadata]):
    """The future :class:`RecordMetadata` of one record."""

    __slots__ = ("_batch", "_row", "_timestamp")

    def __init__(self, batch: PendingBatch, row: int, timestamp: int | None) -> None:
        self._batch, self._row, self._timestamp = batch, row, timestamp

    def _batches(self) -> Sequence[PendingBatch]:
        return (self._batch,)

    def _value(self, timeout: float | None) -> RecordMetadata:
        landed = self._batch.wait(timeout)
        moment = landed.timestamp if self._timestamp is None else self._timestamp
        offset = landed.base_offset + self._row if landed.base_offset >= 0 else -1
        return RecordMetadata(landed.tp.topic, landed.tp.partition, offset, moment)


@dataclass(frozen=True, slots=True)
class TablePart:
    """``count`` rows of a sent table that went into one batch, from its row ``first`` on.

    ``places(count)`` gives their numbers in the table, ``times`` their event times; None: that of the append.
    """

    batch: PendingBatch
    first: int
    count: int
    places: Callable[[int], npt.NDArray[np.int64]]
    times: pa.ChunkedArray | None = None


class TableFuture(_SendFuture["list[RecordMetadata]"]):
    """The future list of :class:`RecordMetadata`, one a row in the table's order; built when it is asked for."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[TablePart]) -> None:
        self._parts = parts

    def _batches(self) -> Sequence[PendingBatch]:
        return list({id(part.batch): part.batch for part in self._parts}.values())

    def _value(self, timeout: float | None) -> list[RecordMetadata]:
        found: dict[int, RecordMetadata] = {}
        for part in self._parts:
            landed = part.batch.wait(timeout)
            topic, partition = landed.tp
            base = landed.base_offset + part.first
            moments = [landed.timestamp] * part.count
            if part.times is not None:
                moments = as_milliseconds(part.times, "timestamp").cast(pa.int64()).to_pylist()
            for at, (row, moment) in enumerate(zip(part.places(part.count).tolist(), moments, strict=True)):
                offset = base + at if landed.base_offset >= 0 else -1
                found[row] = RecordMetadata(topic, partition, offset, moment)
        return [found[row] for row in sorted(found)]
