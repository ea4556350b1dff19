"""Interrupts (Ctrl-C) of a producer during a request: the outcome is unknown, as after a timeout (API-08)."""

from __future__ import annotations

import pytest

from tests.helpers.producing import Bench
from tests.helpers.shell import T0, rows, sound, values
from txnstore.errors import InvalidTxnStateError
from txnstore.producer import Producer

APPLIED = pytest.mark.parametrize("applied", [True, False], ids=["applied", "not applied"])


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


def interrupt_the_next_entry(bench: Bench, *, applied: bool) -> None:
    """Ctrl-C while the PUT of the next entry is under way."""
    real = bench.inner.put_if_absent

    def interrupted(key: str, data: bytes) -> bool:
        bench.inner.put_if_absent = real  # type: ignore[method-assign]
        if applied:
            real(key, data)
        raise KeyboardInterrupt

    bench.inner.put_if_absent = interrupted  # type: ignore[method-assign]


@APPLIED
def test_an_interrupted_commit_may_only_be_repeated(bench: Bench, *, applied: bool) -> None:
    """API-08 covers timeouts and interrupts."""
    producer = begun(bench, b"a")
    producer.send("t", b"b", partition=0)
    interrupt_the_next_entry(bench, applied=applied)
    with pytest.raises(KeyboardInterrupt):
        producer.commit_transaction()
    with pytest.raises(InvalidTxnStateError, match="repeat that call"):
        producer.abort_transaction()
    producer.commit_transaction()
    assert rows(bench.store) == [(0, 0, b"a"), (0, 1, b"b")]


@APPLIED
def test_the_first_flush_is_interrupted_and_the_transaction_aborted(bench: Bench, *, applied: bool) -> None:
    """The chain may know of the transaction although the client got no answer: the abort has to go there."""
    producer = begun(bench)
    producer.send("t", b"a", partition=0)
    interrupt_the_next_entry(bench, applied=applied)
    with pytest.raises(KeyboardInterrupt):
        producer.flush()
    producer.abort_transaction()
    with producer.transaction() as txn:
        txn.send("t", b"next", partition=0)
    assert values(bench.store) == [b"next"]
    assert not sound(bench.store).partitions[T0].open_txns


@APPLIED
def test_an_interrupted_flush_is_repeated_and_done_once(bench: Bench, *, applied: bool) -> None:
    producer = bench.store.producer(linger=None)
    future = producer.send("t", b"a", partition=0)
    interrupt_the_next_entry(bench, applied=applied)
    with pytest.raises(KeyboardInterrupt):
        producer.flush()
    producer.send("t", b"b", partition=0)
    producer.flush()
    assert future.result().offset == 0
    assert values(bench.store) == [b"a", b"b"]


def test_an_interrupt_in_a_scope_is_followed_by_no_commit(bench: Bench) -> None:
    producer = bench.store.producer("id")

    def work() -> None:
        with producer.transaction() as txn:
            txn.send("t", b"a", partition=0)
            txn.flush()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    producer.close()
    assert values(bench.store) == []
    assert not sound(bench.store).partitions[T0].open_txns
