"""Administration of a store with several chains, whose commands a coordinator carries."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic
from kafka import TopicPartition as PythonPartition
from kafka.admin import AbortTransactionSpec, KafkaAdminClient

from tests.helpers.gateway import serving
from tests.helpers.kafka_wire import ServedStore
from txnstore.core.model import TopicPartition
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on


@pytest.fixture
def gateway() -> Iterator[ServedStore]:
    """A gateway on a store with three chains."""
    with create_on(MemoryStore(), 3) as store, serving(store) as gateway:
        yield ServedStore(store, gateway)


def test_a_day_of_an_administrator(gateway: ServedStore) -> None:
    store, admin = gateway.store, AdminClient(gateway.librdkafka())
    names = [f"t{number}" for number in range(6)]
    for future in admin.create_topics([NewTopic(name, 2, 1) for name in names]).values():
        future.result(30)
    for future in admin.create_partitions([NewPartitions(name, 3) for name in names]).values():
        future.result(30)
    change = ConfigEntry("min.insync.replicas", "2", incremental_operation=AlterConfigOpType.SET)
    resources = [ConfigResource("topic", name, incremental_configs=[change]) for name in names]
    for future in admin.incremental_alter_configs(resources).values():
        future.result(30)
    topics = [(topic.name, topic.partitions, topic.config) for topic in store.topics()]
    assert topics == [(name, 3, {"min.insync.replicas": "2"}) for name in names]

    producer = store.producer("id")
    producer.begin_transaction()
    for name in names:
        producer.send(name, b"x", partition=0)
    producer.flush()
    store.reset_offsets("g", {TopicPartition(name, 0): 0 for name in names})
    with KafkaAdminClient(**gateway.kafka_python()) as python:
        (txn,) = python.describe_transactions(["id"]).values()
        assert txn.topic_partitions == {PythonPartition(name, 0) for name in names}
        python.abort_transaction(AbortTransactionSpec(PythonPartition("t3", 0), txn.producer_id, txn.producer_epoch))
        deleted = python.delete_records({PythonPartition(name, 0): 1 for name in names})
        assert {answer["low_watermark"] for answer in deleted.values()} == {1}
        left = [PythonPartition(name, 0) for name in names[1:]]
        python.delete_group_offsets("g", left)
        python.delete_topics(names[1:])
    assert [topic.name for topic in store.topics()] == ["t0"]
    assert [position.tp.topic for position in store.group("g").positions] == ["t0"]
    assert store.transaction("id").state.name == "COMPLETE_ABORT"
    assert not store.verify().violations
    producer.close()
