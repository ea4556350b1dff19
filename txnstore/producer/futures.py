"""The futures of records and tables that are on their way."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic  # noqa: TID251 - the caller waits in real time, for several batches together
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from txnstore.producer.batches import Batch
from txnstore.segment.schema import as_milliseconds

_LOG = logging.getLogger(__name__)

T = TypeVar("T")


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


class _SendFuture(Generic[T]):
    """What ``concurrent.futures.Future`` offers to the one who waits, without the cost of one per record."""

    __slots__ = ()

    def _batches(self) -> Sequence[Batch]:
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
        """The outcome. Waiting for it flushes the producer.

        Args:
            timeout: Seconds after which the wait ends, whatever the flush waits for. None: no bound; the flush runs in
                this thread.

        Raises:
            TimeoutError: The outcome is not known after ``timeout``; the record is still on its way.
            TxnStoreError: What ended the send.
        """
        return self._value(timeout)

    def exception(self, timeout: float | None = None) -> Exception | None:
        """The error of the send, or None. Waits as :meth:`result` does."""
        try:
            self._value(timeout)
        except TimeoutError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever ended the send is the answer
            return error
        return None

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        """Call ``callback(self)`` when the outcome is known; what it raises is logged and ignored (API-10).

        It is called after the commit or flush that settled the record has done its work, in the same thread, and may
        use the producer.
        """
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

    def __init__(self, batch: Batch, row: int, timestamp: int | None) -> None:
        self._batch = batch
        self._row = row
        self._timestamp = timestamp

    def _batches(self) -> Sequence[Batch]:
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

    batch: Batch
    first: int
    count: int
    places: Callable[[int], npt.NDArray[np.int64]]
    times: pa.ChunkedArray | None = None


class TableFuture(_SendFuture["list[RecordMetadata]"]):
    """The future list of :class:`RecordMetadata`, one per row in the table's order; built when it is asked for."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[TablePart]) -> None:
        self._parts = parts

    def _batches(self) -> Sequence[Batch]:
        return list({id(part.batch): part.batch for part in self._parts}.values())

    def _value(self, timeout: float | None) -> list[RecordMetadata]:
        deadline = None if timeout is None else monotonic() + timeout
        found: dict[int, RecordMetadata] = {}
        for part in self._parts:
            landed = part.batch.wait(None if deadline is None else max(0.0, deadline - monotonic()))
            topic, partition = landed.tp
            base = landed.base_offset + part.first
            moments = [landed.timestamp] * part.count
            if part.times is not None:
                moments = as_milliseconds(part.times, "timestamp").cast(pa.int64()).to_pylist()
            for at, (row, moment) in enumerate(zip(part.places(part.count).tolist(), moments, strict=True)):
                offset = base + at if landed.base_offset >= 0 else -1
                found[row] = RecordMetadata(topic, partition, offset, moment)
        return [found[row] for row in sorted(found)]
