"""What a writer needs to know of a topic: its schema and settings, decoded."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from txnstore.catalog.settings import TopicConfig
from txnstore.core.model import Topic
from txnstore.segment.schema import stored_schema
from txnstore.segment.schema_text import schema_from_text


@dataclass(frozen=True, slots=True)
class TopicWriter:
    """A topic, ready to be written: ``schema`` as declared (None: Kafka records), ``stored`` as segments hold it."""

    topic: Topic
    schema: pa.Schema | None
    stored: pa.Schema
    config: TopicConfig

    @property
    def key_column(self) -> str | None:
        """The column that chooses the partition."""
        return "key" if self.schema is None else self.topic.key

    @property
    def timestamp_column(self) -> str | None:
        """The column that holds the event time."""
        return "timestamp" if self.schema is None else self.topic.timestamp

    @property
    def event_time(self) -> str | None:
        """The column whose time counts for a record; None if that is the time of its append."""
        return None if self.config.append_time else self.timestamp_column


def topic_writer(topic: Topic) -> TopicWriter:
    """The decoded form of a topic."""
    schema = schema_from_text(topic.schema) if topic.schema is not None else None
    return TopicWriter(topic, schema, stored_schema(schema), TopicConfig.from_mapping(topic.config))
