"""Spark on a bucket that refuses reads or writes, or ignores conditional PUTs: one clear error each, in the driver."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

import txnstore
import txnstore.spark
from tests.harness.s3.wire import Break, RequestLog, WireFault
from tests.helpers.spark import append, load, load_stream, records, storage
from txnstore.errors import StorageRefusedError, UnsafeStorageError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.s3]

DENIED = WireFault(Break.STATUS, 403, "AccessDenied")


@pytest.fixture
def url(s3_bucket_url: str, storage_options: dict[str, Any]) -> Iterator[str]:
    """A store that was made without the proxy, so that no process knows the storage behind it."""
    with txnstore.create(f"{s3_bucket_url}/store", storage_options=storage_options) as store:
        store.create_topic("t")
        yield store.url


def _stream(spark: SparkSession) -> DataFrame:
    return spark.readStream.format("rate").load().selectExpr("string(value) as value")


def test_missing_permissions_are_named(
    spark: SparkSession, url: str, request_log: RequestLog, logged_options: dict[str, Any]
) -> None:
    options = storage(logged_options)
    request_log.plan = lambda request: DENIED if request.method == "PUT" else None
    message = r"access denied.*A write needs permission .*storage\.\*"
    with pytest.raises(Exception, match=message):
        append(records(spark, 1), url, "t", **options)
    with pytest.raises(StorageRefusedError, match=message):
        txnstore.spark.write_stream(_stream(spark), url, topic="t", **options)
    assert load(spark, url, "t", **options).count() == 0  # A read needs no permission to write.
    request_log.plan = lambda request: DENIED if request.method == "GET" else None
    for read in (load, load_stream):
        with pytest.raises(Exception, match="access denied"):
            read(spark, url, "t", **options)


def test_a_bucket_that_ignores_the_condition_is_refused(
    spark: SparkSession, url: str, request_log: RequestLog, logged_options: dict[str, Any]
) -> None:
    """OBJ-01: it creates the name, although there is one."""
    options = storage(logged_options)
    request_log.plan = lambda request: WireFault(Break.UNCONDITIONAL) if request.conditional else None
    with pytest.raises(Exception, match=r"UnsafeStorageError.*ignores If-None-Match"):
        append(records(spark, 1), url, "t", **options)
    with pytest.raises(UnsafeStorageError, match="ignores If-None-Match"):
        txnstore.spark.write_stream(_stream(spark), url, topic="t", **options)
