"""``foreachBatch`` with one transaction for each micro-batch: several outputs, joins, anything that Spark can compute.

The function runs in the driver. Frames that it appends are uploaded by Spark's tasks and committed together when it
returns. A micro-batch that is committed already is not computed again.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext

from txnstore.core.authorization.rights import write_topics
from txnstore.core.log.model import NewBatch
from txnstore.errors import InvalidConfigError, InvalidTxnStateError
from txnstore.spark.options import SinkOptions
from txnstore.spark.stores import cached_connection
from txnstore.spark.streams.commits import commit_micro_batch, is_committed
from txnstore.spark.streams.microbatch import MicroBatch
from txnstore.spark.workers import check_workers
from txnstore.spark.writes.writer import topics_to_write, upload_rows, with_min_upload_time

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: The column in which a task returns what it uploaded.
_UPLOADED = "uploaded"


class BatchTransaction:
    """The transaction of one micro-batch, for the function of :func:`txnstore.spark.for_each_batch`.

    Attributes:
        frame: The rows of the micro-batch.
        batch_id: Its number.
    """

    def __init__(self, frame: DataFrame, batch_id: int, options: SinkOptions) -> None:
        self.frame, self.batch_id = frame, batch_id
        self._options = options
        self._uploaded_batches: list[NewBatch] = []
        self._is_open = True

    def append(self, frame: DataFrame, topic: str | None = None) -> None:
        """Append a frame to a topic, or to the topics in its column ``_topic``. Runs a Spark job that uploads it.

        The rows are visible when the micro-batch is committed.

        Args:
            frame: The rows; derived from ``frame`` of this transaction, or any other.
            topic: The topic of all rows.

        Raises:
            InvalidTxnStateError: The micro-batch has ended.
            UnknownTopicOrPartitionError: There is no such topic.
            SchemaMismatchError: The topic does not take these columns.
            InvalidConfigError: Spark's Python workers do not find txnstore.
        """
        if not self._is_open:
            msg = f"micro-batch {self.batch_id} has ended: append inside of the function"
            raise InvalidTxnStateError(msg)
        check_workers(frame.sparkSession)
        connection = cached_connection(self._options.location)
        if topic is not None:
            connection.check_rights(write_topics([topic]))
        view = connection.view(refresh=False)
        topics = topics_to_write(view, topic, frame.schema)
        location = replace(self._options.location, url=connection.url)
        batch_id, begun_at = self.batch_id, view.timestamp

        def upload(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            context = TaskContext.get()
            first_partition = (context.partitionId() if context is not None else 0) + batch_id
            uploads = upload_rows(location, topics, topic, rows, first_partition)
            yield pa.record_batch([pa.array([pickle.dumps(uploads)])], names=[_UPLOADED])

        for row in frame.mapInArrow(upload, f"{_UPLOADED} binary").collect():
            self._uploaded_batches += with_min_upload_time(pickle.loads(row[0]), begun_at)  # noqa: S301 - from our own task

    def end(self) -> tuple[NewBatch, ...]:
        """Return what was uploaded, and refuse further appends."""
        self._is_open = False
        return tuple(self._uploaded_batches)


def run(function: Callable[[BatchTransaction], object], options: SinkOptions, frame: DataFrame, batch_id: int) -> None:
    """Call the function with a micro-batch and commit what it appends, unless that is committed already."""
    batch = micro_batch(frame, batch_id)
    connection = cached_connection(options.location)
    if is_committed(connection, options, batch):
        return
    transaction = BatchTransaction(frame, batch_id, options)
    try:
        function(transaction)
    finally:
        uploaded_batches = transaction.end()
    commit_micro_batch(connection, options, batch, uploaded_batches)


def micro_batch(frame: DataFrame, batch_id: int) -> MicroBatch:
    """Return the micro-batch that Spark runs in this thread.

    Raises:
        InvalidConfigError: This is not the function of a ``foreachBatch`` of a classic session.
    """
    context: Any = getattr(frame.sparkSession, "sparkContext", None)
    query = context.getLocalProperty("sql.streaming.queryId") if context is not None else None
    if query is None:
        msg = "for_each_batch needs a query of a classic Spark session: pass it to writeStream.foreachBatch"
        raise InvalidConfigError(msg)
    return MicroBatch(query, context.getLocalProperty("spark.jobGroup.id") or "", batch_id)
