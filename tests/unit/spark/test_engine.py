"""The engine that executes jobs as tasks of Spark, without a session: choosing it, and what a task returns."""

from __future__ import annotations

import pickle
import subprocess
import sys
import venv
from concurrent.futures import Executor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import txnstore
from tests.helpers.cli import Cli
from txnstore.errors import CorruptionError, InvalidConfigError, ObjectNotFoundError, StorageRefusedError
from txnstore.read.reader import is_missing
from txnstore.runtime import Runtime
from txnstore.spark import engine
from txnstore.spark.engine import _decode_outcome, _task_function, execute, session
from txnstore.storage.base import ObjectStore
from txnstore.storage.local import LocalStore


def _raises(objects: ObjectStore, pool: Executor, runtime: Runtime, *, error: Exception, cause: Exception) -> None:
    raise error from cause


def _counts(objects: ObjectStore, pool: Executor, runtime: Runtime) -> int:
    return pool.submit(len, list(objects.list(""))).result() + len(runtime.new_id())


def _executed(folder: Path, job: Any) -> tuple[Any, Exception | None]:
    return _decode_outcome(None, execute(pickle.dumps(LocalStore(str(folder))), pickle.dumps(job)))


@pytest.mark.parametrize("arguments", [{"engine": "flink"}, {"engine": "flink", "dry_run": True}, {"engine": None}])
def test_an_unknown_engine_is_refused_with_the_known_ones(arguments: dict[str, Any]) -> None:
    with txnstore.create("memory://unknown-engine", exist_ok=True) as store:
        message = r"engine must be 'duckdb' or 'spark', not"
        with pytest.raises(InvalidConfigError, match=message):
            store.compact(**arguments)
        with pytest.raises(InvalidConfigError, match=message):
            store.verify(engine=arguments["engine"])


def test_a_store_in_memory_is_refused_before_spark_starts() -> None:
    with txnstore.create("memory://no-engine", exist_ok=True) as store:
        with pytest.raises(InvalidConfigError, match="memory of one process, but Spark uses several"):
            store.compact(engine="spark")
        with pytest.raises(InvalidConfigError, match="memory of one process, but Spark uses several"):
            store.verify(deep=True, engine="spark")


def test_what_reads_no_data_starts_no_spark() -> None:
    with txnstore.create("memory://no-spark", exist_ok=True) as store:
        assert store.compact(engine="spark", dry_run=True).partitions == ()
        with pytest.raises(InvalidConfigError, match="needs deep=True"):
            store.verify(engine="spark")


def test_without_pyspark_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(InvalidConfigError, match=r"the engine spark needs PySpark: .*Install txnstore\[spark\]"):
        session({})


@pytest.mark.parametrize(
    ("conf", "named"),
    [
        ({"spark.master": "spark://user:secret@head:7077"}, "the master is spark://head:7077"),
        ({}, "the master is that of Spark's own configuration"),
    ],
)
def test_a_session_that_does_not_start_names_its_master(
    conf: dict[str, object], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark itself says "Cannot call methods on a stopped SparkContext", of a master that it did not reach."""

    def unreachable(*_: object) -> None:
        raise Py4JError("Cannot call methods on a stopped SparkContext.")

    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(engine, "make_session", unreachable)
    with pytest.raises(InvalidConfigError) as raised:
        session(conf)
    assert str(raised.value).endswith(named)


def test_a_task_returns_the_result_of_its_job(tmp_path: Path) -> None:
    assert _executed(tmp_path, _counts) == (36, None)


def test_a_task_returns_the_error_of_its_job_with_its_cause(tmp_path: Path) -> None:
    """The driver tells a segment that was replaced and vacuumed meanwhile from one that is lost."""
    error, cause = CorruptionError("segment s is missing"), ObjectNotFoundError("s")
    result, failure = _executed(tmp_path, partial(_raises, error=error, cause=cause))
    assert (result, str(failure)) == (None, "segment s is missing")
    assert isinstance(failure, CorruptionError)
    assert is_missing(failure)


def test_an_error_of_the_machine_of_a_task_names_the_machine(tmp_path: Path) -> None:
    error = StorageRefusedError("a clean cannot spill to /tmp: no space left")
    _, failure = _executed(tmp_path, partial(_raises, error=error, cause=OSError("no space left")))
    assert isinstance(failure, StorageRefusedError)
    assert str(failure).startswith("a clean cannot spill to /tmp: no space left (in a task of Spark on ")


def test_a_worker_without_txnstore_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real interpreter that has nothing but the standard library executes a task."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    venv.create(tmp_path / "bare", with_pip=False)
    bare = str(tmp_path / "bare" / "bin" / "python")
    package = Path(cloudpickle.__file__).parents[1]
    (tmp_path / "pyspark").mkdir()
    (tmp_path / "pyspark" / "__init__.py").touch()
    (tmp_path / "pyspark" / "cloudpickle").symlink_to(package / "cloudpickle")
    (tmp_path / "task").write_bytes(cloudpickle.dumps(_task_function(b"")))  # type: ignore[no-untyped-call]
    code = "import pickle, sys; sys.stdout.buffer.write(pickle.dumps(pickle.load(open('task', 'rb'))(b'')))"
    done = subprocess.run([bare, "-c", code], cwd=tmp_path, capture_output=True, timeout=600, check=True)
    result, error = _decode_outcome(*pickle.loads(done.stdout))  # noqa: S301 - of our own process
    assert result is None
    assert isinstance(error, InvalidConfigError)
    assert f"runs {bare}, which does not find txnstore: install txnstore[spark] there, or set" in str(error)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("compact", "--engine", "flink"), "'flink' is not one of 'duckdb', 'spark'"),
        (("compact", "--spark-conf", "spark.a=b"), "--spark-conf needs --engine spark"),
        (("compact", "--engine", "spark", "--spark-conf", "local"), "--spark-conf takes KEY=VALUE"),
        (("verify", "--engine", "spark"), "--engine spark needs --deep"),
    ],
)
def test_options_without_effect_are_refused(
    monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    result = Cli("memory://options", monkeypatch)(*arguments)
    assert (result.status, message in result.err) == (2, True), result.err
