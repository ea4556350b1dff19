"""The streaming sink: tasks upload segments, and the driver commits each micro-batch in one transaction, once.

Spark makes a writer for each micro-batch, and another one to commit it, in processes that it may stop in between. So
the messages of the tasks carry what the commit needs, and the store itself shows which run committed last.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage

from txnstore.spark.failures import line_first
from txnstore.spark.stores import cached_connection
from txnstore.spark.streams.commits import commit_micro_batch
from txnstore.spark.streams.microbatch import MicroBatch
from txnstore.spark.versions import StreamArrowWriter
from txnstore.spark.workers import Sent
from txnstore.spark.writes.routing import IGNORED
from txnstore.spark.writes.writer import Uploaded, find_topics, upload_rows, with_min_upload_time

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from txnstore.connection import Connection
    from txnstore.spark.options import SinkOptions

_LOG = logging.getLogger(__name__)


@dataclass
class StreamUploaded(Uploaded):
    """The batches that a task of a micro-batch uploaded."""

    query_id: str = ""
    run_id: str = ""


@line_first
class TxnStoreStreamWriter(Sent, StreamArrowWriter):
    """Appends the micro-batches of a query to one topic, or to the topics in its column ``_topic``.

    Args:
        schema: The columns of the query.
    """

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        # Also where nothing but a commit follows, so that it fails for the same reason as the plan of the micro-batch.
        connection = cached_connection(options.location)
        self._connection: Connection | None = connection
        self._topics = find_topics(connection, options, schema)
        self._begun_at = connection.view(refresh=False).timestamp
        self._options = replace(options, location=replace(options.location, url=connection.url))

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the connection: a task uploads to the topics that it is given."""
        return {**self.__dict__, "_connection": None}

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StreamUploaded:
        """Upload the rows of a task."""
        context = TaskContext.get()
        assert context is not None, "Spark calls this in a task"
        micro_batch_id = int(context.getLocalProperty("streaming.sql.batchId") or 0)
        # Small micro-batches have one task, so the first partition moves on with their number.
        first_partition = context.partitionId() + micro_batch_id
        options = self._options
        ignored_columns = IGNORED if options.ignore_system_columns else ()
        batches = upload_rows(options.location, self._topics, options.topic, iterator, first_partition, ignored_columns)
        return StreamUploaded(
            with_min_upload_time(batches, self._begun_at),
            query_id=context.getLocalProperty("sql.streaming.queryId") or "",
            run_id=context.getLocalProperty("spark.jobGroup.id") or "",
        )

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commit the uploads of all tasks in one transaction, unless the micro-batch is committed."""
        uploads = [message for message in messages if isinstance(message, StreamUploaded)]
        if not uploads:
            return  # Spark runs a task even for an empty micro-batch, so there was nothing to run at all.
        micro_batch = MicroBatch(uploads[0].query_id, uploads[0].run_id, batchId)
        uploaded_batches = [batch for message in uploads for batch in message.batches]
        connection = self._connection or cached_connection(self._options.location)
        commit_micro_batch(connection, self._options, micro_batch, uploaded_batches)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Do nothing: the outcome of a failed commit may be unknown, so the uploads must not be deleted here."""
        _LOG.warning(
            "the micro-batch failed; a later vacuum deletes its uploads",
            extra={"tasks": len(messages), "micro_batch": batchId},
        )
