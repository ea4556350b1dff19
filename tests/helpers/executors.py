"""Workers that do their work at once, when the test says so, or never: what becomes of a commit is then no race."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class AtOnce(Executor):
    """Runs what it is given before ``submit`` returns: a commit returns with all markers written."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # noqa: BLE001 - it is the future's
            future.set_exception(error)
        return future


class Never(Executor):
    """Takes work and does none of it, as a process that dies right after its commit has returned."""

    def __init__(self) -> None:
        self.taken = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.taken += 1
        future: Future[Any] = Future()
        future.set_result(None)
        return future
