r"""Moves a Kafka topic into a topic of txnstore, from a broker, with Spark's Kafka source.

Each committed record is migrated once, with its key, headers, timestamp, partition and order, all in one transaction.
The transaction has a version: a second run with the same one does nothing. ``migrate_kafka.py`` does the same from the
files of Kafka's S3 connectors. Spark fetches its Kafka source, in the VERSION of PySpark, from Maven Central:

    spark-submit --packages org.apache.spark:spark-sql-kafka-0-10_2.13:VERSION \
        examples/spark_migrate_kafka.py broker:9092 URL TOPIC
"""

from __future__ import annotations

import argparse
import sys

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import txnstore
import txnstore.spark


def migrate(spark: SparkSession, servers: str, url: str, topic: str, version: int = 1) -> None:
    """Migrate what is committed in the broker's topic now. Spark reads each partition in one task, in order."""
    records = (
        spark.read.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("kafka.isolation.level", "read_committed")
        .option("subscribe", topic)
        .option("includeHeaders", "true")
        .load()
    )
    [[partitions]] = records.selectExpr("coalesce(max(partition), 0) + 1").collect()
    with txnstore.create(url, exist_ok=True) as store:
        store.create_topic(topic, partitions=partitions, exist_ok=True)
    (
        records.selectExpr("key", "value", "headers", "timestamp", "partition AS _partition")
        .write.format("txnstore")
        .options(topic=topic, transactionalId=f"migration-of-{topic}", txnVersion=version)
        .mode("append")
        .save(url)
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("servers", metavar="SERVERS", help="the brokers: HOST:PORT,…")
    parser.add_argument("url", metavar="URL", help="a folder, or s3://bucket/prefix")
    parser.add_argument("topic", metavar="TOPIC")
    arguments = parser.parse_args()
    try:
        session = txnstore.spark.session(master="local[2]", app_name="txnstore")
        migrate(session, arguments.servers, arguments.url, arguments.topic)
        session.stop()
    except (txnstore.TxnStoreError, PySparkException) as error:
        sys.exit(str(error))
