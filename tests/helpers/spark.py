"""Short ways to read and write through ``format("txnstore")``."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import txnstore
import txnstore.spark
from txnstore.read.plan import IsolationLevel
from txnstore.store import Store


@contextmanager
def in_and_out(url: str) -> Iterator[Store]:
    """A new store with the topics ``in`` and ``out`` of two partitions each."""
    with txnstore.create(url) as store:
        store.create_topic("in", partitions=2)
        store.create_topic("out", partitions=2)
        yield store


def send(store: Store, first: int, limit: int, topic: str = "in") -> None:
    """Send the numbers from ``first`` up to ``limit``, with ten keys."""
    with store.producer() as producer:
        for number in range(first, limit):
            producer.send(topic, b"%d" % number, key=b"k%d" % (number % 10))


def append(frame: DataFrame, url: str, topic: str | None = None, **options: Any) -> None:
    """Append a frame in one job."""
    all_options = options if topic is None else {"topic": topic, **options}
    frame.write.format("txnstore").options(**all_options).mode("append").save(url)


def load(spark: SparkSession, url: str, topic: str, **options: Any) -> DataFrame:
    """A frame of a topic."""
    return spark.read.format("txnstore").option("topic", topic).options(**options).load(url)


def storage(options: Mapping[str, Any]) -> dict[str, str]:
    """Options for fsspec, as options of a data source."""
    return {f"storage.{name}": text if isinstance(text, str) else json.dumps(text) for name, text in options.items()}


def records(spark: SparkSession, count: int, tasks: int = 2, first: int = 0) -> DataFrame:
    """Kafka records ``first`` up to ``first + count``, with the number as value and ``k0`` … ``k9`` as keys."""
    numbers = spark.range(first, first + count, 1, tasks)
    return numbers.selectExpr("concat('k', id % 10) as key", "cast(id as string) as value")


def values(store: Store, topic: str, isolation: IsolationLevel = "read_committed") -> list[int]:
    """The numbers in a topic, sorted, as a scan reads them."""
    table = store.scan(topic, isolation, columns=["value"]).to_table()
    return sorted(int(value) for value in table["value"].to_pylist())


def rows(frame: DataFrame) -> list[tuple[Any, ...]]:
    """The rows of a frame in log order: its first columns are topic, partition and offset."""
    return sorted((tuple(row) for row in frame.collect()), key=lambda row: row[:3])


def is_native(frame: DataFrame) -> bool:
    """Whether the plan reads Parquet files, not a Python data source."""
    return "parquet" in frame._jdf.queryExecution().optimizedPlan().toString()


def load_stream(spark: SparkSession, url: str, topic: str = "", **options: Any) -> DataFrame:
    """A streaming frame of a topic; its name may be left out where an option has a pattern."""
    all_options = {"topic": topic, **options} if topic else options
    return spark.readStream.format("txnstore").options(**all_options).load(url)


def stream_to(frame: DataFrame, url: str, checkpoint: Path, **options: Any) -> DataStreamWriter:
    """The writer of a streaming frame, for all that is available now."""
    writer = frame.writeStream.format("txnstore").option("checkpointLocation", str(checkpoint))
    return writer.options(**options, path=url).trigger(availableNow=True)


def drain(writer: DataStreamWriter) -> StreamingQuery:
    """Run a query to its end. Its error is raised."""
    return _again(writer, StreamingQuery.awaitTermination)


def running(writer: DataStreamWriter) -> StreamingQuery:
    """Start a query, and wait until it has read what there is."""
    return _again(writer, StreamingQuery.processAllAvailable)


def started(writer: DataStreamWriter) -> StreamingQuery:
    """Start a query as the documentation says, and wait for its first micro-batch."""
    return _again(writer, lambda _: None, lambda writer: txnstore.spark.start(writer, timeout=600))


def _again(
    writer: DataStreamWriter,
    wait: Callable[[StreamingQuery], object],
    start: Callable[[DataStreamWriter], StreamingQuery] = DataStreamWriter.start,
) -> StreamingQuery:
    """Spark gives up on a process that has not started after 10 seconds, which a busy machine may need: start again."""
    for _ in range(20):
        try:
            query = start(writer)
            wait(query)
        except StreamingQueryException as error:
            if "Python worker failed to connect back" not in str(error):
                raise
        else:
            return query
    msg = "Spark could not start a Python process 20 times"
    raise AssertionError(msg)
