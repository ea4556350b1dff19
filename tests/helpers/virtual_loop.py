"""An event loop whose clock moves only when nothing else is left to do: tests of timers take no time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any


class _Selector(selectors.SelectSelector):
    """Instead of waiting for files, of which there are none, lets the time pass."""

    def __init__(self, wait: Callable[[float], None]) -> None:
        super().__init__()
        self._wait = wait

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        assert timeout is not None, "every task waits, and for no timer"
        self._wait(timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs one scenario, with files and threads left out."""

    def __init__(self) -> None:
        self._seconds = 1_000.0
        super().__init__(_Selector(self.pause))

    def time(self) -> float:
        return self._seconds

    def pause(self, seconds: float) -> None:
        """Let the time pass: as a pause of the process, if a task calls it."""
        self._seconds += seconds


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a scenario in virtual time; an error that no task has handled fails it."""
    unhandled: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.get_loop().set_exception_handler(lambda _loop, context: unhandled.append(context))
        runner.run(main)
    assert not unhandled, unhandled
