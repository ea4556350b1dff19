"""Kafka's PlaintextConsumerCommitTest and …AssignTest: committed offsets, with and without membership."""

from __future__ import annotations

import pytest

from tests.kafka.cluster import Cluster, consume, drain, send
from txnstore import Consumer, OffsetAndMetadata, TopicPartition

TP, TP2 = TopicPartition("pair", 0), TopicPartition("pair", 1)


@pytest.fixture(autouse=True)
def pair(cluster: Cluster) -> None:
    cluster.store.create_topic("pair", partitions=2)


def assigned(cluster: Cluster, *partitions: TopicPartition, group: str | None = "group") -> Consumer:
    consumer = cluster.consumer(group=group)
    consumer.assign(list(partitions))
    return consumer


def test_close_commits_positions_that_were_sought(cluster: Cluster) -> None:
    """PlaintextConsumerCommitTest.testAutoCommitOnClose."""
    send(cluster, TP, 1_000)
    consumer = cluster.consumer("pair", group="group", enable_auto_commit=True)
    drain(consumer)
    consumer.seek(TP, 300)
    consumer.seek(TP2, 0)
    consumer.close()
    other = cluster.consumer(group="group")
    assert [other.committed(tp) for tp in (TP, TP2)] == [300, 0]


def test_metadata(cluster: Cluster) -> None:
    """PlaintextConsumerCommitTest.testCommitMetadata."""
    consumer = assigned(cluster, TP)
    for offset in (OffsetAndMetadata(5, "foo", 15), OffsetAndMetadata(10, "bar"), OffsetAndMetadata(5, "")):
        consumer.commit({TP: offset})
        assert consumer.committed(TP, metadata=True) == offset


def test_the_last_commit_counts(cluster: Cluster) -> None:
    """PlaintextConsumerCommitTest.testAsyncCommit: all commits wait for their entry here."""
    consumer = assigned(cluster, TP)
    for offset in range(1, 6):
        consumer.commit({TP: offset})
    assert consumer.committed(TP) == 5


def test_specified_offsets(cluster: Cluster) -> None:
    """PlaintextConsumerCommitTest.testCommitSpecifiedOffsets: positions do not change."""
    send(cluster, TP, 5)
    send(cluster, TP2, 7)
    consumer = assigned(cluster, TP, TP2)
    positions = [consumer.position(tp) for tp in (TP, TP2)]
    consumer.commit({TP: 3})
    assert [consumer.committed(tp) for tp in (TP, TP2)] == [3, None]
    assert [consumer.position(tp) for tp in (TP, TP2)] == positions
    consumer.commit({TP2: 5})
    assert [consumer.committed(tp) for tp in (TP, TP2)] == [3, 5]


def test_a_changed_subscription_commits_first(cluster: Cluster) -> None:
    """PlaintextConsumerCommitTest.testAutoCommitOnRebalance, testAutoCommitIntercept."""
    send(cluster, TP, 1_000)
    consumer = cluster.consumer("pair", group="group", enable_auto_commit=True)
    consumer.poll(max_records=1)
    drain(consumer)
    consumer.pause(consumer.assignment())
    consumer.seek(TP, 300)
    consumer.seek(TP2, 0)
    consumer.subscribe(["pair", "two"])
    drain(consumer)
    assert len(consumer.assignment()) == 6
    consumer.close()
    other = cluster.consumer(group="group")
    assert other.committed(TP) in (300, 1_000)  # 1,000 where the partitions were paused no longer.


def test_subscribe_seek_and_commit(cluster: Cluster) -> None:
    """PlaintextConsumerCommitTest.testSubscribeAndCommitSync: the commit carries the member id."""
    consumer = cluster.consumer("pair", group="group")
    drain(consumer)
    assert consumer.assignment() == [TP, TP2]
    consumer.seek(TP, 0)
    consumer.commit()
    assert consumer.committed(TP) == 0


def test_position_and_commit(cluster: Cluster) -> None:
    """PlaintextConsumerCommitTest.testPositionAndCommit."""
    send(cluster, TP, 5)
    consumer = assigned(cluster, TP)
    assert consumer.committed(TP) is None
    assert consumer.position(TP) == 0
    consumer.commit()
    assert consumer.committed(TP) == 0
    assert len(consume(consumer, 5)) == 5
    assert consumer.position(TP) == 5
    consumer.commit()
    assert consumer.committed(TP) == 5
    send(cluster, TP, 1)
    assert [record.offset for record in drain(assigned(cluster, TP))] == [5]


def test_a_commit_without_a_position(cluster: Cluster) -> None:
    """PlaintextConsumerAssignTest.testAssignAndCommitSyncNotCommitted: no position, so no commit."""
    send(cluster, TP, 10)
    consumer = assigned(cluster, TP)
    consumer.commit()
    assert consumer.committed(TP) is None
    assert consumer.assignment() == [TP]


def test_a_commit_of_all_that_was_consumed(cluster: Cluster) -> None:
    """PlaintextConsumerAssignTest.testAssignAndCommitSyncAllConsumed, …AndFetchCommittedOffsets, …MultipleTimes."""
    send(cluster, TP, 1_000)
    consumer = assigned(cluster, TP)
    consumer.seek(TP, 0)
    assert len(consume(consumer, 1_000)) == 1_000
    consumer.commit()
    assert [consumer.committed(TP) for _ in range(2)] == [1_000, 1_000]
    assert assigned(cluster, TP).committed(TP) == 1_000


@pytest.mark.parametrize("offset", [0, 1])
def test_consuming_without_a_group(cluster: Cluster, offset: int) -> None:
    """PlaintextConsumerAssignTest.testAssignAndConsume, testAssignAndConsumeSkippingPosition."""
    send(cluster, TP, 10)
    consumer = assigned(cluster, TP, group=None)
    if offset:
        consumer.seek(TP, offset)
    assert [record.offset for record in drain(consumer)] == list(range(offset, 10))
    assert consumer.position(TP) == 10


def test_consuming_from_committed_offsets(cluster: Cluster) -> None:
    """PlaintextConsumerAssignTest.testAssignAndConsumeFromCommittedOffsets."""
    send(cluster, TP, 100)
    first = assigned(cluster, TP)
    first.commit({TP: 10})
    first.close()
    second = assigned(cluster, TP)
    assert second.committed(TP) == 10
    assert [record.offset for record in drain(second)] == list(range(10, 100))
