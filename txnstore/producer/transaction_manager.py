"""The state of a producer (:mod:`~txnstore.producer.transaction_state`), its identity, sequences and open command.

Kafka's ``TransactionManager``. It makes no requests, starts no threads and never waits: the
:mod:`~txnstore.producer.sender` does, and reports events to the manager, which alone changes the state.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

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
from txnstore.producer.transaction_state import TABLE, ManagerEvent, ManagerState
from txnstore.threads import ForkLock

_ENDING = (ManagerState.COMMITTING_TRANSACTION, ManagerState.ABORTING_TRANSACTION)
_OUTCOMES = {Outcome.COMMIT: ManagerEvent.COMMIT, Outcome.ABORT: ManagerEvent.ABORT}
_END_UNKNOWN = "the outcome of the commit or abort is unknown: repeat that call"
_ADDING = (ManagerEvent.SEND, ManagerEvent.SEND_OFFSETS)
#: What the application does with a call, for the error that refuses it.
_VERBS = {
    ManagerEvent.BEGIN: "begin a transaction",
    ManagerEvent.SEND: "send",
    ManagerEvent.SEND_OFFSETS: "send offsets",
    ManagerEvent.FLUSH: "flush",
    ManagerEvent.PREPARE: "prepare",
    ManagerEvent.COMMIT: "commit",
    ManagerEvent.ABORT: "abort",
}


@dataclass(slots=True)
class PendingCommand:
    """A command without an answer. It is resolved before another command is submitted.

    Only the manager writes the last two.

    Attributes:
        command: The command.
        batches: The batches that it registers, in the order of the command.
        repeated: Whether it is submitted again. An earlier attempt may have been written, so an error that means
            *nothing was written* is true of the last attempt only.
        unknown: Whether the call that submitted it, a commit or abort, raised, so that only that call may be repeated.
    """

    command: Append | EndTxn
    batches: list[ProducerBatch]
    repeated: bool = False
    unknown: bool = False


class TransactionManager:
    """The state of one producer.

    Nothing else changes it. The methods that do are named for calls of the application, and for events that the sender
    reports. Each acquires ``lock`` itself, except :meth:`check_send` and :meth:`begin_timeout`,
    which the sender calls with the lock held. Questions take no lock: each reads one field, or fields that only a
    holder of the sender's turn changes.

    Attributes:
        lock: Guards all fields, and the buffer; held for a few instructions, never during a
            request. The order of the locks is in :mod:`~txnstore.producer.sender`.
        transactional: Whether the producer has a transactional id. Constant.
        pid: The process that the producer was made in. Constant.
        takes_records: Whether a record may be sent now. It follows from the state, ``_preparing`` and
            ``_unreported_error``, and is written with each of them: ``send`` reads it once per record.
    """

    def __init__(self, identity: ProducerIdentity, timeout_ms: int | None = None) -> None:
        self.lock = ForkLock()
        self.transactional = identity.transactional_id is not None
        self.takes_records = not self.transactional
        self.pid = os.getpid()
        #: Transactional id, producer id and epoch of the open transaction, or of the next one if none is open.
        self._identity = identity
        self._state = ManagerState.READY
        #: The first error of the transaction, or the fatal error. Set with ABORTABLE_ERROR and FATAL_ERROR.
        self._error: BaseException | None = None
        #: The command without an answer. Set before its first attempt, so an interrupt leaves it to the next call.
        self._pending: PendingCommand | None = None
        #: Whether a chain may know the transaction, so that it has to be ended there. Set before the application gets
        #: the error of an attempt whose outcome is unknown; reset only when the transaction has ended.
        self._started = False
        #: The name of the prepared transaction. Not None in PREPARED_TRANSACTION, and while that is being ended.
        self._prepared: PreparedTxn | None = None
        #: Whether a prepare is under way: nothing is added to the transaction. The state is still IN_TRANSACTION.
        self._preparing = False
        #: When the first record or offsets of the transaction were sent, in monotonic ms; None before.
        self._first_at: int | None = None
        #: The timeout of a transaction in ms; None if it has none. Constant.
        self._timeout_ms = timeout_ms
        #: The sequence number of the next batch, by partition; a partition without batches in this epoch is missing.
        self._sequences: dict[TopicPartition, int] = {}
        #: The offsets of the transaction that are not registered. Replaced, never changed in place, but for appends.
        self._offsets: list[TxnOffsets] = []
        #: An error of batches that failed in the background, for the next call of the application to raise; always
        #: None with transactions, whose state refuses the next call. The call that raises it, or the fatal error
        #: behind it, resets it in one step, with or without the lock.
        self._unreported_error: Exception | None = None
        #: The error that a future raised last, which the next call need not raise again.
        self._reported_error: Exception | None = None
        #: The outcome of the last transaction, until the call that ended it has returned, or the next one begins.
        self._unreported_outcome: Outcome | None = None

    @property
    def identity(self) -> ProducerIdentity:
        """The transactional id, producer id and epoch."""
        return self._identity

    @property
    def state(self) -> ManagerState:
        """The state."""
        return self._state

    @property
    def pending(self) -> PendingCommand | None:
        """The command without an answer."""
        return self._pending

    @property
    def started(self) -> bool:
        """Whether a chain may know the transaction, so that it has to be ended there."""
        return self._started

    @property
    def prepared(self) -> PreparedTxn | None:
        """The name of the prepared transaction, if there is one."""
        return self._prepared

    # States -----------------------------------------------------------------------------------------------------------

    def _move(self, event: ManagerEvent) -> None:
        """Change the state by the table; raises the error of a refused event."""
        after = TABLE[self.transactional][self._state].get(event)
        if after is None:
            raise self._refusal(event)
        self._state = after
        self._set_takes_records()

    def _set_takes_records(self) -> None:
        self.takes_records = self.allows(ManagerEvent.SEND) and self._unreported_error is None

    def allows(self, event: ManagerEvent) -> bool:
        """Whether the state accepts the event; nothing is added to a transaction that is being prepared."""
        if self._preparing and event in _ADDING:
            return False
        return event in TABLE[self.transactional][self._state]

    def _refusal(self, event: ManagerEvent) -> BaseException:
        """The error of a call that the state does not accept."""
        call = _VERBS.get(event, event.name.lower())
        if self._state is ManagerState.CLOSED:
            return ProducerClosedError("the producer is closed")
        if self._state is ManagerState.FATAL_ERROR and self._error is not None:
            self._unreported_error = None  # The fatal error is what the next call raises, so close() need not.
            return self._error
        if event is ManagerEvent.BEGIN and not self.transactional:
            return InvalidTxnStateError("this producer has no transactional_id, so it cannot begin a transaction")
        if event is ManagerEvent.BEGIN and self._state is ManagerState.IN_TRANSACTION:
            return InvalidTxnStateError(f"cannot {call}: the previous one is still open; commit or abort it first")
        if self._state is ManagerState.ABORTABLE_ERROR:
            return _caused(f"cannot {call}: the transaction failed ({self._error}); abort it", self._error)
        if self._state in _ENDING and event in (ManagerEvent.COMMIT, ManagerEvent.ABORT):
            msg = f"cannot {call}: the outcome of the other call is unknown; repeat that call"
            return InvalidTxnStateError(msg)
        if self._state in _ENDING:
            why = "its outcome is unknown, repeat that call" if self.end_unknown else "wait for that call to return"
            return InvalidTxnStateError(f"cannot {call}: the transaction is being committed or aborted; {why}")
        if self._preparing and event in _ADDING:
            return InvalidTxnStateError(f"cannot {call}: the transaction is being prepared; wait for it to end")
        if self._state is ManagerState.PREPARING_TRANSACTION:
            msg = f"cannot {call}: the outcome of the prepare is unknown; repeat that call, or abort"
            return InvalidTxnStateError(msg)
        if self._state is ManagerState.PREPARED_TRANSACTION:
            msg = f"cannot {call}: the transaction is prepared; commit, abort or complete it"
            return InvalidTxnStateError(msg)
        hint = "" if event in (ManagerEvent.COMMIT, ManagerEvent.ABORT) else "; call begin_transaction() first"
        return InvalidTxnStateError(f"cannot {call}: no transaction is open{hint}")

    @property
    def forked(self) -> bool:
        """Whether this process was forked from the one that made the producer."""
        return self.pid != os.getpid()

    @property
    def pending_end(self) -> PendingCommand | None:
        """The submitted commit or abort without an answer."""
        pending = self._pending
        return pending if pending is not None and isinstance(pending.command, EndTxn) else None

    @property
    def end_unknown(self) -> bool:
        """Whether the outcome of a commit or abort is unknown, so that only the same call may be repeated."""
        pending = self.pending_end
        return pending is not None and pending.unknown

    def flush_refusal(self) -> Exception | None:
        """The error that keeps a flush from writing records in this state; None: it writes them."""
        if self._state in (ManagerState.READY, ManagerState.IN_TRANSACTION):
            return None
        if self._state in _ENDING:
            return UnknownOutcomeError(_END_UNKNOWN)
        error = self._refusal(ManagerEvent.FLUSH)
        return error if isinstance(error, Exception) else _caused("the call was interrupted", error)

    def check_process(self) -> None:
        """Raise :class:`ProducerClosedError` in a forked child."""
        if self.forked:
            msg = "this producer was made in the parent process: make a new one after a fork"
            raise ProducerClosedError(msg)

    def check_usable(self) -> None:
        """Raise if the producer is closed, has failed with a fatal error, or belongs to another process."""
        self.check_process()
        if self._state in (ManagerState.CLOSED, ManagerState.FATAL_ERROR):
            raise self._refusal(ManagerEvent.FLUSH)

    def check_send(self, event: ManagerEvent = ManagerEvent.SEND) -> None:
        """Raise unless records (or offsets) may be sent now. Also raises an unreported error, once.

        Called with the lock held where a record is added, and before that without: a refused record is not checked.
        """
        self.check_process()
        if not self.allows(event):
            raise self._refusal(event)
        self._raise_unreported()

    def check_flush(self) -> None:
        """After a flush: raise the error that prevents records from being written, if there is one."""
        if self._state is ManagerState.ABORTABLE_ERROR:
            raise self._refusal(ManagerEvent.FLUSH)
        if self.end_unknown:
            raise UnknownOutcomeError(_END_UNKNOWN)
        self.raise_unreported()

    # Failures in the background ---------------------------------------------------------------------------------------

    def failed_in_background(self, error: Exception) -> None:
        """Batches failed outside of a call of the application: the next call raises the first such error.

        Only without transactions: a failed transaction has a state that refuses the next call.
        """
        with self.lock.own:
            is_new = self._unreported_error is None and error is not self._reported_error
            if is_new and not self.transactional and self._state is not ManagerState.CLOSED:
                self._unreported_error = error
                self._set_takes_records()

    def reported(self, error: Exception) -> None:
        """A future has raised the error: the next call need not raise it again."""
        with self.lock.own:
            self._reported_error = error
            if self._unreported_error is error:
                self._unreported_error = None
                self._set_takes_records()

    def raise_unreported(self) -> None:
        """Raise the error of the background since the last call, if there is one. It is raised once."""
        with self.lock.own:
            self._raise_unreported()

    def _raise_unreported(self) -> None:
        error = self._unreported_error
        if error is not None:
            self._unreported_error = None
            self._set_takes_records()
            raise error

    # Transactions -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a transaction. Nothing is written before its first record (API-02)."""
        self.check_usable()
        with self.lock.own:
            self._move(ManagerEvent.BEGIN)
            self._unreported_outcome = self._first_at = None

    def add_offsets(self, offsets: TxnOffsets, now: int) -> None:
        """Add offsets that the transaction commits; ``now`` in monotonic ms."""
        with self.lock.own:
            self.check_send(ManagerEvent.SEND_OFFSETS)
            self._offsets.append(offsets)
            self.begin_timeout(now)

    def begin_timeout(self, now: int) -> None:
        """A record or offsets of the transaction are sent: its timeout runs from the first of them (TMO-01).

        In Kafka it runs from the request that adds the first partition, which follows the first ``send`` immediately.
        Here records wait in a buffer, and the chain knows nothing of them until they are registered. Called with the
        lock held.
        """
        if self._first_at is None:
            self._first_at = now

    def check_timeout(self, now: int) -> None:
        """Refuse to begin a transaction in the chain whose records have waited for longer than its timeout.

        Once the chain knows the transaction, the entry that began it decides.

        Raises:
            InvalidProducerEpochError: The timeout has passed; as if another process had aborted the transaction.
        """
        if self._started or self._first_at is None or self._timeout_ms is None:
            return
        if now - self._first_at > self._timeout_ms:
            timeout = f"{self._timeout_ms / 1000:g} s"
            msg = (
                f"the first record of the transaction of {self._identity} was sent longer ago than its timeout of "
                f"{timeout}, and nothing of it was written yet: abort it, and send the records again"
            )
            raise InvalidProducerEpochError(msg)

    def begin_prepare(self) -> None:
        """Begin to prepare: no record is accepted from now on, so the prepare covers all that was sent."""
        self.check_usable()
        with self.lock.own:
            if not self.allows(ManagerEvent.PREPARE):
                raise self._refusal(ManagerEvent.PREPARE)
            self._preparing = True
            self._set_takes_records()

    def end_prepare(self) -> None:
        """The prepare has ended or failed."""
        with self.lock.own:
            self._preparing = False
            self._set_takes_records()

    def prepare(self) -> PreparedTxn:
        """All is registered, and the transaction is prepared: an external coordinator decides."""
        with self.lock.own:
            self._move(ManagerEvent.PREPARE)
            self._prepared = PreparedTxn(self._identity.producer_id, self._identity.epoch)
            return self._prepared

    def prepare_unknown(self) -> None:
        """The transaction may be prepared: the prepare is repeated, or the transaction aborted."""
        with self.lock.own:
            self._move(ManagerEvent.PREPARE_UNKNOWN)

    def take_over(self, prepared: PreparedTxn) -> None:
        """Continue the transaction that an earlier instance has prepared."""
        with self.lock.own:
            self._move(ManagerEvent.TAKE_OVER)
            self._prepared, self._started = prepared, True

    def begin_end(self, outcome: Outcome) -> bool:
        """Begin a commit or abort. Records are refused from here on, so each belongs to one transaction (API-19).

        Returns:
            Whether it repeats a call that has not ended the transaction.
        """
        self.check_usable()
        with self.lock.own:
            repeats = self._state in _ENDING
            self._move(_OUTCOMES[outcome])
            return repeats

    def ended(self, outcome: Outcome, identity: ProducerIdentity) -> None:
        """The transaction has ended. The next one has this identity, and sequences from 0 (SEQ-01).

        An interrupt may come between two of its steps:

        1. Nothing is pending any more, and the state is still COMMITTING_TRANSACTION.
        2. :meth:`not_ended` returns to IN_TRANSACTION, as after a commit that wrote nothing.
        3. The application repeats the commit: the transaction is empty now, so no command is submitted, and this method
           is called again.

        So everything is reset before the state, and an interrupted end is never submitted with the next identity.
        """
        with self.lock.own:
            self._unreported_outcome = outcome
            self._identity = identity
            self._sequences, self._offsets, self._started = {}, [], False
            self._pending = self._error = self._prepared = None
            self._move(ManagerEvent.ENDED)

    def ended_unreported(self, outcome: Outcome) -> bool:
        """Whether an interrupted call has ended the transaction with this outcome, and is repeated now."""
        return self._unreported_outcome is outcome and self._state is ManagerState.READY

    def end_reported(self) -> None:
        """The call that ended the transaction returns to the application."""
        with self.lock.own:
            self._unreported_outcome = None

    def not_ended(self, outcome: Outcome, error: BaseException) -> None:
        """A commit or abort raised ``error``. Unless its outcome is unknown, return to the state before the call."""
        with self.lock.own:
            pending = self.pending_end
            if pending is not None:
                pending.unknown = True  # The same call repeats the command, and gets the same answer.
            elif self._state not in _ENDING:
                return
            elif outcome is Outcome.ABORT:
                # Unsent records are dropped, so this transaction must never be committed.
                self._error = self._error or error
                self._move(ManagerEvent.ABORTABLE)
            else:
                self._move(ManagerEvent.RESUME if self._prepared is None else ManagerEvent.RESUME_PREPARED)

    def failed(self, error: BaseException) -> bool:
        """A command or an upload failed: a fatal error ends the producer, another one the transaction (API-09, ERR-05).

        Returns:
            Whether the records that are not registered have to be dropped.
        """
        with self.lock.own:
            fatal = isinstance(error, TxnStoreError) and error.fatal
            before = self._state
            if before is ManagerState.CLOSED or (before is ManagerState.FATAL_ERROR and not fatal):
                return True
            self._move(ManagerEvent.FATAL if fatal else ManagerEvent.ABORTABLE)
            if self._state is not ManagerState.READY and self._state is not before:
                self._error = error
            return self._state is not ManagerState.READY

    def record_refused(self, error: BaseException) -> bool:
        """A record was refused: an open transaction becomes abortable (API-05).

        Returns:
            Whether a transaction was open; else the state is unchanged.
        """
        with self.lock.own:
            if self.forked or self._preparing or self._state is not ManagerState.IN_TRANSACTION:
                return False
            self._move(ManagerEvent.ABORTABLE)
            self._error = error
            return True

    def close(self) -> None:
        """Refuse all further calls. Can be repeated after an interrupt."""
        with self.lock.own:
            self._move(ManagerEvent.CLOSE)

    # Commands ---------------------------------------------------------------------------------------------------------

    @property
    def has_offsets(self) -> bool:
        """Whether there are offsets that are not registered."""
        return bool(self._offsets)

    @property
    def groups(self) -> list[str]:
        """The groups with offsets that are not registered."""
        return [offsets.group for offsets in self._offsets]

    def numbered(self, batches: Sequence[ProducerBatch]) -> tuple[NewBatch, ...]:
        """The batches with their sequence numbers: contiguous in each partition, from 0 in each epoch (SEQ-01)."""
        numbered, following = [], dict(self._sequences)
        for batch in batches:
            sequence = following.get(batch.tp, 0)
            numbered.append(replace(batch.new_batch, base_sequence=sequence))
            following[batch.tp] = next_sequence(sequence, batch.rows)
        return tuple(numbered)

    def append(self, batches: list[ProducerBatch]) -> PendingCommand:
        """The command that registers these batches, and the offsets that are not registered."""
        return PendingCommand(Append(self._identity, self.numbered(batches), tuple(self._offsets)), batches)

    def end(self, outcome: Outcome, batches: list[ProducerBatch]) -> PendingCommand | None:
        """The command that ends the transaction with these batches and all offsets; None if nothing to end (API-07)."""
        if outcome is Outcome.ABORT:
            return PendingCommand(EndTxn(self._identity, outcome), []) if self._started else None
        if not (self._started or batches or self._offsets):
            return None
        return PendingCommand(EndTxn(self._identity, outcome, self.numbered(batches), tuple(self._offsets)), batches)

    def partitions_added(self) -> None:
        """Chains have partitions or groups of the transaction (ADD-01), so it has to be ended there."""
        with self.lock.own:
            self._started = True

    def submitting(self, pending: PendingCommand) -> None:
        """The command is about to be submitted, or to be submitted again."""
        with self.lock.own:
            pending.repeated = self._pending is pending
            self._pending = pending

    def outcome_unknown(self) -> None:
        """The pending command may be written: the next call submits it again, or ends the transaction (API-08)."""
        with self.lock.own:
            self._started = True

    def not_written(self, pending: PendingCommand) -> None:
        """The attempt wrote nothing: the batches stay uploaded, and the call may be repeated.

        A repeated command stays pending, because an earlier attempt may have been written:

        1. A commit ends with an unknown outcome: the storage may write its entry later.
        2. The commit is repeated, and this attempt certainly writes nothing.
        3. If the command were forgotten here, :meth:`not_ended` would return to IN_TRANSACTION, which allows an abort,
           while the first attempt may still commit (KAFKA-17754).
        """
        with self.lock.own:
            if not pending.repeated:
                self._pending = None

    def command_refused(self, error: Exception, *, several_chains: bool) -> None:
        """The chain refused the pending command.

        The transaction has to be ended in the chains if another process has aborted it, because the answer to the
        abort has the next epoch; and with several chains, because one of them may have a part of the command.
        """
        with self.lock.own:
            self._started = self._started or several_chains or isinstance(error, InvalidProducerEpochError)
            self._pending = None

    def acknowledged(self, pending: PendingCommand) -> None:
        """The chain has the command. May be reported again after an interrupt.

        An end changes nothing before :meth:`ended`: until then it may be interrupted, and is submitted again.
        """
        if isinstance(pending.command, EndTxn):
            return
        registered = {id(offsets) for offsets in pending.command.offsets}
        with self.lock.own:
            self._started = True
            self._offsets = [offsets for offsets in self._offsets if id(offsets) not in registered]
            for batch in pending.command.batches:
                self._sequences[batch.tp] = next_sequence(batch.base_sequence, batch.records)

    def settled(self, pending: PendingCommand) -> None:
        """The batches of an acknowledged command are settled. An end stays pending until :meth:`ended`."""
        with self.lock.own:
            if isinstance(pending.command, EndTxn):
                pending.unknown = False
            else:
                self._pending = None

    def drop_unsent(self) -> None:
        """An abort begins: drop the offsets that are not registered, and the pending command, which it undoes."""
        with self.lock.own:
            self._started = self._started or self._pending is not None
            self._offsets = []
            self._pending = None

    def abandoned(self) -> None:
        """The producer is closed without an answer to the pending command."""
        with self.lock.own:
            self._pending = None


def _caused(msg: str, cause: BaseException | None) -> InvalidTxnStateError:
    error = InvalidTxnStateError(msg)
    error.__cause__ = cause
    return error
