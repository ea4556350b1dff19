"""The Spark session of the benchmarks: two cores, and no settings but those that a benchmark needs."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The newest release of Delta Lake, which is built for Spark 4.2, and does not run with 4.3.
DELTA = "io.delta:delta-spark_4.2_2.13:4.4.0"

_ROOT = str(Path(__file__).parents[1])


@contextmanager
def spark_session(settings: Mapping[str, str] | None = None) -> Iterator[SparkSession]:
    """A session that is stopped at the end. Needs Java 17."""
    os.environ.update(
        {
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join([_ROOT, *filter(None, [os.environ.get("PYTHONPATH")])]),
            "PYTHONWARNINGS": "ignore",
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
    )
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("txnstore-benchmarks")
    fixed = {
        "spark.driver.memory": "2g",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
    }
    for name, value in {**fixed, **(settings or {})}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        yield session
    finally:
        session.stop()
