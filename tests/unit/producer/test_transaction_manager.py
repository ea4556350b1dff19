"""The transaction manager alone, without threads or storage: every state and event, and what it keeps."""

from __future__ import annotations

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
from txnstore.producer.transaction_manager import PendingCommand, TransactionManager
from txnstore.producer.transaction_state import TABLE, ManagerEvent, ManagerState

TP = TopicPartition("t", 0)
TRANSACTIONAL, PLAIN = ProducerIdentity(7, 3, "id"), ProducerIdentity(8, 0)
ERROR, FATAL = StorageError("away"), ProducerFencedError("a newer instance")


def new_manager(
    state: ManagerState = ManagerState.READY, identity: ProducerIdentity = TRANSACTIONAL
) -> TransactionManager:
    manager = TransactionManager(identity)
    manager._state = state
    manager._error = {ManagerState.FATAL_ERROR: FATAL, ManagerState.ABORTABLE_ERROR: ERROR}.get(state)
    manager._set_takes_records()
    return manager


def uploaded(rows: int) -> ProducerBatch:
    """A completed upload of ``rows`` rows."""
    batch = object.__new__(ProducerBatch)
    batch.tp, batch.rows, batch.bytes = TP, rows, 1
    batch.uploaded = NewBatch("t", 0, Segment("key", "parquet", 1, "", rows), 0, 0)
    return batch


#: What the application may call in which state, and the state after it. Everything else is refused.
CALLS: dict[tuple[ManagerState, ManagerEvent], ManagerState] = {
    (ManagerState.READY, ManagerEvent.BEGIN): ManagerState.IN_TRANSACTION,
    (ManagerState.READY, ManagerEvent.TAKE_OVER): ManagerState.PREPARED_TRANSACTION,
    (ManagerState.READY, ManagerEvent.FLUSH): ManagerState.READY,
    (ManagerState.IN_TRANSACTION, ManagerEvent.SEND): ManagerState.IN_TRANSACTION,
    (ManagerState.IN_TRANSACTION, ManagerEvent.SEND_OFFSETS): ManagerState.IN_TRANSACTION,
    (ManagerState.IN_TRANSACTION, ManagerEvent.FLUSH): ManagerState.IN_TRANSACTION,
    (ManagerState.IN_TRANSACTION, ManagerEvent.PREPARE): ManagerState.PREPARED_TRANSACTION,
    (ManagerState.IN_TRANSACTION, ManagerEvent.COMMIT): ManagerState.COMMITTING_TRANSACTION,
    (ManagerState.IN_TRANSACTION, ManagerEvent.ABORT): ManagerState.ABORTING_TRANSACTION,
    (ManagerState.PREPARING_TRANSACTION, ManagerEvent.FLUSH): ManagerState.PREPARING_TRANSACTION,
    (ManagerState.PREPARING_TRANSACTION, ManagerEvent.PREPARE): ManagerState.PREPARED_TRANSACTION,
    (ManagerState.PREPARING_TRANSACTION, ManagerEvent.ABORT): ManagerState.ABORTING_TRANSACTION,
    (ManagerState.PREPARED_TRANSACTION, ManagerEvent.FLUSH): ManagerState.PREPARED_TRANSACTION,
    (ManagerState.PREPARED_TRANSACTION, ManagerEvent.COMMIT): ManagerState.COMMITTING_TRANSACTION,
    (ManagerState.PREPARED_TRANSACTION, ManagerEvent.ABORT): ManagerState.ABORTING_TRANSACTION,
    (ManagerState.COMMITTING_TRANSACTION, ManagerEvent.COMMIT): ManagerState.COMMITTING_TRANSACTION,
    (ManagerState.ABORTING_TRANSACTION, ManagerEvent.ABORT): ManagerState.ABORTING_TRANSACTION,
    (ManagerState.ABORTABLE_ERROR, ManagerEvent.ABORT): ManagerState.ABORTING_TRANSACTION,
    **{(state, ManagerEvent.CLOSE): ManagerState.CLOSED for state in ManagerState},
}
#: What the sender reports, where it can come.
REPORTS: dict[tuple[ManagerState, ManagerEvent], ManagerState] = {
    (ManagerState.COMMITTING_TRANSACTION, ManagerEvent.ENDED): ManagerState.READY,
    (ManagerState.ABORTING_TRANSACTION, ManagerEvent.ENDED): ManagerState.READY,
    (ManagerState.COMMITTING_TRANSACTION, ManagerEvent.RESUME): ManagerState.IN_TRANSACTION,
    (ManagerState.COMMITTING_TRANSACTION, ManagerEvent.RESUME_PREPARED): ManagerState.PREPARED_TRANSACTION,
    (ManagerState.IN_TRANSACTION, ManagerEvent.PREPARE_UNKNOWN): ManagerState.PREPARING_TRANSACTION,
    (ManagerState.PREPARING_TRANSACTION, ManagerEvent.PREPARE_UNKNOWN): ManagerState.PREPARING_TRANSACTION,
    (ManagerState.READY, ManagerEvent.ABORTABLE): ManagerState.READY,
    (ManagerState.FATAL_ERROR, ManagerEvent.ABORTABLE): ManagerState.FATAL_ERROR,
    (ManagerState.CLOSED, ManagerEvent.ABORTABLE): ManagerState.CLOSED,
    **{
        (state, ManagerEvent.ABORTABLE): ManagerState.ABORTABLE_ERROR
        for state in ManagerState
        if state not in (ManagerState.READY, ManagerState.FATAL_ERROR, ManagerState.CLOSED)
    },
    **{
        (state, ManagerEvent.FATAL): ManagerState.FATAL_ERROR
        for state in ManagerState
        if state is not ManagerState.CLOSED
    },
    (ManagerState.CLOSED, ManagerEvent.FATAL): ManagerState.CLOSED,
}
PLAIN_STATES = (ManagerState.READY, ManagerState.FATAL_ERROR, ManagerState.CLOSED)


@pytest.mark.parametrize(("state", "event"), list(product(ManagerState, ManagerEvent)), ids=lambda value: value.name)
def test_every_event_in_every_state(state: ManagerState, event: ManagerEvent) -> None:
    """API-01: it leads where this table says, or it is refused and nothing changes."""
    manager = new_manager(state)
    expected = {**CALLS, **REPORTS}.get((state, event))
    if expected is not None:
        manager._move(event)
        assert manager.state is expected
    else:
        with pytest.raises((InvalidTxnStateError, ProducerClosedError, ProducerFencedError)):
            manager._move(event)
        assert manager.state is state
    assert manager.takes_records == (manager.state is ManagerState.IN_TRANSACTION)


@pytest.mark.parametrize(("state", "event"), list(product(PLAIN_STATES, ManagerEvent)), ids=lambda value: value.name)
def test_every_event_of_an_idempotent_producer(state: ManagerState, event: ManagerEvent) -> None:
    """It has no transactions; an error of a batch does not end it."""
    manager = new_manager(state, PLAIN)
    expected = {**CALLS, **REPORTS, (ManagerState.READY, ManagerEvent.SEND): ManagerState.READY}
    transactions = (ManagerEvent.BEGIN, ManagerEvent.TAKE_OVER)
    if (state, event) in expected and event not in transactions:
        manager._move(event)
        assert manager.state is expected[state, event]
    else:
        with pytest.raises((InvalidTxnStateError, ProducerClosedError, ProducerFencedError)):
            manager._move(event)
        assert manager.state is state


def test_the_table_names_only_states_that_it_explains() -> None:
    for states in TABLE.values():
        assert {after for events in states.values() for after in events.values()} <= set(states)
    assert set(TABLE[True]) == set(ManagerState)


def test_the_first_error_of_a_transaction_is_the_one_that_is_named() -> None:
    """API-09: what follows from it does not hide it."""
    manager = new_manager(ManagerState.IN_TRANSACTION)
    assert manager.failed(ERROR)
    assert manager.failed(SchemaMismatchError("later"))
    with pytest.raises(InvalidTxnStateError, match="away") as raised:
        manager.begin_end(Outcome.COMMIT)
    assert raised.value.__cause__ is ERROR
    manager.failed(FATAL)
    with pytest.raises(ProducerFencedError) as fatal:
        manager.begin_end(Outcome.ABORT)
    assert fatal.value is FATAL


def test_a_refused_record_ends_an_open_transaction_only() -> None:
    """A10: as in Kafka's doSend. What comes while a transaction ends, or without one, changes nothing."""
    error = RecordTooLargeError("too large")
    for state in ManagerState:
        manager = new_manager(state)
        assert manager.record_refused(error) == (state is ManagerState.IN_TRANSACTION)
        assert manager.state is (ManagerState.ABORTABLE_ERROR if state is ManagerState.IN_TRANSACTION else state)
    assert not new_manager(identity=PLAIN).record_refused(error)


def test_a_failure_of_the_background_is_raised_once_by_the_next_call() -> None:
    """A2."""
    manager = new_manager(identity=PLAIN)
    manager.failed_in_background(ERROR)
    manager.failed_in_background(SchemaMismatchError("second"))
    before = manager.takes_records
    with pytest.raises(StorageError) as raised:
        manager.check_send()
    assert raised.value is ERROR
    assert (before, manager.takes_records) == (False, True)
    manager.check_send()
    manager.raise_unreported()


def test_an_unknown_end_is_repeated_and_a_certain_failure_resumes() -> None:
    """API-08: after an unknown commit no abort; after one that did not happen both."""
    for prepared, after in (
        (None, ManagerState.IN_TRANSACTION),
        (PreparedTxn(7, 3), ManagerState.PREPARED_TRANSACTION),
    ):
        manager = new_manager(after)
        manager._prepared = prepared
        assert not manager.begin_end(Outcome.COMMIT)
        manager.not_ended(Outcome.COMMIT, ERROR)
        assert manager.state is after
        manager.begin_end(Outcome.COMMIT)
        manager.submitting(PendingCommand(EndTxn(TRANSACTIONAL, Outcome.COMMIT), []))
        manager.not_ended(Outcome.COMMIT, ERROR)
        assert manager.end_unknown
        with pytest.raises(InvalidTxnStateError, match="repeat that call"):
            manager.begin_end(Outcome.ABORT)
        assert manager.begin_end(Outcome.COMMIT)
        manager.ended(Outcome.COMMIT, TRANSACTIONAL)
        assert manager.state is ManagerState.READY


def test_an_abort_that_failed_forbids_a_commit() -> None:
    """Its unsent records are dropped already."""
    manager = new_manager(ManagerState.IN_TRANSACTION)
    manager.begin_end(Outcome.ABORT)
    manager.not_ended(Outcome.ABORT, ERROR)
    with pytest.raises(InvalidTxnStateError, match="abort it"):
        manager.begin_end(Outcome.COMMIT)
    manager.begin_end(Outcome.ABORT)


def test_an_end_that_was_interrupted_before_it_returned_may_be_repeated() -> None:
    """API-08: until the call returns, or the next transaction begins."""
    manager = new_manager(ManagerState.COMMITTING_TRANSACTION)
    manager.ended(Outcome.COMMIT, TRANSACTIONAL)
    assert manager.ended_unreported(Outcome.COMMIT)
    assert not manager.ended_unreported(Outcome.ABORT)
    manager.begin()
    assert not manager.ended_unreported(Outcome.COMMIT)
    manager.begin_end(Outcome.COMMIT)
    manager.ended(Outcome.COMMIT, TRANSACTIONAL)
    manager.end_reported()
    assert not manager.ended_unreported(Outcome.COMMIT)


def test_sequences_are_contiguous_and_begin_again_in_each_epoch() -> None:
    """SEQ-01."""
    manager = new_manager(ManagerState.IN_TRANSACTION)
    pending = manager.append([uploaded(3), uploaded(2)])
    assert isinstance(pending.command, Append)
    assert [batch.base_sequence for batch in pending.command.batches] == [0, 3]
    again = manager.append(pending.batches)  # Nothing was submitted, so the numbers are free.
    assert again.command.batches == pending.command.batches
    for _ in range(2):  # An interrupt may have it reported twice.
        manager.acknowledged(pending)
    assert [batch.base_sequence for batch in manager.append([uploaded(1)]).command.batches] == [5]
    manager.begin_end(Outcome.COMMIT)
    manager.ended(Outcome.COMMIT, ProducerIdentity(7, 4, "id"))
    assert [batch.base_sequence for batch in manager.append([uploaded(1)]).command.batches] == [0]


def test_offsets_go_with_one_command_only() -> None:
    """OFF-02."""
    manager = new_manager(ManagerState.IN_TRANSACTION)
    first = TxnOffsets("g", (GroupOffset(topic="t", partition=0, offset=1),))
    manager.add_offsets(first, 0)
    pending = manager.append([])
    second = TxnOffsets("g", (GroupOffset(topic="t", partition=0, offset=2),))
    manager.add_offsets(second, 0)
    for _ in range(2):
        manager.acknowledged(pending)
    end = manager.end(Outcome.COMMIT, [])
    assert end is not None
    assert end.command.offsets == (second,)


@pytest.mark.parametrize("outcome", Outcome)
def test_an_empty_transaction_has_no_command(outcome: Outcome) -> None:
    """API-07."""
    manager = new_manager(ManagerState.IN_TRANSACTION)
    assert manager.end(outcome, []) is None
    manager.partitions_added()
    assert manager.end(outcome, []) is not None


def test_a_command_without_an_answer_is_ended_in_the_chain() -> None:
    """API-17: the chain may know of the transaction."""
    manager = new_manager(ManagerState.IN_TRANSACTION)
    manager.submitting(manager.append([uploaded(1)]))
    manager.begin_end(Outcome.ABORT)
    manager.drop_unsent()
    assert manager.end(Outcome.ABORT, []) == PendingCommand(EndTxn(TRANSACTIONAL, Outcome.ABORT), [])
