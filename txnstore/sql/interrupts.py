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
    """Raise the ``KeyboardInterrupt`` that an error of DuckDB stands for; return if it is another error.

    An exception of Python that reached DuckDB is an error of no special class, with the traceback as its text. The text
    of any other error may have the word, too: from the query, or from a record.
    """
    import duckdb

    text = str(error)
    is_of_python = type(error) in (duckdb.Error, RuntimeError)
    is_raised = is_of_python and text.rstrip().rpartition("\n")[2].startswith("KeyboardInterrupt")
    if isinstance(error, duckdb.InterruptException) or text == "Query interrupted" or is_raised:
        raise KeyboardInterrupt from error
