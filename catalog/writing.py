"""The decoded form of a topic for writers: its schema and settings."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from txnstore.catalog.settings import TOMBSTONE_COLUMN, TopicConfig
from txnstore.core.catalog.model import CatalogTopic
from txnstore.errors import CorruptionError
from txnstore.segment.schema import is_timestamp_type, schema_from_text, stored_schema


@dataclass(frozen=True, slots=True)
class TopicWriter:
    """A topic with its decoded schema and settings.

    Attributes:
        topic: The topic as the chain describes it.
        schema: The declared schema; None for Kafka records.
        stored: The schema of its segments.
        config: The settings, with defaults.
        key_column: The column that chooses the partition.
        timestamp_column: The column that holds the event time.
        tombstone_column: The column that tells tombstones (:func:`txnstore.segment.schema.tombstones`); None if the
            topic has none.
        event_time: The column that gives a record's timestamp; None if the timestamp is that of the append.
        compression: The compression, as an argument for :func:`txnstore.segment.codec.encode`.
    """

    topic: CatalogTopic
    schema: pa.Schema | None
    stored: pa.Schema
    config: TopicConfig
    key_column: str | None
    timestamp_column: str | None
    tombstone_column: str | None
    event_time: str | None
    compression: str


def topic_writer(topic: CatalogTopic) -> TopicWriter:
    """Decode the schema and settings of a topic.

    Raises:
        CorruptionError: The schema or a setting cannot be read, or a column that the topic names does not exist.
    """
    schema = schema_from_text(topic.schema) if topic.schema is not None else None
    config = TopicConfig.from_stored(topic.config)
    tombstone = config.tombstone_column or None
    if schema is not None:
        _check_columns(topic, tombstone, schema)
    timestamp = "timestamp" if schema is None else topic.timestamp
    return TopicWriter(
        topic,
        schema,
        stored_schema(schema),
        config,
        key_column="key" if schema is None else topic.key,
        timestamp_column=timestamp,
        tombstone_column="value" if schema is None else tombstone,
        event_time=None if config.append_time else timestamp,
        compression=config.compression,
    )


def _check_columns(topic: CatalogTopic, tombstone: str | None, schema: pa.Schema) -> None:
    """Check that each column with a role is in the schema, with the type that its role needs."""
    for role, column in (("key", topic.key), ("timestamp", topic.timestamp), (TOMBSTONE_COLUMN, tombstone)):
        if column is not None and column not in schema.names:
            msg = f"cannot read the schema of a topic in the chain: its {role} {column!r} is no column"
            raise CorruptionError(msg)
    if topic.timestamp is not None and not is_timestamp_type(kind := schema.field(topic.timestamp).type):
        msg = f"cannot read the schema of a topic in the chain: its timestamp {topic.timestamp!r} is of type {kind}"
        raise CorruptionError(msg)
    if tombstone is not None and not pa.types.is_boolean(kind := schema.field(tombstone).type):
        msg = f"cannot read the schema of a topic in the chain: its {TOMBSTONE_COLUMN} {tombstone!r} is of type {kind}"
        raise CorruptionError(msg)
