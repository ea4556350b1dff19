"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs, ListConfigResources with clients of Kafka."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource
from kafka.admin import ConfigResource as PythonConfigResource
from kafka.admin import KafkaAdminClient
from kio.schema.errors import ErrorCode

from tests.helpers.gateway import serving
from tests.helpers.kafka_wire import ServedStore, failure_of
from txnstore.catalog.settings import TopicConfig
from txnstore.core.authorization.model import Acl
from txnstore.gateway.apis import VERSIONS, Api
from txnstore.gateway.properties import Properties
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on

#: Kinds of resources.
TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = AlterConfigOpType
_LIMIT = "message.max.bytes"


def _change(name: str, value: str | None, operation: AlterConfigOpType = SET) -> ConfigEntry:
    return ConfigEntry(name, value, incremental_operation=operation)


def _alter(confluent: AdminClient, topic: str, *changes: ConfigEntry, **options: Any) -> ErrorCode:
    (future,) = confluent.incremental_alter_configs(
        [ConfigResource("topic", topic, incremental_configs=list(changes))], **options
    ).values()
    return failure_of(future)


# Describing -----------------------------------------------------------------------------------------------------------


def test_settings_have_sources_synonyms_and_types(gateway: ServedStore) -> None:
    gateway.store.create_topic("t", config={"retention.ms": 5})
    resource = {"resource_type": TOPIC, "resource_name": "t", "configuration_keys": ("retention.ms", "inline.bytes")}
    asked = {"resources": [resource], "include_synonyms": True, "include_documentation": True}
    (result,) = gateway.ask(Api.DESCRIBE_CONFIGS, asked).results
    inlined, retention = result.configs
    assert (inlined.name, inlined.value, inlined.config_source, inlined.synonyms) == ("inline.bytes", "65536", 5, ())
    assert (retention.value, retention.config_source, retention.config_type) == ("5", 1, 5)
    assert retention.documentation == "age after which records are deleted; -1: never"
    synonyms = [(each.name, each.value, each.source) for each in retention.synonyms]
    assert synonyms == [("retention.ms", "5", 1), ("log.retention.ms", "-1", 5)]


@pytest.mark.parametrize("version", range(1, VERSIONS[Api.DESCRIBE_CONFIGS].last + 1))
def test_every_version_describes_all_settings(gateway: ServedStore, version: int) -> None:
    gateway.store.create_topic("t")
    asked = {"resources": [{"resource_type": TOPIC, "resource_name": "t", "configuration_keys": None}]}
    (result,) = gateway.ask(Api.DESCRIBE_CONFIGS, asked, version).results
    names = [config.name for config in result.configs]
    assert names == sorted(names)
    assert {"min.insync.replicas", "max.message.bytes", "unclean.leader.election.enable"} <= set(names)
    assert not any(config.read_only or config.is_sensitive for config in result.configs)


def test_settings_that_kafka_does_not_have_are_described_where_they_are_set_or_asked_for(gateway: ServedStore) -> None:
    """Kafka's own tests know each name that they get; tools that copy a topic set each one."""
    own = {"inline.bytes", "segment.format", "segment.own.bytes", "table.format", "tombstone.column"}
    gateway.store.create_topic("plain")
    gateway.store.create_topic("set", config={"inline.bytes": 0})

    def described(topic: str, keys: tuple[str, ...] | None = None) -> set[str]:
        resource = {"resource_type": TOPIC, "resource_name": topic, "configuration_keys": keys}
        (result,) = gateway.ask(Api.DESCRIBE_CONFIGS, {"resources": [resource]}).results
        return {config.name for config in result.configs}

    assert described("plain") & own == set()
    assert described("set") & own == {"inline.bytes"}
    assert described("plain", tuple(own)) == own
    fields = {"name": "new", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}
    (created,) = gateway.ask(Api.CREATE_TOPICS, {"topics": [fields]}).topics
    assert {config.name for config in created.configs} == described("plain")


def test_clients_read_settings(confluent: AdminClient, kafka_python: KafkaAdminClient, store: Store) -> None:
    store.create_topic("t", config={"cleanup.policy": "compact,delete"})
    (future,) = confluent.describe_configs([ConfigResource("topic", "t")]).values()
    entry = future.result(10)["cleanup.policy"]
    assert (entry.value, entry.is_default, list(entry.synonyms)) == (
        "compact,delete",
        False,
        ["cleanup.policy", "log.cleanup.policy"],
    )
    (described,) = kafka_python.describe_configs([PythonConfigResource("TOPIC", "t")]).values()
    assert described["t"]["cleanup.policy"]["value"] == "compact,delete"


def test_properties_of_a_gateway(confluent: AdminClient, gateway: ServedStore) -> None:
    (future,) = confluent.describe_configs([ConfigResource("broker", "0")]).values()
    entries = future.result(10)
    assert (entries["num.partitions"].value, entries["num.partitions"].source) == ("2", 4)
    assert (entries["group.max.size"].value, entries["group.max.size"].source) == (str(2**31 - 1), 5)
    assert entries["transaction.max.timeout.ms"].value == "900000"
    assert entries["log.retention.ms"].value == "-1"
    listeners = entries["advertised.listeners"]
    assert (listeners.value, listeners.source) == (f"PLAINTEXT://{gateway.gateway.bootstrap}", 4)
    assert all(entry.is_read_only for entry in entries.values())


def test_message_max_bytes_is_the_default_of_topics() -> None:
    with create_on(MemoryStore()) as store, serving(store, {"message.max.bytes": "1000"}) as running:
        gateway = ServedStore(store, running)
        store.create_topic("t")
        store.create_topic("own", config={"max.message.bytes": 2000})
        kinds = [(TOPIC, "t", "max.message.bytes"), (TOPIC, "own", "max.message.bytes"), (BROKER, "0", _LIMIT)]
        resources = [
            {"resource_type": kind, "resource_name": name, "configuration_keys": (key,)} for kind, name, key in kinds
        ]
        results = gateway.ask(Api.DESCRIBE_CONFIGS, {"resources": resources, "include_synonyms": True}).results
    described = [(result.configs[0].value, result.configs[0].config_source) for result in results]
    assert described == [("1000", 4), ("2000", 1), ("1000", 4)]
    synonyms = [(each.name, each.value, each.source) for each in results[1].configs[0].synonyms]
    assert synonyms == [("max.message.bytes", "2000", 1), (_LIMIT, "1000", 4), (_LIMIT, "1048588", 5)]
    assert Properties().message_max_bytes == TopicConfig().max_message_bytes


def test_the_settings_of_a_group_are_properties_of_the_gateway() -> None:
    properties = {"group.consumer.session.timeout.ms": "30000"}
    with create_on(MemoryStore()) as store, serving(store, properties) as running:
        gateway = ServedStore(store, running)
        resource = {"resource_type": GROUP, "resource_name": "g", "configuration_keys": None}
        asked = {"resources": [resource], "include_synonyms": True}
        (result,) = gateway.ask(Api.DESCRIBE_CONFIGS, asked).results
    assert [(each.name, each.value, each.config_source, each.read_only) for each in result.configs] == [
        ("consumer.heartbeat.interval.ms", "5000", 5, True),
        ("consumer.session.timeout.ms", "30000", 4, True),
    ]
    synonyms = [(each.name, each.value, each.source) for each in result.configs[1].synonyms]
    name = "group.consumer.session.timeout.ms"
    assert synonyms == [(name, "30000", 4), (name, "45000", 5)]


@pytest.mark.parametrize(
    ("kind", "name", "code"),
    [
        (TOPIC, "x", ErrorCode.unknown_topic_or_partition),
        (TOPIC, "a!", ErrorCode.invalid_topic_exception),
        (BROKER, "0", ErrorCode.none),
        (BROKER, "", ErrorCode.none),
        (BROKER, "7", ErrorCode.invalid_request),
        (BROKER, "a", ErrorCode.invalid_request),
        (LOGGER, "0", ErrorCode.none),
        (LOGGER, "", ErrorCode.invalid_request),
        (METRICS, "m", ErrorCode.none),
        (METRICS, "", ErrorCode.invalid_request),
        (GROUP, "g", ErrorCode.none),
        (GROUP, "", ErrorCode.invalid_request),
        (3, "t", ErrorCode.invalid_request),
    ],
)
def test_codes_of_descriptions(gateway: ServedStore, kind: int, name: str, code: ErrorCode) -> None:
    asked = {"resources": [{"resource_type": kind, "resource_name": name, "configuration_keys": None}]}
    (result,) = gateway.ask(Api.DESCRIBE_CONFIGS, asked).results
    assert (result.resource_type, result.resource_name, result.error_code) == (kind, name, code)
    assert (result.error_message is None) == (code is ErrorCode.none)


# Altering -------------------------------------------------------------------------------------------------------------


def test_single_settings_are_changed(confluent: AdminClient, store: Store) -> None:
    store.create_topic("t", config={"retention.ms": 5})
    assert _alter(confluent, "t", _change("segment.ms", "9"), _change("cleanup.policy", "compact", APPEND)) == 0
    assert store.topic("t").config == {"cleanup.policy": "compact,delete", "retention.ms": "5", "segment.ms": "9"}
    changes = [_change("retention.ms", None, DELETE), _change("cleanup.policy", "delete", SUBTRACT)]
    assert _alter(confluent, "t", *changes) == 0
    assert store.topic("t").config == {"cleanup.policy": "compact", "segment.ms": "9"}
    assert _alter(confluent, "t", _change("segment.ms", None, DELETE), _change("flush.ms", None, DELETE)) == 0
    assert store.topic("t").config == {"cleanup.policy": "compact"}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (_change("retentionms", "1"), ErrorCode.invalid_config),
        (_change("retentionms", None, DELETE), ErrorCode.invalid_config),
        (_change("retention.ms", "soon"), ErrorCode.invalid_config),
        (_change("retention.ms", "1", APPEND), ErrorCode.invalid_config),
        (_change("nothing", "1", SUBTRACT), ErrorCode.invalid_config),
        (_change("cleanup.policy", "other", APPEND), ErrorCode.invalid_config),
        (_change("min.insync.replicas", "0"), ErrorCode.invalid_config),
    ],
    ids=str,
)
@pytest.mark.parametrize("validate_only", [False, True])
def test_codes_of_changes(
    confluent: AdminClient, store: Store, change: ConfigEntry, code: ErrorCode, *, validate_only: bool
) -> None:
    before = store.create_topic("t", config={"retention.ms": 5})
    assert _alter(confluent, "t", change, validate_only=validate_only) == code
    assert store.topic("t") == before


def test_a_change_is_checked_without_being_made(confluent: AdminClient, store: Store) -> None:
    before = store.create_topic("t")
    assert _alter(confluent, "t", _change("retention.ms", "1"), validate_only=True) == ErrorCode.none
    assert _alter(confluent, "x", _change("retention.ms", "1")) == ErrorCode.unknown_topic_or_partition
    assert store.topic("t") == before


def _resource(kind: int, name: str, *configs: tuple[Any, ...]) -> dict[str, Any]:
    fields = [{"name": key, "value": text, "config_operation": operation} for key, text, operation in configs]
    return {"resource_type": kind, "resource_name": name, "configs": fields}


@pytest.mark.parametrize(
    ("resource", "code"),
    [
        (_resource(TOPIC, "t", ("retention.ms", None, 0)), ErrorCode.invalid_request),
        (_resource(TOPIC, "t", ("retention.ms", "1", 7)), ErrorCode.invalid_request),
        (_resource(TOPIC, "t", ("retention.ms", "1", 0), ("retention.ms", "2", 0)), ErrorCode.invalid_request),
        (_resource(BROKER, "0", ("num.partitions", "1", 0)), ErrorCode.invalid_request),
        (_resource(BROKER, "9", ("num.partitions", "1", 0)), ErrorCode.invalid_request),
        (_resource(BROKER, "", ("num.partitions", "1", 0)), ErrorCode.invalid_request),
        (_resource(LOGGER, "0", ("kafka", "DEBUG", 0)), ErrorCode.invalid_request),
        (_resource(METRICS, "m", ("interval.ms", "100", 0)), ErrorCode.invalid_request),
        (_resource(GROUP, "g", ("consumer.session.timeout.ms", "100", 0)), ErrorCode.invalid_request),
        (_resource(3, "t", ("a", "b", 0)), ErrorCode.invalid_request),
    ],
)
@pytest.mark.parametrize("version", range(VERSIONS[Api.INCREMENTAL_ALTER_CONFIGS].last + 1))
def test_requests_that_make_no_sense(
    gateway: ServedStore, resource: dict[str, Any], code: ErrorCode, version: int
) -> None:
    before = gateway.store.create_topic("t")
    (result,) = gateway.ask(Api.INCREMENTAL_ALTER_CONFIGS, {"resources": [resource]}, version).responses
    assert (result.error_code, gateway.store.topic("t")) == (code, before)
    assert result.error_message


def test_a_resource_that_is_named_twice_stays(gateway: ServedStore) -> None:
    before = gateway.store.create_topic("t")
    resources = [_resource(TOPIC, "t", ("retention.ms", text, 0)) for text in ("1", "2")]
    for api in (Api.INCREMENTAL_ALTER_CONFIGS, Api.ALTER_CONFIGS):
        (result,) = gateway.ask(api, {"resources": resources}).responses
        assert (result.error_code, gateway.store.topic("t")) == (ErrorCode.invalid_request, before)


@pytest.mark.parametrize("name", ["0", ""])
def test_nothing_is_removed_from_a_gateway_without_settings(gateway: ServedStore, name: str) -> None:
    """kafka-reassign-partitions removes its limits (``--verify``, ``--cancel``), whether they were ever set or not."""
    limits = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
    asked = {"resources": [_resource(BROKER, name, *((limit, None, 1) for limit in limits))]}
    (result,) = gateway.ask(Api.INCREMENTAL_ALTER_CONFIGS, asked).responses
    assert (result.error_code, result.error_message) == (ErrorCode.none, None)


@pytest.mark.parametrize("version", range(VERSIONS[Api.ALTER_CONFIGS].last + 1))
def test_all_settings_are_replaced(gateway: ServedStore, version: int) -> None:
    gateway.store.create_topic("t", config={"retention.ms": 5, "cleanup.policy": "compact"})
    asked = {"resources": [_resource(TOPIC, "t", ("retention.ms", "6", 0), ("segment.ms", "7", 0))]}
    (result,) = gateway.ask(Api.ALTER_CONFIGS, {**asked, "validate_only": True}, version).responses
    assert (result.error_code, gateway.store.topic("t").version) == (ErrorCode.none, 0)
    (result,) = gateway.ask(Api.ALTER_CONFIGS, asked, version).responses
    assert (result.error_code, gateway.store.topic("t").config) == (
        ErrorCode.none,
        {"retention.ms": "6", "segment.ms": "7"},
    )


def test_kafka_python_alters_settings(kafka_python: KafkaAdminClient, store: Store) -> None:
    store.create_topic("t")
    answer = kafka_python.alter_configs([PythonConfigResource("TOPIC", "t", configs={"retention.ms": "6"})])
    assert store.topic("t").config == {"retention.ms": "6"}, answer
    kafka_python.reset_configs([PythonConfigResource("TOPIC", "t", configs=["retention.ms"])])
    assert store.topic("t").config == {}
    with pytest.raises(ValueError, match="Unrecognized configs"):
        kafka_python.alter_configs([PythonConfigResource("TOPIC", "t", configs={"retentionms": "6"})])


# Listing --------------------------------------------------------------------------------------------------------------


def test_resources_are_listed(gateway: ServedStore, kafka_python: KafkaAdminClient) -> None:
    gateway.store.create_topic("t")

    def listed(*kinds: int) -> Any:
        answer = gateway.ask(Api.LIST_CONFIG_RESOURCES, {"resource_types": kinds})
        return answer.error_code, [(each.resource_type, each.resource_name) for each in answer.config_resources]

    assert listed() == (ErrorCode.none, [(TOPIC, "t"), (BROKER, "0"), (LOGGER, "0")])
    assert listed(TOPIC, GROUP) == (ErrorCode.none, [(TOPIC, "t")])
    assert listed(3) == (ErrorCode.unsupported_version, [])
    assert gateway.ask(Api.LIST_CONFIG_RESOURCES, {}, 0).config_resources == ()
    assert kafka_python.list_config_resources()


# Rights ---------------------------------------------------------------------------------------------------------------


def test_rights_to_settings(secured: ServedStore) -> None:
    store = secured.store
    kinds = {TOPIC: "t", BROKER: "0", GROUP: "g"}
    described = {
        "resources": [
            {"resource_type": kind, "resource_name": name, "configuration_keys": None} for kind, name in kinds.items()
        ]
    }
    altered = {"resources": [_resource(kind, name, ("retention.ms", "5", 0)) for kind, name in kinds.items()]}

    def codes() -> list[list[ErrorCode]]:
        changes = [
            secured.ask(api, altered, user="alice") for api in (Api.INCREMENTAL_ALTER_CONFIGS, Api.ALTER_CONFIGS)
        ]
        answers = [secured.ask(Api.DESCRIBE_CONFIGS, described, user="alice").results]
        answers += [change.responses for change in changes]
        return [[each.error_code for each in answer] for answer in answers]

    denied = [
        ErrorCode.topic_authorization_failed,
        ErrorCode.cluster_authorization_failed,
        ErrorCode.group_authorization_failed,
    ]
    assert codes() == [denied] * 3
    answer = secured.ask(Api.LIST_CONFIG_RESOURCES, {}, user="alice")
    assert (answer.error_code, answer.config_resources) == (ErrorCode.cluster_authorization_failed, ())
    store.acls.create([
        Acl("User:alice", "ALLOW", "ALTER_CONFIGS", "TOPIC", "t"),
        Acl("User:alice", "ALLOW", "DESCRIBE_CONFIGS", "CLUSTER", "kafka-cluster"),
    ])  # fmt: skip
    done = ErrorCode.none
    assert codes() == [[done, done, denied[2]], [done, *denied[1:]], [done, *denied[1:]]]
    assert store.topic("t").config == {"retention.ms": "5"}
    assert secured.ask(Api.LIST_CONFIG_RESOURCES, {}, user="alice").error_code is done
