"""Executors without threads: the order of what runs is the test's."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class InlineExecutor(Executor):
    """Runs a task at once, in the thread that submits it. What kills a process (no ``Exception``) kills the caller."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - whoever asks the future gets it
            future.set_exception(error)
        return future


class DeferredExecutor(Executor):
    """Keeps tasks until :meth:`run_all`; what is never run is as lost as in a process that died.

    Whoever waits for a task runs it.
    """

    def __init__(self) -> None:
        self._tasks: list[_Deferred] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        task = _Deferred(lambda: fn(*args, **kwargs))
        self._tasks.append(task)
        return task

    def run_all(self) -> int:
        """Run what was submitted so far and nobody has waited for, in order; how many tasks that were."""
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
            except Exception as error:  # noqa: BLE001 - whoever asks the future gets it
                self.set_exception(error)

    def result(self, timeout: float | None = None) -> Any:
        if not self.done():
            self.run()
        return super().result(timeout)
