"""``with producer.transaction()`` whose block ends the transaction by itself; a prepare of unknown outcome."""

from __future__ import annotations

import pytest

from tests.helpers.producing import APPLIED, Bench
from tests.helpers.shell import sound
from txnstore.core.transactions.model import TxnState
from txnstore.errors import InvalidTxnStateError, ProducerClosedError, UnknownOutcomeError
from txnstore.producer import Producer


@pytest.fixture
def bench(chains: int) -> Bench:
    return Bench(chains=chains)


def committed_values(bench: Bench) -> list[bytes]:
    """The committed values."""
    values: list[bytes] = bench.store.scan("t").to_table()["value"].to_pylist()
    return values


@pytest.mark.parametrize("committed", [True, False])
def test_block_may_end_its_transaction_by_itself(bench: Bench, *, committed: bool) -> None:
    producer = bench.store.producer("id")
    with producer.transaction() as txn:
        txn.send("t", b"value")
        txn.commit_transaction() if committed else txn.abort_transaction()
    assert committed_values(bench) == ([b"value"] if committed else [])
    with producer.transaction() as txn:
        txn.send("t", b"next")
    assert b"next" in committed_values(bench)


def test_second_end_in_a_block_is_refused(bench: Bench) -> None:
    with bench.store.producer("id").transaction() as txn:
        txn.send("t", b"value")
        txn.commit_transaction()
        for call in (txn.commit_transaction, txn.abort_transaction):
            with pytest.raises(InvalidTxnStateError, match="no transaction is open"):
                call()
    assert committed_values(bench) == [b"value"]


def _failing(producer: Producer) -> None:
    with producer.transaction() as txn:
        txn.send("t", b"value")
        txn.commit_transaction()
        msg = "mine"
        raise ValueError(msg)


def test_error_after_the_commit_leaves_it_committed_without_a_note(bench: Bench) -> None:
    with pytest.raises(ValueError, match="mine") as raised:
        _failing(bench.store.producer("id"))
    assert getattr(raised.value, "__notes__", []) == []
    assert committed_values(bench) == [b"value"]


def test_transaction_that_the_block_begins_is_ended_with_it(bench: Bench) -> None:
    with bench.store.producer("id").transaction() as txn:
        txn.send("t", b"first")
        txn.commit_transaction()
        txn.begin_transaction()
        txn.send("t", b"second")
    assert sorted(committed_values(bench)) == [b"first", b"second"]


def _closing(producer: Producer) -> None:
    with producer.transaction() as txn:
        txn.send("t", b"lost")
        txn.close()


def test_close_in_a_block_is_no_quiet_end(bench: Bench) -> None:
    """A close aborts: the records of the block are lost, so it raises."""
    with pytest.raises(ProducerClosedError):
        _closing(bench.store.producer("id"))
    assert committed_values(bench) == []


# A prepare of unknown outcome -----------------------------------------------------------------------------------------


def _unknown(bench: Bench, *, applied: bool) -> Producer:
    producer = bench.store.producer("id")
    producer.begin_transaction()
    producer.send("t", b"value")
    producer.flush()
    with bench.silent(applied=applied), pytest.raises(UnknownOutcomeError):
        producer.prepare_transaction()
    return producer


@APPLIED
def test_tpc_03_prepare_of_unknown_outcome_is_repeated(bench: Bench, *, applied: bool) -> None:
    """TPC-03, API-08: as with any unknown outcome, nothing is added before it is known."""
    producer = _unknown(bench, applied=applied)
    for call in (
        lambda: producer.send("t", b"late"),
        lambda: producer.send_table("t", [{"value": b"late"}]),
        producer.commit_transaction,
        producer.begin_transaction,
    ):
        with pytest.raises(InvalidTxnStateError, match="outcome of the prepare is unknown; repeat that call, or abort"):
            call()
    name = producer.prepare_transaction()
    assert bench.store.transaction("id").prepared
    assert producer.complete_transaction(name)
    bench.faults.release()
    assert committed_values(bench) == [b"value"]
    sound(bench.store)


@APPLIED
@pytest.mark.parametrize("end", ["abort", "close"])
def test_tpc_03_prepare_of_unknown_outcome_is_aborted(bench: Bench, end: str, *, applied: bool) -> None:
    """No external coordinator knows its name, so a transaction that is left prepared would block without end."""
    producer = _unknown(bench, applied=applied)
    producer.abort_transaction() if end == "abort" else producer.close()
    bench.faults.release()
    assert bench.store.transaction("id").state is TxnState.COMPLETE_ABORT
    assert committed_values(bench) == []
    sound(bench.store)
