"""Kafka's TransactionsTest: atomicity, isolation, offsets in transactions, fencing, timeouts."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.kafka.cluster import Cluster, consume, drain, values
from txnstore import OffsetAndMetadata, Producer, TopicPartition
from txnstore.errors import InvalidProducerEpochError, ProducerFencedError, StorageError, TxnStoreError

ONE, TWO = TopicPartition("one", 0), TopicPartition("two", 0)


def test_committed_and_aborted_transactions(cluster: Cluster) -> None:
    """TransactionsTest.testBasicTransactions."""
    producer = cluster.producer("p")
    producer.begin_transaction()
    producer.send("two", b"2", b"2", partition=2)
    producer.send("one", b"4", b"4", partition=1)
    producer.flush()
    producer.abort_transaction()
    producer.begin_transaction()
    producer.send("one", b"1", b"1", partition=1)
    producer.send("two", b"3", b"3", partition=2)
    producer.commit_transaction()
    assert values(drain(cluster.consumer("one", "two", group="committed"))) == [b"1", b"3"]
    uncommitted = cluster.consumer("one", "two", group="uncommitted", isolation="read_uncommitted")
    assert values(drain(uncommitted)) == [b"1", b"2", b"3", b"4"]


def test_undecided_data_is_hidden_from_read_committed(cluster: Cluster) -> None:
    """TransactionsTest.testReadCommittedConsumerShouldNotSeeUndecidedData."""
    first, second = cluster.producer("first"), cluster.producer("second")
    first.begin_transaction()
    second.begin_transaction()
    before = cluster.clock()
    for topic in ("one", "two"):
        second.send(topic, b"1", b"x", partition=0, timestamp=before)
    second.flush()
    after = before + 1
    for topic, value in (("one", b"1"), ("one", b"2"), ("two", b"3"), ("two", b"4")):
        first.send(topic, value, b"a", partition=0, timestamp=after)
    first.flush()
    for topic in ("one", "two"):
        second.send(topic, b"2", b"x", partition=0, timestamp=after)
    second.commit_transaction()

    uncommitted = cluster.consumer(isolation="read_uncommitted")
    uncommitted.assign([ONE, TWO])
    assert len(drain(uncommitted)) == 8
    offsets = uncommitted.offsets_for_times({ONE: after, TWO: after})
    assert [place.timestamp for place in offsets.values() if place is not None] == [after, after]

    committed = cluster.consumer()
    committed.assign([ONE, TWO])
    assert [(record.key, record.value) for record in drain(committed)] == [(b"x", b"1")] * 2
    committed.seek_to_end()
    assert [committed.position(tp) for tp in (ONE, TWO)] == [1, 1]
    assert committed.offsets_for_times({ONE: after, TWO: after}) == {ONE: None, TWO: None}


def test_an_aborted_transaction_between_the_records_of_a_committed_one(cluster: Cluster) -> None:
    """TransactionsTest.testDelayedFetchIncludesAbortedTransaction."""
    aborted, committed = cluster.producer("aborted"), cluster.producer("committed")
    aborted.begin_transaction()
    committed.begin_transaction()
    committed.send("one", b"1", b"x", partition=0)
    committed.flush()
    aborted.send("one", b"1", b"y", partition=0)
    aborted.send("one", b"2", b"y", partition=0)
    aborted.flush()
    committed.send("one", b"2", b"x", partition=0)
    committed.flush()
    aborted.abort_transaction()
    committed.commit_transaction()
    consumer = cluster.consumer()
    consumer.assign([ONE])
    records = [(record.key, record.value, record.offset) for record in drain(consumer)]
    assert records == [(b"x", b"1", 0), (b"x", b"2", 3)]


@pytest.mark.parametrize("with_metadata", [False, True])
def test_copying_with_every_other_transaction_aborted(cluster: Cluster, *, with_metadata: bool) -> None:
    """TransactionsTest.testSendOffsetsWithGroupId, testSendOffsetsWithGroupMetadata."""
    count = 500
    seed = cluster.producer()
    for number in range(count):
        seed.send("one", b"%d" % number, b"%d" % number)
    seed.close()
    producer = cluster.producer("copy")
    consumer = cluster.consumer("one", group="copy", max_poll_records=count // 4)
    copied, commits = 0, False
    while copied < count:
        records = consumer.poll()
        if not records:
            continue
        producer.begin_transaction()
        commits = not commits
        for record in records:
            producer.send("two", record.value, record.key)
        positions = {tp: consumer.position(tp) for tp in consumer.assignment()}
        producer.send_offsets_to_transaction(positions, consumer.group_metadata() if with_metadata else "copy")
        if commits:
            producer.commit_transaction()
            copied += len(records)
        else:
            producer.abort_transaction()
            consumer.rewind_to_committed()
    copies = values(drain(cluster.consumer("two", group="check")))
    assert copies == sorted(b"%d" % number for number in range(count))


def _send_offsets(producer: Producer) -> None:
    producer.send_offsets_to_transaction({ONE: 110}, "group")
    producer.flush()


def _begin_and_send(producer: Producer) -> None:
    producer.begin_transaction()
    producer.send("one", b"5", b"1").result()


def two_instances(cluster: Cluster) -> tuple[Producer, Producer]:
    """A producer with an open transaction, and the one that fenced it and has an open transaction, too."""
    old = cluster.producer("p")
    old.begin_transaction()
    old.send("one", b"1", b"1")
    old.send("two", b"3", b"3")
    new = cluster.producer("p")
    new.begin_transaction()
    new.send("one", b"4", b"2")
    new.send("two", b"4", b"2")
    return old, new


def sees_the_second_only(cluster: Cluster, new: Producer) -> None:
    new.commit_transaction()
    assert values(drain(cluster.consumer("one", "two", group="check"))) == [b"4", b"4"]


def test_a_commit_of_a_fenced_producer(cluster: Cluster) -> None:
    """TransactionsTest.testFencingOnCommit."""
    old, new = two_instances(cluster)
    with pytest.raises(ProducerFencedError):
        old.commit_transaction()
    sees_the_second_only(cluster, new)


def test_offsets_of_a_fenced_producer(cluster: Cluster) -> None:
    """TransactionsTest.testFencingOnSendOffsets."""
    old, new = two_instances(cluster)
    with pytest.raises(ProducerFencedError):
        _send_offsets(old)
    consumer = cluster.consumer(group="group")
    assert consumer.committed(ONE) is None
    sees_the_second_only(cluster, new)


def test_records_of_a_fenced_producer(cluster: Cluster) -> None:
    """TransactionsTest.testFencingOnSend."""
    old, new = two_instances(cluster)
    new.flush()
    with pytest.raises(ProducerFencedError):
        old.send("one", b"5", b"1").result()
    old.close()
    sees_the_second_only(cluster, new)


def test_a_new_transaction_of_a_fenced_producer(cluster: Cluster) -> None:
    """TransactionsTest.testFencingOnAddPartitions."""
    old = cluster.producer("p")
    old.begin_transaction()
    old.send("one", b"1", b"1")
    old.send("two", b"3", b"3")
    old.abort_transaction()
    new = cluster.producer("p")
    new.begin_transaction()
    for topic in ("one", "two"):
        new.send(topic, b"4", b"2").result()

    with pytest.raises(ProducerFencedError):
        _begin_and_send(old)
    sees_the_second_only(cluster, new)


def test_metadata_of_offsets_in_a_transaction(cluster: Cluster) -> None:
    """TransactionsTest.testOffsetMetadataInSendOffsetsToTransaction."""
    producer = cluster.producer("p")
    producer.begin_transaction()
    offset = OffsetAndMetadata(110, "some metadata", 15)
    producer.send_offsets_to_transaction({ONE: offset}, "group")
    producer.commit_transaction()
    assert cluster.consumer("one", group="group").committed(ONE, metadata=True) == offset


@pytest.mark.parametrize(
    "call", [_send_offsets, Producer.commit_transaction, Producer.abort_transaction], ids=["offsets", "commit", "abort"]
)
def test_calls_during_an_outage_end_with_an_error(cluster: Cluster, call: Callable[[Producer], None]) -> None:
    """TransactionsTest.testSendOffsetsToTransactionTimeout, testCommitTransactionTimeout and testAbort….

    The same call succeeds when the storage answers again.
    """
    producer = cluster.producer("p")
    producer.begin_transaction()
    producer.send("one", b"bar", b"foo")
    producer.flush()
    with cluster.outage("chains/"), pytest.raises(StorageError):
        call(producer)
    call(producer)


def test_init_during_an_outage_ends_with_an_error(cluster: Cluster) -> None:
    """TransactionsTest.testInitTransactionsTimeout."""
    process = cluster.process()
    with cluster.outage("chains/"), pytest.raises(StorageError):
        process.producer("p")
    process.producer("p").close()


def test_a_transaction_past_its_timeout(cluster: Cluster) -> None:
    """TransactionsTest.testFencingOnTransactionExpiration.

    There is no timer that aborts it: the next process that is concerned does. Its owner gets an abortable error.
    """
    producer = cluster.producer("p", transaction_timeout=0.1)
    producer.begin_transaction()
    assert producer.send("one", b"1", b"1", partition=0).result().offset == 0
    cluster.clock.advance(600)
    cluster.store.recover()
    with pytest.raises((InvalidProducerEpochError, ProducerFencedError)):
        producer.send("one", b"2", b"2", partition=0).result()
    assert values(drain(cluster.consumer("one", isolation="read_uncommitted"))) == [b"1"]
    assert drain(cluster.consumer("one")) == []


def test_markers_in_many_partitions(cluster: Cluster) -> None:
    """TransactionsTest.testMultipleMarkersOneLeader."""
    for name in ("large", "larger"):
        cluster.store.create_topic(name, partitions=10)
    producer = cluster.producer("p")
    producer.begin_transaction()
    for number in range(1_000):
        text = b"%d" % number
        producer.send("large" if number < 500 else "larger", text, text)
        if number % 500 == 499:
            producer.flush()
    producer.abort_transaction()
    producer.begin_transaction()
    for number in range(1_000, 1_100):
        text = b"%d" % number
        producer.send("large", text, text)
    producer.commit_transaction()
    committed = drain(cluster.consumer("large", "larger", group="committed"))
    assert values(committed) == sorted(b"%d" % number for number in range(1_000, 1_100))
    everything = drain(cluster.consumer("large", "larger", group="all", isolation="read_uncommitted"))
    assert values(everything) == sorted(b"%d" % number for number in range(1_100))


@pytest.mark.usefixtures("own_objects")
def test_a_record_that_cannot_be_delivered(cluster: Cluster) -> None:
    """TransactionsTest.testBumpTransactionalEpoch.

    An upload that times out fails its record; after an abort the producer continues with a larger epoch.
    """
    producer = cluster.producer("p", delivery_timeout=5.0)
    producer.begin_transaction()
    producer.send("one", b"4", b"4", partition=0)
    producer.commit_transaction()
    (state,) = cluster.store.producers("one", 0)

    producer.begin_transaction()
    producer.send("two", b"2", b"2", partition=1).result()
    with cluster.outage("topics/"):
        lost = producer.send("one", b"3", b"3", partition=0)
        with pytest.raises(TxnStoreError):
            lost.result()
    with pytest.raises(TxnStoreError):
        producer.commit_transaction()
    producer.abort_transaction()

    producer.begin_transaction()
    for topic, value in (("two", b"2"), ("one", b"1"), ("one", b"3")):
        producer.send(topic, value, value, partition=0)
    producer.commit_transaction()
    assert values(drain(cluster.consumer("one", "two", group="check"))) == [b"1", b"2", b"3", b"4"]
    (now,) = cluster.store.producers("one", 0)
    assert now.producer_id == state.producer_id
    assert now.epoch > state.epoch


def test_an_init_that_fails_does_not_waste_epochs(cluster: Cluster) -> None:
    """INIT-15: TransactionsTest.testFailureToFenceEpoch.

    Kafka's coordinator raises the epoch in memory before it is stored, so the first producer is fenced there. Here an
    init that was not stored has no effect, and the first producer continues.
    """
    first = cluster.producer("p")
    first.begin_transaction()
    first.send("one", b"4", b"4", partition=0)
    first.commit_transaction()
    other = cluster.process()
    with cluster.outage("chains/"), pytest.raises(StorageError):
        other.producer("p")
    epoch = first.epoch
    first.begin_transaction()
    first.send("one", b"5", b"5", partition=0)
    first.commit_transaction()
    third = cluster.producer("p")
    assert third.producer_id == first.producer_id
    assert third.epoch == epoch + 2
    third.begin_transaction()
    third.send("one", b"6", b"6", partition=0)
    third.commit_transaction()
    assert values(consume(cluster.consumer("one"), 3)) == [b"4", b"5", b"6"]
