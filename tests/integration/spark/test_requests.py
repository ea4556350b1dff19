"""What Spark's jobs and micro-batches cost, counted in front of an S3 server (performance budgets)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import txnstore
from tests.harness.s3.wire import RequestLog
from tests.helpers.connections import connection_of
from tests.helpers.spark import append, drain, load_stream, records, storage, stream_to, values
from txnstore.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.s3]

PARTITIONS, TASKS = 3, 2


@pytest.fixture
def options(logged_options: dict[str, Any]) -> dict[str, str]:
    """The options of a data source for the logged server."""
    return storage(logged_options)


@pytest.fixture
def store(s3_bucket_url: str, logged_options: dict[str, Any]) -> Iterator[Store]:
    """A store with the topics ``in`` and ``out``."""
    with txnstore.create(f"{s3_bucket_url}/events", storage_options=logged_options) as created:
        created.create_topic("in", partitions=TASKS)
        created.create_topic("out", partitions=PARTITIONS)
        yield created


def send(store: Store, first: int, limit: int) -> None:
    """One transaction of records with keys, so that they are in all partitions."""
    with store.producer("source") as producer, producer.transaction() as txn:
        for number in range(first, limit):
            txn.send("in", b"%d" % number, key=b"k%d" % (number % 10))


def puts(log: RequestLog) -> Counter[str]:
    """The PUTs by kind: of entries, of segments (``topics``), and others, as of the check of a store."""
    folders = [request.key.split("/") for request in log.requests if request.kind == "PUT"]
    return Counter("entries" if "entries" in names else names[1] for names in folders)


def listed(log: RequestLog) -> set[str]:
    """The folders that were listed: an open of a store without a checkpoint looks for one."""
    return {
        request.query["prefix"].rstrip("/").rpartition("/")[2] for request in log.requests if request.kind == "LIST"
    }


def segments(store: Store, topic: str) -> int:
    """The number of batches in a topic; each is a segment."""
    view = connection_of(store).view()
    return sum(len(partition.batches) for _, partition in view.partitions_of(topic))


def test_a_job_puts_a_segment_per_task_and_partition_and_one_entry(
    spark: SparkSession, store: Store, request_log: RequestLog, options: dict[str, str]
) -> None:
    """And one more for its identity. Tasks read nothing of the chain."""
    request_log.clear()
    append(records(spark, 1000, tasks=4), store.url, "out", **options)
    counts = puts(request_log)
    assert counts["entries"] == 2
    assert counts["topics"] == segments(store, "out") == 4 * PARTITIONS
    assert listed(request_log) <= {"checkpoints"}
    assert values(store, "out") == list(range(1000))


def test_a_micro_batch_is_one_entry(
    spark: SparkSession, store: Store, request_log: RequestLog, options: dict[str, str], tmp_path: Path
) -> None:
    """One more for the epoch of the run. A micro-batch without rows is an entry only if it commits offsets."""
    send(store, 0, 120)
    frame = load_stream(spark, store.url, "in", maxOffsetsPerTrigger=40, **options).select("key", "value")
    request_log.clear()
    query = drain(stream_to(frame, store.url, tmp_path / "a", topic="out", **options))
    micro_batches = sum(progress["numInputRows"] > 0 for progress in query.recentProgress)
    counts = puts(request_log)
    assert micro_batches >= 3
    assert counts["entries"] == 1 + micro_batches
    assert counts["topics"] == segments(store, "out") <= micro_batches * TASKS * PARTITIONS
    assert listed(request_log) <= {"checkpoints"}
    assert values(store, "out") == list(range(120))


@pytest.mark.parametrize(("group", "entries"), [({}, 0), ({"group": "etl"}, 1)])
def test_a_micro_batch_without_rows_has_no_segment(
    spark: SparkSession,
    store: Store,
    request_log: RequestLog,
    options: dict[str, str],
    tmp_path: Path,
    group: dict[str, str],
    entries: int,
) -> None:
    """It is an entry only if it commits offsets: those of the records of an aborted transaction."""
    send(store, 0, 10)
    frame = load_stream(spark, store.url, "in", **group, **options).select("key", "value")
    drain(stream_to(frame, store.url, tmp_path / "a", topic="out", **group, **options))
    with store.producer("source") as producer:
        producer.begin_transaction()
        producer.send("in", b"aborted")
        producer.flush()
        producer.abort_transaction()
    request_log.clear()
    query = drain(stream_to(frame, store.url, tmp_path / "a", topic="out", **group, **options))
    assert query.lastProgress is not None
    assert query.lastProgress["numInputRows"] == 0
    counts = puts(request_log)
    assert counts["topics"] == 0
    assert counts["entries"] == entries + len(group)  # The run's epoch, if it commits.
    assert values(store, "out") == list(range(10))


@pytest.mark.usefixtures("own_objects")
def test_a_compaction_on_spark_costs_what_a_local_one_costs(
    spark: SparkSession, store: Store, request_log: RequestLog
) -> None:
    """One GET per source, one PUT per segment, and one entry per merge: tasks read nothing of the chain."""
    for number in range(3):
        send(store, 10 * number, 10 * number + 10)
    sources = segments(store, "in")
    connection_of(store).view()
    request_log.clear()
    report = store.compact("in", engine="spark")
    assert (report.merges, sources) == (TASKS, 3 * TASKS)
    assert puts(request_log) == {"entries": TASKS, "topics": TASKS, "leases": 1}
    gets = Counter(request.key.split("/")[1] for request in request_log.requests if request.kind == "GET")
    assert gets["topics"] == sources
    # Of the driver: its view at the start, again with the lease, and the head before each entry.
    assert gets["chains"] <= 3 + TASKS
    assert store.verify(deep=True, engine="spark").ok
