"""ListGroups, DescribeGroups, DeleteGroups with clients of Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, ConsumerGroupState
from confluent_kafka import TopicPartition as ConsumerPartition
from confluent_kafka.admin import AdminClient
from kafka import TopicPartition as PythonPartition
from kafka import errors as kafka_errors
from kafka.admin import KafkaAdminClient
from kio.schema.errors import ErrorCode

from tests.helpers.connections import connection_of
from tests.helpers.kafka_wire import ServedStore, failure_of
from txnstore.core.authorization.model import Acl
from txnstore.core.groups.commands import JoinGroup
from txnstore.core.model import TopicPartition
from txnstore.gateway.apis import VERSIONS, Api

#: The JoinGroup of a new member of the group g.
_JOINING = {
    "group_id": "g",
    "session_timeout": 30_000,
    "rebalance_timeout": 30_000,
    "member_id": "",
    "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": b""}],
}


@pytest.fixture
def groups(gateway: ServedStore) -> Iterator[ServedStore]:
    """A gateway on a store with a group ``live`` of one member, and a group ``idle`` with an offset only."""
    store = gateway.store
    store.create_topic("t", partitions=2)
    store.reset_offsets("idle", {TopicPartition("t", 0): 0})
    with store.consumer(topics=["t"], group="live", group_instance_id="first") as consumer:
        consumer.poll(timeout=0)
        yield gateway


# Listing --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ({}, ["idle", "live"]),
        ({"states_filter": ("stable",)}, ["live"]),
        ({"states_filter": ("Empty", "Dead")}, ["idle"]),
        ({"types_filter": ("Classic",)}, ["idle", "live"]),
        ({"types_filter": ("consumer",)}, []),
    ],
)
def test_filters_of_groups(groups: ServedStore, filters: dict[str, Any], names: list[str]) -> None:
    assert [each.group_id for each in groups.ask(Api.LIST_GROUPS, filters).groups] == names


def test_groups_are_listed(groups: ServedStore, confluent: AdminClient, kafka_python: KafkaAdminClient) -> None:
    listed = confluent.list_consumer_groups().result(10)
    states = {each.group_id: (each.state, each.is_simple_consumer_group) for each in listed.valid}
    assert states == {"idle": (ConsumerGroupState.EMPTY, True), "live": (ConsumerGroupState.STABLE, False)}
    assert not listed.errors
    described = {each["group_id"]: (each["group_state"], each["protocol_type"]) for each in kafka_python.list_groups()}
    assert described == {"idle": ("Empty", ""), "live": ("Stable", "consumer")}
    for version in range(VERSIONS[Api.LIST_GROUPS].last + 1):
        assert [each.group_id for each in groups.ask(Api.LIST_GROUPS, {}, version).groups] == ["idle", "live"]


# Describing -----------------------------------------------------------------------------------------------------------


def test_members_and_assignments_are_described(
    groups: ServedStore, confluent: AdminClient, kafka_python: KafkaAdminClient
) -> None:
    described = confluent.describe_consumer_groups(["live", "idle"])
    live, idle = described["live"].result(10), described["idle"].result(10)
    assert (live.state, live.partition_assignor) == (ConsumerGroupState.STABLE, "cooperative-sticky")
    (member,) = live.members
    assert member.group_instance_id == "first"
    assert member.member_id == groups.store.group("live").members[0].member_id
    assert [(tp.topic, tp.partition) for tp in member.assignment.topic_partitions] == [("t", 0), ("t", 1)]
    assert (idle.state, idle.members) == (ConsumerGroupState.EMPTY, [])
    (member,) = kafka_python.describe_groups(["live"])["live"]["members"]
    assert member["member_metadata"]["topics"] == ["t"]
    assert member["member_assignment"]["assigned_partitions"] == [{"topic": "t", "partitions": [0, 1]}]


@pytest.mark.parametrize("version", range(VERSIONS[Api.DESCRIBE_GROUPS].last + 1))
def test_a_group_that_does_not_exist_is_dead(groups: ServedStore, version: int) -> None:
    asked = {"groups": ("live", "none"), "include_authorized_operations": True}
    live, none = groups.ask(Api.DESCRIBE_GROUPS, asked, version).groups
    assert (live.error_code, live.group_state, len(live.members)) == (ErrorCode.none, "Stable", 1)
    assert (none.group_state, none.members) == ("Dead", ())
    assert none.error_code is (ErrorCode.group_id_not_found if version >= 6 else ErrorCode.none)
    if version >= 3:
        operations = sum(1 << code for code in (3, 6, 8, 10, 11))
        assert (live.authorized_operations, none.authorized_operations) == (operations, -(2**31))


# Deleting -------------------------------------------------------------------------------------------------------------


def test_groups_are_deleted(groups: ServedStore, confluent: AdminClient, kafka_python: KafkaAdminClient) -> None:
    futures = confluent.delete_consumer_groups(["idle", "live", "none"])
    assert {name: failure_of(future) for name, future in futures.items()} == {
        "idle": ErrorCode.none,
        "live": ErrorCode.non_empty_group,
        "none": ErrorCode.group_id_not_found,
    }
    assert [group.group for group in groups.store.groups()] == ["live"]
    answer = kafka_python.delete_groups(["live"])
    assert "NonEmptyGroupError" in str(answer), answer
    for version in range(VERSIONS[Api.DELETE_GROUPS].last + 1):
        results = groups.ask(Api.DELETE_GROUPS, {"groups_names": ("", "live")}, version).results
        assert [each.error_code for each in results] == [ErrorCode.group_id_not_found, ErrorCode.non_empty_group]
    assert kafka_errors.NonEmptyGroupError.errno == ErrorCode.non_empty_group


# Groups that gateways keep --------------------------------------------------------------------------------------------


def test_a_classic_group_is_described_by_its_coordinator(gateway: ServedStore, confluent: AdminClient) -> None:
    store = gateway.store
    store.create_topic("t", partitions=2)
    settings = gateway.librdkafka(**{"client.id": "app", "group.id": "classic", "auto.offset.reset": "earliest"})
    consumer = Consumer(settings)
    try:
        consumer.subscribe(["t"])
        while not consumer.assignment():
            consumer.poll(0.1)
        group = confluent.describe_consumer_groups(["classic"])["classic"].result(10)
        (member,) = group.members
        assert (group.state, group.partition_assignor) == (ConsumerGroupState.STABLE, "range")
        assert (member.client_id, len(member.assignment.topic_partitions)) == ("app", 2)
        (listed,) = gateway.ask(Api.LIST_GROUPS, {}).groups
        assert (listed.group_id, listed.protocol_type, listed.group_state) == ("classic", "consumer", "Stable")
        assert failure_of(confluent.delete_consumer_groups(["classic"])["classic"]) is ErrorCode.non_empty_group
        consumer.commit(offsets=[ConsumerPartition("t", 0, 0)], asynchronous=False)
        assert _delete_offsets(gateway, "classic", ("t", 0)) == [ErrorCode.group_subscribed_to_topic]
    finally:
        consumer.close()
    (listed,) = gateway.ask(Api.LIST_GROUPS, {}).groups
    assert listed.group_state == "Empty"
    (described,) = gateway.ask(Api.DESCRIBE_GROUPS, {"groups": ("classic",)}).groups
    assert (described.group_state, described.protocol_type, described.members) == ("Empty", "consumer", ())
    assert failure_of(confluent.delete_consumer_groups(["classic"])["classic"]) is ErrorCode.none
    assert store.groups() == []


def test_a_group_whose_members_are_joining_is_not_deleted(gateway: ServedStore) -> None:
    """The chain knows nothing of it yet; it has an offset, so it exists."""
    gateway.store.create_topic("t")
    gateway.store.reset_offsets("g", {TopicPartition("t", 0): 0})
    joined = gateway.ask(Api.JOIN_GROUP, _JOINING, 3)
    assert joined.error_code is ErrorCode.none
    (listed,) = gateway.ask(Api.LIST_GROUPS, {}).groups
    assert listed.group_state == "CompletingRebalance"
    (result,) = gateway.ask(Api.DELETE_GROUPS, {"groups_names": ("g",)}).results
    assert result.error_code is ErrorCode.non_empty_group


@pytest.mark.parametrize("version", [8, 9])
def test_a_commit_in_the_first_rebalance_of_a_group_gets_its_error(gateway: ServedStore, version: int) -> None:
    """The chain has no such group yet: a client that gets this error ends."""
    gateway.store.create_topic("t")
    joined = gateway.ask(Api.JOIN_GROUP, _JOINING, 3)
    partition = {"partition_index": 0, "committed_offset": 0}
    body = {"group_id": "g", "member_id": joined.member_id, "topics": [{"name": "t", "partitions": [partition]}]}
    body |= {"generation_id": joined.generation_id, "generation_id_or_member_epoch": joined.generation_id}
    (topic,) = gateway.ask(Api.OFFSET_COMMIT, body, version).topics
    assert topic.partitions[0].error_code is ErrorCode.rebalance_in_progress


def test_a_group_of_kip_848_is_listed_only(gateway: ServedStore) -> None:
    gateway.store.create_topic("t")
    connection_of(gateway.store).submit(JoinGroup("new", "m", (("t", 1),), kind="consumer"))
    (listed,) = gateway.ask(Api.LIST_GROUPS, {"types_filter": ("consumer",)}).groups
    assert (listed.group_id, listed.group_type, listed.group_state) == ("new", "consumer", "Stable")
    (described,) = gateway.ask(Api.DESCRIBE_GROUPS, {"groups": ("new",)}).groups
    assert (described.group_state, described.error_code) == ("Dead", ErrorCode.group_id_not_found)


# Offsets --------------------------------------------------------------------------------------------------------------


def _delete_offsets(
    gateway: ServedStore, group: str, *partitions: tuple[str, int], user: str | None = None
) -> ErrorCode | list[ErrorCode]:
    topics = [{"name": name, "partitions": [{"partition_index": number}]} for name, number in partitions]
    answer = gateway.ask(Api.OFFSET_DELETE, {"group_id": group, "topics": topics}, user=user)
    if answer.error_code is not ErrorCode.none:
        return ErrorCode(answer.error_code)
    return [topic.partitions[0].error_code for topic in answer.topics]


def test_offsets_are_deleted(groups: ServedStore, kafka_python: KafkaAdminClient) -> None:
    tp = PythonPartition("t", 0)
    assert kafka_python.delete_group_offsets("idle", [tp]) == {tp: kafka_errors.NoError}
    assert [group.group for group in groups.store.groups()] == ["live"]
    assert kafka_python.delete_group_offsets("live", [tp]) == {tp: kafka_errors.GroupSubscribedToTopicError}
    with pytest.raises(kafka_errors.GroupIdNotFoundError):
        kafka_python.delete_group_offsets("none", [tp])


def test_codes_of_offsets(groups: ServedStore) -> None:
    unknown = ErrorCode.unknown_topic_or_partition
    answer = _delete_offsets(groups, "idle", ("t", 0), ("t", 9), ("x", 0))
    assert answer == [ErrorCode.none, unknown, unknown]


# Rights ---------------------------------------------------------------------------------------------------------------


def test_rights_to_groups(secured: ServedStore) -> None:
    store, denied, done = secured.store, ErrorCode.group_authorization_failed, ErrorCode.none
    for name in ("a", "b"):
        store.reset_offsets(name, {TopicPartition("t", 0): 0})

    def answers() -> list[Any]:
        described = secured.ask(Api.DESCRIBE_GROUPS, {"groups": ("a", "b", "c")}, user="alice").groups
        deleted = secured.ask(Api.DELETE_GROUPS, {"groups_names": ("a", "c")}, user="alice").results
        return [
            [each.group_id for each in secured.ask(Api.LIST_GROUPS, {}, user="alice").groups],
            [each.error_code for each in described],
            [each.error_code for each in deleted],
        ]

    assert answers() == [[], [denied] * 3, [denied] * 2]
    store.acls.create(Acl("User:alice", "ALLOW", "DESCRIBE", "GROUP", "a"))
    assert answers() == [["a"], [done, denied, denied], [denied] * 2]
    store.acls.create(Acl("User:alice", "ALLOW", "DESCRIBE", "CLUSTER", "kafka-cluster"))
    assert answers() == [["a", "b"], [done, denied, denied], [denied] * 2]
    store.acls.create(Acl("User:alice", "ALLOW", "DELETE", "GROUP", "*"))
    assert answers() == [["b"], [done, done, ErrorCode.group_id_not_found], [done, ErrorCode.group_id_not_found]]
    assert [group.group for group in store.groups()] == ["b"]


def test_rights_to_offsets(secured: ServedStore) -> None:
    store = secured.store
    store.create_topic("u")
    store.reset_offsets("a", {TopicPartition("t", 0): 0, TopicPartition("u", 0): 0})
    asked = ("a", ("t", 0), ("u", 0))
    assert _delete_offsets(secured, *asked, user="alice") is ErrorCode.group_authorization_failed
    store.acls.create(Acl("User:alice", "ALLOW", "DELETE", "GROUP", "a"))
    denied = ErrorCode.topic_authorization_failed
    assert _delete_offsets(secured, *asked, user="alice") == [denied, denied]
    store.acls.create(Acl("User:alice", "ALLOW", "READ", "TOPIC", "u"))
    assert _delete_offsets(secured, *asked, user="alice") == [denied, ErrorCode.none]
    assert [position.tp for position in store.group("a").positions] == [TopicPartition("t", 0)]
