"""Creating, altering and deleting topics: names, schemas and settings checked, then one command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from txnstore.catalog import schemas
from txnstore.catalog.settings import TopicConfig, check_setting
from txnstore.core.commands import AlterTopic, Command, CreateTopic, DeleteTopic
from txnstore.core.model import (
    Topic,
)
from txnstore.core.names import check_topic_name
from txnstore.core.view import View
from txnstore.errors import InvalidConfigError, TopicChangedError, TopicExistsError, UnknownTopicOrPartitionError
from txnstore.ids import Runtime
from txnstore.segment.schema_text import schema_from_text, schema_to_text

if TYPE_CHECKING:
    import pyarrow as pa

#: More is a slip of the finger: every state of the store has an item for each, also in memory.
MAX_PARTITIONS = 100_000


class _Catalog(Protocol):
    """What these functions need of a store."""

    runtime: Runtime

    def submit(self, command: Command) -> Any: ...

    def state(self, *, refresh: bool = True) -> View: ...


def find_topic(state: View, name: str) -> Topic:
    """The topic. Raises :class:`UnknownTopicOrPartitionError`, which lists names that look alike."""
    topic = state.topics.get(str(name)) if isinstance(name, str) else None
    if topic is None:
        known = ", ".join(sorted(state.topics)[:10]) or "none"
        msg = f"there is no topic {name!r}; the store has {known}"
        raise UnknownTopicOrPartitionError(msg)
    return topic


def create_topic(
    store: _Catalog,
    name: str,
    partitions: int,
    schema: pa.Schema | None,
    key: str | None,
    timestamp: str | None,
    config: Mapping[str, object] | None,
    *,
    exist_ok: bool,
) -> Topic:
    """Create a topic; with ``exist_ok`` an existing one is returned if it was created the same way."""
    name = check_topic_name(name)
    _check_partitions(name, partitions)
    schemas.check_topic_schema(schema, key, timestamp)
    settings = _settings(config or {}, timestamp)
    topic = Topic(
        name=name,
        topic_id=store.runtime.new_id(),
        partitions=partitions,
        schema=schema_to_text(schema) if schema is not None else None,
        key=key,
        timestamp=timestamp,
        config=settings.to_mapping(),
        created_at=store.runtime.clock(),
    )
    try:
        created: Topic = store.submit(CreateTopic(topic))
    except TopicExistsError:
        if not exist_ok:
            raise
        return _same_topic(find_topic(store.state(refresh=False), name), topic)
    return created


def _same_topic(existing: Topic, wanted: Topic) -> Topic:
    for what in ("partitions", "schema", "key", "timestamp", "config"):
        if getattr(existing, what) != getattr(wanted, what):
            counts = f"{existing.partitions} partitions, not {wanted.partitions}"
            msg = f"topic {existing.name!r} exists already with {counts if what == 'partitions' else f'another {what}'}"
            raise TopicExistsError(msg)
    return existing


def alter_topic(
    store: _Catalog,
    name: str,
    partitions: int | None,
    schema: pa.Schema | None,
    config: Mapping[str, object] | None,
) -> Topic:
    """Change a topic; what is None stays as it is. Raises the class of :mod:`txnstore.errors` that fits the mistake.

    If somebody else alters it at the same moment, the change is applied to what they made of it.
    """
    while True:
        topic = find_topic(store.state(), name)
        altered = _altered(topic, partitions, schema, config)
        try:
            result: Topic = store.submit(AlterTopic(altered, topic.version))
        except TopicChangedError:
            continue  # Each round follows a change of somebody else, so the rounds end.
        return result


def _altered(
    topic: Topic,
    partitions: int | None,
    schema: pa.Schema | None,
    config: Mapping[str, object] | None,
) -> Topic:
    name = topic.name
    changes: dict[str, Any] = {}
    if partitions is not None:
        _check_partitions(name, partitions)
        changes["partitions"] = partitions
    if schema is not None:
        if topic.schema is None:
            msg = f"topic {name!r} holds Kafka records; it cannot get a schema"
            raise InvalidConfigError(msg)
        schemas.check_topic_schema(schema, topic.key, topic.timestamp)
        schemas.evolve_schema(schema_from_text(topic.schema), schema, topic.key)
        changes["schema"] = schema_to_text(schema)
    if config is not None:
        for setting, value in config.items():
            if value is None and setting not in topic.config:
                check_setting(setting)
        merged = {**topic.config, **config}
        kept = {setting: value for setting, value in merged.items() if value is not None}
        changes["config"] = _settings(kept, topic.timestamp).to_mapping()
    return replace(topic, version=topic.version + 1, **changes)


def delete_topic(store: _Catalog, name: str) -> None:
    """Delete a topic."""
    store.submit(DeleteTopic(check_topic_name(name)))


def _settings(config: Mapping[str, object], timestamp: str | None) -> TopicConfig:
    settings = TopicConfig.from_mapping(config)
    if settings.append_time and timestamp is not None:
        msg = f"message.timestamp.type is LogAppendTime, so column {timestamp!r} cannot be the timestamp"
        raise InvalidConfigError(msg)
    return settings


def _check_partitions(name: str, partitions: int) -> None:
    if isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions <= MAX_PARTITIONS:
        msg = f"partitions of topic {name!r} must be an integer from 1 to {MAX_PARTITIONS}, not {partitions!r}"
        raise InvalidConfigError(msg)
