"""Python workers of Spark that do not find txnstore: a real interpreter without it, and no session of Spark."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import py4j
import pyspark
import pytest
from pyspark import TaskContext, cloudpickle

from txnstore.errors import InvalidConfigError
from txnstore.spark import register, session, workers
from txnstore.spark.reads.reader import TxnStoreReader
from txnstore.spark.workers import check_workers, freeze_worker_objects


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An interpreter that has nothing but the standard library; the project is on no path that it looks at."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.chdir(tmp_path)
    venv.create(tmp_path / "bare", with_pip=False)
    return str(tmp_path / "bare" / "bin" / "python")


def _session(python: str, includes: list[str] | None = None, files: str | None = None, path: str = "") -> Any:
    """What is asked of a session: the interpreter of its workers, the files that are sent to them, their path."""
    conf = SimpleNamespace(get=lambda name: files if name == "spark.submit.pyFiles" else None)
    context = SimpleNamespace(
        pythonExec=python, _python_includes=includes or [], getConf=lambda: conf, environment={"PYTHONPATH": path}
    )
    return SimpleNamespace(sparkContext=context)


def test_workers_without_txnstore_are_named_with_the_setting(bare: str) -> None:
    message = (
        rf"run {re.escape(bare)}, which does not find txnstore and pyarrow; this process runs .*"
        rf"PYSPARK_PYTHON={re.escape(sys.executable)} .*spark\.pyspark\.python.*txnstore\.spark\.session"
    )
    for check in (check_workers, register):
        with pytest.raises(InvalidConfigError, match=message):
            check(_session(bare))


def test_workers_that_find_txnstore_and_those_that_cannot_be_asked_pass(
    bare: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files of ``--py-files`` may contain it, and an interpreter may exist on the other machines only."""
    check_workers(_session(bare, includes=["txnstore.zip"]))
    check_workers(_session(bare, files="txnstore.zip"))
    check_workers(_session("./environment/bin/python"))
    check_workers(SimpleNamespace())  # type: ignore[arg-type]  # Spark Connect
    path = os.pathsep.join(map(str, [Path(__file__).parents[3], *map(Path, sys.path)]))
    check_workers(_session(bare, path=path))  # spark.executorEnv.PYTHONPATH
    monkeypatch.setenv("PYTHONPATH", path)
    check_workers(_session(sys.executable))


def test_a_driver_that_alone_has_txnstore_on_its_path_learns_the_variable(
    bare: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script in the folder of the project, for example."""
    monkeypatch.setattr(sys, "executable", bare)
    with pytest.raises(InvalidConfigError, match=r"pyarrow: install txnstore\[spark\] there, or set PYTHONPATH before"):
        check_workers(_session(bare))


def test_an_executor_without_txnstore_says_so(bare: str, tmp_path: Path) -> None:
    """Spark sends readers and writers to machines that may have other interpreters than the driver's."""
    reader = object.__new__(TxnStoreReader)
    reader.__dict__.update(_groups=["not sent"], _schema="sent")
    sent = cloudpickle.dumps(reader)  # type: ignore[no-untyped-call]
    received = cloudpickle.loads(sent)
    assert type(received) is TxnStoreReader
    assert received.__dict__ == {"_groups": [], "_schema": "sent"}

    for package in (pyspark, py4j):  # Spark puts these on the path of its workers.
        (tmp_path / package.__name__).symlink_to(Path(str(package.__file__)).parent)
    (tmp_path / "reader").write_bytes(sent)
    code = "import pickle; pickle.load(open('reader', 'rb'))"
    done = subprocess.run([bare, "-c", code], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 1
    assert f"this Python worker of Spark runs {bare}, which does not find txnstore: install" in done.stderr
    assert "PYSPARK_PYTHON" in done.stderr.splitlines()[-1]


def test_a_wrong_name_of_a_setting_is_refused() -> None:
    with pytest.raises(InvalidConfigError, match=r"'cores' is no setting of Spark: their names start with spark\."):
        session(cores=4)


def test_garbage_collections_leave_out_what_a_worker_has_imported_but_not_what_tasks_leave() -> None:
    """Only in a task: a process of a user keeps its own collections."""
    workers._freeze_objects.cache_clear()
    before, present = gc.get_freeze_count(), list[object]()
    present.append(present)
    freeze_worker_objects()
    assert gc.get_freeze_count() == before
    TaskContext._setTaskContext(TaskContext())
    try:
        freeze_worker_objects()
        frozen = gc.get_freeze_count()
        assert frozen > before
        assert not any(each is present for each in gc.get_objects())
        later: list[object] = []
        later.append(later)
        freeze_worker_objects()
        assert gc.get_freeze_count() <= frozen
        assert any(each is later for each in gc.get_objects())
    finally:
        TaskContext._setTaskContext(None)
        gc.unfreeze()
        workers._freeze_objects.cache_clear()
