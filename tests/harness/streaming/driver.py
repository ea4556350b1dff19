"""A pipeline in a process: ``python -m tests.harness.streaming.driver KIND URL CHECKPOINT HOME``.

It copies the topic ``in`` to ``out``, and with ``foreach`` the odd numbers to ``odd``, too. It ends when it has read
what there was when it started.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import txnstore.spark
from tests.helpers.spark_home import environment, local_session

#: Small micro-batches, so that a kill hits any phase of one.
_OFFSETS = 40


def main(kind: str, url: str, checkpoint: str, home: str) -> None:
    """Run the pipeline to its end."""
    os.environ.update(environment(Path(home)))
    spark = local_session("txnstore-streaming")
    frame = (
        spark.readStream.format("txnstore")
        .options(topic="in", group=kind, maxOffsetsPerTrigger=_OFFSETS)
        .load(url)
        .select("key", "value")
    )
    if kind == "foreach":
        function = txnstore.spark.for_each_batch(url, _process, group=kind, checkpoint=checkpoint)
        writer = frame.writeStream.foreachBatch(function)
    else:
        writer = frame.writeStream.format("txnstore").options(topic="out", group=kind, path=url)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


def _process(batch: txnstore.spark.BatchTransaction) -> None:
    batch.append(batch.frame, "out")
    batch.append(batch.frame.where("cast(string(value) as int) % 2 = 1"), "odd")


if __name__ == "__main__":
    main(*sys.argv[1:])
