"""Executes maintenance jobs, those of compactions and deep verifications, as tasks of Spark.

A job only reads and uploads segments; the driver plans, and commits what the tasks have uploaded. So a task may fail,
run again or run twice: what is not committed is left to the vacuum.
"""

from __future__ import annotations

import pickle
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

from txnstore.connection import Connection
from txnstore.errors import CorruptionError, InvalidConfigError, TxnStoreError
from txnstore.runtime import Runtime
from txnstore.spark.options import make_location
from txnstore.spark.workers import check_workers, make_session
from txnstore.storage.base import ObjectStore
from txnstore.threads import Workers, load

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

K = TypeVar("K")
T = TypeVar("T")

#: The most tasks of a Spark job. What they have uploaded is committed before the next one starts.
_TASKS = 1_000
#: Threads per task: enough to fetch the next segments while one is decoded.
_THREADS = 4


class SparkEngine:
    """Executes each job as a task of the active session, or of a new one with Spark's own configuration.

    Args:
        connection: The connection to the store. The tasks get its storage options.

    Raises:
        InvalidConfigError: PySpark is not installed, no session can be started, its workers do not find txnstore, or
            they cannot reach the store.
    """

    def __init__(self, connection: Connection) -> None:
        make_location(connection.url, {})
        self._objects = connection.objects
        self._spark = session({})

    def run(
        self, jobs: Iterable[tuple[K, Callable[[ObjectStore, Executor, Runtime], T]]]
    ) -> Iterator[tuple[K, Callable[[], T]]]:
        """Execute jobs, up to 1,000 at a time; yield the successful ones first, each with a call for its result.

        A job that failed raises its error when its result is asked for, after the others.

        Raises:
            TxnStoreError: Spark has ended its job, because a worker died several times in the same task.
        """
        remaining_jobs = iter(jobs)
        store = pickle.dumps(self._objects)
        while wave := list(islice(remaining_jobs, _TASKS)):
            tasks = [pickle.dumps(job) for _, job in wave]
            try:
                results = self._spark.sparkContext.parallelize(tasks, len(tasks)).map(_task_function(store)).collect()
            except _spark_errors() as error:
                msg = (
                    f"a job of Spark failed, and nothing of it was committed: {_summary(error)}. If a worker had too "
                    "little memory, lower memory_limit, or give the executors more (spark.executor.memoryOverhead)"
                )
                raise TxnStoreError(msg) from error
            outcomes = [(value, *_decode_outcome(*result)) for (value, _), result in zip(wave, results, strict=True)]
            for value, result, failure in sorted(outcomes, key=lambda outcome: outcome[2] is not None):
                yield value, partial(_return_or_raise, result, failure)


def _return_or_raise(result: T, error: TxnStoreError | None) -> T:
    if error is not None:
        raise error
    return result


def _decode_outcome(missing_package: str | None, outcome: bytes) -> tuple[Any, TxnStoreError | None]:
    """Return the result of a task, or its error."""
    if missing_package is not None:
        advice = "install txnstore[spark] there, or set spark.pyspark.python to an interpreter that has it"
        return None, InvalidConfigError(f"{missing_package}: {advice}")
    result, error, cause = pickle.loads(outcome)  # noqa: S301 - from our own task
    if error is not None:
        error.__cause__ = cause
    return result, error


def _task_function(store: bytes) -> Callable[[bytes], tuple[str | None, bytes]]:
    """Return the function of a task. Spark sends it by value, so that a worker without txnstore can say so."""

    def run(job: bytes) -> tuple[str | None, bytes]:
        """Execute a job in a task; return None and its result, or the error of a worker without txnstore."""
        import platform
        import sys

        try:
            from txnstore.spark.engine import execute

            return None, execute(store, job)
        except ModuleNotFoundError as error:
            worker = f"the Python worker of Spark on {platform.node()} runs {sys.executable}"
            return f"{worker}, which does not find {error.name}", b""

    return run


def execute(store: bytes, job: bytes) -> bytes:
    """Execute a job in this process.

    Args:
        store: The object store, pickled.
        job: The job, pickled.

    Returns:
        Its result, or its error and the cause of that, pickled.
    """
    objects: ObjectStore = pickle.loads(store)  # noqa: S301 - from our own driver
    pool = Workers(_THREADS, "txnstore-task")
    try:
        return pickle.dumps((pickle.loads(job)(objects, pool, Runtime()), None, None))  # noqa: S301 - the same
    except TxnStoreError as error:
        if not isinstance(error, CorruptionError):
            error.args = (f"{error} (in a task of Spark on {platform.node()})",)
        cause = error.__cause__
        return pickle.dumps((None, error, cause if isinstance(cause, TxnStoreError) else None))
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        objects.close()


def session(conf: Mapping[str, object]) -> SparkSession:
    """Return the active session, or a new one with these settings.

    Raises:
        InvalidConfigError: There is none that can be used.
    """
    load("pyspark.sql")
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        msg = f"the engine spark needs PySpark: {error}. Install txnstore[spark]"
        raise InvalidConfigError(msg) from error
    try:
        spark = SparkSession.getActiveSession() or make_session(None, "txnstore", dict(conf))
    except _spark_errors() as error:
        master = re.sub(r"//[^/]*@", "//", str(conf.get("spark.master", "that of Spark's own configuration")))
        msg = (
            f"Spark does not start: {_summary(error)}. It needs Java 17 or newer, and a master that it can reach; the "
            f"master is {master}"
        )
        raise InvalidConfigError(msg) from error
    if not hasattr(spark, "sparkContext"):
        msg = "the engine spark needs a classic session, not Spark Connect"
        raise InvalidConfigError(msg)
    check_workers(spark)
    return spark


def _spark_errors() -> tuple[type[Exception], ...]:
    """Return the classes of Spark's errors in Python code."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    return Py4JError, PySparkException


def _summary(error: Exception) -> str:
    """Return the first line of an error; of one in the JVM, that of its exception, after the failed call."""
    lines = str(error).splitlines()
    return (lines[1] if len(lines) > 1 and lines[1].startswith(": ") else lines[0]).removeprefix(": ").rstrip(".")
