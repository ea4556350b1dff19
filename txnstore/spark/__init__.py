"""The door to PySpark: ``format("txnstore")``, and a way to Spark's own Parquet reader for large scans.

Importing this costs nothing: PySpark is imported when a session is there to be used. ``TxnStoreSource`` is the data
source class, which Spark finds by itself through the package ``pyspark_txnstore``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txnstore.reading.snapshot import Snapshot
    from txnstore.spark.source import TxnStoreSource

__all__ = ["TxnStoreSource", "read", "register"]


def register(spark: SparkSession) -> None:
    """Make ``format("txnstore")`` known to a session.

    Needed only where Spark cannot find it by itself: ``spark-submit --py-files``, or another ``pyspark_*`` package
    that fails to import.
    """
    from txnstore.spark.source import TxnStoreSource

    spark.dataSource.register(TxnStoreSource)


def read(
    spark: SparkSession,
    url: str,
    topic: str,
    *,
    columns: Sequence[str] | None = None,
    isolation: str = "read_committed",
    partitions: Sequence[int] | None = None,
    start: int | Mapping[int, int] | None = None,
    end: int | Mapping[int, int] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    snapshot: Snapshot | None = None,
) -> DataFrame:
    """The rows of a topic through Spark's own Parquet reader: with column pruning and filters, for large scans.

    The arguments are those of :meth:`txnstore.Store.scan`. The files are planned now, so the frame shows one snapshot
    for ever. Falls back to ``format("txnstore")``, which gives the same rows,
    where Spark cannot read the files itself: Arrow segments, ``s3://`` without hadoop-aws or with
    ``storage_options``, Spark Connect. Spark's reader does not compare the files with their recorded checksums.
    """
    from txnstore.spark.native import read_native

    return read_native(
        spark,
        url,
        topic,
        columns=columns,
        isolation=isolation,
        partitions=partitions,
        start=start,
        end=end,
        storage_options=storage_options,
        snapshot=snapshot,
    )


def __getattr__(name: str) -> Any:
    if name == "TxnStoreSource":
        from txnstore.spark.source import TxnStoreSource

        return TxnStoreSource
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
