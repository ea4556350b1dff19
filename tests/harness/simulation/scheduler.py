"""A scheduler that runs exactly one of many threads; the seed determines the next thread and the virtual time.

While it runs, each task has a thread, so the code in it is the real one, with its real stack. A task gives up its turn
in :meth:`Scheduler.sleep` only; the next task on the virtual clock continues. So a run is a function of its seed.
"""

from __future__ import annotations

import heapq
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field


class Stopped(BaseException):
    """The simulation ends here. No ``except Exception`` below catches it."""


class Deadlock(RuntimeError):  # noqa: N818 - the usual term
    """A deadlock: tasks wait for each other."""


class TooManySteps(RuntimeError):  # noqa: N818 - names the event
    """The run does not come to an end."""


@dataclass(eq=False, slots=True)
class Task:
    """A scheduled thread: its name, its function, and the baton that it waits for."""

    name: str
    work: Callable[[], None]
    baton: threading.Lock = field(default_factory=threading.Lock)
    done: bool = False


@dataclass(eq=False, slots=True)
class _Thread:
    """A thread that runs one task after the other; a new one for each would cost more than most tasks."""

    task: Task | None
    woken: threading.Lock = field(default_factory=threading.Lock)


class Scheduler:
    """The virtual clock (``now``, in milliseconds) and the tasks that wait for it."""

    def __init__(self, rng: random.Random, *, max_steps: int = 200_000) -> None:
        self.now = 0
        self.steps = 0
        self.current: Task | None = None
        self._rng = rng
        self._max_steps = max_steps
        self._heap: list[tuple[int, float, int, Task | Callable[[], None]]] = []
        self._pushed = 0
        self._tasks: list[Task] = []
        self._idle: list[_Thread] = []
        self._main = threading.Lock()
        self._error: BaseException | None = None
        self._stopping = False

    # Used by tasks ----------------------------------------------------------------------------------------------------

    def sleep(self, ms: int) -> None:
        """Give up the turn until ``ms`` milliseconds are over. Outside of a run, only the clock moves."""
        task = self.current
        if task is None:
            self.now += ms
            return
        self._push(ms, task)
        self._give_up(task)

    def park(self) -> None:
        """Give up the turn until a call of :meth:`wake`."""
        assert self.current is not None
        self._give_up(self.current)

    def wake(self, task: Task) -> None:
        """Schedule a parked task again."""
        self._push(0, task)

    def later(self, ms: int, action: Callable[[], None]) -> None:
        """Call ``action``, which must not sleep, in ``ms`` milliseconds, unless the run ends before."""
        self._push(ms, action)

    def spawn(self, name: str, work: Callable[[], None], delay_ms: int = 0) -> Task:
        """Start a task; it has its first turn in ``delay_ms`` milliseconds."""
        task = Task(name, work)
        task.baton.acquire()
        self._tasks.append(task)
        if self._idle:
            thread = self._idle.pop()
            thread.task = task
            thread.woken.release()
        else:
            threading.Thread(target=self._serve, args=(_Thread(task),), daemon=True).start()
        self._push(delay_ms, task)
        return task

    # Used by the caller of the run ------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run until all tasks have ended. Raises what one of them raised."""
        self._main.acquire()
        self._hand_over(None)
        self._main.acquire()
        if self._error is None and any(not task.done for task in self._tasks):
            waiting = ", ".join(task.name for task in self._tasks if not task.done)
            self._error = Deadlock(f"deadlock: {waiting} wait for each other")
        self._end_all()
        self._main.release()
        if self._error is not None:
            raise self._error

    def drain(self) -> None:
        """Run the remaining actions after the last task has ended, in order: late writes arrive."""
        while self._heap:
            at, _, _, action = heapq.heappop(self._heap)
            self.now = max(self.now, at)
            if callable(action):
                action()

    # Inside -----------------------------------------------------------------------------------------------------------

    def _push(self, ms: int, action: Task | Callable[[], None]) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (self.now + ms, self._rng.random(), self._pushed, action))

    def _give_up(self, task: Task) -> None:
        if not self._stopping and self._hand_over(task):
            task.baton.acquire()
        if self._stopping:
            raise Stopped
        self.current = task

    def _hand_over(self, own: Task | None) -> bool:
        """Resume the next task; False if that is the caller itself."""
        self.steps += 1
        if self.steps > self._max_steps and self._error is None:
            self._error = TooManySteps(f"no end after {self._max_steps} steps")
        while self._heap and self._error is None:
            at, _, _, action = heapq.heappop(self._heap)
            self.now = max(self.now, at)
            if isinstance(action, Task):
                if action is own:
                    return False
                self.current = action
                action.baton.release()
                return True
            self.current = None
            action()
            if all(task.done for task in self._tasks):
                break
        self.current = None
        self._main.release()
        return True

    def _serve(self, thread: _Thread) -> None:
        thread.woken.acquire()
        while thread.task is not None:
            self._body(thread, thread.task)
            thread.woken.acquire()

    def _body(self, thread: _Thread, task: Task) -> None:
        task.baton.acquire()
        try:
            if not self._stopping:
                self.current = task
                task.work()
        except Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - raised by run()
            self._error = self._error or error
        task.done, thread.task = True, None
        self._idle.append(thread)  # Before the turn is given up: only the thread with the turn changes the list.
        if self._stopping:
            self._main.release()
        elif all(other.done for other in self._tasks):
            self.current = None
            self._main.release()
        else:
            self._hand_over(None)

    def _end_all(self) -> None:
        """Unwind the threads that have not ended, one after the other."""
        self._stopping = True
        for task in self._tasks:
            if not task.done:
                task.baton.release()
                self._main.acquire()
        self.current = None
        for thread in self._idle:
            thread.woken.release()
