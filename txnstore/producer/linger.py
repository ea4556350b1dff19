"""The background thread of a sender: flushes after the linger time, and for callers that wait with a timeout."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import weakref
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol, TypeAlias

from txnstore.producer.batches import ProducerBatch
from txnstore.threads import Task, start
from txnstore.validation import check_seconds

_LOG = logging.getLogger(__name__)

#: Seconds until a failed flush is repeated.
_RETRY_PAUSE = 1.0
#: Seconds that the exit of the interpreter waits for the records of producers that were not closed.
_EXIT_TIMEOUT = 10.0
_OPEN_AT_EXIT = "a producer was not closed"
_LOST = f"{_OPEN_AT_EXIT}, and records of it were not written: %s"
_ABORTED = f"{_OPEN_AT_EXIT}: its open transaction was aborted, with all records that were sent in it"
_NOT_ABORTED = f"{_OPEN_AT_EXIT}, and its open transaction could not be aborted, which its timeout does: %s"


class FlushedSender(Protocol):
    """The part of the sender that the background thread and the exit of the interpreter call."""

    def flush_for(self, batch: ProducerBatch | None) -> Exception | None:
        """Flush; return the error that prevented it, or None."""
        ...

    @property
    def has_more(self) -> bool:
        """Whether another flush may write records that the last one did not."""
        ...

    @property
    def holds_transaction(self) -> bool:
        """Whether the chain knows an open transaction that a close would abort."""
        ...

    def close(self) -> None:
        """Flush, or abort the open transaction; then refuse further calls. Raises errors not reported so far."""
        ...


#: What a caller waits for: the error that prevented the flush, or None.
Waiter: TypeAlias = SimpleQueue[Exception | None]
#: A sender to flush, and the waiter to wake afterwards; None instead of a sender ends the thread.
_FlushOrder = tuple[FlushedSender | None, Waiter | None]


class Linger:
    """The background thread of a sender, and the queue of its orders.

    The thread refers to the sender only while it serves an order, so a producer without other references is flushed,
    then collected, and its thread ends.

    Args:
        sender: The sender to flush.
        seconds: The linger time. None: no flush by time; the thread starts with the first waiter.
        retry_seconds: Seconds until a failed flush is repeated.
    """

    def __init__(self, sender: FlushedSender, seconds: float | None, retry_seconds: float = _RETRY_PAUSE) -> None:
        self._sender = weakref.ref(sender)
        #: The orders of all threads, which the thread serves one by one.
        self._orders: SimpleQueue[_FlushOrder] = SimpleQueue()
        self._linger_seconds = seconds
        self._retry_seconds = retry_seconds
        #: Whether :meth:`stop` was called; never reset.
        self._is_stopped = False
        #: The process that has the thread; a forked child has none.
        self._pid = os.getpid()
        #: What the thread runs. A task runs once, so of two threads only one serves orders.
        self.loop = Task(partial(_run_loop, self._orders, self))
        #: Whether the thread was started. Written without a lock: a second thread ends immediately.
        self._started = False
        #: Whether a flush is ordered, so that a record need not order one; always True without a linger time. Set
        #: before the order is queued, and reset before the flush begins: no record is added after a flush without one.
        self.woken = seconds is None
        finalizer = weakref.finalize(sender, self._orders.put, (None, None))
        finalizer.atexit = False
        _OPEN.add(self)
        if seconds is not None:
            self._start()

    def _start(self) -> None:
        """Start the thread. A second one, which an interrupt may cause, ends at once: only one runs the loop."""
        if not self._started and not self._is_stopped:
            start(self.loop.run, "txnstore-linger")
            self._started = True

    def wake(self) -> None:
        """Order a flush after the linger time."""
        sender = self._sender()
        if self._linger_seconds is not None and not self._is_stopped and sender is not None:
            self.woken = True
            self._orders.put((sender, None))

    def demand(self, waiter: Waiter) -> None:
        """Order a flush without delay, and wake the waiter after it."""
        self._start()
        self._orders.put((self._sender(), waiter))

    def stop(self) -> None:
        """End the thread; the caller flushes the remaining records."""
        self._is_stopped = True
        self._orders.put((None, None))
        if self.loop.cancel():
            _drop_orders(self._orders)  # The thread has not begun, and its orders refer to the sender.
        elif not self.loop.runs_here:
            self.loop.wait()

    def finish(self) -> None:
        """Close the sender at exit if records linger, or if its transaction would block readers until its timeout.

        Logs what is lost with that: an abort, also of records that were flushed, or records that were not written.
        """
        sender = self._sender()
        if sender is None or self._is_stopped or self._pid != os.getpid():
            return
        aborts = sender.holds_transaction
        if self._linger_seconds is not None or aborts:
            try:
                sender.close()
            except Exception as error:  # noqa: BLE001 - no caller can handle it
                _LOG.warning(_NOT_ABORTED if aborts else _LOST, error, extra={"error": str(error)})
                return
        if aborts:
            _LOG.warning(_ABORTED)
        elif sender.has_more:
            reason = "flush, commit or close it before the process ends"
            _LOG.warning(_LOST, reason, extra={"error": reason})

    # In the thread ----------------------------------------------------------------------------------------------------

    def wait_until_due(self, waiters: list[Waiter]) -> bool:
        """Wait for the linger time or the next order, and add its waiter; return False to end the thread."""
        if waiters:
            return True
        try:
            order, waiter = self._orders.get(timeout=self._linger_seconds or 0.0)
        except Empty:
            return True
        if waiter is not None:
            waiters.append(waiter)
        return order is not None

    def flush(self, sender: FlushedSender, waiters: list[Waiter]) -> bool:
        """Flush until it succeeds, with a pause between two attempts; return False to end the thread."""
        while True:
            if self._linger_seconds is not None:
                self.woken = False
            error = None
            try:
                error = sender.flush_for(None)
            except BaseException:  # noqa: BLE001 - a callback raised SystemExit; later records need the thread
                _LOG.exception("a flush in the background was ended by an exception that is no error")
            for waiter in waiters:
                waiter.put(error)
            waiters.clear()
            if error is None or self._linger_seconds is None or not sender.has_more:
                return True
            _LOG.warning("records wait for another flush: %s", error, extra={"error": str(error)})
            self.woken = True
            try:
                order, next_waiter = self._orders.get(timeout=self._retry_seconds)
            except Empty:
                continue
            if order is None:
                return False
            if next_waiter is not None:
                waiters.append(next_waiter)


def _run_loop(orders: SimpleQueue[_FlushOrder], linger: Linger) -> None:
    while _serve_order(orders, linger):
        pass
    _drop_orders(orders)


def _drop_orders(orders: SimpleQueue[_FlushOrder]) -> None:
    """Drop all orders: the call that ended the thread settles the batches, which wakes their waiters."""
    with suppress(Empty):
        while True:
            orders.get_nowait()


def _serve_order(orders: SimpleQueue[_FlushOrder], linger: Linger) -> bool:
    """Serve one order; return False to end the thread."""
    sender, waiter = orders.get()
    if sender is None:
        return False
    waiters = [waiter] if waiter is not None else []
    return linger.wait_until_due(waiters) and linger.flush(sender, waiters)


_OPEN: weakref.WeakSet[Linger] = weakref.WeakSet()


def _finish_all() -> None:
    """Close producers with lingering records or open transactions at exit, within a bounded time.

    A thread that the exit of the interpreter stops in the middle of a flush would lose the records, and would keep the
    store alive, with the database of its ``sql``, whose objects DuckDB then reports as leaked.
    """
    if not _OPEN:
        return
    task = Task(partial(_finish_in_order, list(_OPEN)))
    try:
        start(task.run, "txnstore-close")
    except RuntimeError:  # Newer versions of Python start no threads at this point.
        task.run()
    if not task.wait(_EXIT_TIMEOUT):
        _LOG.warning(_LOST, "the storage did not answer", extra={"error": "the storage did not answer"})


def _finish_in_order(lingers: list[Linger]) -> None:
    for linger in lingers:
        linger.finish()


atexit.register(_finish_all)


def linger_seconds(linger: float | str | None, transactional_id: str | None) -> float | None:
    """Return the linger time in seconds, with the default resolved; None: no flush by time."""
    if linger == "default":
        return 0.1 if transactional_id is None else None
    if linger is None:
        return None
    return check_seconds("linger", linger, most=threading.TIMEOUT_MAX)
