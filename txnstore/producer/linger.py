"""The thread of a sender: it flushes what has lingered long enough, and what somebody waits for with a time limit."""

from __future__ import annotations

import logging
import threading
import weakref
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Protocol

from txnstore.errors import InvalidConfigError
from txnstore.producer.batches import Batch, Waiter

_LOG = logging.getLogger(__name__)

#: Seconds until a flush that failed is tried again.
_AGAIN = 1.0


class Flushing(Protocol):
    """What the thread calls."""

    def flush_for(self, batch: Batch | None) -> Exception | None:
        """Flush; why it could not be done."""
        ...

    @property
    def has_more(self) -> bool:
        """Whether another flush may write what this one did not."""
        ...


#: A sender to flush for, with the one who waits for it; None instead of a sender ends the thread.
_Order = tuple[Flushing | None, Waiter | None]


class Linger:
    """Orders to the thread. With ``seconds`` it runs from the start; without, it starts when somebody waits.

    The thread refers to the sender only from an order to its end, so a producer that nobody refers to any more is
    written out, and then collected with its thread.
    """

    def __init__(self, sender: Flushing, seconds: float | None, again: float = _AGAIN) -> None:
        self._sender = weakref.ref(sender)
        self._orders: SimpleQueue[_Order] = SimpleQueue()
        self._seconds = seconds
        self._again = again
        self._stopped = False
        self.thread: threading.Thread | None = None
        #: Whether a flush is due. Set before the order is given, taken back before the flush begins.
        self.woken = seconds is None
        finalizer = weakref.finalize(sender, self._orders.put, (None, None))
        finalizer.atexit = False
        if seconds is not None:
            self._start()

    def _start(self) -> None:
        """Start the thread. If an interrupt comes in between, another one may start; they share the orders."""
        if self.thread is None and not self._stopped:
            thread = threading.Thread(target=_run, args=(self._orders, self), name="txnstore-linger", daemon=True)
            thread.start()
            self.thread = thread

    def wake(self) -> None:
        """Records wait: flush them when they have lingered."""
        sender = self._sender()
        if self._seconds is not None and not self._stopped and sender is not None:
            self.woken = True
            self._orders.put((sender, None))

    def demand(self, waiter: Waiter) -> None:
        """Flush now, and wake the waiter then."""
        self._start()
        self._orders.put((self._sender(), waiter))

    def stop(self) -> None:
        """End the thread; the caller flushes what is left."""
        self._stopped = True
        self._orders.put((None, None))
        thread = self.thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    # In the thread ----------------------------------------------------------------------------------------------------

    def due(self, waiters: list[Waiter]) -> bool:
        """Wait until the flush is due; False to end. Another order ends the wait; one that waits is added."""
        if waiters:
            return True
        try:
            order, waiter = self._orders.get(timeout=self._seconds or 0.0)
        except Empty:
            return True
        if waiter is not None:
            waiters.append(waiter)
        return order is not None

    def flush(self, sender: Flushing, waiters: list[Waiter]) -> bool:
        """Flush until it succeeds, a pause between two tries; False to end."""
        while True:
            if self._seconds is not None:
                self.woken = False
            error = sender.flush_for(None)
            for waiter in waiters:
                waiter.wake(error)
            waiters.clear()
            if error is None or self._seconds is None or not sender.has_more:
                return True
            _LOG.warning("records wait for another flush", extra={"error": str(error)})
            self.woken = True
            try:
                order, another = self._orders.get(timeout=self._again)
            except Empty:
                continue
            if order is None:
                return False
            if another is not None:
                waiters.append(another)


def _run(orders: SimpleQueue[_Order], linger: Linger) -> None:
    while _serve(orders, linger):
        pass
    with suppress(Empty):  # The call that ended the thread settles the batches, which wakes all that wait for them.
        while True:
            orders.get_nowait()
    orders.put((None, None))  # An interrupt of a start may have left two threads: each takes one order to end.


def _serve(orders: SimpleQueue[_Order], linger: Linger) -> bool:
    """Serve one order; False to end. A function of its own, so that nothing refers to the sender between two orders."""
    sender, waiter = orders.get()
    if sender is None:
        return False
    waiters = [waiter] if waiter is not None else []
    return linger.due(waiters) and linger.flush(sender, waiters)


def linger_seconds(linger: float | str | None, transactional_id: str | None) -> float | None:
    """What a producer was asked for: a number of seconds, None (never by itself) or its default."""
    if linger == "default":
        return 0.1 if transactional_id is None else None
    if linger is None:
        return None
    if isinstance(linger, str) or not 0 <= linger < threading.TIMEOUT_MAX:
        msg = f"linger must be a number of seconds of at least 0, or None, not {linger!r}"
        raise InvalidConfigError(msg)
    return float(linger)
