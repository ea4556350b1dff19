"""The short suite for each release of PySpark, 4.0 and newer: ``python -m tests.harness spark-versions`` runs it with
several of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.helpers.spark import append, drain, in_and_out, load, load_stream, records, send, stream_to, values
from txnstore.spark.versions import HAS_ADMISSION_CONTROL
from txnstore.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def store(local_store_url: str) -> Iterator[Store]:
    with in_and_out(local_store_url) as created:
        yield created


def test_batches(spark: SparkSession, store: Store) -> None:
    """Records and typed columns, also not null ones; a read of all columns and of some; a version that repeats."""
    append(records(spark, 40), store.url, "in", transactionalId="job", txnVersion=1)
    append(records(spark, 40), store.url, "in", transactionalId="job", txnVersion=1)
    frame = load(spark, store.url, "in")
    assert sorted(int(row.value) for row in frame.collect()) == list(range(40))
    assert load(spark, store.url, "in", columns="value,_offset").columns == ["value", "_offset"]
    typed = spark.sql("select id, timestamp_micros(id) as at, array(id) as list from range(9)")
    append(typed, store.url, "typed", createTopic="true")
    assert sorted(load(spark, store.url, "typed", columns="id,at,list").collect()) == sorted(typed.collect())


def test_a_stream_is_exact_over_restarts_and_repeated_micro_batches(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    """With a group on both sides, and without; Spark 4.0 and 4.1 do not tell a restarted source where the query is."""
    checkpoint = tmp_path / "checkpoint"

    def run(folder: Path, topic: str, **options: str) -> None:
        rows = load_stream(spark, store.url, "in", **options).select("value")
        drain(stream_to(rows, store.url, folder, topic=topic, **options))

    store.create_topic("plain")
    for limit in (10, 10, 25):
        send(store, len(values(store, "in")), limit)
        run(checkpoint, "out", group="g")
        run(tmp_path / "plain", "plain")
        assert values(store, "out") == values(store, "plain") == list(range(limit))
    for folder in (checkpoint, tmp_path / "plain"):  # As after a crash between the two commits.
        last = max(int(each.name) for each in (folder / "commits").glob("[0-9]*"))
        (folder / "commits" / str(last)).unlink()
        (folder / "commits" / f".{last}.crc").unlink()
    send(store, 25, 30)
    for _ in range(2):  # Without admission control, the repeated micro-batch is the only one of its run.
        run(checkpoint, "out", group="g")
        run(tmp_path / "plain", "plain")
    assert values(store, "out") == values(store, "plain") == list(range(30))
    # A lost checkpoint: a new one starts where the group is.
    send(store, 30, 35)
    run(tmp_path / "other", "out", group="g")
    assert values(store, "out") == list(range(35))


def test_a_stream_from_the_latest_offset_repeats_its_first_micro_batch(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    """The start is stored with the end: a first micro-batch that runs again reads the same records."""
    send(store, 0, 5)
    checkpoint = tmp_path / "checkpoint"
    frame = load_stream(spark, store.url, "in", startingOffsets="latest", pollIntervalMs=0).select("value")
    query = stream_to(frame, store.url, checkpoint, topic="out").trigger(processingTime="0 seconds").start()
    try:
        while not (checkpoint / "metadata").exists() or query.status["message"].startswith("Initializing"):
            query.awaitTermination(0.05)  # type: ignore[arg-type]  # It takes fractions, too.
        query.processAllAvailable()
        send(store, 5, 9)
        query.processAllAvailable()
    finally:
        query.stop()
    assert values(store, "out") == list(range(5, 9))
    for name in ("commits/0", "commits/.0.crc"):
        (checkpoint / name).unlink()
    send(store, 9, 12)
    drain(stream_to(frame, store.url, checkpoint, topic="out"))
    assert values(store, "out") == list(range(5, 12))


def test_admission_control_is_refused_by_name_where_spark_has_none(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    send(store, 0, 30)
    if not HAS_ADMISSION_CONTROL:
        with pytest.raises(Exception, match=r"maxOffsetsPerTrigger needs Spark 4\.2 or newer. This is Spark 4\.[01]"):
            load_stream(spark, store.url, "in", maxOffsetsPerTrigger=10)
        return
    rows = load_stream(spark, store.url, "in", maxOffsetsPerTrigger=10).select("value")
    query = drain(stream_to(rows, store.url, tmp_path / "checkpoint", topic="out"))
    assert [progress.numInputRows for progress in query.recentProgress] == [10, 10, 10]
    assert values(store, "out") == list(range(30))
