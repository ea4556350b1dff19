"""Administration of a store with several chains, whose commands a coordinator carries."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic
from kafka import TopicPartition as PythonPartition
from kafka import errors as kafka_errors
from kafka.admin import AbortTransactionSpec, KafkaAdminClient
from kio.schema.errors import ErrorCode

from tests.harness.executors import DeferredExecutor
from tests.helpers.connections import connection_of
from tests.helpers.gateway import RunningGateway, serving
from tests.helpers.kafka_wire import ServedStore
from txnstore.core.model import TopicPartition
from txnstore.gateway.apis import Api
from txnstore.runtime import Runtime
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on, open_on


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


def test_a_deletion_completes_a_decided_transaction_at_once(gateway: ServedStore) -> None:
    """The committing process dies before it has written a marker of another chain."""
    store, tps = gateway.store, [PythonPartition("t", number) for number in range(3)]
    store.create_topic("t", partitions=len(tps))
    dying = open_on(connection_of(store).counts.inner, runtime=Runtime(background=DeferredExecutor))
    with dying.producer("decided").transaction() as txn:
        for tp in tps:
            txn.send("t", b"x", partition=tp.partition)
    logs = [connection_of(store).view().log(TopicPartition("t", tp.partition)) for tp in tps]
    assert sorted(bool(log.open_txns) for log in logs if log is not None) == [False, True, True]
    with store.producer("open") as producer, KafkaAdminClient(**gateway.kafka_python()) as admin:
        producer.begin_transaction()
        for tp in tps:
            producer.send("t", b"x", partition=tp.partition)
        producer.flush()
        deleted = admin.delete_records(dict.fromkeys(tps, 1))
        assert {tp: answer["low_watermark"] for tp, answer in deleted.items()} == dict.fromkeys(tps, 1)
        for tp in tps:
            with pytest.raises(kafka_errors.OffsetOutOfRangeError):
                admin.delete_records({tp: -1})
        producer.abort_transaction()
    assert not store.verify().violations


def test_gateways_list_each_thing_once() -> None:
    """Clients ask each of two gateways, and unite what they get."""
    objects, bound = MemoryStore(), [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    with create_on(objects, 8) as first, open_on(objects) as second:
        first.create_topic("t", partitions=16)
        for number in range(16):
            first.producer(f"id-{number}").close()
            first.reset_offsets(f"g-{number}", {TopicPartition("t", 0): 0})
        peers = [each.getsockname() for each in bound]
        gateways = [
            RunningGateway(store, bound=each, peers=peers) for store, each in zip((first, second), bound, strict=True)
        ]
        for gateway in gateways:
            gateway.start()
        try:
            served = [ServedStore(first, gateway) for gateway in gateways]
            _wait_for_both(served)
            counts: Counter[str] = Counter()
            for each in served:
                transactions = each.ask(Api.LIST_TRANSACTIONS, {"duration_filter": -1}).transaction_states
                counts.update(txn.transactional_id for txn in transactions)
                counts.update(group.group_id for group in each.ask(Api.LIST_GROUPS, {}).groups)
                for topic in each.ask(Api.DESCRIBE_LOG_DIRS, {"topics": None}).results[0].topics:
                    counts.update(f"t-{partition.partition_index}" for partition in topic.partitions)
        finally:
            for gateway in gateways:
                gateway.stop()
        assert counts == Counter(f"{kind}-{number}" for kind in ("id", "g", "t") for number in range(16))


def test_replicas_are_assigned_to_gateways_that_are_away_too() -> None:
    """As to brokers of Kafka that are registered: one that starts again, or is slow, stays one of the cluster."""
    with (
        create_on(MemoryStore()) as store,
        socket.create_server(("127.0.0.1", 0)) as bound,
        socket.create_server(("127.0.0.1", 0)) as silent,
    ):
        running = RunningGateway(store, bound=bound, peers=[each.getsockname() for each in (bound, silent)])
        running.start()
        try:
            gateway = ServedStore(store, running)
            assert [broker.broker_id for broker in gateway.ask(Api.DESCRIBE_CLUSTER, {"endpoint_type": 1}).brokers] == [
                0
            ]
            assignments = [{"partition_index": 0, "broker_ids": (0, 1)}]
            fields = {"num_partitions": -1, "replication_factor": -1, "assignments": assignments, "configs": ()}
            (topic,) = gateway.ask(Api.CREATE_TOPICS, {"topics": [{"name": "t", **fields}]}).topics
        finally:
            running.stop()
    assert (topic.error_code, topic.replication_factor) == (ErrorCode.none, 2)


def _wait_for_both(served: list[ServedStore]) -> None:
    """Wait until each gateway knows that the other one lives: it asks every second."""
    for _ in range(600):
        answers = [each.ask(Api.DESCRIBE_CLUSTER, {"endpoint_type": 1}) for each in served]
        if all(len(answer.brokers) == len(served) for answer in answers):
            return
        threading.Event().wait(0.05)
    pytest.fail("the gateways do not know each other")
