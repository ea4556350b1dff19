"""A pipeline in a process: ``python -m tests.harness.streaming.driver`` with the JSON of :class:`Pipeline`.

It copies the topic ``in`` to ``out``, and the odd numbers to ``odd``: in one transaction (``foreach``), by a second
query (``queries``), or not at all (``sink``). It ends when it has read what there was when it started.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import txnstore.spark
from tests.helpers.spark_home import environment, local_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

Kind = Literal["sink", "foreach", "queries"]

#: Small micro-batches, so that a kill hits any phase of one.
_OFFSETS = 40
_ODD = "cast(string(value) as int) % 2 = 1"


@dataclass(frozen=True)
class Pipeline:
    """What the process runs.

    Attributes:
        kind: Which queries.
        url: The store.
        options: Its storage options.
        checkpoint: A folder for the checkpoints.
        home: The home of Spark.
    """

    kind: Kind
    url: str
    options: dict[str, Any]
    checkpoint: str
    home: str

    def to_json(self) -> str:
        """The argument of the process."""
        return json.dumps(asdict(self))

    def run(self) -> None:
        """Run the queries to their end."""
        os.environ.update(environment(Path(self.home)))
        spark = local_session("txnstore-streaming")
        queries = [self._foreach(spark)] if self.kind == "foreach" else [self._sink(spark, "out", "true")]
        if self.kind == "queries":
            queries.append(self._sink(spark, "odd", _ODD))
        for query in queries:
            query.awaitTermination()
        spark.stop()

    def _read(self, spark: SparkSession, group: str) -> DataFrame:
        reader = spark.readStream.format("txnstore").options(topic="in", group=group, maxOffsetsPerTrigger=_OFFSETS)
        return reader.options(**storage_options(self.options)).load(self.url).select("key", "value")

    def _sink(self, spark: SparkSession, topic: str, condition: str) -> StreamingQuery:
        frame = self._read(spark, group := f"copy-{topic}").where(condition)
        writer = frame.writeStream.format("txnstore").options(topic=topic, group=group, path=self.url)
        writer = writer.options(**storage_options(self.options)).option(
            "checkpointLocation", f"{self.checkpoint}/{topic}"
        )
        return writer.trigger(availableNow=True).start()

    def _foreach(self, spark: SparkSession) -> StreamingQuery:
        checkpoint = f"{self.checkpoint}/foreach"
        function = txnstore.spark.for_each_batch(
            self.url, _process, group="foreach", checkpoint=checkpoint, storage_options=self.options
        )
        writer = self._read(spark, "foreach").writeStream.foreachBatch(function)
        return writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()


def storage_options(options: Mapping[str, Any]) -> dict[str, str]:
    """The options of a source or a sink of Spark that give the storage these ones."""
    return {
        f"storage.{name}": value if isinstance(value, str) else json.dumps(value) for name, value in options.items()
    }


def _process(batch: txnstore.spark.BatchTransaction) -> None:
    batch.append(batch.frame, "out")
    batch.append(batch.frame.where(_ODD), "odd")


if __name__ == "__main__":
    Pipeline(**json.loads(sys.argv[1])).run()
