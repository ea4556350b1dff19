"""A streaming pipeline between topics, exactly once: orders come in, large ones and totals go out, SQL adds up.

Run it with ``python examples/spark_streaming.py [URL CHECKPOINT]``, the URL of no store yet and a new folder for
Spark's checkpoint; without them it uses a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

import txnstore
import txnstore.spark


def produce(store: txnstore.Store, first: int, count: int) -> None:
    """Orders, as a service would write them."""
    with store.producer(transactional_id="shop") as producer, producer.transaction() as txn:
        for number in range(first, first + count):
            order = {"id": number, "amount": number % 50}
            txn.send("orders", json.dumps(order).encode(), key=b"customer-%d" % (number % 100))


def pipeline(spark: SparkSession, url: str, checkpoint: str) -> None:
    """Process what there is, and end. With trigger(processingTime=…) it would run on."""
    orders = (
        spark.readStream.format("txnstore")
        .option("topic", "orders")
        .option("group", "totals")
        .option("maxOffsetsPerTrigger", 5_000)
        .load(url)
    )

    def process(batch: txnstore.spark.BatchTransaction) -> None:
        amount = F.get_json_object(F.col("value").cast("string"), "$.amount").cast("int")
        rows = batch.frame.select("key", "value", amount.alias("amount")).persist()
        batch.append(rows.where("amount >= 45").select("key", "value"), "large-orders")
        batch.append(rows.agg(F.sum("amount").cast("string").alias("value")), "totals")
        rows.unpersist()

    query = (
        orders.writeStream.foreachBatch(
            txnstore.spark.for_each_batch(url, process, group="totals", checkpoint=checkpoint)
        )
        .option("checkpointLocation", checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def run(spark: SparkSession, url: str, checkpoint: str) -> None:
    with txnstore.create(url) as store:
        for topic, partitions in (("orders", 4), ("large-orders", 2), ("totals", 1)):
            store.create_topic(topic, partitions=partitions)
        produce(store, 0, 10_000)
        pipeline(spark, store.url, checkpoint)
        # A restart continues where the last run ended. Each micro-batch was one transaction: its rows and its offsets.
        produce(store, 10_000, 2_000)
        pipeline(spark, store.url, checkpoint)
        print(store.sql('select count(*) as large_orders from "large-orders"'))
        print(store.sql("select sum(cast(decode(value) as int)) as total from totals"))
        print(store.sql("select sum(cast(decode(value)->>'amount' as int)) as expected from orders"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "url", metavar="URL", nargs="?", help="a folder, or s3://bucket/prefix; else a temporary folder"
    )
    parser.add_argument("checkpoint", metavar="CHECKPOINT", nargs="?", help="where Spark stores what a query has read")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            session = txnstore.spark.session(master="local[2]", app_name="txnstore")
            run(session, arguments.url or f"{folder}/store", arguments.checkpoint or f"{folder}/checkpoint")
            session.stop()
        except (txnstore.TxnStoreError, PySparkException) as error:
            sys.exit(str(error))
