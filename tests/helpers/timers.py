"""Timers whose time is that of a manual clock: a test rings those that are due, in its own thread."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from txnstore.testing import ManualClock


@dataclass
class ManualTimer:
    """A timer of :class:`Timers`; ``due`` is in ms, infinite without a time."""

    clock: ManualClock
    task: Callable[[], object]
    due: float = math.inf
    stopped: bool = False

    def set(self, seconds: float) -> None:
        self.due = self.clock() + seconds * 1000

    def stop(self) -> None:
        self.due, self.stopped = math.inf, True


class Timers:
    """All timers of a process."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.made: list[ManualTimer] = []

    def make(self, task: Callable[[], object]) -> ManualTimer:
        """The ``timer`` of a runtime."""
        self.made.append(ManualTimer(self.clock, task))
        return self.made[-1]

    def ring(self) -> int:
        """Call the tasks that are due; returns how many."""
        count = 0
        for timer in self.made:
            if timer.due <= self.clock():
                timer.due = math.inf
                timer.task()
                count += 1
        return count

    def pass_time(self, seconds: float) -> None:
        """Let the time pass, second by second, and the timers ring in it."""
        for _ in range(round(seconds)):
            self.clock.advance(1_000)
            self.ring()
