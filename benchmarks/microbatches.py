"""Micro-batches of 10 rows and without rows: txnstore to txnstore, beside Spark's file source with its sink and Delta.

The milliseconds are those of a folder, the requests those of an S3 server (``TXNSTORE_TEST_S3``, else moto); Spark
reads it with hadoop-aws. The checkpoints are in a folder. All data exists when a query starts, so the micro-batches
follow one another; the requests of one are those of a long query without those of a short one. A filter makes
micro-batches without rows. Spark fetches hadoop-aws and Delta from Maven Central.
"""

from __future__ import annotations

import io
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import StreamingQueryException

import txnstore
from benchmarks.measure import Result
from benchmarks.session import DELTA, spark_session
from tests.harness.s3.servers import S3Server, storage_options
from tests.harness.s3.wire import RequestLog
from tests.helpers.spark import storage
from tests.helpers.spark_home import S3A
from txnstore.storage.registry import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHORT, LONG = 3, 9
ROWS = 10
#: What Spark says when it gives up on a Python process that takes 10 seconds to start.
_BUSY = "Python worker failed to connect back"


@dataclass(slots=True)
class _Place:
    """A folder, or a bucket behind a log of requests."""

    url: str
    options: Mapping[str, Any] = field(default_factory=dict)
    log: RequestLog | None = None

    @property
    def spark_url(self) -> str:
        return self.url.replace("s3://", "s3a://")


def run() -> Iterator[Result]:
    """Milliseconds in a folder, requests on S3."""
    with tempfile.TemporaryDirectory() as folder, S3Server() as server, RequestLog(server.url) as log:
        options = storage_options(log.url)
        bucket = server.create_bucket("micro-batches")
        with spark_session(_settings(options)) as spark:
            places = (_Place(f"file://{folder}"), _Place(bucket, options, log))
            for name, rows in ((f"{ROWS} rows", ROWS), ("no rows", 0)):
                costs = {each: _costs(spark, each, places, rows, folder) for each in _PIPELINES}
                yield from _results(name, costs)


def _settings(options: Mapping[str, Any]) -> dict[str, str]:
    packages = {
        "spark.jars.packages": f"{S3A['spark.jars.packages']},{DELTA}",
        "spark.jars.excludes": f"{S3A['spark.jars.excludes']},com.google.code.findbugs:jsr305",
    }
    hadoop = {
        "endpoint": options["endpoint_url"],
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "access.key": options["key"],
        "secret.key": options["secret"],
    }
    return {
        **packages,
        **{f"spark.hadoop.fs.s3a.{name}": value for name, value in hadoop.items()},
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    }


@dataclass(frozen=True, slots=True)
class _Costs:
    """Of one micro-batch; None if the pipeline does not run."""

    ms: float
    requests: dict[str, float]


def _costs(spark: SparkSession, pipeline: str, places: tuple[_Place, _Place], rows: int, folder: str) -> _Costs | str:
    """What a micro-batch of a pipeline takes, or why the pipeline does not run."""
    local, remote = places
    make = _PIPELINES[pipeline]
    try:
        taken = make(spark, _Place(f"{local.url}/{pipeline}-{rows}"), rows, LONG, f"{folder}/local-{pipeline}-{rows}")
        counts = []
        for number in (SHORT, LONG):
            place = _Place(f"{remote.url}/{pipeline}-{rows}-{number}", remote.options, remote.log)
            make(spark, place, rows, number, f"{folder}/s3-{pipeline}-{rows}-{number}")
            assert remote.log is not None
            counts.append(remote.log.counts())
    except Exception as error:
        if pipeline != "delta":
            raise
        cause = str(error).splitlines()[0].rpartition("exception: ")[2]
        # The line of Delta is left out with the reason.
        return f"{DELTA} does not run with Spark {spark.version}: {cause[:80]}"
    short, long = counts
    requests = {kind: (long[kind] - short[kind]) / (LONG - SHORT) for kind in sorted({*short, *long})}
    return _Costs(statistics.median(taken[2:]), requests)


def _txnstore(spark: SparkSession, place: _Place, rows: int, number: int, checkpoint: str) -> list[float]:
    with txnstore.create(place.url, storage_options=place.options) as store:
        for topic in ("in", "out"):
            store.create_topic(topic)
        with store.producer("source") as producer:
            for _ in range(number):
                producer.begin_transaction()
                for each in range(ROWS):
                    producer.send("in", b"%d" % each)
                producer.commit_transaction()
        store.checkpoint()  # So that it takes the same requests to open the store, whatever is in it.
    options = {"path": place.url, **storage(place.options)}
    source = spark.readStream.format("txnstore").options(**options).option("topic", "in")
    frame = source.option("maxOffsetsPerTrigger", ROWS + 1).load().select("value").where(_condition(rows))
    return _run(
        frame.writeStream.format("txnstore").options(**options).option("topic", "out"), place, number, checkpoint
    )


def _files(sink: str) -> Callable[[SparkSession, _Place, int, int, str], list[float]]:
    def run(spark: SparkSession, place: _Place, rows: int, number: int, checkpoint: str) -> list[float]:
        body = io.BytesIO()
        pq.write_table(
            pa.table({"value": [b"%d" % each for each in range(ROWS)]}, pa.schema([("value", pa.binary())])), body
        )
        objects = open_store(place.url, dict(place.options))
        for each in range(number):
            objects.put(f"in/{each:04}.parquet", body.getvalue())
        objects.close()
        source = spark.readStream.schema("value binary").option("maxFilesPerTrigger", 1)
        frame = source.parquet(f"{place.spark_url}/in").where(_condition(rows))
        writer = frame.writeStream.format(sink).option("path", f"{place.spark_url}/out")
        return _run(writer, place, number, checkpoint)

    return run


def _condition(rows: int) -> str:
    """The condition that keeps all rows of the source, or none: without rows to read there is no micro-batch."""
    return "length(value) > 0" if rows else "length(value) > 9"


_PIPELINES: dict[str, Callable[[SparkSession, _Place, int, int, str], list[float]]] = {
    "txnstore": _txnstore,
    "files": _files("parquet"),
    "delta": _files("delta"),
}


def _run(writer: Any, place: _Place, number: int, checkpoint: str) -> list[float]:
    """The milliseconds of each micro-batch."""
    for attempt in range(10):
        if place.log is not None:
            place.log.clear()
        query = writer.option("checkpointLocation", f"{checkpoint}-{attempt}").trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if _BUSY not in str(error):
                raise
        else:
            times = [each["durationMs"] for each in query.recentProgress]
            taken = [float(each["triggerExecution"]) for each in times if "addBatch" in each]
            if len(taken) >= number:
                return taken
            raise RuntimeError(f"{number} micro-batches were asked for, and {len(taken)} ran")
    raise RuntimeError("Spark could not start a Python process 10 times")


def _results(name: str, costs: Mapping[str, _Costs | str]) -> Iterator[Result]:
    ours, files, delta = costs["txnstore"], costs["files"], costs["delta"]
    assert isinstance(ours, _Costs)
    assert isinstance(files, _Costs)
    beside = f", Delta {delta.ms:.0f}" if isinstance(delta, _Costs) else f"; {delta}"
    detail = f"txnstore {ours.ms:.0f} ms, files {files.ms:.0f}{beside}"
    yield Result(f"Spark: micro-batch of {name}: ms over those of files", ours.ms / files.ms, 2.0, True, detail)
    detail = f"txnstore {_in_words(ours)}; files {_in_words(files)}" + (
        f"; Delta {_in_words(delta)}" if isinstance(delta, _Costs) else ""
    )
    ratio = sum(ours.requests.values()) / sum(files.requests.values())
    yield Result(f"Spark: micro-batch of {name}: requests over those of files", ratio, 1.0, True, detail)


def _in_words(costs: _Costs) -> str:
    return ", ".join(f"{count:.1f} {kind}" for kind, count in costs.requests.items() if count)
