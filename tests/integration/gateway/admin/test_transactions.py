"""DescribeProducers, DescribeTransactions, ListTransactions, WriteTxnMarkers with clients of Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kafka import TopicPartition
from kafka import errors as kafka_errors
from kafka.admin import AbortTransactionSpec, KafkaAdminClient, TransactionState
from kio.schema.errors import ErrorCode

from tests.helpers.kafka_wire import ServedStore
from txnstore.core.authorization.model import Acl
from txnstore.errors import InvalidProducerEpochError, ProducerFencedError
from txnstore.gateway.apis import VERSIONS, Api
from txnstore.producer.producer import Producer
from txnstore.store import Store


def _open(store: Store, transactional_id: str, *topics: str) -> Producer:
    """A producer with an open transaction, whose records are in the log."""
    producer = store.producer(transactional_id)
    producer.begin_transaction()
    for topic in topics:
        producer.send(topic, b"x", partition=0)
    producer.flush()
    return producer


@pytest.fixture
def ongoing(gateway: ServedStore) -> Iterator[Producer]:
    """A producer ``id`` with an open transaction in ``t`` and ``u``; ``done`` has committed one."""
    for topic in ("t", "u"):
        gateway.store.create_topic(topic)
    with gateway.store.producer("done") as producer, producer.transaction() as txn:
        txn.send("t", b"x", partition=0)
    producer = _open(gateway.store, "id", "t", "u")
    yield producer
    producer.close()


# Showing --------------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("ongoing")
def test_producers_of_a_partition(gateway: ServedStore, kafka_python: KafkaAdminClient) -> None:
    tp = TopicPartition("t", 0)
    producers = kafka_python.describe_producers([tp])[tp].active_producers
    expected = gateway.store.producers("t", 0)
    assert [(each.producer_id, each.producer_epoch, each.last_sequence) for each in producers] == [
        (each.producer_id, each.epoch, each.last_sequence) for each in expected
    ]
    assert [each.current_transaction_start_offset for each in producers] == [-1, 2]
    with pytest.raises(kafka_errors.UnknownTopicOrPartitionError):
        kafka_python.describe_producers([TopicPartition("t", 9)], broker_id=0)


def test_codes_of_producers(gateway: ServedStore) -> None:
    gateway.store.create_topic("t")
    asked = {"topics": [{"name": name, "partition_indexes": (0,)} for name in ("t", "x", "a!")]}
    topics = gateway.ask(Api.DESCRIBE_PRODUCERS, asked).topics
    assert [topic.partitions[0].error_code for topic in topics] == [
        ErrorCode.none,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.invalid_topic_exception,
    ]


@pytest.mark.usefixtures("ongoing")
def test_transactions_are_described(gateway: ServedStore, kafka_python: KafkaAdminClient) -> None:
    described = kafka_python.describe_transactions(["id", "done"])
    expected = gateway.store.transaction("id")
    assert described["id"].state is TransactionState.ONGOING
    assert (described["id"].producer_id, described["id"].producer_epoch) == (expected.producer_id, expected.epoch)
    assert described["id"].transaction_timeout_ms == 60_000
    assert described["id"].transaction_start_time_ms == expected.started_at
    assert described["id"].topic_partitions == {TopicPartition("t", 0), TopicPartition("u", 0)}
    assert described["done"].state is TransactionState.COMPLETE_COMMIT
    assert (described["done"].transaction_start_time_ms, described["done"].topic_partitions) == (-1, set())
    with pytest.raises(kafka_errors.TransactionalIdNotFoundError):
        kafka_python.describe_transactions(["unknown"])


def test_codes_of_transactions(gateway: ServedStore) -> None:
    states = gateway.ask(Api.DESCRIBE_TRANSACTIONS, {"transactional_ids": ("x", "")}).transaction_states
    assert [(each.error_code, each.producer_id) for each in states] == [
        (ErrorCode.transactional_id_not_found, -1),
        (ErrorCode.invalid_request, -1),
    ]


@pytest.mark.usefixtures("ongoing")
@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ({}, ["done", "id"]),
        ({"state_filters": ("Ongoing",)}, ["id"]),
        ({"state_filters": ("CompleteCommit", "Ongoing")}, ["done", "id"]),
        ({"state_filters": ("PrepareAbort", "Unknown")}, []),
        ({"producer_id_filters": (2**40,)}, []),
        ({"duration_filter": 0}, ["id"]),
        ({"duration_filter": 3_600_000}, []),
        ({"transactional_id_pattern": "i."}, ["id"]),
        ({"transactional_id_pattern": "i"}, []),
        ({"transactional_id_pattern": "i.|do.*"}, ["done", "id"]),
        ({"transactional_id_pattern": ""}, ["done", "id"]),
    ],
)
def test_filters_of_transactions(gateway: ServedStore, filters: dict[str, Any], names: list[str]) -> None:
    gateway.store.producer("later").close()  # The clock has moved on.
    listed = gateway.ask(Api.LIST_TRANSACTIONS, {"duration_filter": -1, **filters})
    found = [each.transactional_id for each in listed.transaction_states]
    assert [name for name in found if name != "later"] == names
    assert listed.unknown_state_filters == (("Unknown",) if "Unknown" in filters.get("state_filters", ()) else ())


@pytest.mark.usefixtures("ongoing")
def test_transactions_are_listed(gateway: ServedStore, kafka_python: KafkaAdminClient) -> None:
    producer_id = gateway.store.transaction("id").producer_id
    (listed,) = kafka_python.list_transactions(producer_id_filters=[producer_id]).values()
    assert [(each.transactional_id, each.producer_id) for each in listed] == [("id", producer_id)]
    for version in range(VERSIONS[Api.LIST_TRANSACTIONS].last + 1):
        states = gateway.ask(Api.LIST_TRANSACTIONS, {"duration_filter": -1}, version).transaction_states
        assert [each.transaction_state for each in states] == ["CompleteCommit", "Ongoing"]
    wrong = gateway.ask(Api.LIST_TRANSACTIONS, {"duration_filter": -1, "transactional_id_pattern": "(a"})
    assert (wrong.error_code, wrong.transaction_states) == (ErrorCode.invalid_regular_expression, ())


# Aborting -------------------------------------------------------------------------------------------------------------


def _spec(store: Store, *, epoch: int = 0, topic: str = "t") -> AbortTransactionSpec:
    txn = store.transaction("id")
    return AbortTransactionSpec(TopicPartition(topic, 0), txn.producer_id, txn.epoch + epoch)


def test_an_administrator_aborts_a_transaction(
    gateway: ServedStore, kafka_python: KafkaAdminClient, ongoing: Producer
) -> None:
    store = gateway.store
    assert store.offsets("t", 0).last_stable == 2
    with pytest.raises(kafka_errors.InvalidProducerEpochError):
        kafka_python.abort_transaction(_spec(store, epoch=-1))
    assert store.transaction("id").state.name == "ONGOING"
    spec = _spec(store)
    kafka_python.abort_transaction(spec)
    assert store.transaction("id").state.name == "COMPLETE_ABORT"
    assert store.offsets("t", 0).last_stable == store.offsets("t", 0).high_watermark == 4
    kafka_python.abort_transaction(_spec(store))
    with pytest.raises((ProducerFencedError, InvalidProducerEpochError)):
        ongoing.commit_transaction()


@pytest.mark.usefixtures("ongoing")
@pytest.mark.parametrize(
    "version", range(VERSIONS[Api.WRITE_TXN_MARKERS].first, VERSIONS[Api.WRITE_TXN_MARKERS].last + 1)
)
def test_codes_of_markers(gateway: ServedStore, version: int) -> None:
    txn = gateway.store.transaction("id")

    def ask(topic: str, *, commit: bool) -> list[ErrorCode]:
        marker = {
            "producer_id": txn.producer_id,
            "producer_epoch": txn.epoch,
            "transaction_result": commit,
            "topics": [{"name": topic, "partition_indexes": (0, 1)}],
        }
        (answer,) = gateway.ask(Api.WRITE_TXN_MARKERS, {"markers": [marker]}, version).markers
        return [each.error_code for each in answer.topics[0].partitions]

    denied, unknown = ErrorCode.cluster_authorization_failed, ErrorCode.unknown_topic_or_partition
    assert ask("t", commit=True) == [denied, denied]
    assert ask("x", commit=False) == [unknown, unknown]
    assert gateway.store.transaction("id").state.name == "ONGOING"
    assert ask("t", commit=False) == [ErrorCode.none, unknown]


def test_an_administrator_fences_producers(gateway: ServedStore, ongoing: Producer) -> None:
    """Kafka's ``fenceProducers`` initializes each id again."""
    asked = {"transactional_id": "id", "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    answer = gateway.ask(Api.INIT_PRODUCER_ID, asked)
    assert answer.error_code is ErrorCode.none
    assert gateway.store.transaction("id").state.name in {"EMPTY", "COMPLETE_ABORT"}
    with pytest.raises(ProducerFencedError):
        ongoing.commit_transaction()


# Rights ---------------------------------------------------------------------------------------------------------------


def test_rights_to_transactions(secured: ServedStore) -> None:
    store = secured.store
    producer = _open(store, "id", "t")
    txn = store.transaction("id")
    marker = {
        "producer_id": txn.producer_id,
        "producer_epoch": txn.epoch,
        "transaction_result": False,
        "topics": [{"name": "t", "partition_indexes": (0,)}],
    }
    producers = {"topics": [{"name": "t", "partition_indexes": (0,)}]}

    def answers() -> list[Any]:
        described = secured.ask(Api.DESCRIBE_TRANSACTIONS, {"transactional_ids": ("id",)}, user="alice")
        listed = secured.ask(Api.LIST_TRANSACTIONS, {"duration_filter": -1}, user="alice")
        written = secured.ask(Api.WRITE_TXN_MARKERS, {"markers": [marker]}, user="alice")
        return [
            secured.ask(Api.DESCRIBE_PRODUCERS, producers, user="alice").topics[0].partitions[0].error_code,
            described.transaction_states[0].error_code,
            [topic.topic for topic in described.transaction_states[0].topics],
            [each.transactional_id for each in listed.transaction_states],
            written.markers[0].topics[0].partitions[0].error_code,
        ]

    assert answers() == [
        ErrorCode.topic_authorization_failed,
        ErrorCode.transactional_id_authorization_failed,
        [],
        [],
        ErrorCode.cluster_authorization_failed,
    ]
    assert store.transaction("id").state.name == "ONGOING"
    store.acls.create(Acl("User:alice", "ALLOW", "DESCRIBE", "TRANSACTIONAL_ID", "id"))
    assert answers()[1:4] == [ErrorCode.none, [], ["id"]]
    store.acls.create([
        Acl("User:alice", "ALLOW", "READ", "TOPIC", "t"),
        Acl("User:alice", "ALLOW", "ALTER", "CLUSTER", "kafka-cluster"),
    ])  # fmt: skip
    assert answers() == [ErrorCode.none, ErrorCode.none, ["t"], ["id"], ErrorCode.none]
    assert store.transaction("id").state.name == "COMPLETE_ABORT"
    producer.close()
