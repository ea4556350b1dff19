"""CreateTopics, DeleteTopics, CreatePartitions with clients of Kafka."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic
from kafka import errors as kafka_errors
from kafka.admin import KafkaAdminClient
from kafka.admin import NewTopic as PythonNewTopic
from kio.schema.errors import ErrorCode

from tests.helpers.kafka_wire import ServedStore, failure_of
from txnstore.core.authorization.model import Acl
from txnstore.gateway.apis import VERSIONS, Api
from txnstore.store import Store


def _asked(name: str, partitions: int = 1, replicas: int = 1, **more: Any) -> dict[str, Any]:
    return {"name": name, "num_partitions": partitions, "replication_factor": replicas, **more}


def _codes(response: Any) -> list[ErrorCode]:
    return [topic.error_code for topic in response.topics]


# Creating -------------------------------------------------------------------------------------------------------------


def test_a_topic_is_created_with_settings_of_kafka(confluent: AdminClient, store: Store) -> None:
    config = {"min.insync.replicas": "2", "cleanup.policy": "compact", "segment.ms": "60000"}
    confluent.create_topics([NewTopic("a", 3, 3, config=config), NewTopic("b")])["a"].result()
    topic = store.topic("a")
    assert (topic.partitions, topic.config) == (3, config)
    store.alter_topic("a", config={"retention.ms": 5})
    assert store.topic("a").config == config | {"retention.ms": "5"}


def test_the_default_number_of_partitions_is_a_property(confluent: AdminClient, store: Store) -> None:
    confluent.create_topics([NewTopic("a", -1)])["a"].result()
    assert store.topic("a").partitions == 2


@pytest.mark.parametrize(
    ("topic", "code"),
    [
        (NewTopic("there", 1, 1), ErrorCode.topic_already_exists),
        (NewTopic("The.re", 1, 1), ErrorCode.none),
        (NewTopic("THERE", 1, 1), ErrorCode.invalid_topic_exception),
        (NewTopic("a!", 1, 1), ErrorCode.invalid_topic_exception),
        (NewTopic("..", 1, 1), ErrorCode.invalid_topic_exception),
        (NewTopic("a", 0, 1), ErrorCode.invalid_partitions),
        (NewTopic("a", 1, 0), ErrorCode.invalid_replication_factor),
        (NewTopic("a", 1, 1, config={"retentionms": "1"}), ErrorCode.invalid_config),
        (NewTopic("a", 1, 1, config={"retention.ms": "soon"}), ErrorCode.invalid_config),
        (NewTopic("a", 1, 1, config={"min.insync.replicas": "0"}), ErrorCode.invalid_config),
        (NewTopic("a", 1, 1, config={"table.format": "iceberg"}), ErrorCode.invalid_config),  # The store is in memory.
        (NewTopic("__cluster_metadata", 1, 1), ErrorCode.invalid_request),
    ],
    ids=str,
)
@pytest.mark.parametrize("validate_only", [False, True])
def test_codes_of_topics_that_cannot_be(
    confluent: AdminClient, store: Store, topic: NewTopic, code: ErrorCode, *, validate_only: bool
) -> None:
    store.create_topic("there")
    before = store.topics()
    future = confluent.create_topics([topic], validate_only=validate_only)[topic.topic]
    assert failure_of(future) == code
    if code is not ErrorCode.none or validate_only:
        assert store.topics() == before


def test_kafka_python_raises_a_class_for_each_code(kafka_python: KafkaAdminClient, store: Store) -> None:
    kafka_python.create_topics([PythonNewTopic("a", num_partitions=2, replication_factor=1)])
    with pytest.raises(kafka_errors.TopicAlreadyExistsError, match="already exists"):
        kafka_python.create_topics([PythonNewTopic("a", num_partitions=2, replication_factor=1)])
    with pytest.raises(kafka_errors.InvalidReplicationFactorError):
        kafka_python.create_topics([PythonNewTopic("b", num_partitions=2, replication_factor=0)])
    with pytest.raises(kafka_errors.InvalidConfigurationError, match=r"did you mean retention\.ms"):
        kafka_python.create_topics([PythonNewTopic("b", 1, 1, topic_configs={"retentionms": "1"})])
    assert [topic.name for topic in store.topics()] == ["a"]


def test_each_topic_of_a_request_is_refused_alone(gateway: ServedStore, store: Store) -> None:
    topics = [_asked("a"), _asked("b", 0), _asked("c"), _asked("c"), _asked("d", 100_001)]
    response = gateway.ask(Api.CREATE_TOPICS, {"topics": topics})
    assert _codes(response) == [
        ErrorCode.none,
        ErrorCode.invalid_partitions,
        ErrorCode.invalid_request,
        ErrorCode.invalid_partitions,
    ]
    assert [topic.name for topic in store.topics()] == ["a"]


def test_the_response_tells_the_id_and_the_settings(gateway: ServedStore, store: Store) -> None:
    configs = [{"name": "flush.ms", "value": "5"}]
    (topic,) = gateway.ask(Api.CREATE_TOPICS, {"topics": [_asked("a", -1, 3, configs=configs)]}).topics
    assert topic.topic_id == UUID(store.topic("a").topic_id)
    assert (topic.num_partitions, topic.replication_factor, topic.topic_config_error_code) == (2, 3, 0)
    sources = {config.name: (config.value, config.config_source) for config in topic.configs}
    assert list(sources) == sorted(sources)
    assert sources["flush.ms"] == ("5", 1)
    assert sources["retention.ms"] == ("-1", 5)


@pytest.mark.parametrize("version", range(VERSIONS[Api.CREATE_TOPICS].first, VERSIONS[Api.CREATE_TOPICS].last + 1))
def test_every_version_creates(gateway: ServedStore, version: int) -> None:
    fields: dict[str, Any] = {"topics": [_asked("a"), _asked("b", 0)]}
    assert _codes(gateway.ask(Api.CREATE_TOPICS, fields, version)) == [ErrorCode.none, ErrorCode.invalid_partitions]
    fields = {"topics": [{"name": "a"}, {"name": "x"}], "topic_names": ("a", "x")}
    responses = gateway.ask(Api.DELETE_TOPICS, fields, max(1, version - 1)).responses
    assert [each.error_code for each in responses] == [ErrorCode.none, ErrorCode.unknown_topic_or_partition]


@pytest.mark.parametrize(
    ("assignments", "more", "code"),
    [
        ([(0, (0,)), (1, (0,)), (2, (0,))], {}, ErrorCode.none),
        ([(0, (0,))], {"partitions": 1}, ErrorCode.invalid_request),
        ([(0, (0,))], {"replicas": 1}, ErrorCode.invalid_request),
        ([(0, (0,)), (2, (0,))], {}, ErrorCode.invalid_replica_assignment),
        ([(0, (0,)), (0, (0,))], {}, ErrorCode.invalid_replica_assignment),
        ([(0, ())], {}, ErrorCode.invalid_replica_assignment),
        ([(0, (7,))], {}, ErrorCode.invalid_replica_assignment),
        ([(0, (0, 0))], {}, ErrorCode.invalid_replica_assignment),
    ],
)
def test_assignments_count_partitions(
    gateway: ServedStore, store: Store, assignments: Any, more: dict[str, int], code: ErrorCode
) -> None:
    listed = [{"partition_index": number, "broker_ids": brokers} for number, brokers in assignments]
    asked = _asked("a", **{"partitions": -1, "replicas": -1, **more}, assignments=listed)
    assert _codes(gateway.ask(Api.CREATE_TOPICS, {"topics": [asked]})) == [code]
    assert [topic.partitions for topic in store.topics()] == ([3] if code is ErrorCode.none else [])


def test_internal_topics_are_there_without_being_created(gateway: ServedStore, store: Store) -> None:
    topics = [_asked("__consumer_offsets", 50, 1), _asked("__transaction_state", -1, 3)]
    response = gateway.ask(Api.CREATE_TOPICS, {"topics": topics})
    assert [(each.error_code, each.num_partitions) for each in response.topics] == [(ErrorCode.none, 50)] * 2
    assert store.topics() == []


# Deleting -------------------------------------------------------------------------------------------------------------


def test_topics_are_deleted_by_name_and_by_id(
    confluent: AdminClient, kafka_python: KafkaAdminClient, gateway: ServedStore, store: Store
) -> None:
    ids = [UUID(store.create_topic(name).topic_id) for name in "abc"]
    futures = confluent.delete_topics(["a", "x"])
    assert failure_of(futures["a"]) is ErrorCode.none
    assert failure_of(futures["x"]) is ErrorCode.unknown_topic_or_partition
    kafka_python.delete_topics(["b"])
    with pytest.raises(kafka_errors.UnknownTopicOrPartitionError):
        kafka_python.delete_topics(["b"])
    asked = [{"name": None, "topic_id": each} for each in (ids[2], UUID(int=5))]
    responses = gateway.ask(Api.DELETE_TOPICS, {"topics": asked}).responses
    assert [(each.name, each.error_code) for each in responses] == [
        ("c", ErrorCode.none),
        (None, ErrorCode.unknown_topic_id),
    ]
    assert store.topics() == []


def test_topics_that_are_not_named_once_are_not_deleted(gateway: ServedStore, store: Store) -> None:
    topic_id = UUID(store.create_topic("a").topic_id)
    both, neither = {"name": "a", "topic_id": topic_id}, {"name": None, "topic_id": None}
    asked = [{"name": "a"}, {"name": "a"}, both, neither, {"name": None, "topic_id": topic_id}]
    responses = gateway.ask(Api.DELETE_TOPICS, {"topics": [*asked[:4]]}).responses
    assert {each.error_code for each in responses} == {ErrorCode.invalid_request}
    assert [topic.name for topic in store.topics()] == ["a"]


# Partitions -----------------------------------------------------------------------------------------------------------


def test_partitions_are_added(confluent: AdminClient, kafka_python: KafkaAdminClient, store: Store) -> None:
    store.create_topic("a", partitions=2)
    confluent.create_partitions([NewPartitions("a", 3)], validate_only=True)["a"].result()
    assert store.topic("a").partitions == 2
    confluent.create_partitions([NewPartitions("a", 3)])["a"].result()
    assert store.topic("a").partitions == 3
    kafka_python.create_partitions({"a": 4})
    assert store.topic("a").partitions == 4
    with pytest.raises(kafka_errors.InvalidPartitionsError, match=r"Topic already has 4 partition\(s\)"):
        kafka_python.create_partitions({"a": 4})


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        ({"name": "a", "count": 1}, ErrorCode.invalid_partitions),
        ({"name": "a", "count": 100_001}, ErrorCode.invalid_partitions),
        ({"name": "x", "count": 3}, ErrorCode.unknown_topic_or_partition),
        ({"name": "a", "count": 4, "assignments": [{"broker_ids": (0,)}]}, ErrorCode.invalid_replica_assignment),
        ({"name": "a", "count": 3, "assignments": [{"broker_ids": (9,)}]}, ErrorCode.invalid_replica_assignment),
        ({"name": "a", "count": 3, "assignments": [{"broker_ids": (0,)}]}, ErrorCode.none),
    ],
)
@pytest.mark.parametrize("version", range(VERSIONS[Api.CREATE_PARTITIONS].last + 1))
def test_codes_of_partitions(
    gateway: ServedStore, store: Store, asked: dict[str, Any], code: ErrorCode, version: int
) -> None:
    store.create_topic("a", partitions=2)
    (result,) = gateway.ask(Api.CREATE_PARTITIONS, {"topics": [asked]}, version).results
    assert (result.name, result.error_code) == (asked["name"], code)
    assert (result.error_message is None) == (code is ErrorCode.none)


def test_a_topic_that_is_named_twice_gets_no_partitions(gateway: ServedStore, store: Store) -> None:
    store.create_topic("a")
    asked = [{"name": "a", "count": 2}, {"name": "a", "count": 3}]
    (result,) = gateway.ask(Api.CREATE_PARTITIONS, {"topics": asked}).results
    assert (result.error_code, store.topic("a").partitions) == (ErrorCode.invalid_request, 1)


# Rights ---------------------------------------------------------------------------------------------------------------


def test_rights_to_topics(secured: ServedStore) -> None:
    store, denied = secured.store, ErrorCode.topic_authorization_failed
    create = {"topics": [_asked("a")]}
    delete, enlarge = {"topics": [{"name": "t"}, {"name": "x"}]}, {"topics": [{"name": "t", "count": 3}]}
    topic_id = UUID(store.topic("t").topic_id)
    by_id = {"topics": [{"name": None, "topic_id": topic_id}]}
    assert _codes(secured.ask(Api.CREATE_TOPICS, create, user="alice")) == [denied]
    responses = secured.ask(Api.DELETE_TOPICS, delete, user="alice").responses
    assert [each.error_code for each in responses] == [denied, denied]
    (response,) = secured.ask(Api.DELETE_TOPICS, by_id, user="alice").responses
    assert (response.name, response.error_code) == (None, denied)
    (result,) = secured.ask(Api.CREATE_PARTITIONS, enlarge, user="alice").results
    assert result.error_code == denied
    assert "User:alice has no right to ALTER on topic 't'" in result.error_message

    store.acls.create([
        Acl("User:alice", "ALLOW", "CREATE", "CLUSTER", "kafka-cluster"),
        Acl("User:bob", "ALLOW", "CREATE", "TOPIC", "b", "PREFIXED"),
        Acl("User:bob", "ALLOW", "ALL", "TOPIC", "t"),
    ])  # fmt: skip
    (topic,) = secured.ask(Api.CREATE_TOPICS, create, user="alice").topics
    assert (topic.error_code, topic.topic_config_error_code, topic.num_partitions) == (ErrorCode.none, 29, -1)
    topics = {"topics": [_asked("b1"), _asked("c")]}
    assert _codes(secured.ask(Api.CREATE_TOPICS, topics, user="bob")) == [ErrorCode.none, denied]
    (result,) = secured.ask(Api.CREATE_PARTITIONS, enlarge, user="bob").results
    assert (result.error_code, store.topic("t").partitions) == (ErrorCode.none, 3)
    (response,) = secured.ask(Api.DELETE_TOPICS, by_id, user="bob").responses
    assert (response.name, response.error_code) == ("t", ErrorCode.none)
