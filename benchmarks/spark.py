"""Spark in a local folder, with 3 M rows of five columns: each read and write beside Spark's Parquet source and sink.

The reads are of the same files, those of the topic; of ten times as many rows, too, because what is fixed, such as a
plan and the start of tasks, weighs much where Spark reads two columns in 0.2 s. The writes, batch and streaming, read
the same Parquet files first and write zstd on both sides; txnstore also routes the rows to partitions, syncs the files,
and commits. At last, a plan of 10,000 small segments.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

import txnstore
from benchmarks.measure import Result, median_ms, processor_seconds, seconds
from benchmarks.prepared import Prepared
from benchmarks.session import spark_session
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS, FILES, PARTITIONS, SEGMENTS = 3_000_000, 4, 4, 10_000
READS, WRITES, PLANS = 3, 3, 3
#: How many times the rows are in the larger topic.
LARGER = 10

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("name", pa.string()),
        ("amount", pa.float64()),
        ("payload", pa.binary()),
    ]
)
DDL = "id bigint, at timestamp, name string, amount double, payload binary"
ALL = "count(*), sum(id), max(at), max(name), sum(amount), sum(length(payload))"
TWO = "sum(id), sum(amount)"


def run() -> Iterator[Result]:
    """Reads, writes and plans."""
    with spark_session() as spark, tempfile.TemporaryDirectory() as folder:
        source, url = f"{folder}/source", f"{folder}/store"
        _rows(spark).write.option("compression", "zstd").parquet(source)
        with txnstore.create(url) as store:
            store.create_topic("events", partitions=PARTITIONS, schema=SCHEMA)
            _append(spark.read.parquet(source), url, "events")
            yield from _reads(spark, store, "events", f"{ROWS // 1_000_000} M rows", Path(folder))
            yield from _writes(spark, store, source, Path(folder))
            store.create_topic("larger", partitions=PARTITIONS, schema=SCHEMA)
            _append(reduce(lambda one, other: one.union(other), [spark.read.parquet(source)] * LARGER), url, "larger")
            yield from _reads(spark, store, "larger", f"{LARGER * ROWS // 1_000_000} M rows", Path(folder))
        yield from _plans(spark, f"{folder}/many")


def _rows(spark: SparkSession) -> DataFrame:
    """Numbers, words and random bytes, which compress as little as real payloads do."""
    return spark.range(0, ROWS, 1, FILES).selectExpr(
        "id",
        "timestamp_millis(1700000000000 + id * 20) as at",
        "concat('customer-', id % 5000) as name",
        "round(rand(7) * 1000, 2) as amount",
        "cast(sha2(cast(id as string), 256) as binary) as payload",
    )


def _append(frame: DataFrame, url: str, topic: str) -> None:
    frame.write.format("txnstore").mode("append").option("topic", topic).save(url)


def _reads(spark: SparkSession, store: txnstore.Store, topic: str, size: str, folder: Path) -> Iterator[Result]:
    files = [f"{store.url}/{part.batch.segment.key}" for part in store.scan(topic).plan()]
    five = SCHEMA.names

    def plain(query: str) -> None:
        spark.read.schema(DDL).parquet(*files).selectExpr(*_columns(query)).collect()

    def python(query: str, columns: list[str]) -> None:
        reader = spark.read.format("txnstore").option("topic", topic).option("columns", ",".join(columns))
        reader.load(store.url).selectExpr(*_columns(query)).collect()

    def native(query: str, columns: list[str] | None = None) -> None:
        txnstore.spark.read(spark, store.url, topic, columns=columns).selectExpr(*_columns(query)).collect()

    def with_offsets() -> None:
        spark.read.format("txnstore").option("topic", topic).load(store.url).selectExpr(*_columns(ALL)).collect()

    def only_sent(query: str, columns: list[str]) -> None:
        ddl = ", ".join(name for name in DDL.split(", ") if name.split()[0] in columns)
        reader = spark.read.format("prepared").schema(ddl).option("files", ",".join(prepared[len(columns)]))
        reader.load().selectExpr(*_columns(query)).collect()

    spark.dataSource.register(Prepared)
    prepared = {len(columns): _prepared(store, topic, columns, folder) for columns in (five, ["id", "amount"])}
    runs: dict[str, Callable[[], None]] = {
        "plain": lambda: plain(ALL),
        "only sent": lambda: only_sent(ALL, five),
        "only sent two": lambda: only_sent(TWO, ["id", "amount"]),
        "python": lambda: python(ALL, five),
        "python, nine columns": with_offsets,
        "native": lambda: native(ALL),
        "plain two": lambda: plain(TWO),
        "python two": lambda: python(TWO, ["id", "amount"]),
        "native two": lambda: native(TWO),
        "native two, named": lambda: native(TWO, ["id", "amount"]),
    }
    times = _measured(runs, READS)
    detail = f"with the four columns of the log {times['plain'].wall / times['python, nine columns'].wall:.2f}"
    yield _faster(f"Spark: {size}, read of five columns", times, "plain", "python", 0.7, detail)
    yield _faster(f"Spark: {size}, read of two of five columns", times, "plain two", "python two", 0.3)
    # What no data source in Python falls below: it decodes nothing.
    yield _faster(f"Spark: {size}, a source that only sends, five columns", times, "plain", "only sent", 0.0)
    yield _faster(f"Spark: {size}, a source that only sends, two columns", times, "plain two", "only sent two", 0.0)
    yield _faster(f"Spark: {size}, native read of five columns", times, "plain", "native", 0.95)
    detail = f"with two columns named {times['plain two'].wall / times['native two, named'].wall:.2f}"
    yield _faster(f"Spark: {size}, native read of two of five columns", times, "plain two", "native two", 0.95, detail)


def _prepared(store: txnstore.Store, topic: str, columns: list[str], folder: Path) -> list[str]:
    """A file for each partition with these columns, as :class:`Prepared` sends them."""
    paths = []
    for partition in range(PARTITIONS):
        paths.append(f"{folder}/{topic}-{partition}-{len(columns)}.arrow")
        table = store.scan(topic, partitions=[partition], columns=columns).to_table()
        with pa.ipc.new_file(paths[-1], table.schema) as file:
            file.write_table(table)
    return paths


def _columns(query: str) -> list[str]:
    return query.split(", ")


def _writes(spark: SparkSession, store: txnstore.Store, source: str, folder: Path) -> Iterator[Result]:
    numbers = iter(range(1000))

    def batch() -> None:
        spark.read.parquet(source).write.option("compression", "zstd").parquet(f"{folder}/out-{next(numbers)}")

    def append() -> None:
        name = f"batch-{next(numbers)}"
        store.create_topic(name, partitions=PARTITIONS, schema=SCHEMA)
        _append(spark.read.parquet(source), store.url, name)

    def stream(name: str) -> None:
        """One micro-batch of all files."""
        place = folder / f"stream-{next(numbers)}"
        writer = spark.readStream.schema(DDL).parquet(source).writeStream.trigger(availableNow=True)
        writer = writer.option("checkpointLocation", f"{place}/checkpoint")
        if name == "txnstore":
            store.create_topic(place.name, partitions=PARTITIONS, schema=SCHEMA)
            query = writer.format("txnstore").option("topic", place.name).start(store.url)
        else:
            query = writer.format("parquet").option("compression", "zstd").start(f"{place}/out")
        query.awaitTermination()

    runs: dict[str, Callable[[], None]] = {
        "parquet": batch,
        "txnstore": append,
        "stream parquet": lambda: stream("parquet"),
        "stream txnstore": lambda: stream("txnstore"),
    }
    times = _measured(runs, WRITES)
    yield _faster("Spark: batch write over Spark's Parquet sink", times, "parquet", "txnstore", 0.75)
    yield _faster("Spark: streaming sink over Spark's", times, "stream parquet", "stream txnstore", 0.75)
    for made in folder.glob("out-*"):
        shutil.rmtree(made)


def _plans(spark: SparkSession, folder: str) -> Iterator[Result]:
    objects = MemoryStore()
    with create_on(objects) as store:
        store.create_topic("events", partitions=PARTITIONS)
        with store.producer("many", batch_bytes=1) as producer:
            for _ in range(SEGMENTS // 100):
                with producer.transaction():
                    for _ in range(100):
                        producer.send("events", b"value")
        store.checkpoint()
    for item in objects.list(""):
        path = Path(folder, item.key)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(objects.get(item.key))
    times = _measured({"plan": lambda: txnstore.spark.read(spark, folder, "events")}, PLANS)["plan"]
    name, detail = (
        f"Spark: plan of a native read, {SEGMENTS:,} segments: seconds",
        f"processor time {times.cpu / 1000:.1f} s",
    )
    yield Result(name, times.wall / 1000, 5.0, at_most=True, detail=detail)


@dataclass(frozen=True, slots=True)
class _Cost:
    """The medians of a run: milliseconds, and those of the processors."""

    wall: float
    cpu: float


def _measured(runs: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, _Cost]:
    """The costs of all runs, taken in turns, after one of each that warms the JVM."""
    for each in runs.values():
        each()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, each in runs.items():
            before = processor_seconds()
            wall = seconds(each)
            times[name].append((wall, processor_seconds() - before))
    return {
        name: _Cost(*(median_ms([*column]) for column in zip(*taken, strict=True))) for name, taken in times.items()
    }


def _faster(name: str, times: dict[str, _Cost], theirs: str, ours: str, target: float, more: str = "") -> Result:
    one, other = times[theirs], times[ours]
    detail = f"Spark {one.wall:.0f} ms, txnstore {other.wall:.0f} ms; by processor time {one.cpu / other.cpu:.2f}"
    return Result(name, one.wall / other.wall, target, at_most=False, detail=detail + (f"; {more}" if more else ""))
