"""The transaction of a producer alone: every state and event, and what it keeps."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest

from txnstore.core.groups.commands import TxnOffsets
from txnstore.core.groups.events import GroupOffset
from txnstore.core.log.commands import Append
from txnstore.core.log.model import NewBatch, Segment
from txnstore.core.model import Outcome, ProducerIdentity, TopicPartition
from txnstore.core.transactions.commands import EndTxn
from txnstore.errors import (
    InvalidTxnStateError,
    ProducerClosedError,
    ProducerFencedError,
    RecordTooLargeError,
    SchemaMismatchError,
    StorageError,
)
from txnstore.producer.batches import ProducerBatch
from txnstore.producer.prepared import PreparedTxn
from txnstore.producer.transaction import TABLE, PendingCommand, ProducerEvent, ProducerState, Transaction

TP = TopicPartition("t", 0)
TRANSACTIONAL, PLAIN = ProducerIdentity(7, 3, "id"), ProducerIdentity(8, 0)
ERROR, FATAL = StorageError("away"), ProducerFencedError("a newer instance")


def in_state(state: ProducerState = ProducerState.READY, identity: ProducerIdentity = TRANSACTIONAL) -> Transaction:
    errors = {ProducerState.FATAL_ERROR: FATAL, ProducerState.ABORTABLE_ERROR: ERROR}
    return Transaction(identity, state=state, error=errors.get(state))


def uploaded(rows: int) -> ProducerBatch:
    """A completed upload of ``rows`` rows."""
    batch = object.__new__(ProducerBatch)
    batch.tp, batch.rows, batch.bytes = TP, rows, 1
    batch.uploaded = NewBatch("t", 0, Segment("key", "parquet", 1, "", rows), 0, 0)
    return batch


#: What the application may call in which state, and the state after it. Everything else is refused.
CALLS: dict[tuple[ProducerState, ProducerEvent], ProducerState] = {
    (ProducerState.READY, ProducerEvent.BEGIN): ProducerState.IN_TRANSACTION,
    (ProducerState.READY, ProducerEvent.TAKE_OVER): ProducerState.PREPARED_TRANSACTION,
    (ProducerState.READY, ProducerEvent.FLUSH): ProducerState.READY,
    (ProducerState.IN_TRANSACTION, ProducerEvent.SEND): ProducerState.IN_TRANSACTION,
    (ProducerState.IN_TRANSACTION, ProducerEvent.SEND_OFFSETS): ProducerState.IN_TRANSACTION,
    (ProducerState.IN_TRANSACTION, ProducerEvent.FLUSH): ProducerState.IN_TRANSACTION,
    (ProducerState.IN_TRANSACTION, ProducerEvent.PREPARE): ProducerState.PREPARED_TRANSACTION,
    (ProducerState.IN_TRANSACTION, ProducerEvent.COMMIT): ProducerState.COMMITTING_TRANSACTION,
    (ProducerState.IN_TRANSACTION, ProducerEvent.ABORT): ProducerState.ABORTING_TRANSACTION,
    (ProducerState.PREPARING_TRANSACTION, ProducerEvent.FLUSH): ProducerState.PREPARING_TRANSACTION,
    (ProducerState.PREPARING_TRANSACTION, ProducerEvent.PREPARE): ProducerState.PREPARED_TRANSACTION,
    (ProducerState.PREPARING_TRANSACTION, ProducerEvent.ABORT): ProducerState.ABORTING_TRANSACTION,
    (ProducerState.PREPARED_TRANSACTION, ProducerEvent.FLUSH): ProducerState.PREPARED_TRANSACTION,
    (ProducerState.PREPARED_TRANSACTION, ProducerEvent.PREPARE): ProducerState.PREPARED_TRANSACTION,
    (ProducerState.PREPARED_TRANSACTION, ProducerEvent.COMMIT): ProducerState.COMMITTING_TRANSACTION,
    (ProducerState.PREPARED_TRANSACTION, ProducerEvent.ABORT): ProducerState.ABORTING_TRANSACTION,
    (ProducerState.COMMITTING_TRANSACTION, ProducerEvent.COMMIT): ProducerState.COMMITTING_TRANSACTION,
    (ProducerState.ABORTING_TRANSACTION, ProducerEvent.ABORT): ProducerState.ABORTING_TRANSACTION,
    (ProducerState.ABORTABLE_ERROR, ProducerEvent.ABORT): ProducerState.ABORTING_TRANSACTION,
    **{(state, ProducerEvent.CLOSE): ProducerState.CLOSED for state in ProducerState},
}
#: What the sender reports, where it can come.
REPORTS: dict[tuple[ProducerState, ProducerEvent], ProducerState] = {
    (ProducerState.COMMITTING_TRANSACTION, ProducerEvent.ENDED): ProducerState.READY,
    (ProducerState.ABORTING_TRANSACTION, ProducerEvent.ENDED): ProducerState.READY,
    (ProducerState.COMMITTING_TRANSACTION, ProducerEvent.RESUME): ProducerState.IN_TRANSACTION,
    (ProducerState.COMMITTING_TRANSACTION, ProducerEvent.RESUME_PREPARED): ProducerState.PREPARED_TRANSACTION,
    (ProducerState.IN_TRANSACTION, ProducerEvent.PREPARE_UNKNOWN): ProducerState.PREPARING_TRANSACTION,
    (ProducerState.PREPARING_TRANSACTION, ProducerEvent.PREPARE_UNKNOWN): ProducerState.PREPARING_TRANSACTION,
    (ProducerState.READY, ProducerEvent.ABORTABLE): ProducerState.READY,
    (ProducerState.FATAL_ERROR, ProducerEvent.ABORTABLE): ProducerState.FATAL_ERROR,
    (ProducerState.CLOSED, ProducerEvent.ABORTABLE): ProducerState.CLOSED,
    **{
        (state, ProducerEvent.ABORTABLE): ProducerState.ABORTABLE_ERROR
        for state in ProducerState
        if state not in (ProducerState.READY, ProducerState.FATAL_ERROR, ProducerState.CLOSED)
    },
    **{
        (state, ProducerEvent.FATAL): ProducerState.FATAL_ERROR
        for state in ProducerState
        if state is not ProducerState.CLOSED
    },
    (ProducerState.CLOSED, ProducerEvent.FATAL): ProducerState.CLOSED,
}
PLAIN_STATES = (ProducerState.READY, ProducerState.FATAL_ERROR, ProducerState.CLOSED)


REFUSALS = (InvalidTxnStateError, ProducerClosedError, ProducerFencedError)


@pytest.mark.parametrize(("state", "event"), list(product(ProducerState, ProducerEvent)), ids=lambda value: value.name)
def test_every_event_in_every_state(state: ProducerState, event: ProducerEvent) -> None:
    """API-01: it leads where this table says, or it is refused."""
    txn = in_state(state)
    expected = {**CALLS, **REPORTS}.get((state, event))
    if expected is not None:
        assert txn.after(event).state is expected
    else:
        with pytest.raises(REFUSALS):
            txn.after(event)
    assert txn.takes_records == (state is ProducerState.IN_TRANSACTION)


@pytest.mark.parametrize(("state", "event"), list(product(PLAIN_STATES, ProducerEvent)), ids=lambda value: value.name)
def test_every_event_of_an_idempotent_producer(state: ProducerState, event: ProducerEvent) -> None:
    """It has no transactions; an error of a batch does not end it."""
    txn = in_state(state, PLAIN)
    expected = {**CALLS, **REPORTS, (ProducerState.READY, ProducerEvent.SEND): ProducerState.READY}
    transactions = (ProducerEvent.BEGIN, ProducerEvent.TAKE_OVER)
    if (state, event) in expected and event not in transactions:
        assert txn.after(event).state is expected[state, event]
    else:
        with pytest.raises(REFUSALS):
            txn.after(event)


def test_the_table_names_only_states_that_it_explains() -> None:
    for states in TABLE.values():
        assert {after for events in states.values() for after in events.values()} <= set(states)
    assert set(TABLE[True]) == set(ProducerState)


def test_the_first_error_of_a_transaction_is_the_one_that_is_named() -> None:
    """API-09: what follows from it does not hide it."""
    txn = in_state(ProducerState.IN_TRANSACTION).with_failure(ERROR).with_failure(SchemaMismatchError("later"))
    with pytest.raises(InvalidTxnStateError, match="away") as raised:
        txn.with_ending(Outcome.COMMIT)
    assert raised.value.__cause__ is ERROR
    with pytest.raises(ProducerFencedError) as fatal:
        txn.with_failure(FATAL).with_ending(Outcome.ABORT)
    assert fatal.value is FATAL


def test_a_refused_record_ends_an_open_transaction_only() -> None:
    """A10: as in Kafka's doSend. What comes while a transaction ends, or without one, changes nothing."""
    error = RecordTooLargeError("too large")
    for state in ProducerState:
        txn = in_state(state)
        after = txn.with_record_refused(error)
        is_open = state is ProducerState.IN_TRANSACTION
        assert after.state is (ProducerState.ABORTABLE_ERROR if is_open else state)
        assert (after is txn) == (not is_open)
    preparing = in_state(ProducerState.IN_TRANSACTION).with_preparing(preparing=True)
    assert preparing.with_record_refused(error) is preparing


def test_a_failure_of_the_background_is_raised_once_by_the_next_call() -> None:
    """A2. It is not raised again after a future, or the call, has raised it."""
    txn = in_state(identity=PLAIN).with_background_failure(ERROR)
    later = txn.with_background_failure(SchemaMismatchError("second"))
    assert (later.unreported, later.takes_records) == (ERROR, False)
    assert (later.with_raised(ERROR).unreported, later.with_raised(ERROR).takes_records) == (None, True)
    assert txn.with_reported_by_future(ERROR).with_background_failure(ERROR).unreported is None
    assert in_state(ProducerState.IN_TRANSACTION).with_background_failure(ERROR).unreported is None
    fatal = txn.with_failure(FATAL)
    assert fatal.with_raised(FATAL).unreported is None


def test_an_unknown_end_is_repeated_and_a_certain_failure_resumes() -> None:
    """API-08: after an unknown commit no abort; after one that did not happen both."""
    for prepared, after in (
        (None, ProducerState.IN_TRANSACTION),
        (PreparedTxn(7, 3), ProducerState.PREPARED_TRANSACTION),
    ):
        txn = replace(in_state(after), prepared=prepared).with_ending(Outcome.COMMIT)
        assert txn.with_end_error(Outcome.COMMIT, ERROR).state is after
        txn = txn.with_submitting(PendingCommand(EndTxn(TRANSACTIONAL, Outcome.COMMIT), []))
        txn = txn.with_end_error(Outcome.COMMIT, ERROR)
        assert txn.end_unknown
        with pytest.raises(InvalidTxnStateError, match="repeat that call"):
            txn.with_ending(Outcome.ABORT)
        txn = txn.with_ending(Outcome.COMMIT)
        assert txn.pending_end is not None
        again = txn.with_submitting(txn.pending_end)
        assert again.with_not_written().pending is again.pending  # KAFKA-17754
        assert again.with_end(Outcome.COMMIT, TRANSACTIONAL).state is ProducerState.READY


def test_an_attempt_that_wrote_nothing_is_forgotten_if_it_was_the_first() -> None:
    txn = in_state(ProducerState.IN_TRANSACTION)
    txn = txn.with_submitting(txn.append([uploaded(1)]))
    assert txn.with_not_written().pending is None


def test_an_abort_that_failed_forbids_a_commit() -> None:
    """Its unsent records are dropped already."""
    txn = in_state(ProducerState.IN_TRANSACTION).with_ending(Outcome.ABORT).with_end_error(Outcome.ABORT, ERROR)
    with pytest.raises(InvalidTxnStateError, match="abort it"):
        txn.with_ending(Outcome.COMMIT)
    assert txn.with_ending(Outcome.ABORT).state is ProducerState.ABORTING_TRANSACTION


def test_an_end_that_was_interrupted_before_it_returned_may_be_repeated() -> None:
    """API-08: until the call returns, or the next transaction begins."""
    txn = in_state(ProducerState.COMMITTING_TRANSACTION).with_end(Outcome.COMMIT, TRANSACTIONAL)
    assert txn.has_ended(Outcome.COMMIT)
    assert not txn.has_ended(Outcome.ABORT)
    assert not txn.begin().has_ended(Outcome.COMMIT)
    assert not txn.end_reported().has_ended(Outcome.COMMIT)


def test_sequences_are_contiguous_and_begin_again_in_each_epoch() -> None:
    """SEQ-01."""
    txn = in_state(ProducerState.IN_TRANSACTION)
    pending = txn.append([uploaded(3), uploaded(2)])
    assert isinstance(pending.command, Append)
    assert [batch.base_sequence for batch in pending.command.batches] == [0, 3]
    txn = txn.with_submitting(pending).with_registered()
    assert [batch.base_sequence for batch in txn.append([uploaded(1)]).command.batches] == [5]
    txn = txn.with_ending(Outcome.COMMIT).with_end(Outcome.COMMIT, ProducerIdentity(7, 4, "id"))
    assert [batch.base_sequence for batch in txn.append([uploaded(1)]).command.batches] == [0]


def test_offsets_go_with_one_command_only() -> None:
    """OFF-02."""
    first = TxnOffsets("g", (GroupOffset(topic="t", partition=0, offset=1),))
    second = TxnOffsets("g", (GroupOffset(topic="t", partition=0, offset=2),))
    txn = in_state(ProducerState.IN_TRANSACTION).with_offsets(first, 0)
    txn = txn.with_submitting(txn.append([])).with_offsets(second, 0).with_registered()
    end = txn.end(Outcome.COMMIT, [])
    assert end is not None
    assert end.command.offsets == (second,)


@pytest.mark.parametrize("outcome", Outcome)
def test_an_empty_transaction_has_no_command(outcome: Outcome) -> None:
    """API-07."""
    txn = in_state(ProducerState.IN_TRANSACTION)
    assert txn.end(outcome, []) is None
    assert txn.with_started().end(outcome, []) is not None


def test_a_command_without_an_answer_is_ended_in_the_chain() -> None:
    """API-17: the chain may know of the transaction."""
    txn = in_state(ProducerState.IN_TRANSACTION)
    txn = txn.with_submitting(txn.append([uploaded(1)])).with_ending(Outcome.ABORT).without_unsent()
    assert txn.end(Outcome.ABORT, []) == PendingCommand(EndTxn(TRANSACTIONAL, Outcome.ABORT), ())


@pytest.mark.parametrize("seed", range(30))
def test_invariants_after_random_inputs(seed: int) -> None:
    """Whatever comes: sequences are contiguous, one command is pending, and an unknown end admits only itself."""
    rng, txn, following, epoch = random.Random(seed), in_state(), 0, TRANSACTIONAL
    for _ in range(300):
        before = txn
        try:
            txn, ended = _after_an_input(rng, txn)
        except REFUSALS:
            assert txn is before
            continue
        if ended:
            epoch, following = replace(epoch, epoch=epoch.epoch + 1), 0
        if before.pending is not None and isinstance(before.pending.command, Append) and txn.pending is None:
            following = txn.sequences.get(TP, following)
        assert txn.identity == epoch
        assert txn.sequences.get(TP, 0) == following
        assert txn.takes_records == (txn.state is ProducerState.IN_TRANSACTION and not txn.preparing)
        if before.end_unknown and txn.state is not ProducerState.FATAL_ERROR:
            assert txn.state in (before.state, ProducerState.READY, ProducerState.CLOSED)
        if txn.state is ProducerState.READY:
            assert (txn.pending, txn.started, txn.offsets, txn.prepared) == (None, False, (), None)
        if txn.state in (ProducerState.CLOSED, ProducerState.FATAL_ERROR):
            txn, following, epoch = in_state(), 0, TRANSACTIONAL


def _after_an_input(rng: random.Random, txn: Transaction) -> tuple[Transaction, bool]:
    """The value after what the sender may find out next, and whether the transaction has ended."""
    pending, outcome = txn.pending, rng.choice(list(Outcome))
    following = replace(txn.identity, epoch=txn.identity.epoch + 1)
    if pending is not None and isinstance(pending.command, EndTxn) and not pending.unknown:
        known = pending.command.outcome
        if rng.random() < 0.5:
            return txn.with_end(known, following), True
        return txn.with_started().with_end_error(known, ERROR), False
    if pending is not None and isinstance(pending.command, Append) and rng.random() < 0.7:
        answers = (txn.with_registered, txn.with_not_written, txn.with_started, lambda: txn.with_submitting(pending))
        return rng.choice(answers)(), False
    if txn.state in (ProducerState.COMMITTING_TRANSACTION, ProducerState.ABORTING_TRANSACTION):
        if txn.pending_end is not None:
            again = txn.with_ending(outcome)
            return again.with_submitting(txn.pending_end), False
        if txn.state is ProducerState.ABORTING_TRANSACTION:
            txn, outcome = txn.without_unsent(), Outcome.ABORT
        else:
            outcome = Outcome.COMMIT
        command = txn.end(outcome, [] if outcome is Outcome.ABORT or pending is not None else [uploaded(2)])
        return (
            (txn.with_submitting(command), False) if command is not None else (txn.with_end(outcome, following), True)
        )
    inputs: list[Callable[[], Transaction]] = [
        txn.begin,
        lambda: txn.with_offsets(TxnOffsets("g", ()), 1),
        lambda: txn.with_ending(outcome),
        lambda: txn.with_failure(ERROR) if txn.state is not ProducerState.READY else txn,
        lambda: txn.with_record_refused(ERROR),
        lambda: txn.with_preparing(preparing=True).with_preparing(preparing=False),
    ]
    if txn.state is ProducerState.IN_TRANSACTION and pending is None:
        inputs += [lambda: txn.with_submitting(txn.append([uploaded(rng.randrange(1, 4))]))] * 4
        inputs.append(txn.with_prepared)
    if rng.random() < 0.02:
        inputs = [lambda: txn.with_failure(FATAL), lambda: txn.after(ProducerEvent.CLOSE)]
    return rng.choice(inputs)(), False


def test_a_record_that_a_state_refused_fails_no_later_transaction() -> None:
    """A thread sends while another commits, and the next transaction is open before the refusal arrives."""
    txn = Transaction(ProducerIdentity(1, 0, "p")).begin()
    assert txn.with_record_refused(InvalidTxnStateError("the transaction is being committed or aborted")) is txn
    assert txn.with_record_refused(RecordTooLargeError("too large")).state is ProducerState.ABORTABLE_ERROR
