"""A merge of 1,000 small segments beside ``optimize`` of Delta Lake, of the same rows in as many files.

Spark fetches Delta from Maven Central. It needs the Spark that :data:`~benchmarks.session.DELTA` is built for, which
may be older than that of the other benchmarks: install ``pyspark==4.2.1`` and txnstore in an environment of their own.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark

from benchmarks.folders import fill, records, segments
from benchmarks.measure import Result, interleaved, median_ms
from benchmarks.session import DELTA, spark_session
from txnstore.storage.local import LocalStore
from txnstore.store import open_on

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SPARK = "4.2."
SEGMENTS, ROWS = 1_000, 500
ROUNDS = 3
_SETTINGS = {
    "spark.jars.packages": DELTA,
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.sql.parquet.compression.codec": "zstd",
}


def run() -> Iterator[Result]:
    """The speed of a merge, after a first ``optimize`` that warms the JVM."""
    if not pyspark.__version__.startswith(_SPARK):
        msg = f"{DELTA} runs with PySpark {_SPARK}x, and this is {pyspark.__version__}: install that one elsewhere"
        raise SystemExit(msg)
    with tempfile.TemporaryDirectory() as temporary, spark_session(_SETTINGS) as spark:
        base = Path(temporary)
        stores = [base / f"store-{number}" for number in range(ROUNDS)]
        fill(stores, (records(number, ROWS, 1 << 40) for number in range(SEGMENTS)), {})
        tables = [f"file://{base}/table-{number}" for number in range(ROUNDS + 1)]
        _fill(spark, segments(stores[0]), tables)
        _optimize(spark, tables.pop())
        following, store = iter(tables), iter(stores)

        def merge() -> None:
            with open_on(LocalStore(str(next(store)))) as opened:
                assert opened.compact().merges == 1

        runs = {"merge": merge, "optimize": lambda: _optimize(spark, next(following))}
        times = {name: median_ms(taken) for name, taken in interleaved(runs, ROUNDS).items()}
    detail = f"Delta {times['optimize']:.0f} ms, txnstore {times['merge']:.0f} ms; {DELTA}"
    ratio = times["optimize"] / times["merge"]
    yield Result(
        f"merge of {SEGMENTS:,} segments: speed over Delta's optimize", ratio, 1.0, at_most=False, detail=detail
    )


def _fill(spark: SparkSession, files: list[str], tables: list[str]) -> None:
    """Equal tables with one file for each segment."""
    rows = spark.read.parquet(*files).repartition(SEGMENTS)
    for table in tables:
        rows.write.format("delta").save(table)


def _optimize(spark: SparkSession, table: str) -> None:
    ((_, metrics),) = spark.sql(f"OPTIMIZE delta.`{table}`").collect()
    assert metrics.numFilesRemoved == SEGMENTS
