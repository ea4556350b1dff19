"""Executors without threads, so that a test controls the order of tasks."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


def never(_task: Callable[[], object]) -> None:
    """Start no task: a dropped consumer stays in its group, as that of a killed process."""


class InlineExecutor(Executor):
    """Runs a task immediately, in the thread that submits it.

    An exception that is no ``Exception``, such as a simulated crash, is raised by ``submit``.
    """

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - Future.result() raises it.
            future.set_exception(error)
        return future


class DeferredExecutor(Executor):
    """Defers tasks until :meth:`run_all`, or until a caller waits for their result.

    A task that never runs is lost, as in a process that crashes.
    """

    def __init__(self) -> None:
        self._tasks: list[_Deferred] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        task = _Deferred(lambda: fn(*args, **kwargs))
        self._tasks.append(task)
        return task

    def run_all(self) -> int:
        """Run the deferred tasks in order, and those that they defer; returns their number."""
        number = 0
        while ran := self.run_waiting():
            number += ran
        return number

    def run_waiting(self) -> int:
        """Run the deferred tasks in order, and leave those that they defer; returns their number."""
        tasks, self._tasks = [task for task in self._tasks if not task.done()], []
        for task in tasks:
            task.run()
        return len(tasks)


class _Deferred(Future[Any]):
    def __init__(self, task: Callable[[], Any]) -> None:
        super().__init__()
        self._task = task

    def run(self) -> None:
        if not self.done() and self.set_running_or_notify_cancel():
            try:
                self.set_result(self._task())
            except Exception as error:  # noqa: BLE001 - Future.result() raises it.
                self.set_exception(error)

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            self.run()
        return super().result(timeout)
