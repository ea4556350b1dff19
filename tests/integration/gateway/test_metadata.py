"""Metadata, DescribeCluster, DescribeTopicPartitions, ListOffsets: topics, and what a client may do to them."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from tests.helpers.gateway import serving
from tests.helpers.kafka_wire import RawClient, ServedStore, users_of
from txnstore.core.authorization.model import Acl
from txnstore.core.view import View
from txnstore.errors import StorageError
from txnstore.gateway import metadata
from txnstore.gateway.apis import Api
from txnstore.gateway.freshness import Freshness
from txnstore.gateway.metadata import Metadata
from txnstore.gateway.operations import NO_OPERATIONS
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on

#: Kafka's bits of operations.
DELETE, ALTER, DESCRIBE = 1 << 6, 1 << 7, 1 << 8
ALL_OF_A_TOPIC, ALL_OF_THE_CLUSTER = 0b1101_1111_1000, 0b1_1111_1010_0000


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedStore]:
    """A gateway whose user ``alice`` may describe and delete the topic ``t``, and alter the cluster."""
    users = users_of(Path(tmp_path_factory.mktemp("users")), "alice", "bob", "carol", "dave")
    with create_on(MemoryStore(), principal="User:gateway") as store:
        for name in ("hidden", "t"):
            store.create_topic(name)
        store.acls.enable(["User:gateway", "User:carol"])
        store.acls.create([
            Acl("User:alice", "ALLOW", "DELETE", "TOPIC", "t"),
            Acl("User:alice", "ALLOW", "ALTER", "CLUSTER", "kafka-cluster"),
            Acl("User:dave", "ALLOW", "CREATE", "CLUSTER", "kafka-cluster"),
        ])  # fmt: skip
        with serving(store, security=users) as gateway:
            yield ServedStore(store, gateway)


def _names(topics: tuple[str, ...], **fields: object) -> dict[str, object]:
    return {"topics": [{"name": name} for name in topics], "include_topic_authorized_operations": True, **fields}


# Topics by their ids --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [None, ""])
@pytest.mark.parametrize("version", [10, 12, 13])
def test_a_topic_is_found_by_its_id(secured: ServedStore, name: str | None, version: int) -> None:
    """Java's consumer sends an empty name beside the id, librdkafka none."""
    topic_id = UUID(secured.store.topic("t").topic_id)
    asked = {"topics": [{"name": name, "topic_id": topic_id}]}
    (topic,) = secured.ask(Api.METADATA, asked, version, user="carol").topics
    assert (topic.error_code, topic.name, topic.topic_id) == (ErrorCode.none, "t", topic_id)


@pytest.mark.parametrize(("version", "name"), [(11, ""), (12, None), (13, None)])
def test_an_id_without_a_topic_is_refused_without_a_name(secured: ServedStore, version: int, name: str | None) -> None:
    missing = UUID(int=1)
    asked = {"topics": [{"name": "", "topic_id": missing}]}
    (topic,) = secured.ask(Api.METADATA, asked, version, user="carol").topics
    assert (topic.error_code, topic.name, topic.topic_id) == (ErrorCode.unknown_topic_id, name, missing)


def test_the_name_of_a_topic_is_hidden_from_who_only_knows_its_id(secured: ServedStore) -> None:
    asked = {"topics": [{"name": "", "topic_id": UUID(secured.store.topic("hidden").topic_id)}]}
    (topic,) = secured.ask(Api.METADATA, asked, user="alice").topics
    assert (topic.error_code, topic.name) == (ErrorCode.topic_authorization_failed, None)


@pytest.mark.parametrize(
    ("user", "name", "code"),
    [
        ("bob", "t", ErrorCode.topic_authorization_failed),
        ("carol", "missing", ErrorCode.unknown_topic_or_partition),
        ("carol", "t", ErrorCode.unknown_leader_epoch),
    ],
)
def test_an_epoch_of_the_future_is_compared_with_that_of_a_partition_that_the_client_may_see(
    secured: ServedStore, user: str, name: str, code: ErrorCode
) -> None:
    partition = {"partition_index": 0, "current_leader_epoch": 1, "timestamp": -1}
    asked = {"replica_id": -1, "topics": [{"name": name, "partitions": [partition]}]}
    (topic,) = secured.ask(Api.LIST_OFFSETS, asked, user=user).topics
    assert topic.partitions[0].error_code is code


# What a client may do -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("user", "operations"), [("alice", DELETE | DESCRIBE), ("carol", ALL_OF_A_TOPIC)])
def test_operations_on_a_topic_are_those_of_the_client(secured: ServedStore, user: str, operations: int) -> None:
    (topic,) = secured.ask(Api.METADATA, _names(("t",)), user=user).topics
    assert topic.topic_authorized_operations == operations
    (topic,) = secured.ask(Api.DESCRIBE_TOPIC_PARTITIONS, {"topics": [{"name": "t"}]}, user=user).topics
    assert topic.topic_authorized_operations == operations


def test_operations_that_are_not_asked_for_are_not_returned(secured: ServedStore) -> None:
    asked = _names(("t",), include_topic_authorized_operations=False)
    (topic,) = secured.ask(Api.METADATA, asked, user="carol").topics
    assert topic.topic_authorized_operations == NO_OPERATIONS
    assert secured.ask(Api.DESCRIBE_CLUSTER, {}, user="carol").cluster_authorized_operations == NO_OPERATIONS


@pytest.mark.parametrize(
    ("user", "operations"), [("alice", ALTER | DESCRIBE), ("bob", 0), ("dave", 0), ("carol", ALL_OF_THE_CLUSTER)]
)
def test_operations_on_the_cluster_are_those_of_the_client(secured: ServedStore, user: str, operations: int) -> None:
    """ALTER contains DESCRIBE, CREATE does not; who may not describe the cluster gets an empty set, as in Kafka."""
    asked = {"include_cluster_authorized_operations": True}
    for api, version in ((Api.DESCRIBE_CLUSTER, 2), (Api.METADATA, 8), (Api.METADATA, 10)):
        fields = asked if api is Api.DESCRIBE_CLUSTER else {**asked, "topics": ()}
        assert secured.ask(api, fields, version, user=user).cluster_authorized_operations == operations


def test_without_rules_everything_may_be_done() -> None:
    with create_on(MemoryStore()) as store, serving(store) as gateway:
        store.create_topic("t")
        (topic,) = ServedStore(store, gateway).ask(Api.METADATA, _names(("t",))).topics
        assert topic.topic_authorized_operations == ALL_OF_A_TOPIC


def test_a_list_of_all_topics_has_only_those_that_the_client_may_describe(secured: ServedStore) -> None:
    for user, names in (("alice", ["t"]), ("bob", []), ("carol", ["hidden", "t"])):
        answers = (
            secured.ask(Api.METADATA, {"topics": None}, user=user),
            secured.ask(Api.DESCRIBE_TOPIC_PARTITIONS, {"topics": ()}, user=user),
        )
        assert [[topic.name for topic in answer.topics] for answer in answers] == [names, names]


def test_a_topic_of_brokers_is_not_created_by_who_asks_for_it() -> None:
    """It would be one that clients may write to, and that has none of what they look for."""
    with create_on(MemoryStore()) as store, serving(store, {"auto.create.topics.enable": "true"}) as gateway:
        asked = _names(("__consumer_offsets", "__transaction_state", "t"))
        topics = ServedStore(store, gateway).ask(Api.METADATA, asked).topics
        missing = ErrorCode.unknown_topic_or_partition
        assert [topic.error_code for topic in topics] == [missing, missing, ErrorCode.none]
        assert [topic.name for topic in store.topics()] == ["t"]


def test_each_part_of_a_request_has_a_code_if_the_storage_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one the connection would be closed, with all other requests of the client."""

    async def head(_: Freshness) -> View:
        raise StorageError("down")

    partition = {"partition": 0, "partition_index": 0, "timestamp": -1, "leader_epoch": 0}
    topics = {"topics": [{"name": "t", "topic": "t", "partitions": [partition], "partition_indexes": [0]}]}
    groups = {"groups": [{"group_id": "g", "topics": None}]}
    storage, coordinator = ErrorCode.kafka_storage_error, ErrorCode.coordinator_not_available
    with create_on(MemoryStore()) as store, serving(store) as gateway, RawClient(gateway) as client:
        monkeypatch.setattr(Freshness, "head", head)
        for api, code in ((Api.LIST_OFFSETS, storage), (Api.OFFSET_FOR_LEADER_EPOCH, storage)):
            assert client.ask(api, topics).topics[0].partitions[0].error_code is code
        (producers,) = client.ask(Api.DESCRIBE_PRODUCERS, topics).topics
        assert producers.partitions[0].error_code is ErrorCode.not_leader_or_follower
        (state,) = client.ask(Api.DESCRIBE_TRANSACTIONS, {"transactional_ids": ["a"]}).transaction_states
        assert (state.transactional_id, state.error_code) == ("a", coordinator)
        (committed,) = client.ask(Api.OFFSET_FETCH, groups, 8).groups
        assert (committed.group_id, committed.error_code) == ("g", coordinator)
        (described,) = client.ask(Api.DESCRIBE_TOPIC_PARTITIONS, topics).topics
        assert described.error_code is storage


# Many partitions ------------------------------------------------------------------------------------------------------


def _described(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The threads that have described a partition, one for each."""
    threads: list[str] = []
    describe = Metadata._partition_fields

    def described(self: Metadata, topic: str, number: int, rack: str | None) -> Mapping[str, object]:
        threads.append(threading.current_thread().name.rsplit("_", 1)[0])
        return describe(self, topic, number, rack)

    monkeypatch.setattr(Metadata, "_partition_fields", described)
    return threads


@pytest.mark.parametrize("topics", [None, [{"name": "t"}, {"name": "missing"}]])
def test_metadata_of_many_partitions_are_built_outside_of_the_loop(
    monkeypatch: pytest.MonkeyPatch, topics: list[dict[str, str]] | None
) -> None:
    threads, responses = _described(monkeypatch), list[object]()
    with create_on(MemoryStore()) as store:
        store.create_topic("t", partitions=5)
        for most in (5, 4):
            monkeypatch.setattr(metadata, "MOST_AT_ONCE", most)
            with serving(store) as gateway:
                responses.append(ServedStore(store, gateway).ask(Api.METADATA, {"topics": topics}).topics)
    assert threads == ["gateway of a test"] * 5 + ["gateway responses"] * 5
    assert responses[0] == responses[1]


# Responses that clients share -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("topics", [None, [{"name": "t"}]])
def test_clients_share_a_response_until_the_catalog_changes(
    monkeypatch: pytest.MonkeyPatch, topics: list[dict[str, str]] | None
) -> None:
    with create_on(MemoryStore()) as store, serving(store) as gateway:
        store.create_topic("t", partitions=3)
        served, described = ServedStore(store, gateway), _described(monkeypatch)
        first, second = (served.ask(Api.METADATA, {"topics": topics}) for _ in range(2))
        assert first == second
        assert len(described) == 3
        served.ask(Api.METADATA, {"topics": topics}, 8)
        assert len(described) == 6
        asked = {"topics": [{"name": "t", "count": 4, "assignments": None}], "timeout_ms": 1000, "timeout": 1000}
        served.ask(Api.CREATE_PARTITIONS, asked)
        (topic,) = served.ask(Api.METADATA, {"topics": topics}).topics
        assert len(topic.partitions) == 4


def test_a_response_is_that_of_the_principal_and_of_the_rules_that_hold(tmp_path: Path) -> None:
    users = users_of(tmp_path, "alice", "bob")
    with create_on(MemoryStore(), principal="User:gateway") as store:
        store.create_topic("t")
        store.create_topic("u")
        store.acls.enable(["User:gateway"])
        store.acls.create(Acl("User:alice", "ALLOW", "DESCRIBE", "TOPIC", "t"))
        store.acls.create(Acl("User:bob", "ALLOW", "DESCRIBE", "TOPIC", "u"))
        with serving(store, security=users) as gateway:
            served = ServedStore(store, gateway)

            def names(user: str) -> list[str]:
                return [topic.name for topic in served.ask(Api.METADATA, {"topics": None}, user=user).topics]

            for _ in range(2):
                assert (names("alice"), names("bob")) == (["t"], ["u"])
            store.acls.create(Acl("User:alice", "DENY", "DESCRIBE", "TOPIC", "t"))
            assert names("alice") == []
            code = served.ask(Api.METADATA, _names(("t",)), user="alice").topics[0].error_code
            assert code is ErrorCode.topic_authorization_failed


def test_a_page_of_partitions_has_an_upper_bound_whatever_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "MOST_AT_ONCE", 4)
    with create_on(MemoryStore()) as store, serving(store) as gateway:
        for name in ("s", "t"):
            store.create_topic(name, partitions=5)
        served, described = ServedStore(store, gateway), _described(monkeypatch)
        cursor, pages = None, list[list[tuple[str, int]]]()
        while not pages or cursor is not None:
            fields = {"topics": (), "response_partition_limit": 1_000, "cursor": cursor}
            page = served.ask(Api.DESCRIBE_TOPIC_PARTITIONS, fields)
            pages.append([(topic.name, each.partition_index) for topic in page.topics for each in topic.partitions])
            following = page.next_cursor
            cursor = following and {"topic_name": following.topic_name, "partition_index": following.partition_index}
    assert [len(page) for page in pages] == [4, 4, 2]
    assert [each for page in pages for each in page] == [(name, number) for name in "st" for number in range(5)]
    assert len(described) == 10
