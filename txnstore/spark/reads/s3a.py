"""The location of a store's objects for Spark itself, and whether Spark can read them there."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from txnstore.spark.options import Location

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from txnstore.core.log.model import Segment

_LOG = logging.getLogger(__name__)


def root_for_spark(spark: SparkSession, location: Location, sample: Segment) -> str | None:
    """Return the percent-encoded URL of the store's root for Spark; None if Spark cannot read there.

    On S3 this needs hadoop-aws and its settings. One HEAD checks that Spark finds the same object as txnstore; if not,
    a warning says which setting to change.
    """
    if not hasattr(spark, "_jvm"):
        return None  # Spark Connect: its server may see other files than this process.
    if location.url.startswith("file://"):
        return "file://" + quote(unquote(location.url.removeprefix("file://")))  # The store's URL may have spaces.
    if not location.url.startswith("s3://"):
        return None
    root = "s3a://" + quote(location.url.removeprefix("s3://"))
    problem = _read_problem(spark, location, f"{root}/{quote(sample.key)}", sample.size)
    if problem is None:
        return root
    _LOG.warning(
        "Spark's Parquet reader cannot read this store, so the slower format('txnstore') does: %s",
        problem,
        extra={"url": location.url, "error": problem},
    )
    return None


def _read_problem(spark: Any, location: Location, url: str, size: int) -> str | None:
    """Describe why Spark cannot read an object of this size, with what to change; None if it can."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    jvm, settings = spark._jvm, spark._jsparkSession.sessionState().newHadoopConf()  # noqa: SLF001 - There is no public way.
    try:
        jvm.java.lang.Thread.currentThread().getContextClassLoader().loadClass("org.apache.hadoop.fs.s3a.S3AFileSystem")
    except Py4JJavaError:
        return "it has no file system for s3a. Add hadoop-aws to spark.jars.packages (docs/spark.md)."
    bucket = urlsplit(url).netloc
    store_endpoint = _endpoint(location)
    spark_endpoint = settings.get(f"fs.s3a.bucket.{bucket}.endpoint") or settings.get("fs.s3a.endpoint")
    if store_endpoint is not None and _host(store_endpoint) != _host(spark_endpoint or ""):
        return f"its endpoint is {spark_endpoint or 'AWS'}. Set spark.hadoop.fs.s3a.endpoint to {store_endpoint}."
    try:
        path = jvm.org.apache.hadoop.fs.Path(jvm.java.net.URI(url))
        length = path.getFileSystem(settings).getFileStatus(path).getLen()
    except (Py4JJavaError, PySparkException) as error:
        cause = error.java_exception.toString() if isinstance(error, Py4JJavaError) else str(error)
        return f"{cause.splitlines()[0]}. Check the settings spark.hadoop.fs.s3a.* (docs/spark.md)."
    return None if length == size else f"it finds another object at {url}. Check spark.hadoop.fs.s3a.endpoint."


def _endpoint(location: Location) -> str | None:
    """Return the endpoint that txnstore uses; None for that of AWS."""
    options = location.storage_options
    client = options.get("client_kwargs")
    of_client = client.get("endpoint_url") if isinstance(client, dict) else None
    of_environment = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    return options.get("endpoint_url") or of_client or of_environment or None


def _host(endpoint: str) -> str:
    """Return the host and the port of an endpoint, which Hadoop also accepts without a scheme."""
    return urlsplit(endpoint if "://" in endpoint else f"//{endpoint}").netloc.lower()
