"""``txnstore.spark.read`` on S3 with hadoop-aws: Spark's own Parquet reader. ``python -m tests.harness s3a`` runs this
on MinIO.

The tests are collected if ``TXNSTORE_S3A`` is set, because the session then needs jars from Maven Central.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import txnstore
from tests.harness.s3.wire import RequestLog
from tests.helpers.spark import is_native, load, rows, storage
from tests.integration.spark.test_requests import listed
from txnstore.spark import read
from txnstore.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.s3]

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture
def store(s3_bucket_url: str, logged_options: dict[str, Any]) -> Iterator[Store]:
    """A store with a topic of two partitions; each test has a bucket, because Hadoop keeps a client for each bucket."""
    with txnstore.create(f"{s3_bucket_url}/a b", storage_options=logged_options) as created:
        created.create_topic("events", partitions=2, schema=SCHEMA, key="id", config={"segment.own.bytes": 0})
        commit(created, 0, 40)
        yield created


@pytest.fixture
def session(spark: SparkSession, logged_options: dict[str, Any]) -> SparkSession:
    """A session with the settings of docs/spark.md for another server than AWS."""
    other = spark.newSession()
    settings = {
        "endpoint": logged_options["endpoint_url"],
        "endpoint.region": "us-east-1",
        "path.style.access": "true",
        "access.key": logged_options["key"],
        "secret.key": logged_options["secret"],
    }
    for name, value in settings.items():
        other.conf.set(f"fs.s3a.{name}", value)
    return other


def commit(store: Store, first: int, limit: int, *, abort: bool = False) -> None:
    """One transaction of rows with these ids."""
    ids = list(range(first, limit))
    with store.producer("writer") as producer:
        producer.begin_transaction()
        producer.send_table("events", pa.table([ids, [f"n{number}" for number in ids]], schema=SCHEMA))
        producer.flush()
        if abort:
            producer.abort_transaction()
        else:
            producer.commit_transaction()


def same(session: SparkSession, store: Store, options: dict[str, Any], **bounds: Any) -> int:
    """Check that both roads give the same rows; returns how many."""
    native = read(session, store.url, "events", storage_options=options, **bounds)
    start = json.dumps(bounds.get("start", {}))
    other = load(session, store.url, "events", startingOffsets=start, **storage(options))
    assert is_native(native)
    native_rows = rows(native)
    assert native_rows == rows(other)
    return len(native_rows)


def test_both_roads_agree(session: SparkSession, store: Store, logged_options: dict[str, Any]) -> None:
    """Committed, aborted, merged and cut (CON-02)."""
    commit(store, 40, 60, abort=True)
    commit(store, 60, 70)
    assert same(session, store, logged_options) == 50
    store.compact("events")
    commit(store, 70, 80)
    assert same(session, store, logged_options) == 60
    assert 0 < same(session, store, logged_options, start={0: 7, 1: 3}) < 60


def test_a_plan_takes_one_request_of_spark(
    session: SparkSession, store: Store, request_log: RequestLog, logged_options: dict[str, Any]
) -> None:
    """It checks one segment, whatever their number; the tasks know the names of the others, and list nothing."""
    for number in range(10):
        commit(store, number * 10, number * 10 + 10)
    request_log.clear()
    frame = read(session, store.url, "events", storage_options=logged_options)
    assert request_log.counts()["HEAD"] == 1
    assert listed(request_log) <= {"checkpoints"}, "by the open of the store"
    request_log.clear()
    assert frame.selectExpr("sum(id)").collect()[0][0] == sum(range(40)) + sum(range(100))
    assert request_log.counts()["LIST"] == 0


@pytest.mark.parametrize(
    ("setting", "value", "warning"),
    [
        ("endpoint", "http://127.0.0.1:1", "Set spark.hadoop.fs.s3a.endpoint to "),
        ("secret.key", "wrong", "AccessDenied"),
    ],
)
def test_wrong_settings_take_the_other_road_with_a_warning(
    session: SparkSession,
    store: Store,
    logged_options: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
    setting: str,
    value: str,
    warning: str,
) -> None:
    session.conf.set(f"fs.s3a.{setting}", value)
    frame = read(session, store.url, "events", storage_options=logged_options)
    assert not is_native(frame)
    assert frame.count() == 40
    assert warning in caplog.text
