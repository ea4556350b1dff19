"""The batch writer: tasks upload segments, the driver commits all of them in one transaction.

Whatever Spark does with its tasks (retries, speculation, stages run again), only the segments of the messages that it
hands to ``commit`` are named by the chain. Every other upload is an object that nobody knows, and goes with a vacuum.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from txnstore.catalog.writing import TopicWriter, topic_writer
from txnstore.core.model import NewBatch, State, Topic
from txnstore.errors import SchemaMismatchError
from txnstore.ids import Runtime
from txnstore.plan import find_topic
from txnstore.segment.convert import normalize
from txnstore.segment.schema import is_reserved
from txnstore.spark import jobs
from txnstore.spark.options import WriteOptions
from txnstore.spark.routing import PARTITION, TOPIC, SegmentRouter
from txnstore.spark.stores import open_location, open_objects

_LOG = logging.getLogger(__name__)


@dataclass
class Uploaded(WriterCommitMessage):
    """What a task uploaded, in the order of its rows."""

    batches: tuple[NewBatch, ...] = ()


class TxnStoreWriter(DataSourceArrowWriter):
    """Appends a DataFrame to one topic, or to those that its rows name in ``_topic``, as one transaction.

    Made once on the driver, and pickled for the tasks and for the commit: so it carries the job.
    """

    def __init__(self, options: WriteOptions, columns: Sequence[str]) -> None:
        with open_location(options.location) as store:
            state = store.state(refresh=False)
            self._only = options.topic
            self._topics = _topics(state, options, columns)
            ids = {name: topic.topic_id for name, topic in self._topics.items()}
            self._job = jobs.begin(store, options.transactional_id, options.versions, ids)
            self._location = replace(options.location, url=store.url)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Uploaded:
        """Upload the rows of a task. A task of a job that is committed already computes nothing."""
        if self._job.repeated:
            return Uploaded()
        context = TaskContext.get()
        first = context.partitionId() if context is not None else 0
        objects = open_objects(self._location)
        writers = {name: topic_writer(topic) for name, topic in self._topics.items()}
        router = SegmentRouter(objects, Runtime(), writers, self._only, first)
        try:
            for batch in iterator:
                router.add(batch)
            return Uploaded(router.finish())
        finally:
            router.close()
            objects.close()

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Make everything that the tasks uploaded visible at once."""
        uploaded = [message for message in messages if isinstance(message, Uploaded)]
        with open_location(self._location) as store:
            jobs.commit(store, self._job, [batch for message in uploaded for batch in message.batches])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing: after a failed commit nobody here knows whether it took effect, so nothing may be deleted."""
        _LOG.warning("the job failed; what it uploaded goes with the next vacuum", extra={"tasks": len(messages)})


def _topics(state: State, options: WriteOptions, columns: Sequence[str]) -> Mapping[str, Topic]:
    """What the job may write; the columns are checked as far as their names go."""
    if options.topic is None:
        if TOPIC not in columns:
            msg = f"which topic is to be written? Give the option topic, or a column {TOPIC} with a name in each row"
            raise SchemaMismatchError(msg)
        _check_reserved(columns)
        return dict(state.topics.items())
    topic = find_topic(state, options.topic)
    _check_reserved(columns)
    _check_names(topic_writer(topic), [name for name in columns if name not in (TOPIC, PARTITION)])
    return {topic.name: topic}


def _check_reserved(columns: Sequence[str]) -> None:
    for name in columns:
        if is_reserved(name) and name not in (TOPIC, PARTITION):
            msg = f"column {name!r} is given by the store when rows are appended: drop it from the DataFrame"
            raise SchemaMismatchError(msg)


def _check_names(writer: TopicWriter, columns: Sequence[str]) -> None:
    """Refuse, before any task runs, columns that the topic does not have, and the lack of those that it needs."""
    for name in columns:
        if name not in writer.stored.names:
            close = difflib.get_close_matches(name.lower(), writer.stored.names, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            known = ", ".join(writer.stored.names)
            msg = f"topic {writer.topic.name!r} has no column {name!r}{hint} It has: {known}"
            raise SchemaMismatchError(msg)
    if writer.schema is None and "value" not in columns:
        msg = f"topic {writer.topic.name!r} holds Kafka records: the DataFrame needs a column 'value' (key is optional)"
        raise SchemaMismatchError(msg)
    normalize(pa.table({name: pa.nulls(0) for name in columns}), writer.schema)
