"""ListGroups, DescribeGroups, DeleteGroups with clients of Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient
from kafka import errors as kafka_errors
from kafka.admin import KafkaAdminClient
from kio.schema.errors import ErrorCode

from tests.helpers.kafka_wire import ServedStore, failure_of
from txnstore.core.authorization.model import Acl
from txnstore.core.model import TopicPartition
from txnstore.gateway.apis import VERSIONS, Api


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
        assert [each.error_code for each in results] == [ErrorCode.invalid_group_id, ErrorCode.non_empty_group]
    assert kafka_errors.NonEmptyGroupError.errno == ErrorCode.non_empty_group


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
