"""The client's state machine: every call in every state (API-01, API-03, API-04, API-08, API-09)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.helpers.connections import connection_of
from tests.helpers.producing import Bench
from tests.helpers.shell import T0, entries, sound, values
from txnstore.errors import (
    InvalidTxnStateError,
    ProducerClosedError,
    ProducerFencedError,
    StorageRefusedError,
    TxnStoreError,
    UnknownOutcomeError,
)
from txnstore.producer import Producer

#: These tests are about uploads, which small commits do without.
pytestmark = pytest.mark.usefixtures("own_objects")

# How to get there -----------------------------------------------------------------------------------------------------


def ready(bench: Bench) -> Producer:
    return bench.store.producer("id")


def empty(bench: Bench) -> Producer:
    producer = bench.store.producer("id")
    producer.begin_transaction()
    return producer


def sent(bench: Bench) -> Producer:
    """One record is in the log, another waits."""
    producer = empty(bench)
    producer.send("t", b"written", partition=0)
    producer.flush()
    producer.send("t", b"waiting", partition=0)
    return producer


def unknown_commit(bench: Bench) -> Producer:
    producer = sent(bench)
    with bench.silent(applied=False), pytest.raises(UnknownOutcomeError):
        producer.commit_transaction()
    return producer


def unknown_abort(bench: Bench) -> Producer:
    producer = sent(bench)
    with bench.silent(applied=False), pytest.raises(UnknownOutcomeError):
        producer.abort_transaction()
    return producer


def unknown_prepare(bench: Bench) -> Producer:
    producer = empty(bench)
    producer.send("t", b"written", partition=0)
    producer.flush()
    with bench.silent(applied=False), pytest.raises(UnknownOutcomeError):
        producer.prepare_transaction()
    return producer


def abortable(bench: Bench) -> Producer:
    producer = sent(bench)
    with bench.away("topics/"), pytest.raises(StorageRefusedError):
        producer.flush()
    return producer


def fatal(bench: Bench) -> Producer:
    producer = sent(bench)
    bench.store.producer("id")
    with pytest.raises(ProducerFencedError):
        producer.flush()
    return producer


def closed(bench: Bench) -> Producer:
    producer = sent(bench)
    producer.close()
    return producer


STATES = [ready, empty, sent, unknown_commit, unknown_abort, unknown_prepare, abortable, fatal, closed]
NAMES: dict[Callable[[Bench], Producer], str] = {
    ready: "READY",
    empty: "IN_TRANSACTION",
    sent: "IN_TRANSACTION",
    unknown_commit: "COMMITTING_TRANSACTION",
    unknown_abort: "ABORTING_TRANSACTION",
    unknown_prepare: "PREPARING_TRANSACTION",
    abortable: "ABORTABLE_ERROR",
    fatal: "FATAL_ERROR",
    closed: "CLOSED",
}

# What to call ---------------------------------------------------------------------------------------------------------

CALLS: dict[str, Callable[[Producer], object]] = {
    "begin": lambda producer: producer.begin_transaction(),
    "send": lambda producer: producer.send("t", b"more", partition=0),
    "send_table": lambda producer: producer.send_table("t", [{"value": b"more"}], partition=0),
    "send_offsets": lambda producer: producer.send_offsets({T0: 1}, "group"),
    "send_offsets_to_transaction": lambda producer: producer.send_offsets_to_transaction({T0: 1}, "group"),
    "flush": lambda producer: producer.flush(),
    "commit": lambda producer: producer.commit_transaction(),
    "abort": lambda producer: producer.abort_transaction(),
    "close": lambda producer: producer.close(),
    "with": lambda producer: producer.transaction().__enter__(),
}

OK, STATE, FENCED, CLOSED, UNKNOWN = (
    None,
    InvalidTxnStateError,
    ProducerFencedError,
    ProducerClosedError,
    UnknownOutcomeError,
)
SENDS = ("send", "send_table", "send_offsets", "send_offsets_to_transaction")

#: What each call raises in each state, and the state after it if that is another one.
TABLE: dict[tuple[Callable[[Bench], Producer], str], tuple[type[TxnStoreError] | None, str | None]] = {
    **{(ready, call): (STATE, None) for call in (*SENDS, "commit", "abort")},
    **{(ready, call): (OK, "IN_TRANSACTION") for call in ("begin", "with")},
    (ready, "flush"): (OK, None),
    (ready, "close"): (OK, "CLOSED"),
    **{(state, call): (OK, None) for state in (empty, sent) for call in (*SENDS, "flush")},
    **{(state, call): (STATE, None) for state in (empty, sent) for call in ("begin", "with")},
    **{(state, call): (OK, "READY") for state in (empty, sent) for call in ("commit", "abort")},
    **{(state, "close"): (OK, "CLOSED") for state in STATES},
    **{(state, call): (STATE, None) for state in (unknown_commit, unknown_abort) for call in (*SENDS, "begin", "with")},
    (unknown_commit, "flush"): (UNKNOWN, None),
    (unknown_abort, "flush"): (UNKNOWN, None),
    (unknown_commit, "commit"): (OK, "READY"),
    (unknown_commit, "abort"): (STATE, None),
    (unknown_abort, "abort"): (OK, "READY"),
    (unknown_abort, "commit"): (STATE, None),
    **{(unknown_prepare, call): (STATE, None) for call in (*SENDS, "begin", "with", "commit")},
    (unknown_prepare, "flush"): (OK, None),
    (unknown_prepare, "abort"): (OK, "READY"),
    **{(abortable, call): (STATE, None) for call in (*SENDS, "begin", "with", "flush", "commit")},
    (abortable, "abort"): (OK, "READY"),
    **{(fatal, call): (FENCED, None) for call in (*SENDS, "begin", "with", "flush", "commit", "abort")},
    **{(closed, call): (CLOSED, None) for call in (*SENDS, "begin", "with", "flush", "commit", "abort")},
}


def test_the_table_names_every_pair() -> None:
    assert set(TABLE) == {(state, call) for state in STATES for call in CALLS}


@pytest.mark.parametrize(("state", "call"), TABLE, ids=lambda value: getattr(value, "__name__", value))
def test_every_call_in_every_state(state: Callable[[Bench], Producer], call: str) -> None:
    """TST-18, API-01: Either the call is allowed and leads to the state in the table, or it is refused and
    nothing at all
    changes.
    """
    bench = Bench()
    producer = state(bench)
    assert f", {NAMES[state]}>" in repr(producer)
    error, after = TABLE[state, call]
    before = entries(bench.inner)
    if error is None:
        CALLS[call](producer)
    else:
        with pytest.raises(error) as raised:
            CALLS[call](producer)
        assert type(raised.value) is error
        assert entries(bench.inner) == before
    assert f", {after or NAMES[state]}>" in repr(producer)
    bench.faults.release()
    sound(bench.store)


# What holds behind the table ------------------------------------------------------------------------------------------


def test_begin_writes_nothing() -> None:
    """API-02: for the coordinator a transaction starts with its first partition or offset."""
    bench = Bench()
    producer = ready(bench)
    connection_of(bench.store).counts.reset()
    producer.begin_transaction()
    assert bench.log() == []


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_an_empty_transaction_ends_without_a_request(end: str) -> None:
    """API-07: no entry, no marker, no epoch is used."""
    bench = Bench()
    producer = empty(bench)
    epoch = producer.epoch
    connection_of(bench.store).counts.reset()
    CALLS[end](producer)
    assert bench.log() == []
    assert producer.epoch == epoch


def test_a_transaction_of_offsets_alone_is_not_empty() -> None:
    bench = Bench()
    producer = empty(bench)
    producer.send_offsets({T0: 3}, "group")
    connection_of(bench.store).counts.reset()
    producer.commit_transaction()
    assert bench.kinds() == ["put_if_absent"]
    assert sound(bench.store).groups["group"].offsets[T0].value.offset == 3


def test_a_refused_begin_does_not_harm_the_open_transaction() -> None:
    """API-03."""
    bench = Bench()
    producer = sent(bench)
    with pytest.raises(InvalidTxnStateError, match="still open"):
        producer.begin_transaction()
    producer.commit_transaction()
    assert values(bench.store) == [b"written", b"waiting"]


def test_a_send_outside_a_transaction_uploads_nothing() -> None:
    """API-04."""
    bench = Bench()
    producer = ready(bench)
    connection_of(bench.store).counts.reset()
    with pytest.raises(InvalidTxnStateError, match=r"call begin_transaction\(\) first"):
        producer.send("t", b"x")
    assert bench.log() == []
    producer.close()
    assert values(bench.store, isolation="read_uncommitted") == []


def test_an_idempotent_producer_has_no_transactions() -> None:
    bench = Bench()
    producer = bench.store.producer(linger=None)
    with pytest.raises(InvalidTxnStateError, match="no transactional_id"):
        producer.begin_transaction()
    for call in ("commit", "abort", "send_offsets"):
        with pytest.raises(InvalidTxnStateError, match="no transaction is open"):
            CALLS[call](producer)
    assert producer.send("t", b"x", partition=0).result().offset == 0


def test_an_abortable_error_names_its_cause_and_a_new_transaction_works_after_the_abort() -> None:
    """TV2-11: ERR-05, API-09, KIP-1050."""
    bench = Bench()
    producer = abortable(bench)
    for call in ("send", "flush", "commit"):
        with pytest.raises(InvalidTxnStateError, match=r"the transaction failed .*403.*abort it") as raised:
            CALLS[call](producer)
        assert isinstance(raised.value.__cause__, StorageRefusedError)
    producer.abort_transaction()
    with producer.transaction() as txn:
        txn.send("t", b"again", partition=0)
    assert values(bench.store) == [b"again"]


def test_a_fatal_error_is_raised_again_by_every_call() -> None:
    """API-09, ERR-08, FEN-10."""
    bench = Bench()
    producer = fatal(bench)
    with pytest.raises(ProducerFencedError, match="epoch") as first:
        producer.flush()
    with pytest.raises(ProducerFencedError) as second:
        producer.begin_transaction()
    assert first.value is second.value
    producer.close()
    with pytest.raises(ProducerClosedError):
        producer.flush()


def test_close_is_repeatable_and_the_state_stays_closed() -> None:
    bench = Bench()
    producer = closed(bench)
    producer.close()
    assert repr(producer).endswith("CLOSED>")


def test_repr_shows_identity_and_state() -> None:
    bench = Bench()
    assert repr(ready(bench)) == "<txnstore.Producer producer 'id', id 0, epoch 0, READY>"
    assert repr(bench.store.producer(linger=None)) == "<txnstore.Producer producer id 1, epoch 0, READY>"


def test_a_transaction_that_no_block_uses_shows_how() -> None:
    with Bench().store.producer("id") as producer:
        assert repr(producer.transaction()) == (
            f"<transaction of {producer!r}: use it as `with producer.transaction() as txn: …`>"
        )
