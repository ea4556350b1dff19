"""The session that ``txnstore.spark.session`` makes where the environment names another Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import txnstore
import txnstore.spark
from tests.helpers.spark_home import environment, link_spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

JOB = """
import json, sys
import txnstore.spark

spark = txnstore.spark.session(master="local[1]", app_name="job", **json.loads(sys.argv[1]))
workers = spark.sparkContext.parallelize([0]).map(lambda _: __import__("sys").executable).collect()
rows = spark.read.format("txnstore").option("topic", "t").load(sys.argv[2]).count()
print(json.dumps([workers[0], rows]))
spark.stop()
"""


def test_the_workers_of_a_session_run_the_interpreter_of_its_driver(local_store_url: str, tmp_path: Path) -> None:
    """A job that is run without its environment activated: ``python3`` on the path does not find txnstore."""
    with txnstore.create(local_store_url) as store:
        store.create_topic("t")
        with store.producer() as producer:
            producer.send("t", b"1")
    venv.create(tmp_path / "other", with_pip=False)
    (tmp_path / "home").mkdir()
    given = {**os.environ, **environment(link_spark_home(tmp_path / "home"))}
    given["PATH"] = os.pathsep.join([str(tmp_path / "other" / "bin"), given["PATH"]])
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        given.pop(name, None)
    settings = {
        "spark.ui.enabled": False,
        "spark.driver.memory": "512m",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    command = [sys.executable, "-c", JOB, json.dumps(settings), local_store_url]
    done = subprocess.run(command, env=given, cwd=tmp_path, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [sys.executable, 1]


def test_a_session_that_exists_is_returned(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, sys.executable)
    assert txnstore.spark.session().sparkContext is spark.sparkContext
