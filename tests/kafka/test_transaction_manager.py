"""Kafka's TransactionManagerTest: which calls a producer allows in which state, and what its errors mean.

Tests of requests that do not exist without brokers (FindCoordinator, versions of the protocol, authorization) have no
counterpart. Where Kafka's test lets a request fail, the storage refuses or loses it here.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.kafka.cluster import Cluster, drain, send, values
from txnstore import GroupMetadata, OffsetAndMetadata, Producer, TopicPartition
from txnstore.errors import (
    FencedInstanceError,
    IllegalGenerationError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    ProducerFencedError,
    StorageError,
    TxnStoreError,
    UnknownMemberError,
    UnknownOutcomeError,
    UnknownTopicOrPartitionError,
)
from txnstore.testing import Fault, on

TP = TopicPartition("one", 0)
CALLS: dict[str, Callable[[Producer], object]] = {
    "begin": Producer.begin_transaction,
    "send": lambda producer: producer.send("one", b"value"),
    "send offsets": lambda producer: producer.send_offsets({TP: 1}, "group"),
    "commit": Producer.commit_transaction,
    "abort": Producer.abort_transaction,
}


def allowed(producer: Producer, *names: str) -> None:
    """All calls but these are refused, and the refusals change nothing."""
    for name, call in CALLS.items():
        if name not in names:
            with pytest.raises(TxnStoreError):
                call(producer)


def in_abortable_error(cluster: Cluster) -> Producer:
    """A producer whose transaction has a record, and a send that was refused."""
    producer = cluster.producer("p")
    producer.begin_transaction()
    producer.send("one", b"1", partition=0).result()
    with pytest.raises(UnknownTopicOrPartitionError):
        producer.send("nowhere", b"2")
    return producer


def in_fatal_error(cluster: Cluster) -> Producer:
    """A producer that was fenced within a transaction."""
    producer = cluster.producer("p")
    producer.begin_transaction()
    producer.send("one", b"1", partition=0).result()
    cluster.producer("p")
    with pytest.raises(ProducerFencedError):
        producer.commit_transaction()
    return producer


def committed(cluster: Cluster) -> list[bytes]:
    return values(drain(cluster.consumer("one", "two")))


# States ---------------------------------------------------------------------------------------------------------------


def test_calls_before_a_transaction(cluster: Cluster) -> None:
    """testFailIfNotReadyForSendNoOngoingTransaction, testNotReadyForSendBeforeBeginTransaction."""
    allowed(cluster.producer("p"), "begin")


def test_calls_of_an_idempotent_producer(cluster: Cluster) -> None:
    """testFailIfNotReadyForSendIdempotentProducer: it takes records, and has no transactions."""
    producer = cluster.producer()
    allowed(producer, "send")
    assert producer.send("one", b"value", partition=0).result().offset == 0


def test_calls_in_a_transaction(cluster: Cluster) -> None:
    """testHasOngoingTransactionSuccessfulCommit, …SuccessfulAbort: a transaction cannot begin twice."""
    producer = cluster.producer("p")
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        allowed(producer, "send", "send offsets", "commit", "abort")
        producer.send("one", b"value")
        end()
        allowed(producer, "begin")


def test_calls_after_an_abortable_error(cluster: Cluster) -> None:
    """DIF-15: testFailIfNotReadyForSendAfterAbortableError, testHasOngoingTransactionAbortableError."""
    producer = in_abortable_error(cluster)
    allowed(producer, "abort")
    producer.abort_transaction()
    producer.begin_transaction()
    producer.send("one", b"3")
    producer.commit_transaction()
    assert committed(cluster) == [b"3"]


def test_calls_after_a_fatal_error(cluster: Cluster) -> None:
    """testFailIfNotReadyForSendAfterFatalError, testHasOngoingTransactionFatalError: only close."""
    producer = in_fatal_error(cluster)
    allowed(producer)
    producer.close()
    assert committed(cluster) == []


def test_a_refused_call_changes_nothing(cluster: Cluster) -> None:
    """TestForegroundInvalidStateTransitionIsRecoverable."""
    producer = cluster.producer("p")
    for name in ("commit", "abort", "send", "send offsets"):
        with pytest.raises(InvalidTxnStateError):
            CALLS[name](producer)
    producer.begin_transaction()
    with pytest.raises(InvalidTxnStateError):
        producer.begin_transaction()
    producer.send("one", b"1")
    producer.commit_transaction()
    assert committed(cluster) == [b"1"]


def test_close_in_a_transaction(cluster: Cluster) -> None:
    """testSenderShutdownWithPendingTransactions: close aborts."""
    producer = cluster.producer("p")
    producer.begin_transaction()
    future = producer.send("one", b"1")
    producer.close()
    assert future.done()
    assert committed(cluster) == []


# The way of a transaction ---------------------------------------------------------------------------------------------


def test_a_transaction_with_offsets(cluster: Cluster) -> None:
    """testBasicTransaction, testSendOffsetsWithGroupMetadata: nothing is visible before the commit."""
    producer = cluster.producer("p")
    producer.begin_transaction()
    future = producer.send("one", b"1", partition=0)
    producer.send_offsets({TP: OffsetAndMetadata(1, "note")}, "group")
    producer.flush()
    assert future.result().offset == 0
    reader = cluster.consumer(group="group")
    assert reader.committed(TP, require_stable=False) is None
    assert committed(cluster) == []
    producer.commit_transaction()
    assert reader.committed(TP, metadata=True) == OffsetAndMetadata(1, "note")
    assert committed(cluster) == [b"1"]


def test_commit_sends_what_waits(cluster: Cluster) -> None:
    """testFlushPendingPartitionsOnCommit, testCommitTransactionWithUnsentProduceRequest, …InFlightProduceRequest."""
    producer = cluster.producer("p")
    producer.begin_transaction()
    futures = [producer.send(topic, b"%d" % number) for number in range(20) for topic in ("one", "two")]
    producer.commit_transaction()
    assert all(future.done() for future in futures)
    assert len(committed(cluster)) == 40


def test_abort_drops_what_waits(cluster: Cluster) -> None:
    """testCancelUnsentAddPartitionsAndProduceOnAbort: futures of records that were not sent fail."""
    producer = cluster.producer("p")
    producer.begin_transaction()
    sent = producer.send("one", b"1", partition=0)
    sent.result()
    unsent = producer.send("one", b"2", partition=0)
    producer.abort_transaction()
    with pytest.raises(TxnStoreError):
        unsent.result()
    assert cluster.store.offsets("one", 0).high_watermark == 2  # the record and the marker


def test_an_end_without_records_writes_nothing(cluster: Cluster) -> None:
    """ShouldNotSendAbortTxnRequestWhenOnlyAddPartitionsRequestFailed and the like: there is nothing to end."""
    producer = cluster.producer("p")
    before = cluster.store.transaction("p").state
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        end()
    assert cluster.store.transaction("p").state is before


def test_sequences_continue(cluster: Cluster) -> None:
    """testDefaultSequenceNumber, testNoProducerIdResetAfterLastInFlightBatchSucceeds."""
    producer = cluster.producer()
    for number in range(7):
        assert producer.send("one", b"value", partition=0).result().offset == number
    (state,) = cluster.store.producers("one", 0)
    assert state.last_sequence == 6
    assert state.producer_id == producer.producer_id


# Failures -------------------------------------------------------------------------------------------------------------


def test_a_lost_registration_is_no_duplicate(cluster: Cluster) -> None:
    """testDuplicateSequenceAfterProducerReset, testDisconnectAndRetry, testHealthyPartitionRetriesDuringEpochBump."""
    producer = cluster.producer()
    cluster.faults.plan = on(Fault.LOST_RESPONSE, "put_if_absent")
    assert producer.send("one", b"1", partition=0).result().offset == 0
    assert producer.send("one", b"2", partition=0).result().offset == 1
    assert committed(cluster) == [b"1", b"2"]


@pytest.mark.parametrize("end", [Producer.commit_transaction, Producer.abort_transaction], ids=["commit", "abort"])
def test_an_end_is_repeated(cluster: Cluster, end: Callable[[Producer], None]) -> None:
    """testRetryCommitTransaction, testRetryAbortTransaction, …AfterTimeout: until its outcome is known."""
    producer = cluster.producer("p")
    producer.begin_transaction()
    producer.send("one", b"1", partition=0).result()
    with cluster.outage("chains/"), pytest.raises(StorageError):
        end(producer)
    end(producer)
    assert committed(cluster) == ([b"1"] if end is Producer.commit_transaction else [])
    producer.begin_transaction()


@pytest.mark.parametrize(("first", "second"), [("commit", "abort"), ("abort", "commit")])
def test_the_other_end_while_the_outcome_is_unknown(cluster: Cluster, first: str, second: str) -> None:
    """testRetryAbortTransactionAfterCommitTimeout, testRetryCommitTransactionAfterAbortTimeout."""
    producer = cluster.producer("p")
    producer.begin_transaction()
    producer.send("one", b"1", partition=0).result()
    lost = [
        on(Fault.LOST_RESPONSE, "put_if_absent", key_contains="entries", times=None),
        on(Fault.ERROR_BEFORE, "get", key_contains="entries", times=None),
    ]
    cluster.faults.plan = lambda n, operation, key: next(
        (fault for plan in lost if (fault := plan(n, operation, key)) is not None), None
    )
    with pytest.raises(UnknownOutcomeError):
        CALLS[first](producer)
    cluster.faults.plan = lambda *_: None
    with pytest.raises(TxnStoreError):
        CALLS[second](producer)
    CALLS[first](producer)
    assert committed(cluster) == ([b"1"] if first == "commit" else [])


def test_an_init_is_repeated(cluster: Cluster) -> None:
    """testRetryInitTransactionsAfterTimeout: by creating the producer again, which may take one epoch more."""
    process = cluster.process()
    with cluster.outage("chains/"), pytest.raises(StorageError):
        process.producer("p")
    assert process.producer("p").epoch <= 1


@pytest.mark.usefixtures("own_objects")
@pytest.mark.parametrize("added", [False, True], ids=["first record", "later record"])
def test_a_record_that_expires(cluster: Cluster, *, added: bool) -> None:
    """testTransitionToAbortableErrorOnBatchExpiry, testDropCommitOnBatchExpiry, testDisallowCommitOnProduceFailure.

    The transaction cannot be committed without it; after an abort the producer continues.
    """
    producer = cluster.producer("p", delivery_timeout=1.0)
    producer.begin_transaction()
    if added:
        producer.send("one", b"1", partition=0).result()
    with cluster.outage("topics/"):
        expired = [producer.send("one", b"2", partition=number) for number in range(2)]
        for future in expired:
            with pytest.raises(TxnStoreError):
                future.result()
    with pytest.raises(TxnStoreError):
        producer.commit_transaction()
    producer.abort_transaction()
    producer.begin_transaction()
    producer.send("one", b"3", partition=0)
    producer.commit_transaction()
    assert committed(cluster) == [b"3"]


@pytest.mark.usefixtures("own_objects")
def test_an_abort_after_a_failed_record(cluster: Cluster) -> None:
    """testAllowAbortOnProduceFailure, testAbortTransactionAndReuseSequenceNumberOnError, testBumpTransactionalEpoch."""
    producer = cluster.producer("p", delivery_timeout=1.0)
    epoch = producer.epoch
    producer.begin_transaction()
    producer.send("one", b"1", partition=0).result()
    with cluster.outage("topics/"), pytest.raises(TxnStoreError):
        producer.send("one", b"2", partition=0).result()
    producer.abort_transaction()
    assert producer.epoch > epoch
    producer.begin_transaction()
    assert producer.send("one", b"3", partition=0).result().offset == 2
    producer.commit_transaction()


@pytest.mark.usefixtures("own_objects")
def test_an_idempotent_producer_after_a_failed_record(cluster: Cluster) -> None:
    """testBatchFailureAfterProducerReset, testEpochBumpAfterLastInflightBatchFails: it continues without a gap."""
    producer = cluster.producer(delivery_timeout=1.0)
    producer.send("one", b"1", partition=0).result()
    with cluster.outage("topics/"), pytest.raises(TxnStoreError):
        producer.send("one", b"2", partition=0).result()
    assert producer.send("one", b"3", partition=0).result().offset == 1
    producer.close()


# Fencing --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["flush", "send offsets", "commit", "abort"])
def test_whatever_finds_the_fence(cluster: Cluster, name: str) -> None:
    """testProducerFencedInAddPartitionToTxn, …InAddOffSetsToTxn, …InEndTxn, testHandlingOfProducerFencedError…."""
    producer = cluster.producer("p")
    producer.begin_transaction()
    producer.send("one", b"1", partition=0).result()
    cluster.producer("p")
    producer.send("one", b"2", partition=0)
    if name == "send offsets":
        producer.send_offsets({TP: 1}, "group")
    call = CALLS.get(name, Producer.flush) if name != "send offsets" else Producer.flush
    with pytest.raises(ProducerFencedError) as caught:
        call(producer)
    assert caught.value.fatal
    producer.close()


def test_an_abort_by_another_process(cluster: Cluster) -> None:
    """testInvalidProducerEpochFromProduce: abortable; after the abort the producer continues."""
    producer = cluster.producer("p", transaction_timeout=1.0)
    producer.begin_transaction()
    producer.send("one", b"1", partition=0).result()
    cluster.clock.advance(2_000)
    cluster.store.recover()
    with pytest.raises(InvalidProducerEpochError) as caught:
        producer.send("one", b"2", partition=0).result()
    assert caught.value.abortable
    producer.abort_transaction()
    producer.begin_transaction()
    producer.send("one", b"3", partition=0)
    producer.commit_transaction()
    assert committed(cluster) == [b"3"]


@pytest.mark.parametrize(
    ("metadata", "error"),
    [
        (GroupMetadata("group", 1, "nobody"), UnknownMemberError),
        (GroupMetadata("group", 77, "member"), IllegalGenerationError),
        (GroupMetadata("group", 1, "nobody", "static"), FencedInstanceError),
    ],
    ids=["member", "generation", "instance"],
)
def test_offsets_of_a_stale_member(cluster: Cluster, metadata: GroupMetadata, error: type[TxnStoreError]) -> None:
    """testUnknownMemberId…, testIllegalGeneration…, testFencedInstanceIdInTxnOffsetCommitByGroupMetadata: abortable."""
    send(cluster, TP, 1)
    static = cluster.consumer("one", group="group", group_instance_id="static")
    drain(static)
    if metadata.member_id == "member":
        metadata = GroupMetadata("group", 77, static.group_metadata().member_id, "static")
    producer = cluster.producer("p")
    producer.begin_transaction()
    producer.send("two", b"1")
    with pytest.raises(error):
        producer.send_offsets({TP: 1}, metadata)
    producer.abort_transaction()
    producer.begin_transaction()
    producer.send("two", b"2")
    producer.commit_transaction()
    assert values(drain(cluster.consumer("two"))) == [b"2"]


def test_records_of_a_topic_that_does_not_exist(cluster: Cluster) -> None:
    """testHandlingOfUnknownTopicPartitionErrorOnAddPartitions, testMaybeAddPartitionToTransaction."""
    producer = in_abortable_error(cluster)
    producer.abort_transaction()
    cluster.store.create_topic("nowhere")
    producer.begin_transaction()
    assert producer.send("nowhere", b"1").result().offset == 0
    producer.commit_transaction()
