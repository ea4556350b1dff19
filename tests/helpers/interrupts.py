"""Interrupts (Ctrl-C) at exact places: a KeyboardInterrupt instead of the n-th line of chosen functions."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


class Interrupter:
    """Interrupts the calling thread before the ``n``-th line that it runs in ``functions`` (``Class.method``).

    Lines with ``with`` are no places: they are seen once more when the block has ended, where no signal can come.
    """

    def __init__(self, functions: set[str], n: int) -> None:
        self._functions = functions
        self._left = n

    def run(self, call: Callable[[], object]) -> bool:
        """Call; True if it was interrupted, False if it ended before the n-th line."""
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            call()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_qualname not in self._functions:
            return None if event == "call" else self._trace
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and not line.startswith("with "):
            self._left -= 1
            if self._left == 0:
                sys.settrace(None)
                raise KeyboardInterrupt
        return self._trace


def everywhere(functions: set[str], attempt: Callable[[Interrupter], bool]) -> Iterator[int]:
    """Run ``attempt`` with an interrupt at the first line, the second, … until it is not interrupted any more."""
    n = 1
    while attempt(Interrupter(functions, n)):
        yield n
        n += 1
