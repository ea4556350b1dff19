"""PySpark integration: the data source ``format("txnstore")``, and :func:`read` with Spark's own Parquet reader.

Importing this package does not import PySpark; using a session does. Spark finds the data source class
``TxnStoreSource`` automatically through the package ``pyspark_txnstore``. See docs/spark.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from txnstore.validation import check_callable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryProgress
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

    from txnstore.catalog.description import Topic
    from txnstore.core.model import TopicPartition
    from txnstore.read.plan import IsolationLevel
    from txnstore.snapshot import Snapshot
    from txnstore.spark.source import TxnStoreSource
    from txnstore.spark.streams.foreach import BatchTransaction
    from txnstore.spark.topics import TopicCreator

__all__ = [
    "BatchTransaction", "TxnStoreSource", "create_topic", "for_each_batch", "lag", "read", "register", "session",
    "start", "write_stream",
]  # fmt: skip


def session(*, master: str | None = None, app_name: str | None = None, **conf: object) -> SparkSession:
    """Return a Spark session whose Python workers run the interpreter of this process, and so find txnstore.

    Spark takes the interpreter from the environment: this sets ``PYSPARK_PYTHON`` there, unless it is set, and
    ``PYSPARK_DRIVER_PYTHON`` for the processes of data sources on this machine. If there is a session, it is returned.

    Args:
        master: The master, such as ``"local[4]"``; None for that of the environment.
        app_name: The name of the application.
        **conf: Settings by their names in Spark: ``session(**{"spark.sql.shuffle.partitions": 8})``.
            ``spark.pyspark.python`` replaces ``PYSPARK_PYTHON``.

    Raises:
        InvalidConfigError: A name is not a setting of Spark, PySpark is not installed, or the workers do not find
            txnstore.
    """
    from txnstore.spark.workers import make_session

    return make_session(master, app_name, conf)


def register(spark: SparkSession) -> None:
    """Register ``format("txnstore")`` with a session.

    Needed only if Spark does not find it automatically: with ``spark-submit --py-files``, or if another ``pyspark_*``
    package fails to import.

    Raises:
        InvalidConfigError: Spark's Python workers run an interpreter that does not find txnstore.
    """
    from txnstore.spark.source import TxnStoreSource
    from txnstore.spark.workers import check_workers

    check_workers(spark)
    spark.dataSource.register(TxnStoreSource)


def create_topic(
    store: TopicCreator,
    name: str,
    schema: StructType,
    partitions: int = 1,
    key: str | None = None,
    timestamp: str | None = None,
    config: Mapping[str, object] | None = None,
    *,
    exist_ok: bool = False,
) -> Topic:
    """Create a topic for the rows of a DataFrame.

    The topic has the columns of the DataFrame, all nullable. If these are ``value``, and perhaps ``key``, ``headers``
    and ``timestamp``, of the types that a topic of Kafka records takes, it is such a topic, unless ``key`` or
    ``timestamp`` is given. The columns ``_topic`` and ``_partition``, which route rows, are left out.

    Args:
        store: The :class:`txnstore.Store`.
        name: The topic.
        schema: The schema of the DataFrame: ``df.schema``.
        partitions: The number of partitions, 1 to 100,000.
        key: The column whose value chooses the partition, and of whose values compaction keeps the newest row.
        timestamp: The column with the event time.
        config: Settings with Kafka's names; durations in milliseconds.
        exist_ok: Return the topic if it exists and was created the same way.

    Raises:
        SchemaMismatchError: A topic cannot store a column; the message names it.
        TopicExistsError: It exists, and ``exist_ok`` is off or it was created with other arguments.
        InvalidTopicError: The name is not legal.
        InvalidConfigError: A setting is unknown or out of range.
    """
    from txnstore.spark.topics import topic_schema

    columns = topic_schema(schema, typed=key is not None or timestamp is not None)
    return store.create_topic(name, partitions, columns, key, timestamp, config, exist_ok=exist_ok)


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
    principal: str | None = None,
) -> DataFrame:
    """Read a topic with Spark's own Parquet reader, including column pruning and filter pushdown; for large scans.

    The files are planned by this call, so the frame always shows the same snapshot. If Spark cannot read the files
    itself (Arrow segments, ``s3://`` without hadoop-aws, Spark Connect), the frame uses ``format("txnstore")``, which
    gives the same rows. Spark's reader does not verify recorded checksums. On S3 it uses Spark's settings
    (``spark.hadoop.fs.s3a.*``); one HEAD checks that they lead to the same objects.

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
        principal: Who reads, as for :func:`txnstore.open`.
    """
    from txnstore.spark.reads.native import read_native

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
        principal=principal,
    )


def write_stream(frame: DataFrame, url: str, **options: object) -> DataStreamWriter:
    """Return a writer of a stream to ``format("txnstore")``, whose options and columns are checked now.

    Spark asks a Python sink for the first time in the first micro-batch. This makes the same checks in this process:
    options, store, permissions, topic, columns, checkpoint. ``start(write_stream(…).trigger(…))`` starts the query.

    Args:
        frame: The streaming DataFrame.
        url: The URL of the store.
        **options: The options of the sink by their names: ``topic="t", checkpointLocation="/checkpoints/q"``.

    Raises:
        InvalidConfigError: An option is wrong, or Spark's Python workers do not find txnstore.
        StoreNotFoundError: There is no store at this URL.
        StorageRefusedError: The storage refuses to read or to write.
        UnsafeStorageError: The storage does not refuse a second create of a name.
        UnknownTopicOrPartitionError: There is no such topic.
        SchemaMismatchError: The topic does not take these columns.
    """
    from txnstore.spark.streams.queries import make_stream_writer

    texts = {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}
    return make_stream_writer(frame, {**texts, "path": url})


def start(writer: DataStreamWriter, timeout: float = 60.0) -> StreamingQuery:
    """Start a query, and wait until its first micro-batch is committed, or there is nothing to read.

    ``writer.start()`` returns before the query has read its checkpoint and asked its sources. This raises the error of
    a query that ends in between, such as offsets outside the log or the checkpoint of another store. A query whose
    Python process did not start within Spark's 10 seconds, as on a busy machine, is started again, up to four times.

    Args:
        writer: The writer of any stream, with all its options.
        timeout: The seconds after which the query is returned in any case.

    Raises:
        pyspark.errors.StreamingQueryException: The query has ended with an error; the message has its cause.
    """
    from txnstore.spark.streams.queries import start_and_wait

    return start_and_wait(writer, timeout)


def for_each_batch(
    url: str,
    function: Callable[[BatchTransaction], object],
    *,
    transactional_id: str | None = None,
    group: str | None = None,
    checkpoint: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    principal: str | None = None,
) -> Callable[[DataFrame, int], None]:
    """Return a function for ``writeStream.foreachBatch`` that makes each micro-batch one transaction, committed once.

    Args:
        url: The URL of the store.
        function: Called with each micro-batch that is not committed yet; it appends frames.
        transactional_id: The transactional id of the query; None for one that is made of the id of the query.
        group: The consumer group that gets the offsets of the query's source, in the same transaction; the source
            must have the same option. Needs ``checkpoint``.
        checkpoint: The checkpoint location of the query.
        storage_options: Options for the storage, as for :func:`txnstore.open`.
        principal: Who writes, as for :func:`txnstore.open`.

    Raises:
        InvalidConfigError: An argument is wrong.
    """
    from txnstore.spark.options import make_location, make_sink_options
    from txnstore.spark.streams import foreach

    location = make_location(url, storage_options or {}, principal)
    options = make_sink_options(location, None, transactional_id, group, checkpoint)
    check_callable("function", function)
    return lambda frame, batch_id: foreach.run(function, options, frame, batch_id)


def lag(progress: StreamingQueryProgress | None) -> dict[TopicPartition, int]:
    """Return the offsets that a streaming query has not read yet, by partition, over all its sources of txnstore.

    Args:
        progress: ``query.lastProgress``, or that of a listener; None, before the first micro-batch, gives no lag.
    """
    import json

    from txnstore.spark.streams.positions import is_position
    from txnstore.spark.streams.positions import lag as lag_of

    result: dict[TopicPartition, int] = {}
    for source in [] if progress is None else json.loads(progress.json)["sources"]:
        end, latest = (_parse_json(source.get(name)) for name in ("endOffset", "latestOffset"))
        if is_position(end) and isinstance(latest, dict):
            result.update(lag_of(end, latest))
    return result


def _parse_json(value: Any) -> Any:
    """Parse a value that Spark gives as JSON, or as text with JSON."""
    import json

    return json.loads(value) if isinstance(value, str) else value


def __getattr__(name: str) -> Any:
    if name == "TxnStoreSource":
        from txnstore.spark.source import TxnStoreSource

        return TxnStoreSource
    if name == "BatchTransaction":
        from txnstore.spark.streams.foreach import BatchTransaction

        return BatchTransaction
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
