"""The batch writer: tasks upload segments, and the driver commits all of them in one transaction.

Spark may run tasks several times (retries, speculation, repeated stages). The commit references only the segments of
the messages that Spark passes to ``commit``; a vacuum deletes all other uploads.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from txnstore.catalog.writing import TopicWriter, topic_writer
from txnstore.core.authorization.rights import write_topics
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import NewBatch
from txnstore.core.view import View
from txnstore.errors import InvalidConfigError, SchemaMismatchError, UnknownTopicOrPartitionError
from txnstore.runtime import Runtime
from txnstore.segment.convert import normalize
from txnstore.segment.schema import is_reserved
from txnstore.spark import tables
from txnstore.spark.failures import line_first
from txnstore.spark.options import Location, WriteOptions
from txnstore.spark.stores import open_objects, open_to_write
from txnstore.spark.topics import PARTITION, TOPIC, create_missing
from txnstore.spark.types import arrow_type
from txnstore.spark.workers import Sent
from txnstore.spark.writes import jobs
from txnstore.spark.writes.routing import IGNORED, SegmentRouter
from txnstore.validation import nearest

if TYPE_CHECKING:
    from txnstore.connection import Connection
    from txnstore.spark.options import SinkOptions

_LOG = logging.getLogger(__name__)

#: The number of batches that a task of a repeated job reads from Spark.
_SKIPPED_BATCHES = 8


@dataclass
class Uploaded(WriterCommitMessage):
    """The batches that a task uploaded."""

    batches: tuple[NewBatch, ...] = ()


@line_first
class TxnStoreWriter(Sent, DataSourceArrowWriter):
    """Appends a DataFrame to one topic, or to the topics in its column ``_topic``, as one transaction.

    Spark creates it once on the driver, and pickles it for the tasks and for the commit, so it contains the job.
    """

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        with open_to_write(options.location) as connection:
            self._only_topic = options.topic
            self._ignored_columns = IGNORED if options.ignore_system_columns else ()
            self._topics = find_topics(connection, options, schema)
            ids = {name: topic.topic_id for name, topic in self._topics.items()}
            self._job = jobs.begin(connection, options.transactional_id, options.versions, ids)
            self._location = replace(options.location, url=connection.url)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Uploaded:
        """Upload the rows of a task; does nothing if the job is already committed."""
        if self._job.repeated:
            # The rows are not needed, but Spark discards a worker that does not read all rows; so read a small task.
            for _ in islice(iterator, _SKIPPED_BATCHES):
                pass
            return Uploaded()
        context = TaskContext.get()
        check_no_table(context)
        first_partition = context.partitionId() if context is not None else 0
        return Uploaded(
            upload_rows(
                self._location, self._topics, self._only_topic, iterator, first_partition, self._ignored_columns
            )
        )

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Commit all uploads of the tasks in one transaction."""
        uploads = [message for message in messages if isinstance(message, Uploaded)]
        with open_to_write(self._location) as connection:
            jobs.commit(connection, self._job, [batch for message in uploads for batch in message.batches])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: the outcome of a failed commit may be unknown, so the uploads must not be deleted here."""
        _LOG.warning("the job failed; a later vacuum deletes its uploads", extra={"tasks": len(messages)})


def upload_rows(
    location: Location,
    topics: Mapping[str, CatalogTopic],
    only_topic: str | None,
    rows: Iterable[pa.RecordBatch],
    first_partition: int,
    ignored_columns: Sequence[str] = (),
) -> tuple[NewBatch, ...]:
    """Upload the rows of a task as segments.

    Args:
        topics: The topics that may be written.
        only_topic: The topic of all rows; None if each row names its topic.
        first_partition: That of the first rows without a key; different for each task, to spread the rows of a job.
        ignored_columns: The columns to leave out.
    """
    objects = open_objects(location)
    writers = {name: topic_writer(topic) for name, topic in topics.items()}
    router = SegmentRouter(objects, Runtime(), writers, only_topic, first_partition)
    try:
        for batch in rows:
            router.add(batch.drop_columns([name for name in ignored_columns if name in batch.schema.names]))
        return router.finish()
    finally:
        router.close()
        objects.close()


def with_min_upload_time(batches: Iterable[NewBatch], begun_at: int) -> tuple[NewBatch, ...]:
    """Raise times of upload to at least ``begun_at`` in ms: the clocks of the workers may be behind."""
    return tuple(replace(batch, uploaded_at=max(batch.uploaded_at or 0, begun_at)) for batch in batches)


def check_no_table(context: TaskContext | None) -> None:
    """Refuse to write the rows of a new table of Spark's catalog, which Spark could not read afterwards.

    ``saveAsTable`` and ``CREATE TABLE … AS SELECT`` give the writer the same as ``save`` does. But they run the write
    as a query inside of their own, which the tasks see; a micro-batch does so, too, for the writes of its function.

    Raises:
        InvalidConfigError: This task is one of them.
    """
    if context is None or context.getLocalProperty("sql.streaming.queryId") is not None:
        return
    execution, root = (context.getLocalProperty(f"spark.sql.execution.{name}") for name in ("id", "root.id"))
    if execution is not None and root is not None and execution != root:
        raise InvalidConfigError(tables.new_table_message())


def find_topics(
    connection: Connection, options: WriteOptions | SinkOptions, schema: StructType
) -> Mapping[str, CatalogTopic]:
    """Return the topics that a DataFrame may be written to; create one if the options say so."""
    if options.topic is not None:
        connection.check_rights(write_topics([options.topic]))
    view = connection.view(refresh=False)
    if options.ignore_system_columns:
        schema = StructType([field for field in schema.fields if field.name not in IGNORED])
    _check_system_columns(schema)
    if options.create is not None and options.topic is not None:
        view = create_missing(connection, view, options.topic, schema, options.create)
    try:
        return topics_to_write(view, options.topic, schema)
    except UnknownTopicOrPartitionError as error:
        msg = f'{error}. Create it, or let the write create it: option("createTopic", "true")'
        raise UnknownTopicOrPartitionError(msg) from None


def topics_to_write(view: View, only_topic: str | None, schema: StructType) -> Mapping[str, CatalogTopic]:
    """Return the topics that a DataFrame may be written to; check its columns on the driver, before any task runs.

    Raises:
        UnknownTopicOrPartitionError: There is no such topic.
        SchemaMismatchError: The topic does not take these columns.
    """
    _check_system_columns(schema)
    if only_topic is not None:
        topic = view.find_topic(only_topic)
        _check_columns(topic_writer(topic), schema)
        return {topic.name: topic}
    if TOPIC not in schema.names:
        msg = f"which topic is to be written? Give the option topic, or a column {TOPIC} with a name in each row"
        raise SchemaMismatchError(msg)
    return dict(view.topics.items())


def _check_system_columns(schema: StructType) -> None:
    """Refuse a column whose values the store gives to records when they are appended."""
    for name in schema.names:
        if is_reserved(name) and name not in (TOPIC, PARTITION):
            advice = "drop it from the DataFrame"
            if name in IGNORED:
                advice += f', or set option("systemColumns", "ignore"), which ignores {", ".join(IGNORED)}'
            msg = f"column {name!r} is given by the store when rows are appended: {advice}"
            raise SchemaMismatchError(msg)


def _check_columns(writer: TopicWriter, schema: StructType) -> None:
    """Refuse columns that the topic does not have, types that cannot be cast, and missing required columns."""
    types = {field.name: arrow_type(field.dataType.simpleString()) for field in schema.fields}
    for name in (TOPIC, PARTITION):
        types.pop(name, None)
    for name in types:
        if name not in writer.stored.names:
            names = writer.stored.names
            hint = nearest(name.lower(), names)
            msg = f"topic {writer.topic.name!r} has no column {name!r}; it has {', '.join(names)}{hint}"
            raise SchemaMismatchError(msg)
    if writer.schema is None and "value" not in types:
        msg = f"topic {writer.topic.name!r} has Kafka records: the DataFrame needs a column 'value' (key is optional)"
        raise SchemaMismatchError(msg)
    normalize(pa.table({name: pa.array([], data_type) for name, data_type in types.items()}), writer.schema)
