"""Lets an interrupt (Ctrl-C) end a call of DuckDB."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from txnstore.threads import Task, start

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

R = TypeVar("R")


def interruptible(connection: DuckDBPyConnection, call: Callable[[], R]) -> R:
    """Call DuckDB in another thread: in its own, an interrupt has no effect, or is another error."""
    task = Task(call)
    start(task.run, "txnstore-query")
    try:
        return task.result()
    except KeyboardInterrupt:
        while not task.cancel() and not task.done():  # An interrupt before the query has begun is lost.
            connection.interrupt()
            task.wait(0.05)
        raise


def raise_interrupt(error: BaseException) -> None:
    """Raise the ``KeyboardInterrupt`` that an error of DuckDB stands for; return if it is another error."""
    import duckdb

    text = str(error)
    if isinstance(error, duckdb.InterruptException) or text == "Query interrupted" or "KeyboardInterrupt" in text:
        raise KeyboardInterrupt from error
