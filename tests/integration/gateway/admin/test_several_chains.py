"""Administration of a store with several chains, whose commands a coordinator carries."""

from __future__ import annotations

import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from kafka import TopicPartition as PythonPartition
from kafka import errors as kafka_errors
from kafka.admin import AbortTransactionSpec, KafkaAdminClient
from kio.schema.errors import ErrorCode

from tests.harness.executors import DeferredExecutor
from tests.helpers.connections import connection_of
from tests.helpers.gateway import RunningGateway, serving
from tests.helpers.kafka_wire import ServedStore
from txnstore.core.authorization.model import Acl
from txnstore.core.model import TopicPartition
from txnstore.errors import UnknownOutcomeError
from txnstore.gateway.apis import Api
from txnstore.runtime import Runtime
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import Fault, FaultStore, no_faults, on

_FILTER = AclBindingFilter(
    ResourceType.TOPIC,
    "t",
    ResourcePatternType.LITERAL,
    "User:x",
    "*",
    AclOperation.ANY,
    AclPermissionType.ANY,
)


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


@pytest.mark.parametrize("call", ["create", "delete", "enlarge", "delete rules"])
def test_what_was_done_already_is_answered_only_if_it_is_durable(call: str) -> None:
    """A client repeats a request after a timeout, and takes "exists already" for success, as it does with a broker."""
    objects = FaultStore(MemoryStore())
    rule = Acl("User:x", "ALLOW", "READ", "TOPIC", "t")
    with create_on(objects, principal="User:ANONYMOUS") as store, serving(store) as gateway:
        admin = AdminClient(ServedStore(store, gateway).librdkafka())
        store.create_topic("t")
        store.acls.create(rule)
        store.acls.enable("User:ANONYMOUS")
        calls: dict[str, tuple[Callable[[Store], object], Callable[[], Any]]] = {
            "create": (lambda other: other.create_topic("u"), lambda: admin.create_topics([NewTopic("u", 1, 1)])),
            "delete": (lambda other: other.delete_topic("t"), lambda: admin.delete_topics(["t"])),
            "enlarge": (
                lambda other: other.alter_topic("t", 2),
                lambda: admin.create_partitions([NewPartitions("t", 2)]),
            ),
            "delete rules": (lambda other: other.acls.delete(rule), lambda: admin.delete_acls([_FILTER])),
        }
        begin, repeat = calls[call]
        with open_on(objects, principal="User:ANONYMOUS") as other:
            objects.plan = on(Fault.UNSYNCED, "put_if_absent", key_contains="/entries/", times=None)
            with pytest.raises(UnknownOutcomeError):
                begin(other)
            objects.plan = no_faults
        assert objects.unsynced
        (future,) = repeat().values()
        if call == "delete rules":
            assert future.result(30) == []
        else:
            with pytest.raises(KafkaException, match=r"already|there is no topic|Unknown topic"):
                future.result(30)
        assert objects.unsynced == []
