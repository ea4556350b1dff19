"""Stateful streaming with a watermark: which sensors have fallen silent? Late readings are dropped, state is kept.

A sensor is silent when the watermark is five minutes past its last reading. Spark keeps the last reading of each sensor
in its checkpoint, so a query that starts again continues with it, and each alarm is in the topic ``silences`` once.
Run it with ``python examples/spark_stateful.py [URL CHECKPOINT]``, the URL of no store yet and a new folder for Spark's
checkpoint; without them it uses a temporary folder.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

import txnstore
import txnstore.spark

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

NOON = 1_767_268_800_000  # of 1 January 2026, in UTC: the first minute of the readings.
MINUTE = 60_000
SILENCES = pa.schema([("sensor", pa.string()), ("readings", pa.int64()), ("last", pa.timestamp("ms", "UTC"))])
#: Each partition of Spark's state costs time in each micro-batch, and the default has 200.
SETTINGS = {"spark.sql.shuffle.partitions": 2, "spark.sql.session.timeZone": "UTC"}
#: What arrives before each run of the query: (sensor, minute of the reading).
ARRIVALS = [
    [("a", 0), ("b", 0), ("a", 1), ("b", 3)],
    [("a", 5), ("c", 10)],  # a continues, with the state of the first run. The watermark is minute 9: b is silent.
    [("b", 2), ("c", 11), ("d", 30)],  # The reading of b is late. The watermark is minute 29: a and c are silent.
]


def produce(store: txnstore.Store, readings: list[tuple[str, int]]) -> None:
    """Readings, as sensors would send them: the timestamp of a record is the time of its reading."""
    with store.producer() as producer:
        for sensor, minute in readings:
            producer.send("readings", b"21.5", key=sensor.encode(), timestamp=NOON + minute * MINUTE)


def watch(key: Any, frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    """The function of Spark's state: called for a sensor with its new readings, or when its timeout is reached."""
    readings, last = state.get if state.exists else (0, 0)
    if state.hasTimedOut:
        state.remove()
        time = pd.Timestamp(last, unit="ms", tz="UTC")
        yield pd.DataFrame({"sensor": [key[0]], "readings": [readings], "last": [time]})
        return
    for frame in frames:
        readings += len(frame)
        last = max(last, frame["millis"].max())
    state.update((readings, int(last)))
    state.setTimeoutTimestamp(int(last) + 5 * MINUTE)


def run_query(spark: SparkSession, url: str, checkpoint: str) -> StreamingQuery:
    """Process what there is, and end; with trigger(processingTime=…) the query would run on."""
    readings = spark.readStream.format("txnstore").option("topic", "readings").option("group", "watch").load(url)
    silences = (
        readings.selectExpr("string(key) AS sensor", "_timestamp", "unix_millis(_timestamp) AS millis")
        .withWatermark("_timestamp", "1 minute")
        .groupBy("sensor")
        .applyInPandasWithState(
            watch,
            outputStructType="sensor string, readings long, last timestamp",
            stateStructType="readings long, last long",
            outputMode="append",
            timeoutConf=GroupStateTimeout.EventTimeTimeout,
        )
    )
    query = (
        silences.writeStream.format("txnstore")
        .option("topic", "silences")
        .option("group", "watch")
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start(url)
    )
    query.awaitTermination()
    return query


def run(spark: SparkSession, url: str, checkpoint: str) -> None:
    with txnstore.create(url) as store:
        store.create_topic("readings", partitions=2)
        store.create_topic("silences", schema=SILENCES, key="sensor")
        for number, readings in enumerate(ARRIVALS, 1):
            produce(store, readings)
            query = run_query(spark, store.url, checkpoint)
            late = sum(each["stateOperators"][0]["numRowsDroppedByWatermark"] for each in query.recentProgress)
            silences = store.sql("select sensor, readings, minute(last) from silences order by all").fetchall()
            print(f"run {number}: {late} late; silent, with readings and last minute: {silences}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "url", metavar="URL", nargs="?", help="a folder, or s3://bucket/prefix; else a temporary folder"
    )
    parser.add_argument("checkpoint", metavar="CHECKPOINT", nargs="?", help="where Spark stores what a query has read")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            session = txnstore.spark.session(master="local[2]", app_name="txnstore", **SETTINGS)
            run(session, arguments.url or f"{folder}/store", arguments.checkpoint or f"{folder}/checkpoint")
            session.stop()
        except (txnstore.TxnStoreError, PySparkException) as error:
            sys.exit(str(error))
