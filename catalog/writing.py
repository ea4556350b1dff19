"""The decoded form of a topic for writers: its schema and settings."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from txnstore.catalog.settings import TopicConfig
from txnstore.core.catalog.model import Topic
from txnstore.segment.schema import stored_schema
from txnstore.segment.schema_text import schema_from_text


@dataclass(frozen=True, slots=True)
class TopicWriter:
    """A topic with its decoded schema and settings.

    Attributes:
        topic: The topic as the chain describes it.
        schema: The declared schema; None for Kafka records.
        stored: The schema of its segments.
        config: The settings, with defaults.
    """

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
        """The column that gives a record's timestamp; None if the timestamp is that of the append."""
        return None if self.config.append_time else self.timestamp_column


def topic_writer(topic: Topic) -> TopicWriter:
    """Decode the schema and settings of a topic."""
    schema = schema_from_text(topic.schema) if topic.schema is not None else None
    return TopicWriter(topic, schema, stored_schema(schema), TopicConfig.from_mapping(topic.config))
