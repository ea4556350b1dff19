"""Kafka's tests of groups: PlaintextConsumerAssignorsTest, …CallbackTest, …PollTest, …SubscriptionTest and others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.kafka.cluster import Cluster, drain, send
from txnstore import Consumer, TopicPartition
from txnstore.errors import InvalidConfigError, InvalidTopicError, TxnStoreError, UnknownMemberError

TP = TopicPartition("one", 0)


def settle(*consumers: Consumer) -> None:
    """Poll all members in turns until each had several turns without a change."""
    quiet = 0
    before: object = None
    for _ in range(100):
        for consumer in consumers:
            consumer.poll()
        now = [consumer.assignment() for consumer in consumers]
        quiet = quiet + 1 if now == before else 0
        before = now
        if quiet == 3:
            return
    raise AssertionError("the group does not settle")


def shares(*consumers: Consumer) -> list[int]:
    """How many partitions each member has; each partition belongs to one member."""
    held = [tp for consumer in consumers for tp in consumer.assignment()]
    assert len(set(held)) == len(held)
    return [len(consumer.assignment()) for consumer in consumers]


@pytest.mark.parametrize("assignor", ["range", "cooperative-sticky"])
def test_members_share_all_partitions(cluster: Cluster, assignor: str) -> None:
    """PlaintextConsumerAssignorsTest.testMulti…Assignor, …DefaultAssignor: members join one after another."""
    members = [cluster.consumer("one", "two", group="group", assignor=assignor) for _ in range(2)]
    settle(*members)
    assert sum(shares(*members)) == 8
    members.append(cluster.consumer("one", "two", group="group", assignor=assignor))
    settle(*members)
    assert sum(shares(*members)) == 8
    if assignor == "cooperative-sticky":
        assert sorted(shares(*members)) == [2, 3, 3]


def test_sticky_members_keep_what_they_have(cluster: Cluster) -> None:
    """PlaintextConsumerAssignorsTest.testMultiConsumerStickyAssignor."""
    cluster.store.create_topic("many", partitions=20)
    members = [cluster.consumer("many", group="group") for _ in range(4)]
    settle(*members)
    before = [set(member.assignment()) for member in members]
    assert shares(*members) == [5, 5, 5, 5]
    joined = cluster.consumer("many", group="group")
    settle(*members, joined)
    assert shares(*members, joined) == [4, 4, 4, 4, 4]
    assert all(set(member.assignment()) < held for member, held in zip(members, before, strict=True))


def test_an_unknown_assignor(cluster: Cluster) -> None:
    """PlaintextConsumerAssignorsTest.testRemoteAssignorInvalid."""
    with pytest.raises(InvalidConfigError, match="assignor"):
        cluster.consumer("one", group="group", assignor="round-trip")


def test_a_member_that_leaves_and_joins_again(cluster: Cluster) -> None:
    """PlaintextConsumerAssignorsTest.testRebalanceAndRejoin."""
    first, second = (cluster.consumer("one", group="group") for _ in range(2))
    settle(first, second)
    assert shares(first, second) == [2, 2]
    second.close()
    settle(first)
    assert shares(first) == [4]
    third = cluster.consumer("one", group="group")
    settle(first, third)
    assert shares(first, third) == [2, 2]


# Callbacks ------------------------------------------------------------------------------------------------------------


def in_callback(cluster: Cluster, which: str, action: Callable[[Consumer], Any]) -> list[Any]:
    """Answers of the action in a callback; a member joins, and closes."""
    answers: list[Any] = []
    consumer: Consumer

    def run(partitions: list[TopicPartition]) -> None:
        assert TP in partitions
        answers.append(action(consumer))

    consumer = cluster.consumer("one", group="group", **{which: run})
    drain(consumer)
    consumer.close()
    return answers


@pytest.mark.parametrize("which", ["on_assigned", "on_revoked"])
def test_assign_in_a_callback(cluster: Cluster, which: str) -> None:
    """PlaintextConsumerCallbackTest.testConsumerRebalanceListenerAssignOnPartitions….

    Kafka refuses it; here it is refused as well, or it replaces the subscription, but the poll never hangs.
    """

    def assign(consumer: Consumer) -> type[BaseException] | None:
        try:
            consumer.assign([TP])
        except TxnStoreError as error:
            return type(error)
        return None

    assert len(in_callback(cluster, which, assign)) >= 1


@pytest.mark.parametrize("which", ["on_assigned", "on_revoked"])
def test_assignment_and_offsets_in_a_callback(cluster: Cluster, which: str) -> None:
    """PlaintextConsumerCallbackTest.…AssignmentOnPartitions…, …BeginningOffsetsOnPartitions…."""
    answers = in_callback(
        cluster, which, lambda consumer: (TP in consumer.assignment(), consumer.beginning_offsets([TP]))
    )
    assert answers == [(True, {TP: 0})]


def test_position_in_a_callback(cluster: Cluster) -> None:
    """PlaintextConsumerCallbackTest.testGetPositionOfNewlyAssignedPartition…."""
    assert in_callback(cluster, "on_assigned", lambda consumer: consumer.position(TP)) == [0]


def test_seek_and_pause_in_a_callback(cluster: Cluster) -> None:
    """PlaintextConsumerCallbackTest.testSeekPositionAndPauseNewlyAssignedPartition…."""
    send(cluster, TP, 120)
    consumer: Consumer

    def seek_and_pause(_: object) -> None:
        consumer.seek(TP, 100)
        consumer.pause(TP)

    consumer = cluster.consumer("one", group="group", on_assigned=seek_and_pause)
    assert drain(consumer) == []
    assert consumer.paused() == {TP}
    consumer.resume(TP)
    assert [record.offset for record in drain(consumer)] == list(range(100, 120))


# Polls and time -------------------------------------------------------------------------------------------------------


def test_max_poll_records(cluster: Cluster) -> None:
    """PlaintextConsumerPollTest.testMaxPollRecords, testPollEventuallyReturnsRecordsWithZeroTimeout."""
    send(cluster, TP, 101)
    consumer = cluster.consumer("one", group="group", max_poll_records=2)
    sizes: list[int] = []
    while sum(sizes) < 101:
        sizes.append(len(consumer.poll()))
    assert max(sizes) == 2


def test_a_member_that_does_not_poll(cluster: Cluster) -> None:
    """PlaintextConsumerPollTest.testMaxPollIntervalMs, testMultiConsumerSessionTimeoutOnStopPolling.

    Its partitions move when another member wants them; a commit of the silent member is refused, and it joins again.
    """
    silent = cluster.consumer("one", group="group", session_timeout=6.0)
    other = cluster.consumer("one", group="group", session_timeout=6.0)
    settle(silent, other)
    assert shares(silent, other) == [2, 2]
    for _ in range(4):
        cluster.clock.advance(2_000)
        other.poll()
    settle(other)
    assert shares(other) == [4]
    with pytest.raises(UnknownMemberError):
        silent.commit({silent.assignment()[0]: 0})
    settle(silent, other)
    assert shares(silent, other) == [2, 2]


def test_a_member_that_closes(cluster: Cluster) -> None:
    """PlaintextConsumerPollTest.testMultiConsumerSessionTimeoutOnClose: its partitions move immediately."""
    members = [cluster.consumer("one", "two", group="group") for _ in range(3)]
    settle(*members)
    members.pop().close()
    settle(*members)
    assert shares(*members) == [4, 4]


def test_a_slow_callback(cluster: Cluster) -> None:
    """PlaintextConsumerPollTest.testMaxPollIntervalMsDelayInRevocation, …InAssignment.

    A commit in the callback succeeds after more than the session timeout, if no other member took the partitions.
    """
    consumer: Consumer
    committed: list[int | None] = []

    def revoked(partitions: list[TopicPartition]) -> None:
        if TP not in partitions:
            return  # At the end of the test.
        cluster.clock.advance(10_000)
        consumer.commit({TP: consumer.position(TP)})
        committed.append(consumer.committed(TP))

    consumer = cluster.consumer("one", group="group", session_timeout=6.0, on_revoked=revoked)
    drain(consumer)
    consumer.subscribe(["two"])
    drain(consumer)
    assert committed == [0]


def test_no_offset_without_reset(cluster: Cluster) -> None:
    """PlaintextConsumerPollTest.testNoOffsetForPartitionExceptionOnPollZero."""
    consumer = cluster.consumer(group="group", auto_offset_reset="none")
    consumer.assign([TP])
    for _ in range(2):
        with pytest.raises(TxnStoreError, match="auto_offset_reset"):
            consumer.poll()


# Subscriptions --------------------------------------------------------------------------------------------------------


def test_more_topics(cluster: Cluster) -> None:
    """PlaintextConsumerSubscriptionTest.testExpandingTopicSubscriptions."""
    consumer = cluster.consumer("one", group="group")
    settle(consumer)
    assert len(consumer.assignment()) == 4
    consumer.subscribe(["one", "two"])
    settle(consumer)
    assert len(consumer.assignment()) == 8


def test_fewer_topics(cluster: Cluster) -> None:
    """PlaintextConsumerSubscriptionTest.testShrinkingTopicSubscriptions."""
    consumer = cluster.consumer("one", "two", group="group")
    settle(consumer)
    consumer.subscribe(["one"])
    settle(consumer)
    assert {tp.topic for tp in consumer.assignment()} == {"one"}


def test_no_topics(cluster: Cluster) -> None:
    """PlaintextConsumerSubscriptionTest.testUnsubscribeTopic: nothing is read; others get the partitions."""
    send(cluster, TP, 3)
    consumer, other = (cluster.consumer("one", group="group") for _ in range(2))
    settle(consumer, other)
    consumer.unsubscribe()
    settle(other)
    assert consumer.assignment() == []
    assert shares(other) == [4]
    consumer.subscribe(["one"])
    settle(consumer, other)
    assert shares(consumer, other) == [2, 2]


@pytest.mark.parametrize("how", ["unsubscribe", "close"])
def test_an_invalid_topic(cluster: Cluster, how: str) -> None:
    """PlaintextConsumerSubscriptionTest.testSubscribeInvalidTopicCanUnsubscribe, …CanClose."""
    consumer = cluster.consumer("one", group="group")
    with pytest.raises(InvalidTopicError):
        consumer.subscribe(["topic abc"])
    getattr(consumer, how)()


def test_a_topic_that_is_created_later(cluster: Cluster) -> None:
    """Kafka's consumer waits for topics that do not exist yet."""
    consumer = cluster.consumer("later", group="group")
    assert drain(consumer) == []
    cluster.store.create_topic("later")
    send(cluster, TopicPartition("later", 0), 2)
    assert len(drain(consumer)) == 2


# The group's state ----------------------------------------------------------------------------------------------------


def test_a_group_survives_reopening(cluster: Cluster) -> None:
    """GroupCoordinatorIntegrationTest.testCoordinatorFailover…: members, offsets, deletion, as a new process sees them.

    Kafka's test compacts the offsets topic and moves its leader; here a new process reads a checkpoint.
    """
    send(cluster, TP, 3)
    consumer = cluster.consumer("one", group="group")
    assert len(drain(consumer)) == 3
    consumer.commit()
    cluster.store.checkpoint()
    assert [len(group.members) for group in cluster.process().groups()] == [1]
    consumer.unsubscribe()
    cluster.store.checkpoint()
    assert [len(group.members) for group in cluster.process().groups()] == [0]
    consumer.subscribe(["one"])
    settle(consumer)
    cluster.store.checkpoint()
    assert [len(group.members) for group in cluster.process().groups()] == [1]
    assert consumer.committed(TP) == 3
    consumer.close()
    cluster.store.delete_group("group")
    cluster.store.checkpoint()
    assert cluster.process().groups() == []
