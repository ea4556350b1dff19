"""When nobody can tell what became of a commit, an abort or an append: data once, the right offsets, no guess.

API-08, API-16, API-17, SEQ-14, SEQ-15, OBJ-02, OBJ-03, TV2-03.
"""

from __future__ import annotations

import random

import pytest

from tests.helpers.producing import Bench
from tests.helpers.shell import T0, another_process, entries, rows, runtime, sound, values
from txnstore.errors import (
    InvalidTxnStateError,
    ProducerClosedError,
    ProducerFencedError,
    StorageError,
    StorageRefusedError,
    TransactionAbortedError,
    UnknownOutcomeError,
    UnknownTopicOrPartitionError,
)
from txnstore.producer import Producer
from txnstore.storage.retry import RetryingStore
from txnstore.testing import PASSING_FAULTS, Fault, FaultStore, on, seeded
from txnstore.testing.faults import no_faults

APPLIED = pytest.mark.parametrize("applied", [True, False], ids=["applied", "not yet applied"])


@pytest.fixture
def bench(chains: int) -> Bench:
    return Bench(chains=chains)


def begun(bench: Bench, *written: bytes) -> Producer:
    """A producer in a transaction that has these records in the log."""
    producer = bench.store.producer("id")
    producer.begin_transaction()
    for value in written:
        producer.send("t", value, partition=0)
        producer.flush()
    return producer


# Commit ---------------------------------------------------------------------------------------------------------------


@APPLIED
def test_a_commit_without_an_answer_is_repeated_and_done_once(bench: Bench, *, applied: bool) -> None:
    """API-08, OBJ-02, REC-07."""
    producer = begun(bench, b"a")
    future = producer.send("t", b"b", partition=0)
    producer.send_offsets({T0: 7}, "group")
    with bench.silent(applied=applied), pytest.raises(UnknownOutcomeError):
        producer.commit_transaction()
    assert not future.done()
    producer.commit_transaction()
    assert future.result().offset == 1
    bench.faults.release()
    assert rows(bench.store) == [(0, 0, b"a"), (0, 1, b"b")]
    state = sound(bench.store)
    assert state.partitions[T0].high_watermark == 3
    assert state.groups["group"].offsets[T0].value.offset == 7


@APPLIED
def test_after_an_unknown_commit_an_abort_is_refused(bench: Bench, *, applied: bool) -> None:
    """API-08, BUG-01: An abort after a commit that timed out is how Kafka's clients lost or doubled data
    (KAFKA-17754).
    """
    producer = begun(bench, b"a")
    with bench.silent(applied=applied), pytest.raises(UnknownOutcomeError):
        producer.commit_transaction()
    before = entries(bench.inner)
    with pytest.raises(InvalidTxnStateError, match="outcome of the other end is not known yet; repeat that call"):
        producer.abort_transaction()
    assert entries(bench.inner) == before
    producer.commit_transaction()
    assert values(bench.store) == [b"a"]


@APPLIED
def test_after_an_unknown_abort_a_commit_is_refused(bench: Bench, *, applied: bool) -> None:
    """API-08."""
    producer = begun(bench, b"a")
    with bench.silent(applied=applied), pytest.raises(UnknownOutcomeError):
        producer.abort_transaction()
    with pytest.raises(InvalidTxnStateError, match="repeat that call"):
        producer.commit_transaction()
    producer.abort_transaction()
    bench.faults.release()
    assert values(bench.store) == []
    with producer.transaction() as txn:
        txn.send("t", b"next", partition=0)
    assert values(bench.store) == [b"next"]


def test_a_commit_that_stays_unknown_for_several_calls(bench: Bench) -> None:
    producer = begun(bench, b"a")
    for applied in (False, False, True):
        with bench.silent(applied=applied), pytest.raises(UnknownOutcomeError):
            producer.commit_transaction()
    producer.commit_transaction()
    bench.faults.release()
    assert values(bench.store) == [b"a"]
    assert sound(bench.store).partitions[T0].high_watermark == 2


def test_the_epoch_after_a_repeated_commit_is_that_of_the_next_transaction(bench: Bench) -> None:
    """TV2-03: the answer to the repetition carries the identity that the first one would have."""
    producer = begun(bench, b"a")
    epoch = producer.epoch
    with bench.silent(applied=True), pytest.raises(UnknownOutcomeError):
        producer.commit_transaction()
    producer.commit_transaction()
    assert producer.epoch == epoch + 1
    with producer.transaction() as txn:
        txn.send("t", b"b", partition=0)
    assert values(bench.store) == [b"a", b"b"]


def test_a_commit_that_was_applied_is_found_also_by_a_store_that_was_opened_again(bench: Bench) -> None:
    """The chain's own memory of the attempt is gone; the producer's is enough."""
    producer = begun(bench, b"a")
    future = producer.send("t", b"b", partition=0)
    with bench.silent(applied=True), pytest.raises(UnknownOutcomeError):
        producer.commit_transaction()
    bench.store.close()
    producer.commit_transaction()
    assert future.result().offset == 1
    assert rows(bench.store) == [(0, 0, b"a"), (0, 1, b"b")]


def test_a_late_commit_cannot_arrive_after_its_producer_was_fenced(bench: Bench) -> None:
    """OBJ-03, FEN-02: The PUT of the commit sleeps; a new instance takes over; the PUT finds its slot taken."""
    producer = begun(bench, b"a")
    with bench.silent(applied=False), pytest.raises(UnknownOutcomeError):
        producer.commit_transaction()
    with another_process(bench.store, bench.inner) as other:
        other.producer("id")
    bench.faults.release()
    assert values(bench.store) == []
    with pytest.raises(ProducerFencedError):
        producer.commit_transaction()
    assert repr(producer).endswith("FATAL_ERROR>")
    sound(bench.store)


def test_an_unknown_commit_that_was_applied_before_a_new_instance_came_is_a_commit(bench: Bench) -> None:
    producer = begun(bench, b"a")
    with bench.silent(applied=True), pytest.raises(UnknownOutcomeError):
        producer.commit_transaction()
    with another_process(bench.store, bench.inner) as other:
        other.producer("id")
    assert values(bench.store) == [b"a"]


def test_a_commit_that_is_refused_when_it_is_repeated_leaves_a_transaction_that_can_be_aborted(bench: Bench) -> None:
    """The topic was deleted meanwhile, and the first attempt never arrived."""
    producer = begun(bench)
    future = producer.send("t", b"a", partition=0)
    with bench.silent(applied=False), pytest.raises(UnknownOutcomeError):
        producer.commit_transaction()
    with another_process(bench.store, bench.inner) as other:
        other.delete_topic("t")
    with pytest.raises(UnknownTopicOrPartitionError):
        producer.commit_transaction()
    assert isinstance(future.exception(), UnknownTopicOrPartitionError)
    producer.abort_transaction()
    bench.store.create_topic("u")
    with producer.transaction() as txn:
        txn.send("u", b"x")
    assert values(bench.store, "u") == [b"x"]


def test_a_scope_does_not_abort_after_an_unknown_commit(bench: Bench) -> None:
    producer = bench.store.producer("id")
    with bench.silent(applied=True), pytest.raises(UnknownOutcomeError), producer.transaction() as txn:
        txn.send("t", b"a", partition=0)
    assert repr(producer).endswith("COMMITTING_TRANSACTION>")
    producer.commit_transaction()
    assert values(bench.store) == [b"a"]


# Refused, which is not unknown ----------------------------------------------------------------------------------------


def test_a_commit_that_certainly_did_not_happen_may_be_repeated(bench: Bench) -> None:
    """STM-05, REC-01, REC-08."""
    producer = begun(bench, b"a")
    future = producer.send("t", b"b", partition=0)
    with bench.away(), pytest.raises(StorageRefusedError, match="403"):
        producer.commit_transaction()
    assert repr(producer).endswith("IN_TRANSACTION>")
    producer.send("t", b"c", partition=0)
    producer.commit_transaction()
    assert future.result().offset == 1
    assert values(bench.store) == [b"a", b"b", b"c"]


def test_a_commit_that_certainly_did_not_happen_may_be_given_up(bench: Bench) -> None:
    producer = begun(bench, b"a")
    future = producer.send("t", b"b", partition=0)
    with bench.away(), pytest.raises(StorageRefusedError):
        producer.commit_transaction()
    producer.abort_transaction()
    assert isinstance(future.exception(), TransactionAbortedError)
    assert values(bench.store) == []


def test_an_abort_that_did_not_happen_may_only_be_repeated(bench: Bench) -> None:
    """Its unsent records are dropped already: a commit now would commit a part of the transaction."""
    producer = begun(bench, b"a")
    producer.send("t", b"b", partition=0)
    with bench.away(), pytest.raises(StorageRefusedError):
        producer.abort_transaction()
    with pytest.raises(InvalidTxnStateError, match="abort it"):
        producer.commit_transaction()
    producer.abort_transaction()
    assert values(bench.store) == []


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
    with bench.silent(applied=applied), pytest.raises(UnknownOutcomeError):
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
    with bench.silent(applied=applied), pytest.raises(UnknownOutcomeError):
        producer.flush()
    producer.send("t", b"b", partition=0)
    producer.send_offsets({T0: 2}, "group")
    producer.commit_transaction()
    bench.faults.release()
    assert first.result().offset == 0
    assert rows(bench.store) == [(0, 0, b"a"), (0, 1, b"b")]
    assert sound(bench.store).groups["group"].offsets[T0].value.offset == 2


@APPLIED
def test_an_abort_after_a_flush_without_an_answer_takes_it_away(bench: Bench, *, applied: bool) -> None:
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


# Close ----------------------------------------------------------------------------------------------------------------


def test_a_close_does_not_claim_that_an_unknown_record_was_not_written(bench: Bench) -> None:
    producer = bench.store.producer(linger=None)
    written, unsent = producer.send("t", b"a", partition=0), None
    with bench.silent(applied=True):
        with pytest.raises(UnknownOutcomeError):
            producer.flush()
        unsent = producer.send("t", b"b", partition=1)
        with pytest.raises(UnknownOutcomeError):
            producer.close()
    assert isinstance(written.exception(), UnknownOutcomeError)
    assert isinstance(unsent.exception(), ProducerClosedError)
    assert values(bench.store) == [b"a"]


def test_a_close_after_an_unknown_commit_leaves_it_as_it_is(bench: Bench) -> None:
    """Closing must not abort what may be committed."""
    producer = begun(bench, b"a")
    future = producer.send("t", b"b", partition=0)
    with bench.silent(applied=True), pytest.raises(UnknownOutcomeError):
        producer.commit_transaction()
    producer.close()
    assert isinstance(future.exception(), UnknownOutcomeError)
    assert values(bench.store) == [b"a", b"b"]


def test_a_close_whose_abort_fails_says_so_and_is_closed_all_the_same(bench: Bench) -> None:
    producer = begun(bench, b"a")
    with bench.away(), pytest.raises(StorageRefusedError):
        producer.close()
    with pytest.raises(ProducerClosedError):
        producer.commit_transaction()
    # The next instance takes care of what it left.
    bench.store.producer("id")
    assert not sound(bench.store).partitions[T0].open_txns


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


# Everything at once ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_numbered_records_arrive_once_and_in_order_through_any_faults(seed: int) -> None:
    """API-14: a fifth of all requests fails one way or another; the order is kept inside and across transactions."""
    bench = Bench(partitions=2)
    retrying = RetryingStore(bench.faults, attempts=20, sleep=lambda _: None, rng=random.Random(seed))
    with another_process(bench.store, retrying) as store, store.producer("id", batch_bytes=300) as producer:
        bench.faults.plan = seeded(seed, 0.2, faults=PASSING_FAULTS)
        sent: list[list[bytes]] = [[], []]
        kept: list[list[bytes]] = [[], []]
        for step in range(12):
            producer.begin_transaction()
            for number in range(20):
                value = b"%d/%d" % (step, number)
                sent[number % 2].append(value)
                producer.send("t", value, partition=number % 2)
            until_known(producer.abort_transaction if step % 4 == 3 else producer.commit_transaction)
            if step % 4 != 3:
                kept = [list(values) for values in sent]
            else:
                sent = [list(values) for values in kept]
        bench.faults.plan = no_faults
    bench.faults.release()
    found = rows(bench.store)
    for partition in range(2):
        assert [value for number, _, value in found if number == partition] == kept[partition]
    sound(bench.store)


def until_known(end: object) -> None:
    """Repeat the call until it has an answer."""
    assert callable(end)
    for _ in range(50):
        try:
            end()
        except UnknownOutcomeError:
            continue
        return
    end()


def test_the_fault_store_is_what_the_tests_think_it_is() -> None:
    """A silent bench really loses answers, and really applies or delays."""
    for applied in (True, False):
        bench = Bench()
        with bench.silent(applied=applied), pytest.raises(UnknownOutcomeError):
            bench.store.create_topic("u")
        assert isinstance(bench.faults, FaultStore)
        assert len(entries(bench.inner)) == 1 + applied
        assert bench.faults.pending == (0 if applied else 8)
    assert runtime() is not runtime()
