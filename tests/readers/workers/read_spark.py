"""Reads tables with Spark, from a Hadoop catalog; the argument is the jar of Iceberg's runtime for it.

A Hadoop catalog reads the newest version of a table by its name, so an earlier one is read through a folder that ends
with it.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from tests.readers.workers.serving import Request, condition, serve


def new_session(jar: str, warehouse: str) -> SparkSession:
    """A session of one processor whose catalog ``w`` is a folder."""
    builder = SparkSession.builder.master("local[1]")
    options = {
        "spark.jars": jar,
        "spark.ui.enabled": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalog.w": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.w.type": "hadoop",
        "spark.sql.catalog.w.warehouse": warehouse,
        "spark.sql.catalog.w.cache-enabled": "false",
    }
    for name, value in options.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def _as_of(request: Request, warehouse: Path, name: str, last: int) -> None:
    """A table that ends with a version."""
    place, metadata = warehouse / name / "metadata", Path(request["folder"].removeprefix("file://")) / "metadata"
    place.mkdir(parents=True, exist_ok=True)
    for number in range(1, last + 1):
        version = metadata / f"v{number}.metadata.json"
        if version.exists():
            shutil.copy(version, place)
    (place / "version-hint.text").write_text(str(last))


def _streamed(session: SparkSession, request: Request, warehouse: Path, name: str) -> pa.Table:
    """What a stream reads that continues at each version; each time it is a new query with the same checkpoint."""
    tables: list[pa.Table] = []
    for number in request["stream"]:
        _as_of(request, warehouse, name, number)
        options = {"streaming-skip-delete-snapshots": "true", "streaming-skip-overwrite-snapshots": "true"}
        stream = session.readStream.format("iceberg").options(**options).load(f"w.{name}")
        query = (
            stream.writeStream.foreachBatch(lambda batch, _: tables.append(batch.toArrow()))
            .option("checkpointLocation", str(warehouse / f"{name}.checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    return (
        pa.concat_tables(tables, promote_options="permissive")
        if tables
        else pa.table({"_offset": pa.array([], pa.int64())})
    )


def main() -> None:
    warehouse = Path(tempfile.mkdtemp())
    session = new_session(sys.argv[1], str(warehouse))
    count = 0

    def read(request: Request) -> Any:
        nonlocal count
        count += 1
        if request["stream"]:
            return _streamed(session, request, warehouse, f"t{count}")
        _as_of(request, warehouse, f"t{count}", request["number"])
        if request["after"] is not None:
            options = {"start-snapshot-id": str(request["after"])}
            return session.read.format("iceberg").options(**options).load(f"w.t{count}").toArrow()
        at = "" if request["snapshot"] is None else f" VERSION AS OF {request['snapshot']}"
        where = condition(request, "TIMESTAMP '{}+00:00'")
        return session.sql(f"SELECT * FROM w.t{count}{at} WHERE {where}").toArrow()

    try:
        serve(read)
    finally:
        session.stop()
        shutil.rmtree(warehouse, ignore_errors=True)


if __name__ == "__main__":
    main()
