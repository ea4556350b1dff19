"""A clock that moves only when it is told to."""

from __future__ import annotations

import threading


class ManualClock:
    """A callable that gives milliseconds since the epoch, wherever a ``clock`` is asked for. Safe for many threads."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._lock = threading.Lock()

    def __call__(self) -> int:
        with self._lock:
            return self._now_ms

    def advance(self, ms: int) -> int:
        """Move the clock forward (or back, if negative); returns the new time."""
        with self._lock:
            self._now_ms += ms
            return self._now_ms

    def set(self, now_ms: int) -> None:
        """Move the clock to this time."""
        with self._lock:
            self._now_ms = now_ms

    def sleep(self, seconds: float) -> None:
        """Stands in for ``time.sleep``: returns at once and moves the clock."""
        self.advance(round(seconds * 1000))

    def __repr__(self) -> str:
        return f"ManualClock({self()})"
