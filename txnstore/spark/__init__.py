"""PySpark integration: the data source ``format("txnstore")``, and :func:`read` with Spark's own Parquet reader.

Importing this package does not import PySpark; using a session does. Spark finds the data source class
``TxnStoreSource`` automatically through the package ``pyspark_txnstore``. See docs/spark.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from txnstore.read.plan import IsolationLevel
    from txnstore.snapshot import Snapshot
    from txnstore.spark.source import TxnStoreSource

__all__ = ["TxnStoreSource", "read", "register"]


def register(spark: SparkSession) -> None:
    """Register ``format("txnstore")`` with a session.

    Needed only if Spark does not find it automatically: with ``spark-submit --py-files``, or if another ``pyspark_*``
    package fails to import.
    """
    from txnstore.spark.source import TxnStoreSource

    spark.dataSource.register(TxnStoreSource)


def read(
    spark: SparkSession,
    url: str,
    topic: str,
    *,
    columns: Sequence[str] | None = None,
    isolation: IsolationLevel = "read_committed",
    partitions: Sequence[int] | None = None,
    start: int | Mapping[int, int] | None = None,
    end: int | Mapping[int, int] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    snapshot: Snapshot | None = None,
) -> DataFrame:
    """Read a topic with Spark's own Parquet reader, including column pruning and filter pushdown; for large scans.

    The files are planned by this call, so the frame always shows the same snapshot. If Spark cannot read the files
    itself (Arrow segments, ``s3://`` without hadoop-aws or with ``storage_options``, Spark Connect), the frame uses
    ``format("txnstore")``, which gives the same rows. Spark's reader does not verify recorded checksums.

    Args:
        spark: The session.
        url: The URL of the store.
        topic: The topic.
        columns: The columns, in this order; None for all.
        isolation: ``"read_committed"`` or ``"read_uncommitted"``.
        partitions: The partitions; None for all.
        start: The first offset, for all partitions or by partition; None for the log start.
        end: The offset after the last one, for all partitions or by partition; None for the end.
        storage_options: Options for the storage, as for :func:`txnstore.open`.
        snapshot: The snapshot to read; None for the current state.
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
