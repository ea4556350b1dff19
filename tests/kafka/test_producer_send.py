"""Kafka's PlaintextProducerSendTest with its base class: offsets, partitions, timestamps, sizes, flush and close."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kafka.cluster import Cluster, drain, values
from txnstore import RecordMetadata
from txnstore.errors import (
    InvalidConfigError,
    ProducerClosedError,
    RecordTooLargeError,
    SchemaMismatchError,
    UnknownTopicOrPartitionError,
)

COUNT = 100


def test_offsets_of_sent_records(cluster: Cluster) -> None:
    """BaseProducerSendTest.testSendOffset: without value, without key, without partition."""
    cluster.store.create_topic("t")
    producer = cluster.producer()
    assert producer.send("t", b"value", b"key", partition=0).result().offset == 0
    assert producer.send("t", None, b"key", partition=0).result().offset == 1
    assert producer.send("t", b"value", partition=0).result().offset == 2
    assert producer.send("t", b"value", b"key").result().offset == 3
    for _ in range(COUNT):
        producer.send("t", b"value", b"key", partition=0)
    last = producer.send("t", b"value", b"key", partition=0).result()
    assert (last.topic, last.partition, last.offset) == ("t", 0, COUNT + 4)


@pytest.mark.parametrize("compression", ["gzip", "uncompressed"])
@pytest.mark.parametrize("kind", ["CreateTime", "LogAppendTime"])
def test_timestamps(cluster: Cluster, compression: str, kind: str) -> None:
    """BaseProducerSendTest.testSend(Non)CompressedMessageWith(CreateTime|LogAppendTime).

    The time of an append is that of its entry, in the metadata and for consumers.
    """
    config = {"compression.type": compression, "message.timestamp.type": kind}
    cluster.store.create_topic("t", config=config)
    producer = cluster.producer()
    start = cluster.clock()
    futures = [producer.send("t", b"value", timestamp=123_456 + number) for number in range(COUNT)]
    cluster.clock.advance(1_000)
    producer.close()
    timestamps = [future.result().timestamp for future in futures]
    assert timestamps == [record.timestamp for record in drain(cluster.consumer("t"))]
    if kind == "CreateTime":
        assert timestamps == [123_456 + number for number in range(COUNT)]
    else:
        assert set(timestamps) == {start + 1_000}


def test_close_sends_what_waits(cluster: Cluster) -> None:
    """BaseProducerSendTest.testClose: records of one key are in one partition, in order."""
    producer = cluster.producer(linger=None)
    futures = [producer.send("one", b"value", b"key") for _ in range(COUNT + 1)]
    producer.close()
    assert all(future.done() for future in futures)
    assert [future.result().offset for future in futures] == list(range(COUNT + 1))
    assert len({future.result().partition for future in futures}) == 1


def test_flush_completes_all_futures(cluster: Cluster) -> None:
    """BaseProducerSendTest.testFlush."""
    producer = cluster.producer(linger=None)
    for _ in range(5):
        futures = [producer.send("one", b"value") for _ in range(COUNT)]
        assert not any(future.done() for future in futures)
        producer.flush()
        assert all(future.done() for future in futures)


def test_a_closed_producer_takes_no_records(cluster: Cluster) -> None:
    """BaseProducerSendTest.testCloseWithZeroTimeoutFromCallerThread, as far as it applies: close always delivers."""
    producer = cluster.producer()
    producer.close()
    producer.close()
    with pytest.raises(ProducerClosedError, match="closed"):
        producer.send("one", b"value")


def test_the_given_partition_is_used(cluster: Cluster) -> None:
    """BaseProducerSendTest.testSendToPartition."""
    producer = cluster.producer()
    now = cluster.clock()
    futures = [producer.send("one", b"%d" % number, partition=1, timestamp=now) for number in range(COUNT)]
    assert [future.result() for future in futures] == [RecordMetadata("one", 1, number, now) for number in range(COUNT)]
    records = drain(cluster.consumer("one"))
    assert [(record.partition, record.offset, record.key, record.value) for record in records] == [
        (1, number, None, b"%d" % number) for number in range(COUNT)
    ]


def test_partitions_that_are_added(cluster: Cluster) -> None:
    """BaseProducerSendTest.testSendBeforeAndAfterPartitionExpansion: a producer finds them without a restart."""
    cluster.store.create_topic("t")
    producer = cluster.producer()
    assert producer.send("t", b"value", partition=0).result().offset == 0
    with pytest.raises(UnknownTopicOrPartitionError, match="no partition 1"):
        producer.send("t", b"value", partition=1)
    cluster.store.alter_topic("t", partitions=2)
    assert [producer.send("t", b"value", partition=1).result().offset for _ in range(3)] == [0, 1, 2]
    assert producer.send("t", b"value", partition=0).result().offset == 1


@pytest.mark.parametrize("value", ["text", 1, object()], ids=["text", "number", "object"])
def test_values_that_are_not_bytes(cluster: Cluster, value: Any) -> None:
    """PlaintextProducerSendTest.testWrongSerializer."""
    producer = cluster.producer()
    with pytest.raises(SchemaMismatchError, match="bytes"):
        producer.send("one", value)


@pytest.mark.parametrize("key", [b"key", None])
def test_a_batch_for_each_record(cluster: Cluster, key: bytes | None) -> None:
    """PlaintextProducerSendTest.testBatchSizeZero, testBatchSizeZeroNoPartitionNoRecordKey."""
    cluster.store.create_topic("t")
    producer = cluster.producer(batch_bytes=1)
    futures = [producer.send("t", b"%d" % number, key) for number in range(20)]
    producer.close()
    assert [future.result().offset for future in futures] == list(range(20))
    assert len(drain(cluster.consumer("t"))) == 20


def test_a_topic_that_does_not_exist(cluster: Cluster) -> None:
    """PlaintextProducerSendTest.testAutoCreateTopic: topics are not created by a send."""
    producer = cluster.producer()
    with pytest.raises(UnknownTopicOrPartitionError, match="nowhere"):
        producer.send("nowhere", b"value")
    cluster.store.create_topic("nowhere")
    assert producer.send("nowhere", b"value").result().offset == 0


@pytest.mark.parametrize("setting", ["message.timestamp.before.max.ms", "message.timestamp.after.max.ms"])
def test_bounds_of_timestamps_are_refused_by_name(cluster: Cluster, setting: str) -> None:
    """PlaintextProducerSendTest.testSendWithInvalidBeforeAndAfterTimestamp: the setting does not exist here."""
    with pytest.raises(InvalidConfigError, match=setting):
        cluster.store.create_topic("t", config={setting: 1_000})


def test_send_does_not_wait_for_the_storage(cluster: Cluster) -> None:
    """PlaintextProducerSendTest.testNonBlockingProducer: while the storage is away, records wait in the buffer."""
    producer = cluster.producer(linger=None)
    with cluster.outage():
        future = producer.send("one", b"value")
        assert not future.done()
    assert future.result().offset == 0


def test_the_largest_record(cluster: Cluster) -> None:
    """PlaintextProducerSendTest.testSendRecordBatchWithMaxRequestSizeAndHigher."""
    limit = 1_000
    cluster.store.create_topic("t", config={"max.message.bytes": limit})
    producer = cluster.producer()
    key, size = b"key", limit
    while True:  # The largest value that is accepted: the limit counts key and value, and perhaps an overhead.
        try:
            metadata = producer.send("t", b"v" * size, key).result()
            break
        except RecordTooLargeError:
            size -= 1
    assert metadata.offset == 0
    assert limit - 100 < size < limit
    with pytest.raises(RecordTooLargeError):
        producer.send("t", b"v" * (size + 1), key)
    assert values(drain(cluster.consumer("t"))) == [b"v" * size]
