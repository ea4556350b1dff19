"""Waits for what other threads and processes do."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Seconds after which a test gives up: it has failed.
_SECONDS = 60


def until(happened: Callable[[], bool]) -> None:
    """Ask again and again until something has happened."""
    end = time.monotonic() + _SECONDS
    while not happened():
        assert time.monotonic() < end, "it has not happened"
        time.sleep(0.01)
