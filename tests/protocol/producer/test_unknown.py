"""Commits, aborts and appends of unknown outcome: data once, the right offsets, no guess.

API-08, API-16, API-17, SEQ-14, SEQ-15, OBJ-02, OBJ-03, TV2-03.
"""

from __future__ import annotations

import random

import pytest

from tests.helpers.producing import APPLIED, Bench, begun
from tests.helpers.shell import T0, another_process, entries, rows, runtime, sound, values
from txnstore.errors import (
    InvalidTxnStateError,
    ProducerClosedError,
    ProducerFencedError,
    StorageRefusedError,
    TransactionAbortedError,
    UnknownOutcomeError,
    UnknownTopicOrPartitionError,
)
from txnstore.storage.retry import RetryingStore
from txnstore.testing import PASSING_FAULTS, FaultStore, seeded
from txnstore.testing.faults import no_faults


@pytest.fixture
def bench(chains: int) -> Bench:
    return Bench(chains=chains)


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
    with pytest.raises(InvalidTxnStateError, match="outcome of the other call is unknown; repeat that call"):
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
    """The chain's own memory of the attempt is lost; the producer's is enough."""
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


def test_unknown_commit_applied_before_new_init_is_a_commit(bench: Bench) -> None:
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


def test_failed_commit_may_be_repeated(bench: Bench) -> None:
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


def test_failed_commit_may_be_followed_by_abort(bench: Bench) -> None:
    producer = begun(bench, b"a")
    future = producer.send("t", b"b", partition=0)
    with bench.away(), pytest.raises(StorageRefusedError):
        producer.commit_transaction()
    producer.abort_transaction()
    assert isinstance(future.exception(), TransactionAbortedError)
    assert values(bench.store) == []


def test_failed_abort_may_only_be_repeated(bench: Bench) -> None:
    """Its unsent records are dropped already: a commit now would commit a part of the transaction."""
    producer = begun(bench, b"a")
    producer.send("t", b"b", partition=0)
    with bench.away(), pytest.raises(StorageRefusedError):
        producer.abort_transaction()
    with pytest.raises(InvalidTxnStateError, match="abort it"):
        producer.commit_transaction()
    producer.abort_transaction()
    assert values(bench.store) == []


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


def test_close_after_unknown_commit_changes_nothing(bench: Bench) -> None:
    """Closing must not abort what may be committed."""
    producer = begun(bench, b"a")
    future = producer.send("t", b"b", partition=0)
    with bench.silent(applied=True), pytest.raises(UnknownOutcomeError):
        producer.commit_transaction()
    producer.close()
    assert isinstance(future.exception(), UnknownOutcomeError)
    assert values(bench.store) == [b"a", b"b"]


def test_close_raises_a_failed_abort_and_closes_the_producer(bench: Bench) -> None:
    producer = begun(bench, b"a")
    with bench.away(), pytest.raises(StorageRefusedError):
        producer.close()
    with pytest.raises(ProducerClosedError):
        producer.commit_transaction()
    # The next instance takes care of what it left.
    bench.store.producer("id")
    assert not sound(bench.store).partitions[T0].open_txns


# All faults together --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_numbered_records_arrive_once_and_in_order_through_any_faults(seed: int) -> None:
    """API-14: a fifth of all requests fails one way or another; the order is kept inside and across transactions."""
    bench = Bench(partitions=2)
    retrying = RetryingStore(bench.faults, attempts=20, sleep=lambda _: None, rng=random.Random(seed))
    with another_process(bench.store, retrying) as store, store.producer("id", batch_bytes=300) as producer:
        bench.faults.plan = seeded(seed, 0.2, faults=PASSING_FAULTS)
        sent: list[list[bytes]] = [[], []]
        committed: list[list[bytes]] = [[], []]
        for step in range(12):
            producer.begin_transaction()
            for number in range(20):
                value = b"%d/%d" % (step, number)
                sent[number % 2].append(value)
                producer.send("t", value, partition=number % 2)
            until_known(producer.abort_transaction if step % 4 == 3 else producer.commit_transaction)
            if step % 4 != 3:
                committed = [list(values) for values in sent]
            else:
                sent = [list(values) for values in committed]
        bench.faults.plan = no_faults
    bench.faults.release()
    stored = rows(bench.store)
    for partition in range(2):
        assert [value for number, _, value in stored if number == partition] == committed[partition]
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


def test_fault_store_loses_answers_as_configured() -> None:
    """A silent bench really loses answers, and really applies or delays."""
    for applied in (True, False):
        bench = Bench()
        with bench.silent(applied=applied), pytest.raises(UnknownOutcomeError):
            bench.store.create_topic("u")
        assert isinstance(bench.faults, FaultStore)
        assert len(entries(bench.inner)) == 1 + applied
        assert bench.faults.pending == (0 if applied else 8)
    assert runtime() is not runtime()
