"""The transaction of a producer as a value: its state, identity, sequences and open command, and what may follow.

Kafka's ``TransactionManager``, as a pure function: it makes no requests, takes no lock and reads no clock. The
:mod:`~txnstore.producer.sender` replaces the value in one step, so that an interrupt leaves the one before or the one
after.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto

from txnstore.core.groups.commands import TxnOffsets
from txnstore.core.log.commands import Append
from txnstore.core.log.model import NewBatch, next_sequence
from txnstore.core.model import Outcome, ProducerIdentity, TopicPartition
from txnstore.core.transactions.commands import EndTxn
from txnstore.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    ProducerClosedError,
    TxnStoreError,
    UnknownOutcomeError,
)
from txnstore.producer.batches import ProducerBatch
from txnstore.producer.prepared import PreparedTxn


class ProducerState(Enum):
    """The states of a producer (API-01), under the names of Kafka's ``TransactionState``."""

    READY = auto()
    IN_TRANSACTION = auto()
    PREPARING_TRANSACTION = auto()  # The outcome of the prepare is unknown.
    PREPARED_TRANSACTION = auto()  # All records are registered; an external coordinator decides (KIP-939).
    COMMITTING_TRANSACTION = auto()  # Also while the outcome of the commit is unknown (API-08).
    ABORTING_TRANSACTION = auto()
    ABORTABLE_ERROR = auto()
    FATAL_ERROR = auto()
    CLOSED = auto()


class ProducerEvent(Enum):
    """Calls of the application, and what the sender finds out."""

    BEGIN = auto()
    SEND = auto()
    SEND_OFFSETS = auto()
    FLUSH = auto()
    PREPARE = auto()
    PREPARE_UNKNOWN = auto()  # The transaction may be prepared.
    TAKE_OVER = auto()  # This instance continues a transaction that an earlier one has prepared.
    COMMIT = auto()
    ABORT = auto()
    CLOSE = auto()
    ENDED = auto()  # The commit or abort succeeded.
    RESUME = auto()  # The commit did not happen, and may be repeated.
    RESUME_PREPARED = auto()  # The same for a prepared transaction.
    ABORTABLE = auto()  # An error after which the open transaction, if any, must be aborted.
    FATAL = auto()  # An error after which the producer can only be closed.


_S, _E = ProducerState, ProducerEvent
_FAILURES = {_E.ABORTABLE: _S.ABORTABLE_ERROR, _E.FATAL: _S.FATAL_ERROR, _E.CLOSE: _S.CLOSED}
_NO_TRANSACTION = {_E.FLUSH: _S.READY, _E.ABORTABLE: _S.READY, _E.FATAL: _S.FATAL_ERROR, _E.CLOSE: _S.CLOSED}
_NEVER_AGAIN = {
    _S.FATAL_ERROR: {_E.ABORTABLE: _S.FATAL_ERROR, _E.FATAL: _S.FATAL_ERROR, _E.CLOSE: _S.CLOSED},
    _S.CLOSED: {_E.ABORTABLE: _S.CLOSED, _E.FATAL: _S.CLOSED, _E.CLOSE: _S.CLOSED},
}

#: Transactional or not -> state -> event -> next state. An event that is missing in a state is refused. One table, as
#: Kafka's ``TransactionState`` and h11's ``_state.py``.
TABLE: Mapping[bool, Mapping[ProducerState, Mapping[ProducerEvent, ProducerState]]] = {
    False: {_S.READY: {**_NO_TRANSACTION, _E.SEND: _S.READY}, **_NEVER_AGAIN},
    True: {
        _S.READY: {**_NO_TRANSACTION, _E.BEGIN: _S.IN_TRANSACTION, _E.TAKE_OVER: _S.PREPARED_TRANSACTION},
        _S.IN_TRANSACTION: {
            _E.SEND: _S.IN_TRANSACTION,
            _E.SEND_OFFSETS: _S.IN_TRANSACTION,
            _E.FLUSH: _S.IN_TRANSACTION,
            _E.PREPARE: _S.PREPARED_TRANSACTION,
            _E.PREPARE_UNKNOWN: _S.PREPARING_TRANSACTION,
            _E.COMMIT: _S.COMMITTING_TRANSACTION,
            _E.ABORT: _S.ABORTING_TRANSACTION,
            **_FAILURES,
        },
        _S.PREPARING_TRANSACTION: {  # Only the same call, or an abort, which ends the transaction in either case.
            _E.FLUSH: _S.PREPARING_TRANSACTION,
            _E.PREPARE: _S.PREPARED_TRANSACTION,
            _E.PREPARE_UNKNOWN: _S.PREPARING_TRANSACTION,
            _E.ABORT: _S.ABORTING_TRANSACTION,
            **_FAILURES,
        },
        _S.PREPARED_TRANSACTION: {
            _E.FLUSH: _S.PREPARED_TRANSACTION,
            _E.PREPARE: _S.PREPARED_TRANSACTION,  # The call returns the name again: an interrupt may have kept it.
            _E.COMMIT: _S.COMMITTING_TRANSACTION,
            _E.ABORT: _S.ABORTING_TRANSACTION,
            **_FAILURES,
        },
        _S.COMMITTING_TRANSACTION: {
            _E.COMMIT: _S.COMMITTING_TRANSACTION,
            _E.ENDED: _S.READY,
            _E.RESUME: _S.IN_TRANSACTION,
            _E.RESUME_PREPARED: _S.PREPARED_TRANSACTION,
            **_FAILURES,
        },
        _S.ABORTING_TRANSACTION: {_E.ABORT: _S.ABORTING_TRANSACTION, _E.ENDED: _S.READY, **_FAILURES},
        _S.ABORTABLE_ERROR: {_E.ABORT: _S.ABORTING_TRANSACTION, **_FAILURES},
        **_NEVER_AGAIN,
    },
}

#: The states in which a close aborts the transaction: neither the caller nor an external coordinator waits for it.
ABORTED_BY_CLOSE = (_S.IN_TRANSACTION, _S.PREPARING_TRANSACTION, _S.ABORTABLE_ERROR)
_ENDING = (_S.COMMITTING_TRANSACTION, _S.ABORTING_TRANSACTION)
_OUTCOMES = {Outcome.COMMIT: _E.COMMIT, Outcome.ABORT: _E.ABORT}
_END_UNKNOWN = "the outcome of the commit or abort is unknown: repeat that call"
_ADDING = (_E.SEND, _E.SEND_OFFSETS)
#: What the application does with a call, for the error that refuses it.
_VERBS = {
    _E.BEGIN: "begin a transaction",
    _E.SEND: "send",
    _E.SEND_OFFSETS: "send offsets",
    _E.FLUSH: "flush",
    _E.PREPARE: "prepare",
    _E.COMMIT: "commit",
    _E.ABORT: "abort",
}


@dataclass(frozen=True, slots=True)
class PendingCommand:
    """A command without an answer, which is resolved before another command is submitted.

    Attributes:
        command: The command.
        batches: The batches that it registers, in the order of the command.
        repeated: Whether it is submitted again. An earlier attempt may have been written, so an error that means
            *nothing was written* is true of the last attempt only.
        unknown: Whether the call that submitted it, a commit or abort, raised, so that only that call may be repeated.
    """

    command: Append | EndTxn
    batches: Sequence[ProducerBatch]
    repeated: bool = False
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class Transaction:
    """The state of one producer. A method that changes it returns the next value, or raises what refuses the call.

    Attributes:
        identity: Transactional id, producer id and epoch of the open transaction, or of the next one if none is open.
        timeout_ms: The timeout of a transaction; None if it has none.
        state: The state.
        error: The first error of the transaction, or the fatal error.
        pending: The command without an answer. Set before its first attempt, so an interrupt leaves it to the next
            call.
        started: Whether a chain may know the transaction, so that it has to be ended there. Set before the application
            gets the error of an attempt whose outcome is unknown; reset only when the transaction has ended.
        prepared: The name of the prepared transaction. Not None in PREPARED_TRANSACTION, and while that is being ended.
        preparing: Whether a prepare is under way: nothing is added to the transaction. The state is still
            IN_TRANSACTION.
        first_at: When the first record or offsets of the transaction were sent, in monotonic ms; None before.
        sequences: The sequence number of the next batch, by partition; a partition without batches in this epoch is
            missing.
        offsets: The offsets of the transaction that are not registered.
        unreported: An error of batches that failed in the background, for the next call of the application to raise;
            always None with transactions, whose state refuses the next call.
        reported: The error that a future raised last, which the next call need not raise again.
        ended: The outcome of the last transaction, until the call that ended it has returned, or the next one begins.
    """

    identity: ProducerIdentity
    timeout_ms: int | None = None
    state: ProducerState = ProducerState.READY
    error: BaseException | None = None
    pending: PendingCommand | None = None
    started: bool = False
    prepared: PreparedTxn | None = None
    preparing: bool = False
    first_at: int | None = None
    sequences: Mapping[TopicPartition, int] = field(default_factory=dict)
    offsets: tuple[TxnOffsets, ...] = ()
    unreported: Exception | None = None
    reported: BaseException | None = None
    ended: Outcome | None = None

    @property
    def transactional(self) -> bool:
        """Whether the producer has a transactional id."""
        return self.identity.transactional_id is not None

    @property
    def takes_records(self) -> bool:
        """Whether a record may be sent now."""
        return self.allows(_E.SEND) and self.unreported is None

    @property
    def writes(self) -> bool:
        """Whether a flush may write records in this state."""
        return self.state in (_S.READY, _S.IN_TRANSACTION)

    @property
    def pending_end(self) -> PendingCommand | None:
        """The submitted commit or abort without an answer."""
        pending = self.pending
        return pending if pending is not None and isinstance(pending.command, EndTxn) else None

    @property
    def end_unknown(self) -> bool:
        """Whether the outcome of a commit or abort is unknown, so that only the same call may be repeated."""
        pending = self.pending_end
        return pending is not None and pending.unknown

    # States -----------------------------------------------------------------------------------------------------------

    def allows(self, event: ProducerEvent) -> bool:
        """Whether the state accepts the event; nothing is added to a transaction that is being prepared."""
        if self.preparing and event in _ADDING:
            return False
        return event in TABLE[self.transactional][self.state]

    def next_state(self, event: ProducerEvent) -> ProducerState:
        """Return the state after an event, by the table; raise the error of a refused one."""
        if not self.allows(event):
            raise self.refusal(event)
        return TABLE[self.transactional][self.state][event]

    def after(self, event: ProducerEvent) -> Transaction:
        """Return the value after an event that changes the state alone."""
        return replace(self, state=self.next_state(event))

    def refusal(self, event: ProducerEvent) -> BaseException:
        """Return the error of a call that the state does not accept."""
        call = _VERBS.get(event, event.name.lower())
        if self.state is _S.CLOSED:
            return ProducerClosedError("the producer is closed")
        if self.state is _S.FATAL_ERROR and self.error is not None:
            return self.error
        if event is _E.BEGIN and not self.transactional:
            return InvalidTxnStateError("this producer has no transactional_id, so it cannot begin a transaction")
        if event is _E.BEGIN and self.state is _S.IN_TRANSACTION:
            return InvalidTxnStateError(f"cannot {call}: the previous one is still open; commit or abort it first")
        if self.state is _S.ABORTABLE_ERROR:
            return _error_with_cause(f"cannot {call}: the transaction failed ({self.error}); abort it", self.error)
        if self.state in _ENDING and event in (_E.COMMIT, _E.ABORT):
            msg = f"cannot {call}: the outcome of the other call is unknown; repeat that call"
            return InvalidTxnStateError(msg)
        if self.state in _ENDING:
            why = "its outcome is unknown, repeat that call" if self.end_unknown else "wait for that call to return"
            return InvalidTxnStateError(f"cannot {call}: the transaction is being committed or aborted; {why}")
        if self.preparing and event in _ADDING:
            return InvalidTxnStateError(f"cannot {call}: the transaction is being prepared; wait for it to end")
        if self.state is _S.PREPARING_TRANSACTION:
            msg = f"cannot {call}: the outcome of the prepare is unknown; repeat that call, or abort"
            return InvalidTxnStateError(msg)
        if self.state is _S.PREPARED_TRANSACTION:
            msg = f"cannot {call}: the transaction is prepared; commit, abort or complete it"
            return InvalidTxnStateError(msg)
        hint = "" if event in (_E.COMMIT, _E.ABORT) else "; call begin_transaction() first"
        return InvalidTxnStateError(f"cannot {call}: no transaction is open{hint}")

    def flush_refusal(self) -> Exception | None:
        """Return the error that keeps a flush from writing records in this state; None if it may write."""
        if self.writes:
            return None
        if self.state in _ENDING:
            return UnknownOutcomeError(_END_UNKNOWN)
        error = self.refusal(_E.FLUSH)
        return error if isinstance(error, Exception) else _error_with_cause("the call was interrupted", error)

    def check_flushed(self) -> None:
        """Raise the error that kept the last flush from writing records, if there is one."""
        if self.state is _S.ABORTABLE_ERROR:
            raise self.refusal(_E.FLUSH)
        if self.end_unknown:
            raise UnknownOutcomeError(_END_UNKNOWN)

    def check_timeout(self, now: int) -> None:
        """Refuse to begin a transaction in the chain if its records have waited for longer than its timeout.

        Once the chain knows the transaction, the entry that began it decides.

        Raises:
            InvalidProducerEpochError: The timeout has passed; as if another process had aborted the transaction.
        """
        if self.started or self.first_at is None or self.timeout_ms is None:
            return
        if now - self.first_at > self.timeout_ms:
            timeout = f"{self.timeout_ms / 1000:g} s"
            msg = (
                f"the first record of the transaction of {self.identity} was sent longer ago than its timeout of "
                f"{timeout}, and nothing of it was written yet: abort it, and send the records again"
            )
            raise InvalidProducerEpochError(msg)

    # Calls of the application -----------------------------------------------------------------------------------------

    def begin(self) -> Transaction:
        """Begin a transaction. Nothing is written before its first record (API-02)."""
        return replace(self, state=self.next_state(_E.BEGIN), ended=None, first_at=None)

    def with_first(self, now: int) -> Transaction:
        """Start the timeout with the first record or offsets of the transaction (TMO-01).

        In Kafka it runs from the request that adds the first partition, which follows the first ``send`` immediately.
        Here records wait in a buffer, and the chain knows nothing of them until they are registered.
        """
        return replace(self, first_at=now)

    def with_offsets(self, offsets: TxnOffsets, now: int) -> Transaction:
        """Add offsets that the transaction commits; ``now`` in monotonic ms."""
        self.next_state(_E.SEND_OFFSETS)
        first_at = now if self.first_at is None else self.first_at
        return replace(self, first_at=first_at, offsets=(*self.offsets, offsets))

    def with_preparing(self, *, preparing: bool) -> Transaction:
        """Begin or end a prepare, during which no record is accepted, so that it covers all that was sent."""
        if preparing:
            self.next_state(_E.PREPARE)
        return replace(self, preparing=preparing)

    def with_prepare_unknown(self) -> Transaction:
        """Note that the transaction may be prepared: repeat the prepare, or abort."""
        return self.after(_E.PREPARE_UNKNOWN)

    def with_prepared(self) -> Transaction:
        """Note that all is registered and prepared: an external coordinator decides."""
        prepared = self.prepared or PreparedTxn(self.identity.producer_id, self.identity.epoch)
        return replace(self, state=self.next_state(_E.PREPARE), prepared=prepared)

    def take_over(self, prepared: PreparedTxn) -> Transaction:
        """Take over the transaction that an earlier instance has prepared."""
        return replace(self, state=self.next_state(_E.TAKE_OVER), prepared=prepared, started=True)

    def with_ending(self, outcome: Outcome) -> Transaction:
        """Begin a commit or abort. Records are refused from here on, so each is in one transaction (API-19)."""
        return self.after(_OUTCOMES[outcome])

    def has_ended(self, outcome: Outcome) -> bool:
        """Whether an interrupted call, which is repeated now, has ended the transaction with this outcome."""
        return self.ended is outcome and self.state is _S.READY

    def end_reported(self) -> Transaction:
        """Note that the call which ended the transaction returns to the application."""
        return replace(self, ended=None)

    def without_unsent(self) -> Transaction:
        """Drop unregistered offsets, and the pending command, for an abort, which undoes it."""
        return replace(self, started=self.started or self.pending is not None, offsets=(), pending=None)

    # Commands ---------------------------------------------------------------------------------------------------------

    @property
    def groups(self) -> list[str]:
        """The groups with offsets that are not registered."""
        return [offsets.group for offsets in self.offsets]

    def number_batches(self, batches: Sequence[ProducerBatch]) -> tuple[NewBatch, ...]:
        """Return the batches with their sequences: contiguous in each partition, from 0 in each epoch (SEQ-01)."""
        numbered, next_sequences = [], dict(self.sequences)
        for batch in batches:
            sequence = next_sequences.get(batch.tp, 0)
            numbered.append(replace(batch.new_batch, base_sequence=sequence))
            next_sequences[batch.tp] = next_sequence(sequence, batch.rows)
        return tuple(numbered)

    def append(self, batches: Sequence[ProducerBatch]) -> PendingCommand:
        """Build the command that registers these batches and the unregistered offsets."""
        return PendingCommand(Append(self.identity, self.number_batches(batches), self.offsets), batches)

    def end(self, outcome: Outcome, batches: Sequence[ProducerBatch]) -> PendingCommand | None:
        """Build the command that ends the transaction with these batches and all offsets; None without any (API-07)."""
        if outcome is Outcome.ABORT:
            return PendingCommand(EndTxn(self.identity, outcome), ()) if self.started else None
        if not (self.started or batches or self.offsets):
            return None
        return PendingCommand(EndTxn(self.identity, outcome, self.number_batches(batches), self.offsets), batches)

    def with_submitting(self, pending: PendingCommand) -> Transaction:
        """Note that the command is about to be submitted, the first time or again."""
        return replace(self, pending=replace(pending, repeated=self.pending is pending))

    def with_started(self) -> Transaction:
        """Note that a chain has a part of the transaction, or may have after an unknown outcome (API-08)."""
        return replace(self, started=True)

    def without_pending(self) -> Transaction:
        """Forget the pending command: the producer is closed without its answer."""
        return replace(self, pending=None)

    def with_not_written(self) -> Transaction:
        """Note that the attempt wrote nothing: the batches stay uploaded, and the call may be repeated.

        A repeated command stays pending, because an earlier attempt may have been written:

        1. A commit ends with an unknown outcome: the storage may write its entry later.
        2. The commit is repeated, and this attempt certainly writes nothing.
        3. If the command were forgotten here, :meth:`with_end_error` would return to IN_TRANSACTION, which allows
           an abort, while the first attempt may still commit (KAFKA-17754).
        """
        return self if self.pending is not None and self.pending.repeated else replace(self, pending=None)

    def with_refused(self, error: Exception, *, several_chains: bool) -> Transaction:
        """Note that the chain refused the pending command.

        The transaction has to be ended in the chains if another process has aborted it, because the answer to the
        abort has the next epoch; and with several chains, because one of them may have a part of the command.
        """
        started = self.started or several_chains or isinstance(error, InvalidProducerEpochError)
        return replace(self, started=started, pending=None)

    def with_registered(self) -> Transaction:
        """Note that the chain has the pending append."""
        assert self.pending is not None
        command = self.pending.command
        registered_ids = {id(offsets) for offsets in command.offsets}
        return replace(
            self,
            pending=None,
            started=True,
            offsets=tuple(offsets for offsets in self.offsets if id(offsets) not in registered_ids),
            sequences={
                **self.sequences,
                **{batch.tp: next_sequence(batch.base_sequence, batch.records) for batch in command.batches},
            },
        )

    def with_end(self, outcome: Outcome, identity: ProducerIdentity) -> Transaction:
        """End the transaction. The next one has this identity, and sequences from 0 (SEQ-01)."""
        state = self.next_state(_E.ENDED)
        return Transaction(
            identity, self.timeout_ms, state, ended=outcome, unreported=self.unreported, reported=self.reported
        )

    def with_end_error(self, outcome: Outcome, error: BaseException) -> Transaction:
        """Return to the state before a commit or abort that raised ``error``, unless its outcome is unknown."""
        pending = self.pending_end
        if pending is not None:  # The same call repeats the command, and gets the same answer.
            return replace(self, pending=replace(pending, unknown=True))
        if self.state not in _ENDING:
            return self
        if outcome is Outcome.ABORT:  # Unsent records are dropped, so this transaction must never be committed.
            return replace(self, state=self.next_state(_E.ABORTABLE), error=self.error or error)
        return self.after(_E.RESUME if self.prepared is None else _E.RESUME_PREPARED)

    # Failures ---------------------------------------------------------------------------------------------------------

    def with_failure(self, error: BaseException) -> Transaction:
        """Note a failed command or upload: a fatal error ends the producer, others the transaction (API-09, ERR-05)."""
        is_fatal = isinstance(error, TxnStoreError) and error.fatal
        if self.state is _S.CLOSED or (self.state is _S.FATAL_ERROR and not is_fatal):
            return self
        state = self.next_state(_E.FATAL if is_fatal else _E.ABORTABLE)
        return self if state in (_S.READY, self.state) else replace(self, state=state, error=error)

    def with_record_refused(self, error: BaseException) -> Transaction:
        """Make an open transaction abortable after a refused record (API-05). Unchanged without one.

        A record that a state has refused belongs to no transaction: another one may be open by now.
        """
        if self.preparing or self.state is not _S.IN_TRANSACTION or isinstance(error, InvalidTxnStateError):
            return self
        return replace(self, state=self.next_state(_E.ABORTABLE), error=error)

    def with_background_failure(self, error: Exception) -> Transaction:
        """Keep the first error of batches that failed outside of a call, for the next call to raise.

        Only without transactions: a failed transaction has a state that refuses the next call.
        """
        is_new = self.unreported is None and error is not self.reported
        if is_new and not self.transactional and self.state is not _S.CLOSED:
            return replace(self, unreported=error)
        return self

    def with_raised(self, error: BaseException) -> Transaction:
        """Note that a call raises the error, so that the next one need not. A fatal error stands for all."""
        return replace(self, unreported=None) if error in (self.unreported, self.error) else self

    def with_reported_by_future(self, error: Exception) -> Transaction:
        """Note that a future raises the error, so that the next call need not."""
        return replace(self.with_raised(error), reported=error)


def _error_with_cause(msg: str, cause: BaseException | None) -> InvalidTxnStateError:
    error = InvalidTxnStateError(msg)
    error.__cause__ = cause
    return error
