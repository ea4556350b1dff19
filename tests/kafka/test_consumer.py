"""Kafka's PlaintextConsumerTest and …FetchTest: reading, seeking, pausing, times, offsets out of range."""

from __future__ import annotations

import pytest

from tests.kafka.cluster import Cluster, consume, drain, send
from txnstore import TopicPartition
from txnstore.errors import (
    InvalidConfigError,
    InvalidTopicError,
    OffsetOutOfRangeError,
    TxnStoreError,
    UnknownTopicOrPartitionError,
)

TP, TP2 = TopicPartition("one", 0), TopicPartition("one", 1)


def test_headers(cluster: Cluster) -> None:
    """PlaintextConsumerTest.testHeaders: in their order, with duplicates, also without a value."""
    headers = [("first", b"1"), ("second", None), ("first", b"2")]
    cluster.producer().send("one", b"value", b"key", partition=0, headers=headers).result()
    (record,) = drain(cluster.consumer("one"))
    assert list(record.headers) == headers


def test_a_consumer_begins_at_the_beginning(cluster: Cluster) -> None:
    """PlaintextConsumerTest.testAutoOffsetReset, with txnstore's default ``earliest``."""
    send(cluster, TP, 1)
    consumer = cluster.consumer(group="group")
    consumer.assign([TP])
    assert [record.offset for record in drain(consumer)] == [0]


def test_a_group_consumes(cluster: Cluster) -> None:
    """PlaintextConsumerTest.testGroupConsumption, BaseConsumerTest.testSimpleConsumption."""
    send(cluster, TP, 10)
    consumer = cluster.consumer("one", group="group")
    records = consume(consumer, 10)
    assert [(record.offset, record.key, record.value) for record in records] == [
        (number, b"key %d" % number, b"value %d" % number) for number in range(10)
    ]
    consumer.commit()
    assert consumer.committed(TP) == 10


def test_topics_and_their_partitions(cluster: Cluster) -> None:
    """PlaintextConsumerTest.testPartitionsFor, …AutoCreate, …InvalidTopic, testListTopics: questions to the store."""
    cluster.store.create_topic("part-test", partitions=2)
    process = cluster.process()
    assert process.topic("part-test").partitions == 2
    assert [topic.name for topic in process.topics()] == ["one", "part-test", "two"]
    with pytest.raises(UnknownTopicOrPartitionError):
        process.topic("non-exist-topic")
    with pytest.raises(InvalidTopicError):
        process.create_topic(";3# ads,{234")


@pytest.mark.parametrize("compression", ["uncompressed", "gzip"])
def test_seek(cluster: Cluster, compression: str) -> None:
    """PlaintextConsumerTest.testSeek."""
    cluster.store.alter_topic("one", config={"compression.type": compression})
    total, middle = 50, 25
    send(cluster, TP, total)
    consumer = cluster.consumer()
    consumer.assign([TP])
    consumer.seek_to_end(TP)
    assert consumer.position(TP) == total
    assert consumer.poll() == []
    consumer.seek_to_beginning(TP)
    assert consumer.position(TP) == 0
    assert [record.offset for record in consumer.poll(max_records=1)] == [0]
    consumer.seek(TP, middle)
    assert consumer.position(TP) == middle
    (record,) = consumer.poll(max_records=1)
    assert (record.offset, record.key) == (middle, b"key %d" % middle)


def test_pause_and_resume(cluster: Cluster) -> None:
    """PlaintextConsumerTest.testPartitionPauseAndResume."""
    send(cluster, TP, 5)
    consumer = cluster.consumer()
    consumer.assign([TP])
    assert len(drain(consumer)) == 5
    consumer.pause(TP)
    send(cluster, TP, 5)
    assert consumer.poll() == []
    consumer.resume(TP)
    assert [record.offset for record in drain(consumer)] == list(range(5, 10))


@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_times_of_records(cluster: Cluster, kind: str) -> None:
    """PlaintextConsumerTest.testConsumeMessagesWithCreateTime, …WithLogAppendTime."""
    cluster.store.alter_topic("one", config={"message.timestamp.type": kind})
    send(cluster, TP, 50, first_time=1_000)
    timestamps = [record.timestamp for record in drain(cluster.consumer("one"))]
    assert timestamps == (list(range(1_000, 1_050)) if kind == "CreateTime" else [cluster.clock()] * 50)


def test_a_rebalance_resumes_paused_partitions(cluster: Cluster) -> None:
    """PlaintextConsumerTest.testPauseStateNotPreservedByRebalance: of partitions that are assigned again."""
    send(cluster, TP, 5)
    consumer = cluster.consumer("one", group="group")
    assert len(drain(consumer)) == 5
    consumer.pause(TP)
    consumer.subscribe(["two"])
    drain(consumer)
    consumer.subscribe(["one"])
    send(cluster, TP, 5)
    drain(consumer)
    assert TP not in consumer.paused()


def test_lag_counts_what_is_visible(cluster: Cluster) -> None:
    """JEP-14: PlaintextConsumerTest.testPerPartitionLag…, …WhenReadCommitted, …PollTest.testPerPartitionLag…."""
    send(cluster, TP, 100)
    consumer = cluster.consumer(max_poll_records=10)
    consumer.assign([TP])
    assert len(consumer.poll()) == 10
    assert consumer.lag() == {TP: 90}
    producer = cluster.producer("open")
    producer.begin_transaction()
    producer.send("one", b"value", partition=0)
    producer.flush()
    assert consumer.poll()
    assert consumer.lag()[TP] in (80, 81)  # Against the high watermark, or the last stable offset.
    uncommitted = cluster.consumer(isolation="read_uncommitted", max_poll_records=10)
    uncommitted.assign([TP])
    uncommitted.poll()
    assert uncommitted.lag() == {TP: 91}


def test_a_consumer_without_a_group(cluster: Cluster) -> None:
    """PlaintextConsumerTest.testConsumingWithNullGroupId, testNullGroupIdNotSupportedIfCommitting."""
    send(cluster, TP, 3)
    consumer = cluster.consumer("one")
    assert len(drain(consumer)) == 3
    with pytest.raises(InvalidConfigError, match="group"):
        consumer.commit()
    with pytest.raises(InvalidConfigError, match="group"):
        consumer.committed(TP)
    late = cluster.consumer("one", auto_offset_reset="latest")
    assert late.poll() == []
    send(cluster, TP, 2)
    assert len(drain(late)) == 2


def test_a_static_member_finds_new_partitions_after_a_restart(cluster: Cluster) -> None:
    """PlaintextConsumerTest.testStaticConsumerDetectsNewPartitionCreatedAfterRestart."""
    cluster.store.create_topic("foo", partitions=1)
    first = cluster.consumer("foo", group="group", group_instance_id="my-instance-id")
    drain(first)
    assert first.assignment() == [TopicPartition("foo", 0)]
    first.close()
    cluster.store.alter_topic("foo", partitions=2)
    second = cluster.consumer("foo", group="group", group_instance_id="my-instance-id")
    drain(second)
    assert second.assignment() == [TopicPartition("foo", 0), TopicPartition("foo", 1)]


def test_end_offsets(cluster: Cluster) -> None:
    """PlaintextConsumerTest.testEndOffsets."""
    send(cluster, TP, 1_000)
    consumer = cluster.consumer("one", group="group")
    assert consumer.end_offsets(TP) == {TP: 1_000}
    assert consumer.beginning_offsets([TP, TP2]) == {TP: 0, TP2: 0}


def test_partitions_that_are_not_assigned(cluster: Cluster) -> None:
    """PlaintextConsumerTest.testSeekThrowsIllegalStateIfPartitionsNotAssigned, …CommitTest.testPositionAndCommit."""
    consumer = cluster.consumer(group="group")
    for call in (consumer.seek_to_end, consumer.seek_to_beginning, consumer.position, lambda tp: consumer.seek(tp, 0)):
        with pytest.raises(TxnStoreError, match="does not read"):
            call(TP)


def test_offsets_for_times(cluster: Cluster) -> None:
    """PlaintextConsumerTest.testFetchOffsetsForTime, testEarliestOrLatestOffsets: at this time or later, else None."""
    partitions = [TopicPartition("one", number) for number in range(3)]
    for tp in partitions[:2]:
        send(cluster, tp, 100, first_time=0)
    consumer = cluster.consumer()
    consumer.assign(partitions)
    offsets = consumer.offsets_for_times({partitions[0]: 0, partitions[1]: 20, partitions[2]: 0})
    assert [place and (place.offset, place.timestamp) for place in offsets.values()] == [(0, 0), (20, 20), None]
    assert consumer.offsets_for_times({partitions[0]: 100}) == {partitions[0]: None}


def test_an_offset_out_of_range_without_reset(cluster: Cluster) -> None:
    """PlaintextConsumerFetchTest.testFetchInvalidOffset: the error names the partition and the offset."""
    send(cluster, TP, 2)
    consumer = cluster.consumer(group="group", auto_offset_reset="none")
    consumer.assign([TP])
    with pytest.raises(TxnStoreError, match="auto_offset_reset"):
        consumer.poll()
    consumer.seek(TP, 20)
    with pytest.raises(OffsetOutOfRangeError, match="20"):
        consumer.poll()


@pytest.mark.parametrize(("reset", "expected"), [("earliest", [0]), ("latest", [])])
def test_an_offset_out_of_range_is_reset(cluster: Cluster, reset: str, expected: list[int]) -> None:
    """PlaintextConsumerFetchTest.testFetchOutOfRangeOffsetResetConfigEarliest, …Latest."""
    send(cluster, TP, 10)
    consumer = cluster.consumer(auto_offset_reset=reset)
    consumer.assign([TP])
    consumer.seek(TP, 0)
    assert len(consume(consumer, 10)) == 10
    consumer.seek(TP, 17)
    assert [record.offset for record in consumer.poll(max_records=1)] == expected
    if reset == "latest":
        send(cluster, TP, 1)
        assert [record.offset for record in consumer.poll()] == [10]


def test_records_larger_than_others(cluster: Cluster) -> None:
    """PlaintextConsumerFetchTest.testFetchRecordLargerThan…, testFetchHonours…IfLargeRecordNotFirst, in order."""
    cluster.store.alter_topic("one", config={"max.message.bytes": 8_000_000})
    producer = cluster.producer()
    sizes = [10, 5_000_000, 10, 2_000_000]
    for size in sizes:
        producer.send("one", b"v" * size, partition=0).result()
    consumer = cluster.consumer("one")
    assert [len(record.value or b"") for record in consume(consumer, len(sizes))] == sizes


def test_many_partitions(cluster: Cluster) -> None:
    """PlaintextConsumerFetchTest.testLowMaxFetchSizeForRequestAndPartition: no partition is starved."""
    names = ["fetch1", "fetch2", "fetch3"]
    producer = cluster.producer()
    for name in names:
        cluster.store.create_topic(name, partitions=10)
        for partition in range(10):
            for number in range(3):
                producer.send(name, b"%d" % number, partition=partition)
    producer.close()
    records = consume(cluster.consumer(*names, group="group", max_poll_records=7), 90)
    read: dict[tuple[str, int], list[object]] = {}
    for record in records:
        read.setdefault((record.topic, record.partition), []).append(record.value)
    assert read == {(name, partition): [b"0", b"1", b"2"] for name in names for partition in range(10)}
