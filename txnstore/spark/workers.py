"""The interpreters of Spark's Python workers, which must find txnstore.

Spark starts ``PYSPARK_PYTHON`` of the environment of the driver, else ``python3``, which need not be the interpreter of
the driver. Where that one lacks txnstore, Spark says that there is no data source of this name, or fails to unpickle.
"""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txnstore.errors import InvalidConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PYTHON, _DRIVER_PYTHON, _SETTING = "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "spark.pyspark.python"
_PATH = "PYTHONPATH"
#: Prints the modules that an interpreter cannot find, without importing them.
_LOOK = "import importlib.util as u; print(*(m for m in ('txnstore', 'pyarrow') if u.find_spec(m) is None), sep=', ')"
#: A guard against an interpreter that hangs, in seconds.
_LOOK_S = 120


def check_workers(spark: SparkSession) -> None:
    """Check that the interpreter of the Python workers of a session finds txnstore, by starting it here once.

    It cannot be checked with Spark Connect, where Python files are sent to the workers (``--py-files``), or where the
    interpreter cannot be started on this machine.

    Raises:
        InvalidConfigError: It does not find txnstore or PyArrow; the message names the setting.
    """
    context: Any = getattr(spark, "sparkContext", None)
    if context is None or getattr(context, "_python_includes", None) or context.getConf().get("spark.submit.pyFiles"):
        return
    python = context.pythonExec
    paths = [getattr(context, "environment", {}).get(_PATH), os.environ.get(_PATH)]
    missing_packages = _missing_packages(python, os.pathsep.join(filter(None, paths)), str(Path.cwd()))
    if not missing_packages:
        return
    msg = f"the Python workers of Spark run {python}, which does not find {missing_packages}"
    if python == sys.executable:
        msg += f": install txnstore[spark] there, or set {_PATH} before the session starts"
    else:
        msg += (
            f"; this process runs {sys.executable}. Set the environment variable {_PYTHON}={sys.executable} before the "
            f"session starts (with spark-submit, {_SETTING}), or make the session with txnstore.spark.session()"
        )
    raise InvalidConfigError(msg)


@cache
def _missing_packages(python: str, path: str, folder: str) -> str:
    """Name what an interpreter lacks of txnstore and PyArrow; empty if it has both, or cannot be started."""
    command, env = [python, "-c", _LOOK], {**os.environ, _PATH: path}
    try:
        process = subprocess.run(
            command, env=env, cwd=folder, capture_output=True, text=True, timeout=_LOOK_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return process.stdout.strip().replace(", ", " and ")


def make_session(master: str | None, app_name: str | None, conf: dict[str, object]) -> SparkSession:
    """Implements :func:`txnstore.spark.session`."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        msg = "PySpark is not installed: install txnstore[spark]"
        raise InvalidConfigError(msg) from error
    for name in conf:
        if not name.startswith("spark."):
            msg = (
                f"{name!r} is no setting of Spark: their names start with spark., as in **{{'spark.ui.enabled': False}}"
            )
            raise InvalidConfigError(msg)
    if _SETTING in conf:  # Only spark-submit passes this setting to the workers.
        os.environ[_PYTHON] = str(conf[_SETTING])
    os.environ.setdefault(_PYTHON, sys.executable)
    os.environ.setdefault(_DRIVER_PYTHON, sys.executable)
    builder = SparkSession.builder
    if master is not None:
        builder = builder.master(master)
    if app_name is not None:
        builder = builder.appName(app_name)
    for name, value in conf.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    check_workers(session)
    return session


def freeze_worker_objects() -> None:
    """Exempt all present objects of a worker, mostly modules, from garbage collections. Called in a task.

    Spark collects the garbage of a worker after each task, before the worker takes the next one. Without this, that
    walks over 100,000 objects of PySpark, PyArrow and txnstore each time. Once in a process, so that what later tasks
    leave behind is collected.
    """
    from pyspark import TaskContext

    if TaskContext.get() is not None:
        _freeze_objects()


@cache
def _freeze_objects() -> None:
    gc.freeze()


class Sent:
    """An object that Spark sends to tasks; a worker that cannot import its class reports why."""

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes to send."""
        return self.__dict__

    def __reduce__(self) -> tuple[Callable[[bytes], object], tuple[bytes]]:
        return _make_receiver(), (pickle.dumps((type(self), self.__getstate__())),)


def _make_receiver() -> Callable[[bytes], object]:
    """Return a function that restores a sent object. Spark sends it by value, as it is no global of this module."""

    def receive(data: bytes) -> object:
        """Restore the object. Imports are local: Spark pickles this function by value."""
        import pickle
        import sys

        try:
            cls, state = pickle.loads(data)  # noqa: S301 - from our own driver
        except ModuleNotFoundError as error:
            msg = (
                f"this Python worker of Spark runs {sys.executable}, which does not find {error.name}: install "
                "txnstore[spark] there, or set PYSPARK_PYTHON (with spark-submit, spark.pyspark.python) to an "
                "interpreter that has it. See txnstore.spark.session()"
            )
            raise ModuleNotFoundError(msg, name=error.name) from None
        restored = object.__new__(cls)
        restored.__dict__.update(state)
        return restored

    return receive
