"""Appends and uploads whose outcome is unknown: repeated, written once (API-17, SEQ-14, SEQ-15, OBJ-02)."""

from __future__ import annotations

import pytest

from tests.helpers.producing import APPLIED, Bench, begun
from tests.helpers.shell import T0, another_process, rows, sound, values
from txnstore.errors import (
    StorageError,
    TransactionAbortedError,
    UnknownOutcomeError,
    UnknownTopicOrPartitionError,
)
from txnstore.testing import Fault, on

#: These tests are about uploads, which small commits do without.
pytestmark = pytest.mark.usefixtures("own_objects")


@pytest.fixture
def bench(chains: int) -> Bench:
    return Bench(chains=chains)


# Append ---------------------------------------------------------------------------------------------------------------


@APPLIED
@pytest.mark.parametrize("transactional", [True, False], ids=["transactional", "idempotent"])
def test_a_flush_without_an_answer_is_repeated_and_done_once(
    bench: Bench, *, applied: bool, transactional: bool
) -> None:
    """SEQ-14: same producer id, epoch and sequence, so the log has it once, and the first offset is the answer."""
    producer = bench.store.producer("id" if transactional else None, linger=None)
    if transactional:
        producer.begin_transaction()
    futures = [producer.send("t", b"%d" % number, partition=number % 2) for number in range(6)]
    # In a store of several chains AddPartitions, which flush announces, is undecided; the append was not written.
    with bench.silent(applied=applied), pytest.raises(StorageError if transactional else UnknownOutcomeError):
        producer.flush()
    more = producer.send("t", b"more", partition=0)
    producer.flush()
    bench.faults.release()
    assert [future.result().offset for future in (*futures, more)] == [0, 0, 1, 1, 2, 2, 3]
    producer.send("t", b"last", partition=1)
    if transactional:
        producer.commit_transaction()
    producer.close()
    assert values(bench.store) == [b"0", b"2", b"4", b"more", b"1", b"3", b"5", b"last"]
    sound(bench.store)


@APPLIED
def test_a_commit_after_a_flush_without_an_answer_has_everything_once(bench: Bench, *, applied: bool) -> None:
    producer = begun(bench)
    first = producer.send("t", b"a", partition=0)
    producer.send_offsets({T0: 1}, "group")
    with bench.silent(applied=applied), pytest.raises(StorageError):
        producer.flush()
    producer.send("t", b"b", partition=0)
    producer.send_offsets({T0: 2}, "group")
    producer.commit_transaction()
    bench.faults.release()
    assert first.result().offset == 0
    assert rows(bench.store) == [(0, 0, b"a"), (0, 1, b"b")]
    assert sound(bench.store).groups["group"].offsets[T0].value.offset == 2


@APPLIED
def test_abort_after_flush_without_answer_aborts_its_records(bench: Bench, *, applied: bool) -> None:
    """BUG-10, API-17: the append may be applied, or may still be; after the abort neither copy counts."""
    producer = begun(bench)
    future = producer.send("t", b"a", partition=0)
    with bench.silent(applied=applied), pytest.raises(UnknownOutcomeError):
        producer.flush()
    producer.abort_transaction()
    assert isinstance(future.exception(), TransactionAbortedError)
    with producer.transaction() as txn:
        txn.send("t", b"again", partition=0)
    bench.faults.release()
    assert values(bench.store) == [b"again"]
    sound(bench.store)


def test_an_unknown_flush_can_be_followed_by_another_unknown_flush(bench: Bench) -> None:
    producer = bench.store.producer(linger=None)
    futures = []
    for number in range(4):
        futures.append(producer.send("t", b"%d" % number, partition=0))
        with bench.silent(applied=number % 2 == 0), pytest.raises(UnknownOutcomeError):
            producer.flush()
    producer.flush()
    bench.faults.release()
    assert [future.result().offset for future in futures] == [0, 1, 2, 3]
    assert values(bench.store) == [b"0", b"1", b"2", b"3"]


def test_an_unknown_append_that_is_refused_later_for_one_topic_does_not_lose_the_other(bench: Bench) -> None:
    """SEQ-15: the batch of the other topic is in the log, and its sequence must not be given to the next one."""
    bench.store.create_topic("gone")
    producer = bench.store.producer(linger=None)
    kept, lost = producer.send("t", b"kept", partition=0), producer.send("gone", b"lost")
    with bench.silent(applied=True), pytest.raises(UnknownOutcomeError):
        producer.flush()
    with another_process(bench.store, bench.inner) as other:
        other.delete_topic("gone")
    bench.store.close()  # So that the append is decided again, at the head.
    with pytest.raises(UnknownTopicOrPartitionError):
        producer.flush()
    assert kept.result().offset == 0
    assert isinstance(lost.exception(), UnknownTopicOrPartitionError)
    # A batch of the same size: with a reused sequence it would be taken for a duplicate, and be lost.
    assert producer.send("t", b"next", partition=0).result().offset == 1
    assert values(bench.store) == [b"kept", b"next"]


def test_a_refused_topic_fails_its_own_records_only(bench: Bench) -> None:
    """SEQ-18: without a transaction, what goes to one topic does not depend on another."""
    bench.store.create_topic("gone")
    producer = bench.store.producer(linger=None)
    futures = {name: producer.send(name, b"x", partition=0) for name in ("gone", "t")}
    with another_process(bench.store, bench.inner) as other:
        other.delete_topic("gone")
    with pytest.raises(UnknownTopicOrPartitionError, match="gone"):
        producer.flush()
    assert futures["t"].result().offset == 0
    assert isinstance(futures["gone"].exception(), UnknownTopicOrPartitionError)


# Uploads --------------------------------------------------------------------------------------------------------------


def test_an_upload_without_an_answer_is_no_unknown_commit(bench: Bench) -> None:
    """REC-08: No entry names the object, so nothing has happened: the transaction is to be aborted, and the scope does
    it.
    """
    producer = bench.store.producer("id", delivery_timeout=0)
    scope = producer.transaction()
    scope.__enter__().send("t", b"a", partition=0)
    lost = on(Fault.LOST_RESPONSE, "put", key_contains="topics/")
    with bench.plan(lost), pytest.raises(StorageError, match="a segment of t-0 could not be uploaded") as raised:
        scope.__exit__(None, None, None)
    assert not isinstance(raised.value, UnknownOutcomeError)
    assert repr(producer).endswith("READY>")
    assert values(bench.store, isolation="read_uncommitted") == []
