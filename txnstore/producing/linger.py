"""The one thread of a producer: it flushes what has waited long enough."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from txnstore.errors import InvalidConfigError

_LOG = logging.getLogger(__name__)


#: Seconds until a flush that failed is tried again.
_AGAIN = 1.0


class Lingerer:
    """Calls ``flush`` ``seconds`` after the first :meth:`wake` since the last flush. Its thread starts when needed.

    If ``flush`` returns an error, what it left is tried again ``again`` seconds later.
    """

    def __init__(self, seconds: float, flush: Callable[[], BaseException | None], again: float = _AGAIN) -> None:
        self._seconds = seconds
        self._again = again
        self._flush = flush
        self._wanted = threading.Event()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def wake(self) -> None:
        """Something waits to be flushed."""
        if self._wanted.is_set():
            return
        with self._lock:
            self._wanted.set()
            if self._thread is None and not self._stopped.is_set():
                self._thread = threading.Thread(target=self._run, name="txnstore-linger", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """End the thread; the caller flushes what is left."""
        self._stopped.set()
        self._wanted.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            if self._stopped.wait(self._seconds):
                return
            self._wanted.clear()
            if self._stopped.is_set():
                return  # The stop came before the line above, which has wiped out its call.
            error = self._flush()
            if error is not None:
                _LOG.warning("records wait for another flush", extra={"error": str(error)})
                if self._stopped.wait(self._again):
                    return
                self._wanted.set()


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
