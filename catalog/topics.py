"""Creates, alters and deletes topics: checks names, schemas and settings, then submits one command."""

from __future__ import annotations

import logging
from collections.abc import Container, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from txnstore.catalog import schemas
from txnstore.catalog.iceberg.columns import check_columns
from txnstore.catalog.iceberg.location import location_of
from txnstore.catalog.settings import TopicConfig, check_setting, publishes_table
from txnstore.chain import keys
from txnstore.core.catalog.model import AlterTopic, CatalogTopic, CreateTopic, DeleteTopic
from txnstore.core.model import Command
from txnstore.core.view import View
from txnstore.errors import (
    InvalidConfigError,
    InvalidTopicError,
    StorageRefusedError,
    TopicChangedError,
    TopicExistsError,
)
from txnstore.runtime import Runtime
from txnstore.segment.schema import schema_from_text, schema_to_text
from txnstore.storage.base import ObjectStore, check_key
from txnstore.validation import check_integer, check_topic_name

if TYPE_CHECKING:
    import pyarrow as pa

_LOG = logging.getLogger(__name__)

#: A limit against typing errors: each state of the store, also in memory, has an item for each partition.
MAX_PARTITIONS = 100_000


class _Catalog(Protocol):
    """The part of a store that these functions use."""

    runtime: Runtime

    @property
    def objects(self) -> ObjectStore: ...

    def submit(self, command: Command) -> Any: ...

    def view(self, *, refresh: bool = True) -> View: ...


def create_topic(
    connection: _Catalog,
    name: str,
    partitions: int,
    schema: pa.Schema | None,
    key: str | None,
    timestamp: str | None,
    config: Mapping[str, object] | None,
    *,
    exist_ok: bool,
) -> CatalogTopic:
    """See :meth:`txnstore.Store.create_topic`."""
    topic = new_topic(connection.runtime, name, partitions, schema, key, timestamp, config)
    try:
        check_table_location(connection.objects, topic)
    except InvalidConfigError:
        # An existing topic may have got its table before the store was moved.
        if topic.name not in connection.view().topics:
            raise
    try:
        created_topic: CatalogTopic = connection.submit(CreateTopic(topic))
    except TopicExistsError:
        if not exist_ok:
            raise
        return _check_same_topic(connection.view(refresh=False).find_topic(name), topic)
    _LOG.info("topic created", extra={"topic": topic.name, "partitions": topic.partitions})
    return created_topic


def new_topic(
    runtime: Runtime,
    name: str,
    partitions: int,
    schema: pa.Schema | None = None,
    key: str | None = None,
    timestamp: str | None = None,
    config: Mapping[str, object] | None = None,
    *,
    inert: Container[str] = (),
) -> CatalogTopic:
    """Make a topic to create; arguments and errors are those of :func:`create_topic`.

    Args:
        inert: The accepted settings without effect; see :data:`~txnstore.catalog.settings.INERT`.
    """
    name = _check_new_name(name)
    partitions = _check_partitions(name, partitions)
    schemas.check_topic_schema(schema, key, timestamp)
    settings = _parse_settings(config or {}, timestamp, inert, has_keys=schema is None or key is not None)
    topic = CatalogTopic(
        name=name,
        topic_id=runtime.new_id(),
        partitions=partitions,
        schema=schema_to_text(schema) if schema is not None else None,
        key=key,
        timestamp=timestamp,
        config=settings.to_mapping(),
        created_at=runtime.clock(),
    )
    return _check_columns_of_settings(topic, settings)


def _check_same_topic(existing_topic: CatalogTopic, requested_topic: CatalogTopic) -> CatalogTopic:
    """Return an existing topic if it equals the requested one; else raise TopicExistsError."""
    for field in ("partitions", "schema", "key", "timestamp", "config"):
        if getattr(existing_topic, field) != getattr(requested_topic, field):
            counts = f"{existing_topic.partitions} partitions, not {requested_topic.partitions}"
            difference = counts if field == "partitions" else f"another {field}"
            msg = f"topic {existing_topic.name!r} already exists with {difference}"
            raise TopicExistsError(msg)
    return existing_topic


def alter_topic(
    connection: _Catalog,
    name: str,
    partitions: int | None,
    schema: pa.Schema | None,
    config: Mapping[str, object] | None,
) -> CatalogTopic:
    """See :meth:`txnstore.Store.alter_topic`. If it is altered concurrently, the new version is changed."""
    while True:
        topic = connection.view().find_topic(name)
        new_version = altered_topic(topic, partitions, schema, config)
        check_table_location(connection.objects, new_version, topic)
        try:
            result: CatalogTopic = connection.submit(AlterTopic(new_version, topic.version))
        except TopicChangedError:
            continue  # A retry happens only after a concurrent change, so the loop ends.
        _LOG.info("topic altered", extra={"topic": name, "partitions": result.partitions})
        return result


def altered_topic(
    topic: CatalogTopic,
    partitions: int | None = None,
    schema: pa.Schema | None = None,
    config: Mapping[str, object] | None = None,
    *,
    inert: Container[str] = (),
) -> CatalogTopic:
    """Make the next version of a topic; arguments and errors are those of :func:`alter_topic`.

    Args:
        inert: The accepted settings without effect, besides those that the topic has.
    """
    name = topic.name
    changes: dict[str, Any] = {}
    if partitions is not None:
        changes["partitions"] = _check_partitions(name, partitions)
    if schema is not None:
        if topic.schema is None:
            msg = f"topic {name!r} was created without a schema (Kafka records) and cannot get one"
            raise InvalidConfigError(msg)
        schemas.check_topic_schema(schema, topic.key, topic.timestamp)
        schemas.evolve_schema(schema_from_text(topic.schema), schema, topic.key)
        changes["schema"] = schema_to_text(schema)
    if config is not None:
        for setting, value in config.items():
            if value is None and setting not in topic.config:
                check_setting(setting, inert)
        merged_settings = {**topic.config, **config}
        remaining_settings = {setting: value for setting, value in merged_settings.items() if value is not None}
        has_keys = topic.schema is None or topic.key is not None
        accepted_inert = [setting for setting in remaining_settings if setting in topic.config or setting in inert]
        changes["config"] = _parse_settings(
            remaining_settings, topic.timestamp, accepted_inert, has_keys=has_keys
        ).to_mapping()
    new_version = replace(topic, version=topic.version + 1, **changes)
    return _check_columns_of_settings(new_version, TopicConfig.from_stored(new_version.config))


def _check_columns_of_settings(topic: CatalogTopic, config: TopicConfig) -> CatalogTopic:
    if config.has_table:
        check_columns(topic)
    if config.tombstone_column:
        schema = schema_from_text(topic.schema) if topic.schema is not None else None
        schemas.check_tombstone(schema, topic.key, topic.timestamp, config.tombstone_column)
    return topic


def check_table_location(objects: ObjectStore, topic: CatalogTopic, old: CatalogTopic | None = None) -> None:
    """Raise InvalidConfigError if a topic gets a table, and engines cannot read the store.

    Args:
        topic: The new version of the topic.
        old: The version before, whose table is not checked again: the store may have been moved. None: a new topic.
    """
    if publishes_table(topic.config) and (old is None or not publishes_table(old.config)):
        location_of(objects)


def delete_topic(connection: _Catalog, name: str) -> None:
    """See :meth:`txnstore.Store.delete_topic`."""
    connection.submit(DeleteTopic(check_topic_name(name)))
    _LOG.info("topic deleted", extra={"topic": name})


def _parse_settings(
    config: Mapping[str, object], timestamp: str | None, inert: Container[str], *, has_keys: bool
) -> TopicConfig:
    """Parse settings, and refuse those that need a key column, or that take the timestamps of a column."""
    settings = TopicConfig.from_mapping(config, inert=inert)
    if settings.compacts and not has_keys:
        msg = "cleanup.policy includes compact, so the topic needs a key column: create it with key=COLUMN"
        raise InvalidConfigError(msg)
    if settings.append_time and timestamp is not None:
        msg = f"message.timestamp.type is LogAppendTime, so column {timestamp!r} cannot be the timestamp"
        raise InvalidConfigError(msg)
    return settings


def _check_new_name(name: str) -> str:
    """Check the name of a new topic: Kafka's rules, and the storage must accept objects below it.

    Existing topics are not checked, so that one of an older release can still be read and deleted.
    """
    name = check_topic_name(name)
    try:
        check_key(keys.segment(name, 0, "0", "parquet"))
    except StorageRefusedError as error:
        msg = f"a topic cannot be named {name!r}, because no object can be written below this name: {error}"
        raise InvalidTopicError(msg) from None
    return name


def _check_partitions(name: str, partitions: int) -> int:
    return check_integer(f"partitions of topic {name!r}", partitions, 1, MAX_PARTITIONS)
