"""One Spark session for the whole run: starting it costs more than all of its tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.helpers.spark_home import link_spark_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A local session with two cores; a task may fail once, the second time its job fails with it."""
    with pytest.MonkeyPatch.context() as environment:
        # The workers are processes of their own, which inherit what the JVM starts with: the same interpreter, the
        # project on their path. The other tests' processes must not.
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        environment.setenv("PYTHONWARNINGS", "ignore")
        environment.setenv("SPARK_LOCAL_IP", "127.0.0.1")
        environment.setenv("PYTHONPATH", os.pathsep.join([str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]))
        environment.setenv("SPARK_HOME", str(link_spark_home(tmp_path_factory.mktemp("spark"))))
        session = _start(tmp_path_factory.mktemp("warehouse"))
    yield session
    session.stop()


def _start(warehouse: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2,2]").appName("txnstore-tests")
    for name, value in {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.warehouse.dir": str(warehouse),
    }.items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
