"""The state of a producer (:mod:`~txnstore.producer.transaction_state`), its identity, sequences and open command.

Kafka's ``TransactionManager``. It makes no requests, starts no threads and never waits: the
:mod:`~txnstore.producer.sender` does, and reports the results to the manager.
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
from txnstore.producer.batches import Upload
from txnstore.producer.prepared import PreparedTxn
from txnstore.producer.transaction_state import TABLE, Event, State
from txnstore.threads import ForkLock

_ENDING = (State.COMMITTING_TRANSACTION, State.ABORTING_TRANSACTION)
_OUTCOMES = {Outcome.COMMIT: Event.COMMIT, Outcome.ABORT: Event.ABORT}
_ADDING = (Event.SEND, Event.SEND_OFFSETS)
_VERBS = {Event.BEGIN: "begin a transaction", Event.SEND: "send", Event.SEND_OFFSETS: "send offsets",
          Event.FLUSH: "flush", Event.PREPARE: "prepare", Event.COMMIT: "commit", Event.ABORT: "abort"}  # fmt: skip


@dataclass(slots=True)
class Pending:
    """A command whose answer is outstanding. It is resolved before another command is submitted.

    Attributes:
        command: The command.
        uploads: The uploads whose batches it registers.
        unknown: Whether the attempt has ended with an unknown outcome, so that the command has to be repeated.
    """

    command: Append | EndTxn
    uploads: list[Upload]
    unknown: bool = False


class TransactionManager:
    """The state of one producer.

    Every public method that changes the state acquires ``lock`` itself, except :meth:`check_send`, which the
    accumulator calls with the lock held.

    Attributes:
        lock: Guards the state, and the buffers of the accumulator.
        identity: Transactional id, producer id and epoch.
        state: The state.
        error: The first error of the transaction, or the fatal error.
        pending: The command whose answer is outstanding.
        prepared: The name of the prepared transaction.
        started: Whether the chain may know the transaction, so that it has to be ended there.
        first_at: When the first record or offsets of the transaction were sent, in monotonic ms; None before.
        timeout_ms: The timeout of a transaction; None if it has none.
        transactional: Whether the producer has a transactional id.
        takes_records: Whether a record may be sent now.
        pid: The process that the producer was made in.
    """

    def __init__(self, identity: ProducerIdentity, timeout_ms: int | None = None) -> None:
        self.lock = ForkLock()
        self.identity = identity
        self.state = State.READY
        self.error: BaseException | None = None
        self.pending: Pending | None = None
        self.prepared: PreparedTxn | None = None
        self.started = False
        self.first_at: int | None = None
        self.timeout_ms = timeout_ms
        self.transactional = identity.transactional_id is not None
        self.takes_records = not self.transactional
        self.pid = os.getpid()
        self._sequences: dict[TopicPartition, int] = {}
        self._offsets: list[TxnOffsets] = []
        self._unreported: Exception | None = None
        self._raised: Exception | None = None  # The error that a future raised last.
        self._unheard: Outcome | None = None
        self._preparing = False

    # States -----------------------------------------------------------------------------------------------------------

    def _move(self, event: Event) -> None:
        """Change the state as the table says; raises the error of a refused event."""
        after = TABLE[self.transactional][self.state].get(event)
        if after is None:
            raise self._refusal(event)
        self.state = after
        self._note()

    def _note(self) -> None:
        self.takes_records = self.allows(Event.SEND) and self._unreported is None

    def allows(self, event: Event) -> bool:
        """Whether the state accepts the event; nothing is added to a transaction that is being prepared."""
        if self._preparing and event in _ADDING:
            return False
        return event in TABLE[self.transactional][self.state]

    def _refusal(self, event: Event) -> BaseException:
        """The error of a call that the state does not accept."""
        what = _VERBS.get(event, event.name.lower())
        if self.state is State.CLOSED:
            return ProducerClosedError("the producer is closed")
        if self.state is State.FATAL_ERROR and self.error is not None:
            self._unreported = None
            return self.error
        if event is Event.BEGIN and not self.transactional:
            return InvalidTxnStateError("this producer has no transactional_id, so it cannot begin a transaction")
        if event is Event.BEGIN and self.state is State.IN_TRANSACTION:
            return InvalidTxnStateError(f"cannot {what}: the previous one is still open; commit or abort it first")
        if self.state is State.ABORTABLE_ERROR:
            return _caused(f"cannot {what}: the transaction failed ({self.error}); abort it", self.error)
        if self.state in _ENDING and event in (Event.COMMIT, Event.ABORT):
            msg = f"cannot {what}: the outcome of the other call is unknown; repeat that call"
            return InvalidTxnStateError(msg)
        if self.state in _ENDING:
            why = "its outcome is unknown, repeat that call" if self.end_unknown else "wait for that call to return"
            return InvalidTxnStateError(f"cannot {what}: the transaction is being committed or aborted; {why}")
        if self._preparing and event in _ADDING:
            return InvalidTxnStateError(f"cannot {what}: the transaction is being prepared; wait for it to end")
        if self.state is State.PREPARING_TRANSACTION:
            msg = f"cannot {what}: the outcome of the prepare is unknown; repeat that call, or abort"
            return InvalidTxnStateError(msg)
        if self.state is State.PREPARED_TRANSACTION:
            msg = f"cannot {what}: the transaction is prepared; commit, abort or complete it"
            return InvalidTxnStateError(msg)
        hint = "" if event in (Event.COMMIT, Event.ABORT) else "; call begin_transaction() first"
        return InvalidTxnStateError(f"cannot {what}: no transaction is open{hint}")

    @property
    def forked(self) -> bool:
        """Whether this process was forked from the one that made the producer."""
        return self.pid != os.getpid()

    @property
    def pending_end(self) -> Pending | None:
        """The submitted commit or abort whose answer is outstanding."""
        pending = self.pending
        return pending if pending is not None and isinstance(pending.command, EndTxn) else None

    @property
    def end_unknown(self) -> bool:
        """Whether the outcome of a commit or abort is unknown, so that only the same call may be repeated."""
        pending = self.pending_end
        return pending is not None and pending.unknown

    def refusal_of_flush(self) -> Exception | None:
        """The error that tells why records cannot be written in this state, or None if they can."""
        if self.state in (State.READY, State.IN_TRANSACTION):
            return None
        if self.state in _ENDING:
            return UnknownOutcomeError("the outcome of the commit or abort is unknown: repeat that call")
        error = self._refusal(Event.FLUSH)
        return error if isinstance(error, Exception) else _caused("the call was interrupted", error)

    def check_process(self) -> None:
        """Raise :class:`ProducerClosedError` in a forked child."""
        if self.forked:
            msg = "this producer was made in the parent process: make a new one after a fork"
            raise ProducerClosedError(msg)

    def check_usable(self) -> None:
        """Raise if the producer is closed, has failed with a fatal error, or belongs to another process."""
        self.check_process()
        if self.state in (State.CLOSED, State.FATAL_ERROR):
            raise self._refusal(Event.FLUSH)

    def check_send(self, event: Event = Event.SEND) -> None:
        """Raise unless records (or offsets) may be sent now. Also raises an unreported failure, once."""
        self.check_process()
        if not self.allows(event):
            raise self._refusal(event)
        self._report()

    def check_flush(self) -> None:
        """After a flush: raise the error that prevents records from being written, if there is one."""
        if self.state is State.ABORTABLE_ERROR:
            raise self._refusal(Event.FLUSH)
        if self.end_unknown:
            msg = "the outcome of the commit or abort is unknown: repeat that call"
            raise UnknownOutcomeError(msg)
        self.report()

    # Failures in the background ---------------------------------------------------------------------------------------

    def remember(self, error: Exception) -> None:
        """Keep the error of batches that failed outside of a call of the application, for the next call to raise.

        Only without transactions: a failed transaction has a state that refuses the next call.
        """
        with self.lock.own:
            wanted = self._unreported is None and error is not self._raised
            if not self.transactional and self.state is not State.CLOSED and wanted:
                self._unreported = error
                self._note()

    def reported(self, error: Exception) -> None:
        """A future has raised the error: the next call need not raise it again."""
        with self.lock.own:
            self._raised = error
            if self._unreported is error:
                self._unreported = None
                self._note()

    def report(self) -> None:
        """Raise the failure in the background since the last call, if there is one. It is raised once."""
        with self.lock.own:
            self._report()

    def _report(self) -> None:
        error = self._unreported
        if error is not None:
            self._unreported = None
            self._note()
            raise error

    # Transactions -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a transaction. Nothing is written before its first record (API-02)."""
        self.check_usable()
        with self.lock.own:
            self._move(Event.BEGIN)
            self._unheard = self.first_at = None

    def add_offsets(self, offsets: TxnOffsets, now: int) -> None:
        """Add offsets that the transaction commits; ``now`` in monotonic ms."""
        with self.lock.own:
            self.check_send(Event.SEND_OFFSETS)
            self._offsets.append(offsets)
            self.first(now)

    def first(self, now: int) -> None:
        """A record or offsets of the transaction are sent: its timeout runs from the first of them (TMO-01).

        In Kafka it runs from the request that adds the first partition, which follows the first ``send`` immediately.
        Here records wait in a buffer, and the chain knows nothing of them until they are registered.
        """
        if self.first_at is None:
            self.first_at = now

    def check_timeout(self, now: int) -> None:
        """Refuse to begin a transaction in the chain whose records have waited for longer than its timeout.

        Once the chain knows the transaction, the entry that began it decides.

        Raises:
            InvalidProducerEpochError: The timeout has passed; as if another process had aborted the transaction.
        """
        if self.started or self.first_at is None or self.timeout_ms is None:
            return
        if now - self.first_at > self.timeout_ms:
            msg = (
                f"the first record of the transaction of {self.identity} was sent longer ago than its timeout of "
                f"{self.timeout_ms / 1000:g} s, and nothing of it was written yet: abort it, and send the records again"
            )
            raise InvalidProducerEpochError(msg)

    def begin_prepare(self) -> None:
        """Begin to prepare: no record is accepted from now on, so the prepare covers all that was sent."""
        self.check_usable()
        with self.lock.own:
            if not self.allows(Event.PREPARE):
                raise self._refusal(Event.PREPARE)
            self._preparing = True
            self._note()

    def end_prepare(self) -> None:
        """The prepare has ended or failed."""
        with self.lock.own:
            self._preparing = False
            self._note()

    def prepare(self) -> PreparedTxn:
        """All is registered, and the transaction is prepared: an external coordinator decides."""
        with self.lock.own:
            self._move(Event.PREPARE)
            self.prepared = PreparedTxn(self.identity.producer_id, self.identity.epoch)
            return self.prepared

    def prepare_unknown(self) -> None:
        """The transaction may be prepared: the prepare is repeated, or the transaction aborted."""
        with self.lock.own:
            self._move(Event.PREPARE_UNKNOWN)

    def take_over(self, prepared: PreparedTxn) -> None:
        """Continue the transaction that an earlier instance has prepared."""
        with self.lock.own:
            self._move(Event.TAKE_OVER)
            self.prepared, self.started = prepared, True

    def begin_end(self, outcome: Outcome) -> bool:
        """Begin a commit or abort. Records are refused from here on, so each belongs to one transaction (API-19).

        Returns:
            Whether it repeats a call that has not ended the transaction.
        """
        self.check_usable()
        with self.lock.own:
            repeats = self.state in _ENDING
            self._move(_OUTCOMES[outcome])
            return repeats

    def ended(self, outcome: Outcome, identity: ProducerIdentity) -> None:
        """The transaction has ended. The next one has this identity, and sequences from 0 (SEQ-01)."""
        with self.lock.own:
            self._unheard = outcome
            self.identity = identity
            self._sequences, self._offsets, self.started = {}, [], False
            self.pending = self.error = self.prepared = None
            self._move(Event.ENDED)

    def was_ended(self, outcome: Outcome) -> bool:
        """Whether an interrupted call has ended the transaction with this outcome, and is repeated now."""
        return self._unheard is outcome and self.state is State.READY

    def heard(self) -> None:
        """The call that ended the transaction returns to the application."""
        self._unheard = None

    def not_ended(self, outcome: Outcome, error: BaseException) -> None:
        """A commit or abort raised ``error``. Unless its outcome is unknown, return to the state before the call."""
        with self.lock.own:
            pending = self.pending_end
            if pending is not None:
                pending.unknown = True  # The same call repeats the command, and gets the same answer.
            elif self.state not in _ENDING:
                return
            elif outcome is Outcome.ABORT:
                # Unsent records are dropped, so this transaction must never be committed.
                self.error = self.error or error
                self._move(Event.ABORTABLE)
            else:
                self._move(Event.RESUME if self.prepared is None else Event.RESUME_PREPARED)

    def fail(self, error: BaseException) -> bool:
        """A command or an upload failed: a fatal error ends the producer, another one the transaction (API-09, ERR-05).

        Returns:
            Whether the records that are not registered have to be dropped.
        """
        with self.lock.own:
            fatal = isinstance(error, TxnStoreError) and error.fatal
            before = self.state
            if before is State.CLOSED or (before is State.FATAL_ERROR and not fatal):
                return True
            self._move(Event.FATAL if fatal else Event.ABORTABLE)
            if self.state is not State.READY and self.state is not before:
                self.error = error
            return self.state is not State.READY

    def refuse(self, error: BaseException) -> bool:
        """A record was refused: an open transaction becomes abortable (API-05).

        Returns:
            Whether a transaction was open; else the state is unchanged.
        """
        with self.lock.own:
            if self.forked or self._preparing or self.state is not State.IN_TRANSACTION:
                return False
            self._move(Event.ABORTABLE)
            self.error = error
            return True

    def close(self) -> None:
        """Refuse all further calls. Can be repeated after an interrupt."""
        with self.lock.own:
            self._move(Event.CLOSE)

    # Commands ---------------------------------------------------------------------------------------------------------

    @property
    def has_offsets(self) -> bool:
        """Whether there are offsets that are not registered."""
        return bool(self._offsets)

    @property
    def groups(self) -> list[str]:
        """The groups with offsets that are not registered."""
        return [offsets.group for offsets in self._offsets]

    def numbered(self, uploads: Sequence[Upload]) -> tuple[NewBatch, ...]:
        """The batches with their sequence numbers: contiguous in each partition, from 0 in each epoch (SEQ-01)."""
        batches, following = [], dict(self._sequences)
        for upload in uploads:
            sequence = following.get(upload.batch.tp, 0)
            batches.append(replace(upload.registrable, base_sequence=sequence))
            following[upload.batch.tp] = next_sequence(sequence, upload.batch.rows)
        return tuple(batches)

    def append(self, uploads: list[Upload]) -> Pending:
        """The command that registers these batches, and the offsets that are not registered."""
        return Pending(Append(self.identity, self.numbered(uploads), tuple(self._offsets)), uploads)

    def end(self, outcome: Outcome, uploads: list[Upload]) -> Pending | None:
        """The command that ends the transaction with these batches and all offsets; None if nothing to end (API-07)."""
        if outcome is Outcome.ABORT:
            return Pending(EndTxn(self.identity, outcome), []) if self.started else None
        if not (self.started or uploads or self._offsets):
            return None
        return Pending(EndTxn(self.identity, outcome, self.numbered(uploads), tuple(self._offsets)), uploads)

    def advance(self, command: Append | EndTxn) -> None:
        """The command is in the chain. May be repeated after an interrupt."""
        self.started = True
        sent = {id(offsets) for offsets in command.offsets}
        with self.lock.own:
            self._offsets = [offsets for offsets in self._offsets if id(offsets) not in sent]
        for batch in command.batches:
            self._sequences[batch.tp] = next_sequence(batch.base_sequence, batch.records)

    def drop_unsent(self) -> None:
        """Drop the offsets that are not registered, and the command without an answer: the transaction is aborted."""
        with self.lock.own:
            self.started = self.started or self.pending is not None
            self._offsets = []
            self.pending = None


def _caused(msg: str, cause: BaseException | None) -> InvalidTxnStateError:
    error = InvalidTxnStateError(msg)
    error.__cause__ = cause
    return error
