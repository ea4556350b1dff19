"""The driver of the demo's stream, a separate process: a Spark query that computes delays from flights as they arrive.

It reports its progress as :mod:`txnstore.cli.demo.job` does, and runs until its standard input is closed. With
``pause_after`` *n*, it pauses in the micro-batch after the first *n* ones, when all of its records are uploaded and
none is committed.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from txnstore.cli.demo.data import DELAYS, FLIGHTS, GROUP, JOB
from txnstore.cli.demo.process import report
from txnstore.cli.demo.spark import session, storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from txnstore.spark import BatchTransaction

#: As in :func:`txnstore.cli.demo.data.delays`.
_DELAYS = (
    "time_hour",
    "carrier",
    "flight",
    "tailnum",
    "arr_delay AS delay",
    "CASE WHEN arr_delay IS NULL THEN 'cancelled' WHEN arr_delay > 15 THEN 'late' ELSE 'on time' END AS status",
    "_partition AS flights_partition",
    "_offset AS flights_offset",
)
#: Spark waits for 10 seconds for a Python process to start, and a busy machine may need longer.
_STARTS = 5


def main() -> None:
    """Run the query until standard input is closed."""
    config = json.loads(sys.stdin.readline())
    closed_event = Event()
    Thread(target=_wait_for_end, args=(closed_event,), daemon=True).start()
    with session(Path(config["folder"])) as spark:
        for attempt in range(1, _STARTS + 1):
            error = _run(spark, config, closed_event)
            if error is None:
                break
            if "Python worker failed to connect back" not in error or attempt == _STARTS:
                sys.exit(error)
    report("finished")


def _wait_for_end(closed_event: Event) -> None:
    """Set the event when standard input is closed, also if that is because the parent process was killed."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    closed_event.set()


def _run(spark: SparkSession, config: dict[str, Any], closed_event: Event) -> str | None:
    """Run the query until the event is set; returns the message of its error, if it fails before."""
    query = _start(spark, config, closed_event)
    report("started")
    while query.isActive and not closed_event.wait(0.1):
        pass
    error = query.exception()
    query.stop()
    # The last line is the cause; then Spark adds the plan of the query.
    return None if error is None else str(error).partition("\n\n=== Streaming Query ===")[0]


def _start(spark: SparkSession, config: dict[str, Any], closed_event: Event) -> StreamingQuery:
    """Start the streaming query, which reports each micro-batch, and pauses in one of them."""
    import txnstore.spark

    url, options, checkpoint = config["url"], config["storage_options"], config["checkpoint"]
    committed_batches = 0

    def process(batch: BatchTransaction) -> None:
        batch.append(batch.frame.selectExpr(*_DELAYS), DELAYS)
        if committed_batches == config["pause_after"]:
            report("uploaded", micro_batch=batch.batch_id)
            closed_event.wait()

    commit = txnstore.spark.for_each_batch(
        url, process, transactional_id=JOB, group=GROUP, checkpoint=checkpoint, storage_options=options
    )

    def run(frame: DataFrame, number: int) -> None:
        nonlocal committed_batches
        commit(frame, number)
        committed_batches += 1
        report("committed", micro_batch=number)

    flights = spark.readStream.format("txnstore").options(
        topic=FLIGHTS, group=GROUP, pollIntervalMs=200, **storage(options)
    )
    return flights.load(url).writeStream.foreachBatch(run).option("checkpointLocation", checkpoint).start()


if __name__ == "__main__":
    main()
