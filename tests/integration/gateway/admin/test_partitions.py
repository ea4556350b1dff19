"""DeleteRecords, DescribeLogDirs, ElectLeaders, ListPartitionReassignments with clients of Kafka."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import ElectionType, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import TopicPartition as PythonTopicPartition
from kafka import errors as kafka_errors
from kafka.admin import KafkaAdminClient
from kio.schema.errors import ErrorCode

from tests.helpers.kafka_wire import ServedStore, failure_of
from txnstore.core.authorization.model import Acl
from txnstore.gateway.apis import VERSIONS, Api
from txnstore.store import Store


def _fill(store: Store, *topics: str, records: int = 10) -> None:
    with store.producer() as producer:
        for topic in topics:
            for number in range(records):
                producer.send(topic, b"x", key=b"%d" % number, partition=0)


def _delete(topic: str, offset: int, partition: int = 0) -> dict[str, Any]:
    return {"topics": [{"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}]}


def _deleted(response: Any) -> tuple[ErrorCode, int]:
    ((partition,),) = (topic.partitions for topic in response.topics)
    return partition.error_code, partition.low_watermark


# Deleting records -----------------------------------------------------------------------------------------------------


def test_records_are_deleted(confluent: AdminClient, kafka_python: KafkaAdminClient, store: Store) -> None:
    store.create_topic("t")
    _fill(store, "t")
    (future,) = confluent.delete_records([TopicPartition("t", 0, 3)]).values()
    assert future.result(10).low_watermark == 3
    tp = PythonTopicPartition("t", 0)
    assert kafka_python.delete_records({tp: 5})[tp]["low_watermark"] == 5
    assert kafka_python.delete_records({tp: 2})[tp]["low_watermark"] == 5
    assert store.offsets("t", 0).log_start == 5
    assert kafka_python.delete_records({tp: -1})[tp]["low_watermark"] == 10


@pytest.mark.parametrize("version", range(VERSIONS[Api.DELETE_RECORDS].last + 1))
def test_codes_of_records(gateway: ServedStore, version: int) -> None:
    store = gateway.store
    store.create_topic("t")
    store.create_topic("c", config={"cleanup.policy": "compact"})
    _fill(store, "t", "c")
    asked = {
        ("t", 4, 0): (ErrorCode.none, 4),
        ("t", 11, 0): (ErrorCode.offset_out_of_range, -1),
        ("t", -2, 0): (ErrorCode.offset_out_of_range, -1),
        ("t", 1, 1): (ErrorCode.unknown_topic_or_partition, -1),
        ("x", 1, 0): (ErrorCode.unknown_topic_or_partition, -1),
        ("c", 1, 0): (ErrorCode.policy_violation, -1),
    }
    answers = {each: _deleted(gateway.ask(Api.DELETE_RECORDS, _delete(*each), version)) for each in asked}
    assert answers == asked


def test_records_of_an_open_transaction_are_not_deleted(gateway: ServedStore) -> None:
    """A broker deletes them; here they are undecided."""
    gateway.store.create_topic("t")
    _fill(gateway.store, "t")
    with gateway.store.producer("id") as producer:
        producer.begin_transaction()
        producer.send("t", b"open", partition=0)
        producer.flush()
        assert _deleted(gateway.ask(Api.DELETE_RECORDS, _delete("t", -1))) == (ErrorCode.offset_out_of_range, -1)
        assert _deleted(gateway.ask(Api.DELETE_RECORDS, _delete("t", 10))) == (ErrorCode.none, 10)
        producer.abort_transaction()


def test_clients_get_the_error_of_an_offset_out_of_range(
    confluent: AdminClient, kafka_python: KafkaAdminClient, store: Store
) -> None:
    store.create_topic("t")
    (future,) = confluent.delete_records([TopicPartition("t", 0, 1)]).values()
    assert failure_of(future) is ErrorCode.offset_out_of_range
    with pytest.raises(kafka_errors.OffsetOutOfRangeError):
        kafka_python.delete_records({PythonTopicPartition("t", 0): 1})


# What brokers know ----------------------------------------------------------------------------------------------------


def test_the_store_is_the_only_log_directory(gateway: ServedStore, kafka_python: KafkaAdminClient) -> None:
    gateway.store.create_topic("t", partitions=2)
    gateway.store.create_topic("u")
    _fill(gateway.store, "t")
    ((directory,),) = (broker["log_dirs"] for broker in kafka_python.describe_log_dirs({"t": [0, 1], "u": [0]}))
    assert directory["log_dir"] == gateway.store.url
    sizes = {
        (topic["name"], partition["partition_index"]): partition["partition_size"]
        for topic in directory["topics"]
        for partition in topic["partitions"]
    }
    assert list(sizes) == [("t", 0), ("t", 1), ("u", 0)]
    assert sizes["t", 0] > 0
    assert sizes["t", 1] == sizes["u", 0] == 0
    (result,) = gateway.ask(Api.DESCRIBE_LOG_DIRS, {"topics": None}).results
    assert [(topic.name, len(topic.partitions)) for topic in result.topics] == [("t", 2), ("u", 1)]


@pytest.mark.parametrize("version", range(1, VERSIONS[Api.DESCRIBE_LOG_DIRS].last + 1))
def test_asked_partitions_have_sizes(gateway: ServedStore, version: int) -> None:
    gateway.store.create_topic("t", partitions=2)
    asked = [{"topic": "t", "partitions": (1, 2)}, {"topic": "x", "partitions": (0,)}]
    (directory,) = gateway.ask(Api.DESCRIBE_LOG_DIRS, {"topics": asked}, version).results
    (topic,) = directory.topics
    assert (topic.name, [each.partition_index for each in topic.partitions]) == ("t", [1])


def test_no_partition_needs_an_election(
    gateway: ServedStore, confluent: AdminClient, kafka_python: KafkaAdminClient
) -> None:
    gateway.store.create_topic("t")
    tps = [TopicPartition("t", 0), TopicPartition("t", 7)]
    result = confluent.elect_leaders(ElectionType.PREFERRED, tps).result(10)
    codes = {tp.partition: error.code() for tp, error in result.items()}
    assert codes == {0: ErrorCode.election_not_needed, 7: ErrorCode.unknown_topic_or_partition}
    assert confluent.elect_leaders(ElectionType.UNCLEAN).result(10) == {}
    assert kafka_python.list_partition_reassignments() == {}
    for version in range(VERSIONS[Api.ELECT_LEADERS].last + 1):
        asked = {"election_type": 0, "topic_partitions": [{"topic": "t", "partitions": (0,)}]}
        (topic,) = gateway.ask(Api.ELECT_LEADERS, asked, version).replica_election_results
        assert [each.error_code for each in topic.partition_result] == [ErrorCode.election_not_needed]


# Rights ---------------------------------------------------------------------------------------------------------------


def test_rights_to_partitions(secured: ServedStore) -> None:
    store, denied = secured.store, ErrorCode.cluster_authorization_failed
    elect = {"topic_partitions": [{"topic": "t", "partitions": (0,)}]}

    def codes(user: str) -> list[ErrorCode]:
        election = secured.ask(Api.ELECT_LEADERS, elect, user=user)
        return [
            _deleted(secured.ask(Api.DELETE_RECORDS, _delete("t", 0), user=user))[0],
            secured.ask(Api.DESCRIBE_LOG_DIRS, {"topics": None}, user=user).error_code,
            secured.ask(Api.LIST_PARTITION_REASSIGNMENTS, {"topics": None}, user=user).error_code,
            election.error_code,
            election.replica_election_results[0].partition_result[0].error_code,
            secured.ask(Api.ELECT_LEADERS, {"topic_partitions": None}, user=user).error_code,
        ]

    assert codes("alice") == [ErrorCode.topic_authorization_failed, *[denied] * 5]
    store.acls.create([
        Acl("User:alice", "ALLOW", "DELETE", "TOPIC", "t"),
        Acl("User:alice", "ALLOW", "ALTER", "CLUSTER", "kafka-cluster"),
    ])  # fmt: skip
    done = ErrorCode.none
    assert codes("alice") == [done, done, done, done, ErrorCode.election_not_needed, done]
