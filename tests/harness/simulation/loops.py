"""An event loop as one task of the scheduler: the code of a gateway, interleaved with everything else by the seed."""

from __future__ import annotations

import asyncio
import math
import random
import selectors
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from tests.harness.simulation.scheduler import Scheduler, Task


class Waiter:
    """A task that waits until it is woken, or for a time."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._task: Task | None = None
        self._woken = False
        self._waits = 0

    def wait(self, ms: int | None) -> None:
        """Wait at most so many milliseconds; not at all if :meth:`wake` was called since the last wait."""
        if not self._woken:
            self._task = self._scheduler.current
            self._waits += 1
            if ms is not None:
                self._scheduler.later(ms, partial(self._due, self._waits))
            self._scheduler.park()
        self._woken = False

    def wake(self) -> None:
        """End the wait, or the next one."""
        self._woken = True
        task, self._task = self._task, None
        if task is not None:
            self._scheduler.wake(task)

    def _due(self, wait: int) -> None:
        if wait == self._waits:
            self.wake()


class _Selector(selectors.SelectSelector):
    """Waits for no files."""

    def __init__(self, wait: Callable[[float | None], None]) -> None:
        super().__init__()
        self._wait = wait

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self._wait(timeout)
        return []


class ScheduledLoop(asyncio.SelectorEventLoop):
    """The loop of a simulated process; its clock is the virtual one.

    Args:
        scheduler: The scheduler; the loop runs in one of its tasks.
        rng: The randomness of the process.
        turn: Called before each round of callbacks; it may raise, or let time pass.
    """

    def __init__(self, scheduler: Scheduler, rng: random.Random, turn: Callable[[], None]) -> None:
        self._scheduler = scheduler
        self._rng = rng
        self._turn = turn
        self._waiter = Waiter(scheduler)
        super().__init__(_Selector(self._pass))

    def time(self) -> float:
        return self._scheduler.now / 1000

    def _write_to_self(self) -> None:
        self._waiter.wake()

    def _pass(self, timeout: float | None) -> None:
        self._turn()
        if timeout is None or timeout > 0:
            self._waiter.wait(None if timeout is None else max(1, math.ceil(timeout * 1000 - 1e-6)))
            self._turn()

    def bury(self) -> None:
        """End all that runs in it, as the death of its process does: nothing of it has an effect."""
        self.set_exception_handler(lambda _loop, _context: None)
        while tasks := asyncio.all_tasks(self):
            for task in sorted(tasks, key=lambda task: (len(task.get_name()), task.get_name())):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with suppress(BaseException):
                    task.get_coro().close()
                asyncio.tasks._unregister_task(task)
        self.close()
