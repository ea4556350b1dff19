"""A manual clock: its time changes only through its methods."""

from __future__ import annotations

import threading


class ManualClock:
    """A callable that returns milliseconds since the epoch, for any ``clock`` argument. Thread-safe.

    Args:
        now_ms: The initial time in milliseconds since the epoch.
    """

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._lock = threading.Lock()

    def __call__(self) -> int:
        with self._lock:
            return self._now_ms

    def advance(self, ms: int) -> int:
        """Move the clock by ``ms`` milliseconds, back if negative; returns the new time."""
        with self._lock:
            self._now_ms += ms
            return self._now_ms

    def set(self, now_ms: int) -> None:
        """Set the time, in milliseconds since the epoch."""
        with self._lock:
            self._now_ms = now_ms

    def sleep(self, seconds: float) -> None:
        """Replace ``time.sleep``: advance the clock and return immediately."""
        self.advance(round(seconds * 1000))

    def __repr__(self) -> str:
        return f"ManualClock({self()})"
