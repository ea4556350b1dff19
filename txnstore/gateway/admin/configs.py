"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources: settings of topics and of gateways."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from txnstore.catalog.settings import INERT, INERT_NAMES, SETTINGS, Setting, SettingType, TopicConfig, text_of
from txnstore.catalog.topics import altered_topic
from txnstore.core.authorization.model import Operation
from txnstore.core.authorization.rights import Right
from txnstore.core.catalog.model import CatalogTopic
from txnstore.errors import AuthorizationError, TxnStoreError
from txnstore.gateway.admin.common import alter_topic, duplicates, error_fields, on_cluster, on_topic, topic_of
from txnstore.gateway.apis import Api
from txnstore.gateway.errors import RefusedError
from txnstore.gateway.properties import Properties
from txnstore.gateway.server import Client, Fields, Handler
from txnstore.gateway.services import Services
from txnstore.gateway.wire import Request, field_value
from txnstore.validation import check_topic_name


class ResourceKind(IntEnum):
    """The kinds of resources with settings (Kafka's ``ConfigResource.Type``)."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    CLIENT_METRICS = 16
    GROUP = 32


class Source(IntEnum):
    """The source of a value (Kafka's ``ConfigSource``)."""

    TOPIC = 1
    STATIC_BROKER = 4
    DEFAULT = 5


class Change(IntEnum):
    """The change of a setting (Kafka's ``AlterConfigOp.OpType``)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


_TYPES: dict[SettingType, int] = {"BOOLEAN": 1, "STRING": 2, "INT": 3, "LONG": 5, "DOUBLE": 6, "LIST": 7}

#: Settings of topics in the order of their names, and the names that a broker has for their defaults.
_SETTINGS = {setting.name: setting for setting in sorted((*SETTINGS, *INERT), key=lambda setting: setting.name)}
_BROKER_NAMES = {
    "cleanup.policy": "log.cleanup.policy",
    "compression.gzip.level": "compression.gzip.level",
    "compression.lz4.level": "compression.lz4.level",
    "compression.type": "compression.type",
    "compression.zstd.level": "compression.zstd.level",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "index.interval.bytes": "log.index.interval.bytes",
    "local.retention.bytes": "log.local.retention.bytes",
    "local.retention.ms": "log.local.retention.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "min.insync.replicas": "min.insync.replicas",
    "preallocate": "log.preallocate",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "segment.ms": "log.roll.ms",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}
#: Settings that no topic of Kafka has. Clients that compare or copy all settings of a topic do not know them, so they
#: are described where a topic sets them, or where they are asked for.
_TXNSTORE_ONLY = frozenset({"inline.bytes", "segment.format", "segment.own.bytes", "table.format", "tombstone.column"})
#: The settings of a group that are properties of the gateway, by Kafka's names for groups.
_GROUP_PROPERTIES = {
    "consumer.heartbeat.interval.ms": "group.consumer.heartbeat.interval.ms",
    "consumer.session.timeout.ms": "group.consumer.session.timeout.ms",
}
#: The defaults of the properties of a gateway.
_DEFAULTS = Properties().as_texts()


class _Synonym(NamedTuple):
    """A value of a setting, and where it comes from: under the name that the setting has there."""

    name: str
    value: str
    source: Source


@dataclass(frozen=True, slots=True)
class _Entry:
    """A setting with its value.

    Attributes:
        sources: Its values, the effective one first; empty if only the default of a topic applies.
    """

    name: str
    value: str
    type: SettingType
    sources: tuple[_Synonym, ...]
    help: str
    read_only: bool

    def fields(self, *, include_synonyms: bool, include_documentation: bool) -> dict[str, Any]:
        """The fields of a response. The source of a value that was not set is the default."""
        synonyms = self.sources if include_synonyms else ()
        return {
            "name": self.name,
            "value": self.value,
            "read_only": self.read_only,
            "config_source": int(self.sources[0].source if self.sources else Source.DEFAULT),
            "is_sensitive": False,
            "synonyms": [{"name": each.name, "value": each.value, "source": int(each.source)} for each in synonyms],
            "config_type": _TYPES[self.type],
            "documentation": self.help if include_documentation else None,
        }


def settings_fields(
    topic: CatalogTopic,
    properties: Properties,
    keys: Sequence[str] | None = None,
    *,
    include_synonyms: bool,
    include_documentation: bool = False,
) -> list[dict[str, Any]]:
    """The fields of the settings of a topic, with defaults.

    Args:
        properties: The properties of the gateway, which has its own default for one setting.
        keys: The names of settings; None or empty: all of Kafka's, and those of txnstore that the topic sets.
        include_synonyms: Include all values, the effective one first.
        include_documentation: Include the meaning.
    """
    config = TopicConfig.from_stored(topic.config)
    return [
        _topic_entry(setting, config, properties).fields(
            include_synonyms=include_synonyms, include_documentation=include_documentation
        )
        for setting in _SETTINGS.values()
        if (setting.name in keys if keys else setting.name not in _TXNSTORE_ONLY - config.explicit.keys())
    ]


def _topic_entry(setting: Setting, config: TopicConfig, properties: Properties) -> _Entry:
    """Return a topic setting: its value, and where it comes from: the topic, a property, or the default."""
    sources: list[_Synonym] = []
    if setting.name in config.explicit:
        sources.append(_Synonym(setting.name, config.explicit[setting.name], Source.TOPIC))
    if setting.name in _BROKER_NAMES:
        sources += _property_sources(_BROKER_NAMES[setting.name], properties, text_of(setting.default))
    current_value = sources[0].value if sources else text_of(setting.default)
    return _Entry(setting.name, current_value, setting.type, tuple(sources), setting.help, read_only=False)


def _property_sources(name: str, properties: Properties, default: str = "") -> list[_Synonym]:
    """The sources of the value of a gateway's property; ``default`` is for one that the gateway lacks."""
    default = _DEFAULTS.get(name, default)
    text = properties.as_texts().get(name, default)
    given = [_Synonym(name, text, Source.STATIC_BROKER)] if text != default else []
    return [*given, _Synonym(name, default, Source.DEFAULT)]


class Configs:
    """Describes and alters settings."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def handlers(self) -> dict[Api, Handler]:
        """The handlers of its APIs."""
        return {
            Api.DESCRIBE_CONFIGS: self.describe,
            Api.ALTER_CONFIGS: self.alter,
            Api.INCREMENTAL_ALTER_CONFIGS: self.alter_incrementally,
            Api.LIST_CONFIG_RESOURCES: self.list_resources,
        }

    # Describing -------------------------------------------------------------------------------------------------------

    async def describe(self, request: Request, client: Client) -> Fields:
        """Return the settings of topics and gateways."""
        results = [self._describe_resource(resource, request, client) for resource in request.body.resources]
        return {"results": await asyncio.gather(*results)}

    async def _describe_resource(self, resource: Any, request: Request, client: Client) -> Fields:
        fields = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
        try:
            kind = self._check_right(resource, "DESCRIBE_CONFIGS", client)
            configs = await self._configs(kind, resource, request, client)
        except (TxnStoreError, RefusedError) as error:
            return {**fields, **error_fields(error, Api.DESCRIBE_CONFIGS, request.version), "configs": ()}
        return {**fields, "configs": configs}

    async def _configs(
        self, kind: ResourceKind, resource: Any, request: Request, client: Client
    ) -> Sequence[Mapping[str, Any]]:
        """Return the settings of a resource that the request names; all if it names none."""
        name = resource.resource_name
        keys = field_value(resource, "configuration_keys")
        options = {
            "include_synonyms": bool(field_value(request.body, "include_synonyms", False)),
            "include_documentation": bool(field_value(request.body, "include_documentation", False)),
        }
        if kind is ResourceKind.TOPIC:
            check_topic_name(name)
            view = await self._services.view_with(lambda view: name in view.topics)
            return settings_fields(topic_of(view, name), self._services.properties, keys, **options)
        entries = self._entries_without_topic(kind, name, client)
        return [entry.fields(**options) for entry in entries if not keys or entry.name in keys]

    def _entries_without_topic(self, kind: ResourceKind, name: str, client: Client) -> Sequence[_Entry]:
        """Return all settings of a resource that is no topic."""
        if kind is ResourceKind.BROKER and name == "":
            return ()  # The settings of the whole cluster: there are none.
        if kind in {ResourceKind.BROKER, ResourceKind.BROKER_LOGGER}:
            self._check_node(name)
            return _broker_entries(self._services, client) if kind is ResourceKind.BROKER else ()
        if not name:
            raise RefusedError(ErrorCode.invalid_request, "the name of the resource is empty")
        return _group_entries(self._services) if kind is ResourceKind.GROUP else ()

    def _check_right(self, resource: Any, operation: Operation, client: Client) -> ResourceKind:
        """Check that the client may do this to a resource, and return its kind."""
        kind = _kind(resource.resource_type)
        if kind is ResourceKind.TOPIC:
            right = on_topic(operation, resource.resource_name)
        elif kind is ResourceKind.GROUP:
            right = Right(operation, "GROUP", (resource.resource_name,))
        else:
            right = on_cluster(operation)
        self._services.check(client, right)
        return kind

    def _check_node(self, name: str) -> None:
        """Check that the name of a broker resource is the id of this gateway."""
        node_id = self._services.peers.own.node_id
        try:
            requested_id = int(name)
        except ValueError:
            msg = f"Broker id must be an integer, but it is: {name}"
            raise RefusedError(ErrorCode.invalid_request, msg) from None
        if requested_id != node_id:
            raise RefusedError(
                ErrorCode.invalid_request, f"Unexpected broker id, expected {node_id}, not {requested_id}"
            )

    # Altering ---------------------------------------------------------------------------------------------------------

    async def alter(self, request: Request, client: Client) -> Fields:
        """Replace all settings of topics: those that are missing get their defaults."""
        return {"responses": await self._alter_all(request, client, _with_replaced)}

    async def alter_incrementally(self, request: Request, client: Client) -> Fields:
        """Change single settings of topics (KIP-339)."""
        return {"responses": await self._alter_all(request, client, _with_changes)}

    async def _alter_all(
        self, request: Request, client: Client, change: Callable[[Any, CatalogTopic], CatalogTopic]
    ) -> list[Fields]:
        """Apply a change to each resource of a request, concurrently; return a result for each."""
        names = [(resource.resource_type, resource.resource_name) for resource in request.body.resources]
        resources = dict(zip(names, request.body.resources, strict=True))
        duplicate_names = duplicates(names)
        responses = [
            self._alter(resource, change, request, client, is_repeated=name in duplicate_names)
            for name, resource in resources.items()
        ]
        return await asyncio.gather(*responses)

    async def _alter(
        self,
        resource: Any,
        change: Callable[[Any, CatalogTopic], CatalogTopic],
        request: Request,
        client: Client,
        *,
        is_repeated: bool,
    ) -> Fields:
        """Apply a change to one resource; return its fields, with the error if it was refused."""
        fields = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
        try:
            if is_repeated:
                raise RefusedError(ErrorCode.invalid_request, "Each resource must appear at most once.")
            _check_changes(resource.configs)
            kind = self._check_right(resource, "ALTER_CONFIGS", client)
            name = resource.resource_name
            if kind is not ResourceKind.TOPIC:
                if kind in {ResourceKind.BROKER, ResourceKind.BROKER_LOGGER} and name != "":
                    self._check_node(name)
                if kind is ResourceKind.BROKER and _only_deletes(resource.configs):
                    return fields  # Nothing to delete. Kafka's tools always remove throttles of replicas.
                raise RefusedError(ErrorCode.invalid_request, _NOT_ALTERABLE[kind])
            validate_only = request.body.validate_only
            await alter_topic(self._services, client, name, partial(change, resource), validate_only=validate_only)
        except (TxnStoreError, RefusedError) as error:
            return {**fields, **error_fields(error, Api(request.api), request.version)}
        return fields

    # Listing ----------------------------------------------------------------------------------------------------------

    async def list_resources(self, request: Request, client: Client) -> Fields:
        """Return the resources with settings; before version 1 only metrics subscriptions, of which there are none."""
        try:
            self._services.check(client, on_cluster("DESCRIBE_CONFIGS"))
            if request.version < 1:
                return {"config_resources": ()}
            kinds = {_kind(code) for code in request.body.resource_types} or set(ResourceKind)
        except RefusedError:
            return {"error_code": ErrorCode.unsupported_version, "config_resources": ()}
        except AuthorizationError as error:
            return {**error_fields(error, Api.LIST_CONFIG_RESOURCES, request.version), "config_resources": ()}
        view = await self._services.freshness.head()
        nodes = [str(node.node_id) for node in self._services.peers.live]
        names = {
            ResourceKind.TOPIC: sorted(view.topics),
            ResourceKind.BROKER: nodes,
            ResourceKind.BROKER_LOGGER: nodes,
        }
        resources = [(kind, name) for kind in sorted(kinds) for name in names.get(kind, ())]
        return {"config_resources": [{"resource_type": int(kind), "resource_name": name} for kind, name in resources]}


_NOT_ALTERABLE = {
    ResourceKind.BROKER: "the properties of a gateway are given when it is started (--property), and cannot be altered",
    ResourceKind.BROKER_LOGGER: "a gateway has no loggers that can be altered",
    ResourceKind.CLIENT_METRICS: "a gateway takes no metrics from clients",
    ResourceKind.GROUP: "the settings of groups are properties of the gateway (--property), the same for all groups",
}


def _kind(code: int) -> ResourceKind:
    try:
        return ResourceKind(code)
    except ValueError:
        raise RefusedError(ErrorCode.invalid_request, f"Unexpected resource type {code}") from None


# Changes --------------------------------------------------------------------------------------------------------------


def _check_changes(configs: Sequence[Any]) -> None:
    """Refuse changes that name a setting twice, or set one to null."""
    duplicate_names = duplicates(config.name for config in configs)
    if duplicate_names:
        raise RefusedError(
            ErrorCode.invalid_request, f"Error due to duplicate config keys: {', '.join(sorted(duplicate_names))}"
        )
    null_names = [config.name for config in configs if config.value is None and _operation(config) is not Change.DELETE]
    if null_names:
        raise RefusedError(ErrorCode.invalid_request, f"Null value not supported for : {', '.join(null_names)}")


def _operation(config: Any) -> Change:
    code = field_value(config, "config_operation", Change.SET)
    try:
        return Change(code)
    except ValueError:
        raise RefusedError(ErrorCode.invalid_request, f"Unknown operation type {code}") from None


def _only_deletes(configs: Sequence[Any]) -> bool:
    return all(_operation(config) is Change.DELETE for config in configs)


def _with_replaced(resource: Any, topic: CatalogTopic) -> CatalogTopic:
    defaults: dict[str, object] = dict.fromkeys(topic.config)
    return altered_topic(
        topic, config=defaults | {config.name: config.value for config in resource.configs}, inert=INERT_NAMES
    )


def _with_changes(resource: Any, topic: CatalogTopic) -> CatalogTopic:
    """Return the topic with the changes of IncrementalAlterConfigs applied."""
    changes: dict[str, object] = {}
    for config in resource.configs:
        match _operation(config):
            case Change.SET:
                changes[config.name] = config.value
            case Change.DELETE:
                changes[config.name] = None
            case operation:
                changes[config.name] = _changed_list(config, topic, operation)
    return altered_topic(topic, config=changes, inert=INERT_NAMES)


def _changed_list(config: Any, topic: CatalogTopic, operation: Change) -> str:
    """The value of a list setting after items are added or removed."""
    setting = _SETTINGS.get(config.name)
    if setting is None or setting.type != "LIST":
        msg = f"Can't {operation.name} to key {config.name} because its type is not LIST."
        raise RefusedError(ErrorCode.invalid_config, msg)
    current_text = topic.config.get(config.name, text_of(setting.default))
    items = [item for item in current_text.split(",") if item]
    changed_items = [item.strip() for item in config.value.split(",")]
    if operation is Change.APPEND:
        return ",".join(dict.fromkeys([*items, *changed_items]))
    return ",".join(item for item in items if item not in changed_items)


# Gateways -------------------------------------------------------------------------------------------------------------


def _broker_entries(services: Services, client: Client) -> list[_Entry]:
    """The settings that clients expect of a broker: its properties and the defaults of topics. All are read-only."""
    node = services.peers.own
    protocol = ("SASL_" if client.principal else "") + ("SSL" if services.peers.encrypted else "PLAINTEXT")
    entries = [
        _fixed_entry(
            "advertised.listeners", f"{protocol}://{node.address}", "LIST", "where clients reach this gateway"
        ),
        _fixed_entry("broker.id", str(node.node_id), "INT", "the number of this gateway"),
        _fixed_entry("node.id", str(node.node_id), "INT", "the number of this gateway"),
        _fixed_entry("log.dirs", services.connection.url, "STRING", "where the store is"),
        _default_entry("default.replication.factor", "1", "INT", "no effect: the storage replicates"),
        _default_entry("delete.topic.enable", "true", "BOOLEAN", "topics can be deleted"),
        _fixed_entry(
            "transaction.max.timeout.ms",
            str(services.connection.transaction_max_timeout_ms),
            "INT",
            "the longest timeout of a transaction, fixed when the store was created",
        ),
    ]
    for name in _DEFAULTS:
        kind: SettingType = "BOOLEAN" if _DEFAULTS[name] in {"true", "false"} else "INT"
        entries.append(_property_entry(name, name, kind, services.properties))
    entries += [
        _default_entry(_BROKER_NAMES[name], text_of(setting.default), setting.type, setting.help)
        for name, setting in _SETTINGS.items()
        if name in _BROKER_NAMES and _BROKER_NAMES[name] not in _DEFAULTS
    ]
    return sorted(entries, key=lambda entry: entry.name)


def _group_entries(services: Services) -> list[_Entry]:
    """The settings of a group, the same for all groups."""
    return [
        _property_entry(name, of_gateway, "INT", services.properties) for name, of_gateway in _GROUP_PROPERTIES.items()
    ]


def _property_entry(name: str, of_gateway: str, kind: SettingType, properties: Properties) -> _Entry:
    sources = tuple(_property_sources(of_gateway, properties))
    return _Entry(name, sources[0].value, kind, sources, "given when the gateway is started", read_only=True)


def _fixed_entry(name: str, text: str, kind: SettingType, meaning: str) -> _Entry:
    return _Entry(name, text, kind, (_Synonym(name, text, Source.STATIC_BROKER),), meaning, read_only=True)


def _default_entry(name: str, text: str, kind: SettingType, meaning: str) -> _Entry:
    return _Entry(name, text, kind, (_Synonym(name, text, Source.DEFAULT),), meaning, read_only=True)
