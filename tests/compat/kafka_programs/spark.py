"""Spark's own source and sink for Kafka, in batches and in streams."""

from __future__ import annotations

import os
from contextlib import ExitStack

import confluent_kafka

from tests.compat.kafka_programs.place import Place, UnexpectedError
from tests.helpers.spark_home import environment, link_spark_home, local_session

_COUNT = 1_000


def source_and_sink(place: Place) -> str:
    """Spark writes a batch, reads committed records only, and copies a topic in two runs of a stream."""
    for name in ("spark", "spark-copy"):
        place.topic(name, 3)
    home = place.folder / "spark"
    home.mkdir()
    os.environ.update(environment(link_spark_home(home)))
    spark = local_session("kafka", {"spark.jars": ",".join(map(str, sorted(place.jars.spark.glob("*.jar"))))})
    servers = {"kafka.bootstrap.servers": place.bootstrap}
    read = {**servers, "subscribe": "spark", "startingOffsets": "earliest", "kafka.isolation.level": "read_committed"}
    with ExitStack() as stack:
        stack.callback(spark.stop)
        rows = spark.range(_COUNT).selectExpr("cast(id % 7 as string) as key", "cast(id as string) as value")
        rows.write.format("kafka").options(**servers).option("topic", "spark").save()
        _abort_and_commit(place)
        batch = spark.read.format("kafka").options(**read).load().selectExpr("cast(value as string) as value")
        numbers = sorted(int(row.value) for row in batch.collect())
        if numbers != list(range(_COUNT + 10)):
            msg = f"a batch has {len(numbers)} records: {numbers[:3]} to {numbers[-3:]}"
            raise UnexpectedError(msg)

        def run() -> int:
            stream = spark.readStream.format("kafka").options(**read, maxOffsetsPerTrigger="400").load()
            copied = stream.selectExpr("key", "concat('copy of ', cast(value as string)) as value")
            query = (
                copied.writeStream.format("kafka")
                .options(**servers, topic="spark-copy", checkpointLocation=str(place.folder / "checkpoint"))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()
            return place.count("spark-copy")

        first = run()
        rows.limit(10).write.format("kafka").options(**servers).option("topic", "spark").save()
        second = run()
    if (first, second) != (_COUNT + 10, _COUNT + 20):
        msg = f"the stream copied {first}, then {second} records"
        raise UnexpectedError(msg)
    copies = place.query('select count(distinct value) from "spark-copy"')
    if copies != [(_COUNT + 10,)]:
        msg = f"{copies} different copies"
        raise UnexpectedError(msg)
    return f"{first} and {second - first} records copied"


def _abort_and_commit(place: Place) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": place.bootstrap, "transactional.id": "beside-spark"})
    producer.init_transactions(60)
    for end in (producer.abort_transaction, producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        for number in range(_COUNT, _COUNT + 10):
            producer.produce("spark", str(number), partition=number % 3)
        producer.flush(60)
        end(60)
