"""What a writer needs to know of a topic: its schema and settings, decoded once for each version of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

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


def topic_writer(topic: Topic) -> TopicWriter:
    """The decoded form of a topic; cached by id and version."""
    return _decoded(topic.topic_id, topic.version, _Same(topic))


class _Same:
    """A topic that is equal to every other, so that the cache looks at its id and version only."""

    __slots__ = ("topic",)

    def __init__(self, topic: Topic) -> None:
        self.topic = topic

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same)

    def __hash__(self) -> int:
        return 0


@lru_cache(maxsize=1024)
def _decoded(topic_id: str, version: int, same: _Same) -> TopicWriter:  # noqa: ARG001 - the cache's key
    topic = same.topic
    schema = schema_from_text(topic.schema) if topic.schema is not None else None
    return TopicWriter(topic, schema, stored_schema(schema), TopicConfig.from_mapping(topic.config))
