"""Futures of sent records and tables."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic  # noqa: TID251 - the caller waits in real time, for several batches together
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from txnstore.core.log.commands import Appended
from txnstore.errors import InvalidConfigError, TxnStoreError
from txnstore.producer.batches import ProducerBatch
from txnstore.validation import check_callable, check_seconds

_LOG = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """The position and timestamp of a record that was written.

    Attributes:
        topic: The topic.
        partition: The partition.
        offset: Its offset; -1 if the answer to a commit was lost, and a compaction merged the record before the commit
            was repeated.
        timestamp: What a reader finds as ``_timestamp``, in milliseconds since the epoch: the event time (by default
            the time of the send), or the time of the append if the topic has ``message.timestamp.type=LogAppendTime``
            or a schema without a timestamp column.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int


def _bounded_seconds(timeout: float | None) -> float | None:
    """Check a timeout, and bound it by the longest time that a thread can wait."""
    if timeout is None:
        return None
    seconds = check_seconds("timeout", timeout, least=None)
    if math.isnan(seconds):
        raise InvalidConfigError("timeout must be a number of seconds, not nan")
    return min(seconds, threading.TIMEOUT_MAX)


class BatchWaiter(Protocol):
    """The part of the sender that futures call."""

    def wait(self, batch: ProducerBatch, timeout: float | None) -> Appended:
        """Flush, wait for the outcome of a batch, and return its offsets."""
        ...


class _SendFuture(Generic[T]):
    """The reading methods of ``concurrent.futures.Future``, without the cost of one ``Future`` per record."""

    __slots__ = ()

    def _batches(self) -> Sequence[ProducerBatch]:
        raise NotImplementedError

    def _wait_for_value(self, timeout: float | None) -> T:
        raise NotImplementedError

    def __repr__(self) -> str:
        partitions = ", ".join(sorted({str(batch.tp) for batch in self._batches()})) or "no partition"
        return f"<txnstore.{type(self).__name__} of {partitions}, {'done' if self.done() else 'pending'}>"

    def done(self) -> bool:
        """Whether the outcome is known."""
        return all(batch.settled for batch in self._batches())

    def running(self) -> bool:
        """Whether the outcome is not known yet."""
        return not self.done()

    def cancelled(self) -> bool:
        """Return False: only the abort of its transaction takes back a sent record."""
        return False

    def cancel(self) -> bool:
        """Do nothing and return False: see :meth:`cancelled`."""
        return False

    def result(self, timeout: float | None = None) -> T:
        """Wait for the outcome and return it. Waiting flushes the producer.

        Args:
            timeout: Seconds after which the wait ends, even if the flush does not. None: no limit; the flush runs in
                this thread.

        Raises:
            TimeoutError: The outcome is not known after ``timeout`` seconds; the record may still be written.
            TxnStoreError: The send failed.
            InvalidConfigError: ``timeout`` is no number.
        """
        return self._wait_for_value(_bounded_seconds(timeout))

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Wait as :meth:`result` does, and return the error of the send, or None.

        Args:
            timeout: Seconds after which the wait ends; None: no limit.

        Raises:
            TimeoutError: The outcome is not known after ``timeout`` seconds.
        """
        seconds = _bounded_seconds(timeout)
        try:
            self._wait_for_value(seconds)
        except TimeoutError:
            raise
        except Exception as error:
            if not isinstance(error, TxnStoreError) and all(batch.outcome is not error for batch in self._batches()):
                raise  # A signal handler has raised it, so it is not the outcome of the send.
            return error
        return None

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call ``callback(self)`` when the outcome is known (API-10).

        The thread that runs the commit or flush calls it, after that has released its locks, so the callback may use
        the producer. Exceptions of the callback are logged and ignored.
        """
        check_callable("a done callback", callback)
        batches = self._batches()
        unsettled = [None] * (len(batches) - 1)  # One for each batch but the last.

        def on_settled() -> None:
            """Call the callback when the last of the batches is settled."""
            with suppress(IndexError):
                unsettled.pop()  # In one step: of the threads that settle the batches, the last one calls.
                return
            try:
                callback(self)
            except Exception:  # noqa: BLE001 - a callback must not break the send of others
                _LOG.exception("a done callback failed")

        if not batches:
            on_settled()
        for batch in batches:
            batch.when_settled(on_settled)


class RecordFuture(_SendFuture[RecordMetadata]):
    """The future of one record; its result is a :class:`RecordMetadata`."""

    __slots__ = ("_batch", "_row", "_sender", "_timestamp")

    def __init__(self, sender: BatchWaiter, batch: ProducerBatch, row: int, timestamp: int | None) -> None:
        self._sender = sender
        self._batch = batch
        self._row = row
        self._timestamp = timestamp

    def _batches(self) -> Sequence[ProducerBatch]:
        return (self._batch,)

    def _wait_for_value(self, timeout: float | None) -> RecordMetadata:
        appended = self._sender.wait(self._batch, timeout)
        moment = appended.timestamp if self._timestamp is None else self._timestamp
        offset = appended.base_offset + self._row if appended.base_offset >= 0 else -1
        return RecordMetadata(appended.tp.topic, appended.tp.partition, offset, moment)


@dataclass(frozen=True, slots=True)
class TablePart:
    """Rows of a sent table that went into one batch.

    Attributes:
        batch: The batch.
        first: The number of the first of these rows in the batch.
        count: The number of rows.
        row_numbers: Called with ``count``, returns the row numbers in the table.
        times: Returns the event times of the rows, in ms; None: the time of the append.
    """

    batch: ProducerBatch
    first: int
    count: int
    row_numbers: Callable[[int], npt.NDArray[np.int64]]
    times: Callable[[], list[int]] | None = None


class TableFuture(_SendFuture["list[RecordMetadata]"]):
    """The future of a table; its result is a list of :class:`RecordMetadata`, one per row, in the order of the rows."""

    __slots__ = ("_parts", "_sender")

    def __init__(self, sender: BatchWaiter, parts: Sequence[TablePart]) -> None:
        self._sender = sender
        self._parts = parts

    def _batches(self) -> Sequence[ProducerBatch]:
        return list({id(part.batch): part.batch for part in self._parts}.values())

    def _wait_for_value(self, timeout: float | None) -> list[RecordMetadata]:
        """Wait for all batches of the table, and return the metadata of its rows in their order."""
        deadline = None if timeout is None else monotonic() + timeout
        metadata_by_row: dict[int, RecordMetadata] = {}
        for part in self._parts:
            appended = self._sender.wait(part.batch, None if deadline is None else max(0.0, deadline - monotonic()))
            topic, partition = appended.tp
            base_offset = appended.base_offset + part.first
            moments = [appended.timestamp] * part.count
            if part.times is not None:
                moments = part.times()
            for index, (row, moment) in enumerate(zip(part.row_numbers(part.count).tolist(), moments, strict=True)):
                offset = base_offset + index if appended.base_offset >= 0 else -1
                metadata_by_row[row] = RecordMetadata(topic, partition, offset, moment)
        return [metadata_by_row[row] for row in sorted(metadata_by_row)]
