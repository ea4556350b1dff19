"""PySpark writes a topic in one transaction, once; reads it back; and a Parquet scan agrees.

Run it with ``python examples/spark_batch.py [URL]``, the URL of no store yet; without one it uses a temporary folder.
"""

from __future__ import annotations

import argparse
import sys
import tempfile

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812 - its usual name

import txnstore
import txnstore.spark


def run(spark: SparkSession, url: str) -> None:
    with txnstore.create(url) as store:
        store.create_topic("orders", partitions=4)

    orders = spark.range(100_000).select(
        F.concat(F.lit("customer-"), F.col("id") % 100).alias("key"),
        F.to_json(F.struct("id", (F.col("id") % 50).alias("amount"))).alias("value"),
    )
    # The whole job is one transaction. Running it again with the same version does nothing.
    for _ in range(2):
        (
            orders.write.format("txnstore")
            .option("topic", "orders")
            .option("transactionalId", "nightly-orders")
            .option("txnVersion", 20260101)
            .mode("append")
            .save(url)
        )

    # Found without registration. Spark prunes no columns of a Python source by itself: name those that you need.
    frame = spark.read.format("txnstore").option("topic", "orders").option("columns", "key,value").load(url)
    print("records:", frame.count())
    amounts = frame.select(F.get_json_object(F.col("value").cast("string"), "$.amount").cast("int").alias("amount"))
    print("sum of amounts:", amounts.agg(F.sum("amount")).first()[0])  # type: ignore[index]  # an aggregate has a row

    # For large scans: the same rows, through Spark's own Parquet reader.
    scan = txnstore.spark.read(spark, url, "orders")
    scan.groupBy("_partition").agg(F.count("*").alias("records"), F.max("_offset")).orderBy("_partition").show()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "url", metavar="URL", nargs="?", help="a folder, or s3://bucket/prefix; else a temporary folder"
    )
    url = parser.parse_args().url
    with tempfile.TemporaryDirectory() as folder:
        try:
            session = txnstore.spark.session(master="local[2]", app_name="txnstore")
            run(session, url or f"{folder}/store")
            session.stop()
        except (txnstore.TxnStoreError, PySparkException) as error:
            sys.exit(str(error))
