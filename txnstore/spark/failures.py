"""Errors of txnstore in Spark's Python processes: Spark shows their line, without a traceback.

A Python process of Spark sends an error to the JVM as text: the traceback, the chain of its causes, and the line of the
error last. The JVM puts that text into its own message. For an error of txnstore the line says it all, so the process
is asked for the line alone, by Spark's own switch. Unexpected errors keep their traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import isgeneratorfunction
from typing import Any, TypeVar

from txnstore.errors import TxnStoreError

_Class = TypeVar("_Class", bound=type)

#: With this variable, a Python process of Spark reports an error without its traceback. It ends with the error, so
#: nothing else that it runs is affected. (``spark.sql.execution.pyspark.udf.hideTraceback.enabled`` sets it, too.)
_HIDE = "SPARK_HIDE_TRACEBACK"


def line_first(kind: _Class) -> _Class:
    """Decorate a class: errors of txnstore that leave a method reach Spark's user as one line."""
    for name, method in list(vars(kind).items()):
        if callable(method) and not isinstance(method, type) and (name == "__init__" or not name.startswith("_")):
            setattr(kind, name, _hide_traceback(method))
    return kind


def _hide_traceback(method: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method, or a generator, so that an error of txnstore in a worker has no traceback."""
    if isgeneratorfunction(method):

        @wraps(method)
        def iterate(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with _report_one_line():
                yield from method(*args, **kwargs)

        return iterate

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        with _report_one_line():
            return method(*args, **kwargs)

    return call


@contextmanager
def _report_one_line() -> Iterator[None]:
    """Let Spark report an error of the block in one line, without a traceback, in a worker."""
    try:
        yield
    except TxnStoreError:
        if is_worker():
            os.environ[_HIDE] = "1"
        raise


def is_worker() -> bool:
    """Whether this process was started by Spark's JVM, and is not a driver that calls these classes itself."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec is not None and spec.name.startswith("pyspark.")
