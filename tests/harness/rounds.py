"""Counts the round trips of an operation, without a clock: requests that wait for no answer of each other are one."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from tests.harness.executors import InlineExecutor
from txnstore.storage.counting import CountingStore


class Rounds(InlineExecutor):
    """An executor that runs tasks immediately, and knows which results were waited for.

    Attributes:
        count: The number of round trips that have ended: at the end of each the caller has waited for an answer. A task
            makes one request, and so does a call of :meth:`on`'s store outside of tasks, which waits at once.
    """

    def __init__(self) -> None:
        self.count = 0
        self._in_task = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        outer, self._in_task = self._in_task, True
        try:
            done = super().submit(fn, *args, **kwargs)
        finally:
            self._in_task = outer
        return _Awaited(self, done)

    def wait_for(self, begun: int) -> None:
        """Wait for the answer of a request that was begun in this round."""
        if not self._in_task:
            self.count = max(self.count, begun + 1)

    def on(self, objects: CountingStore) -> CountingStore:
        """The store, whose reads outside of tasks are round trips of their own."""

        def waiting(call: Callable[..., Any]) -> Callable[..., Any]:
            def wait(*args: Any, **kwargs: Any) -> Any:
                self.wait_for(self.count)
                return call(*args, **kwargs)

            return wait

        for name in ("get", "list", "stat"):
            setattr(objects, name, waiting(getattr(objects, name)))
        return objects


class _Awaited(Future[Any]):
    def __init__(self, rounds: Rounds, done: Future[Any]) -> None:
        super().__init__()
        self._rounds, self._done, self._begun = rounds, done, rounds.count

    def result(self, timeout: float | None = None) -> Any:
        self._rounds.wait_for(self._begun)
        return self._done.result(timeout)
