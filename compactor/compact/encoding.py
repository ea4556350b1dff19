"""Hashes and encodes rows in other threads than the one that reads them, if there is memory for that."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Self, TypeVar

from txnstore.compactor.compact.memory import Memory
from txnstore.threads import Task

T = TypeVar("T")

#: The bytes of the decoded rows that wait until a row group is encoded; one table may have more.
_WAITING_BYTES = 32 << 20


def begin(pool: Executor, memory: Memory, work: Callable[[], T]) -> Task[T]:
    """Begin work in a pool, beside the caller; with few threads it has ended when this returns."""
    task = Task(work)
    if memory.few_threads:
        task.run()
    else:
        pool.submit(task.run)
    return task


class BackgroundQueue:
    """Runs work in a pool, one task after the other, while the caller continues; with few threads in its own.

    Most tables only wait for their row group, and the one that fills it takes long to encode. Some tables wait
    meanwhile, so that the next ones can be decoded.

    The end of the block waits for a running task, also after an interrupt, and lets no other begin: nothing may write
    to what the caller closes next.

    Args:
        pool: Runs the work.
    """

    def __init__(self, pool: Executor, memory: Memory) -> None:
        self._pool, self._memory = pool, memory
        #: The tasks whose result the caller has not taken, in order, with their bytes; only the caller uses them.
        self._tasks: deque[tuple[int, Task[None]]] = deque()
        self._bytes = 0
        #: Guards the next two, which the caller and the pool share.
        self._lock = threading.Lock()
        #: The tasks that have not begun.
        self._waiting: deque[Task[None]] = deque()
        #: Whether a thread of the pool runs :meth:`_run_waiting`, or is about to.
        self._is_working = False
        #: Held while a task runs; the end of the block takes it, so that none runs afterwards.
        self._work_lock = threading.Lock()
        #: No task begins any more: the block has ended, or a task has failed.
        self._has_ended = False

    def run(self, work: Callable[[], None], size: int) -> None:
        """Run work after the earlier work; waits for that while the tables of all waiting work are too large.

        Raises the error of earlier work, if there is one.
        """
        if self._memory.few_threads:
            work()
            return
        while self._tasks and (self._tasks[0][1].done() or self._bytes + size > _WAITING_BYTES):
            self._take_first_result()
        task = Task(work)
        self._tasks.append((size, task))
        self._bytes += size
        with self._lock:
            self._waiting.append(task)
            busy, self._is_working = self._is_working, True
        if not busy:
            self._pool.submit(self._run_waiting)

    def wait(self) -> None:
        """Wait until all work has ended. Raises the first error of it."""
        while self._tasks:
            self._take_first_result()

    def _take_first_result(self) -> None:
        size, task = self._tasks.popleft()
        task.result()
        self._bytes -= size

    def _run_waiting(self) -> None:
        """Run waiting tasks in order until there are none, or one fails."""
        with self._work_lock:
            while True:
                with self._lock:
                    if self._has_ended or not self._waiting:
                        self._is_working = False
                        return
                    task = self._waiting.popleft()
                task.run()
                if task.exception() is not None:
                    self._has_ended = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._has_ended = True
        interrupt: BaseException | None = None
        while True:
            try:
                with self._work_lock:
                    break
            except BaseException as caught:  # noqa: BLE001 - raised when nothing runs
                interrupt = caught
        if interrupt is not None:
            raise interrupt
