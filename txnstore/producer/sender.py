"""The sender: uploads batches, registers them with the chain and ends transactions, one command at a time.

Kafka's ``Sender`` is a thread. Here the calls that flush or commit do its work, one at a time, and a background thread
flushes after the linger time and for callers that wait with a timeout. The transaction manager has the pending command,
and the accumulator the batches that are not settled, so after an interrupt or an unknown outcome the next call
continues. The sender has no state of the protocol: it asks the manager, and reports events to it.

The locks of a producer, in the order in which a thread may acquire them:

1. ``Sender._turn``: one thread at a time flushes, commits, aborts, prepares, completes or closes. It is held during the
   requests of the call, so at most one command is pending, and commands reach the chain in the order of their sequence
   numbers.
2. ``TransactionManager.lock``: the state of the manager and the buffers of the accumulator. It is held for a few
   instructions and never during a request, so ``send`` does not wait for a commit.

``send``, and an upload in a worker thread, acquire only the second. The locks of the connection and its chains are
acquired with the turn, or with none of the two. The callbacks of futures are called with none of them, because they may
use the producer.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from txnstore.connection import Connection
from txnstore.core.model import Outcome, ProducerIdentity
from txnstore.core.routing import chain_of_transactional_id
from txnstore.core.transactions.commands import Ended, PrepareTxn
from txnstore.core.transactions.lookups import outcome_of
from txnstore.errors import (
    InvalidPidMappingError,
    InvalidProducerEpochError,
    InvalidTxnStateError,
    ProducerClosedError,
    ProducerFencedError,
    StorageError,
    TransactionAbortedError,
    TxnStoreError,
    UnknownOutcomeError,
)
from txnstore.producer.accumulator import RecordAccumulator
from txnstore.producer.batches import BatchWaiter, ProducerBatch, Upload, rounds
from txnstore.producer.linger import Linger
from txnstore.producer.prepared import PreparedTxn
from txnstore.producer.transaction_manager import PendingCommand, TransactionManager
from txnstore.producer.transaction_state import ABORTED_BY_CLOSE, ManagerState
from txnstore.producer.upload import Outcomes, Uploader, failure_of
from txnstore.threads import ForkLock


class Sender:
    """Writes the batches of the accumulator. The arguments are those of a producer; durations in seconds.

    Attributes:
        accumulator: The batches. Constant, as are the next three.
        outcomes: The batches that are settled, until their callbacks are called.
        uploader: The uploads of sealed batches.
        linger: The background thread.
        closed: Whether :meth:`close` has come to its end. Written by the thread that closes, with the turn; read by
            later calls of ``close``.
    """

    def __init__(
        self,
        connection: Connection,
        manager: TransactionManager,
        batch_bytes: int,
        buffer_bytes: int,
        linger: float | None,
        delivery_timeout: float,
    ) -> None:
        self._connection = connection
        self._manager = manager
        #: The turn of a call that submits commands; see the order of the locks above.
        self._turn = ForkLock()
        self.accumulator = RecordAccumulator(connection, manager, self, batch_bytes, buffer_bytes)
        self.outcomes = Outcomes(manager, self.accumulator)
        self.uploader = Uploader(connection, self.accumulator, delivery_timeout)
        self.linger = Linger(self, linger)
        self.closed = False

    def _uploaded(self, *, until_room: bool = False) -> list[Upload]:
        """The uploaded batches in the order of their seals. Waits for all, or (``until_room``) until there is room.

        A failed upload fails its batch and the transaction; without a transaction the other batches are registered.
        """
        registrable, others = self.uploader.collect(until_room=until_room)
        errors = [upload.error for upload in others if upload.error is not None and not upload.batch.settled]
        for upload in others:
            self.outcomes.fail_and_forget([upload], upload.error or TransactionAbortedError("the transaction failed"))
        if errors:
            self._fail(errors[0])
            if not self._manager.transactional:
                self._register(registrable)
            raise errors[0]
        return registrable

    def flush(self, *, until_room: bool = False) -> None:
        """Upload and register all records that were sent before. Raises the first error.

        ``until_room``: only until the buffer has room.
        """
        try:
            with self._turn.own:
                try:
                    self._flush(until_room=until_room)
                finally:
                    self.outcomes.failures_reported()
        finally:
            self.outcomes.call_back()

    def make_room(self) -> None:
        """Upload and register batches until the buffer has room, without a time limit."""
        self._manager.check_usable()
        self.flush(until_room=True)

    def _flush(self, *, until_room: bool = False) -> None:
        manager, accumulator = self._manager, self.accumulator
        if manager.state not in (ManagerState.READY, ManagerState.IN_TRANSACTION):
            return
        if until_room:
            accumulator.make_room()
        else:
            accumulator.seal_all()
        ends = None if until_room or manager.transactional else manager.identity
        self._check_timeout()  # Before the first request: nothing of a transaction past its timeout is written.
        self.uploader.start(keep_last=not until_room, ends=ends)
        self._add_partitions()  # While the segments are uploaded.
        if manager.pending is not None:
            self._submit(manager.pending)  # Its sequences make a repetition idempotent (SEQ-14).
        self._register(self._uploaded(until_room=until_room))
        if not until_room and manager.state is ManagerState.IN_TRANSACTION and manager.has_offsets:
            # Offsets without records: after the flush, no reader of the group may begin before them (OFF-10).
            self._submit(manager.append([]))
        accumulator.topics.renew_catalog()

    def _check_timeout(self) -> None:
        """Fail a transaction that begins after its timeout: nothing of it is written."""
        try:
            self._manager.check_timeout(self._connection.runtime.monotonic())
        except InvalidProducerEpochError as error:
            self._fail(error)
            raise

    def _add_partitions(self) -> None:
        """Add partitions and groups of other chains to the transaction while their segments are uploaded (ADD-01)."""
        manager = self._manager
        if manager.transactional and self._connection.several_chains:
            partitions = self.accumulator.sealed_partitions
            if self._connection.coordinator.add_in_background(manager.identity, partitions, manager.groups):
                manager.partitions_added()

    def _register(self, uploads: list[Upload]) -> None:
        """Register batches, one entry per round, in the open transaction if there is one."""
        for part in rounds(uploads):
            unsettled = [upload for upload in part if not upload.batch.settled]
            if unsettled:
                self._submit(self._manager.append(unsettled))

    def _submit(self, pending: PendingCommand) -> Ended | None:
        """Submit a command and settle its batches.

        After an unknown outcome or an interrupt the command stays pending, for the next call (API-08).
        """
        manager = self._manager
        manager.submitting(pending)
        try:
            answer = self._connection.submit(pending.command)
        except UnknownOutcomeError:
            manager.outcome_unknown()
            raise
        except StorageError:
            manager.not_written(pending)
            raise
        except TxnStoreError as error:
            reason = self._reason(error, pending)
            self._command_refused(pending, reason)
            if reason is error:
                raise
            raise reason from error
        except BaseException:  # An interrupt, which may be any exception that a signal handler raises.
            manager.outcome_unknown()
            raise
        # An interrupt between two of these steps leaves the command pending, and the next call submits it again: the
        # chain returns the same answer, and each step may be repeated.
        ended = answer if isinstance(answer, Ended) else None
        manager.acknowledged(pending)
        for upload, appended in zip(pending.uploads, ended.appended if ended is not None else answer, strict=True):
            upload.batch.resolve(appended)
        self.outcomes.settled([upload.batch for upload in pending.uploads])
        self.accumulator.forget(pending.uploads)
        manager.settled(pending)
        return ended

    def _reason(self, error: Exception, pending: PendingCommand | None = None) -> Exception:
        """The error to raise for a refused command: see :func:`~txnstore.producer.sender.fenced_or_aborted`."""
        try:
            return fenced_or_aborted(self._connection, self._manager.identity, error)
        except StorageError:
            if pending is not None:
                self._manager.not_written(pending)  # It was refused, so nothing happened; the next call submits again.
            raise

    def _command_refused(self, pending: PendingCommand, error: Exception) -> None:
        """Fail the batches of a refused command, and the transaction.

        Without a transaction, each batch is submitted alone: batches of other partitions may be accepted, or be in the
        log already if an earlier attempt had an unknown outcome (SEQ-15, SEQ-18).
        """
        manager = self._manager
        manager.command_refused(error, several_chains=self._connection.several_chains)
        fatal = isinstance(error, TxnStoreError) and error.fatal
        if not manager.transactional and len(pending.uploads) > 1 and not fatal:
            for upload in pending.uploads:
                try:
                    self._submit(manager.append([upload]))
                except StorageError:
                    raise
                except TxnStoreError:  # Its future has it; the caller gets the first error.
                    continue
            return
        self.outcomes.fail_and_forget(pending.uploads, error)
        self._fail(error)

    # Transactions -----------------------------------------------------------------------------------------------------

    def end(self, outcome: Outcome) -> None:
        """Commit or abort the transaction. Until the call returns to the application, it can be repeated."""
        self._manager.check_process()  # Before the lock: a forked child may have inherited it locked.
        try:
            with self._turn.own:
                try:
                    self._end(outcome)
                finally:
                    self.outcomes.failures_reported()
        finally:
            self.outcomes.call_back()

    def _end(self, outcome: Outcome) -> None:
        manager = self._manager
        if manager.ended_unreported(outcome):
            return
        repeats = manager.begin_end(outcome)
        try:
            pending = manager.pending_end if repeats else None
            pending = pending or self._last_command(outcome)
            ended = self._submit(pending) if pending is not None else None
            manager.ended(outcome, ended.producer if ended is not None else manager.identity)
        except BaseException as error:
            manager.not_ended(outcome, error)
            raise

    def _last_command(self, outcome: Outcome) -> PendingCommand | None:
        """The command that ends the transaction, with its unregistered batches; None if nothing to end (API-07)."""
        manager, accumulator = self._manager, self.accumulator
        if outcome is Outcome.ABORT:
            # Records that are not registered are dropped (API-06); their uploads become orphans.
            name = manager.identity.transactional_id
            msg = f"the transaction of {name!r} was aborted before this record was written"
            self._drop(TransactionAbortedError(msg))
            manager.drop_unsent()
            return manager.end(outcome, [])
        accumulator.seal_all()
        self._check_timeout()
        self.uploader.start(keep_last=True, ends=manager.identity)
        self._add_partitions()
        if manager.pending is not None:
            self._submit(manager.pending)  # Its sequences make a repetition idempotent (SEQ-14).
        parts = rounds(self._uploaded())
        for uploads in parts[:-1]:
            self._register(uploads)  # The last batches go with the end, in one entry.
        accumulator.topics.renew_catalog()
        return manager.end(outcome, parts[-1] if parts else [])

    def prepare(self) -> PreparedTxn:
        """Register all batches and prepare the transaction for an external coordinator (KIP-939, TPC-03)."""
        manager = self._manager
        manager.check_process()
        try:
            with self._turn.own:
                try:
                    manager.begin_prepare()
                    self._flush()
                    manager.check_flush()
                    if manager.started:
                        self._submit_prepare()
                    return manager.prepare()
                finally:
                    manager.end_prepare()
        finally:
            self.outcomes.call_back()

    def _submit_prepare(self) -> None:
        try:
            self._connection.submit(PrepareTxn(self._manager.identity))
        except UnknownOutcomeError:
            self._manager.prepare_unknown()
            raise
        except StorageError:
            raise  # Nothing happened: the call may be repeated.
        except TxnStoreError as error:
            reason = self._reason(error)
            self._fail(reason)
            if reason is error:
                raise
            raise reason from error
        except BaseException:
            self._manager.prepare_unknown()
            raise

    def complete(self, decided: PreparedTxn) -> bool:
        """Commit the prepared transaction if it is the decided one, else abort it; returns whether it was committed."""
        manager = self._manager
        manager.check_process()
        try:
            with self._turn.own:
                manager.check_usable()
                if manager.state is ManagerState.READY:
                    return False
                if manager.prepared is None:
                    msg = "cannot complete: the transaction is not prepared; commit or abort it"
                    raise InvalidTxnStateError(msg)
                commits = decided == manager.prepared
                self._end(Outcome.COMMIT if commits else Outcome.ABORT)
                manager.end_reported()
                return commits
        finally:
            self.outcomes.call_back()

    # Failures ---------------------------------------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        """End the producer if the error is fatal, else the transaction (API-09, ERR-05)."""
        if self._manager.failed(error):
            self._drop(failure_of(error))

    def record_refused(self, error: BaseException) -> None:
        """Make the open transaction abortable after a refused record, or refused offsets (API-05).

        A commit without the record would be partial, and one without the offsets would let the input be read again.

        Does not wait. Kafka: ``KafkaProducer.doSend`` calls ``maybeTransitionToErrorState``.
        """
        if self._manager.record_refused(error):
            pending = self._manager.pending
            submitted = set(pending.uploads) if pending is not None else set()
            dropped = [upload for upload in self.accumulator.abandon() if upload not in submitted]
            self.outcomes.fail(dropped, failure_of(error))
            self.outcomes.call_back()

    def _drop(self, error: Exception) -> None:
        """Fail all batches that are not registered, after their running uploads have ended.

        After an interrupt the rest stays in the accumulator, for the next call to drop.
        """
        for upload in (uploads := self.accumulator.abandon()):
            upload.wait()
        self.outcomes.fail_and_forget(uploads, error)

    # In the background ------------------------------------------------------------------------------------------------

    def flush_for(self, batch: ProducerBatch | None) -> Exception | None:
        """Flush for a waiter of ``batch``, or after the linger time; returns the error that prevented the write."""
        manager = self._manager
        try:
            manager.check_process()
            with self._turn.own:
                try:
                    self._flush()
                finally:
                    others = [error for failed, error in self.outcomes.take_failures() if failed is not batch]
                    if others:
                        manager.failed_in_background(others[0])
        except Exception as error:  # noqa: BLE001 - it is raised to the waiter
            return error
        finally:
            if not manager.forked:
                self.outcomes.call_back()
        return manager.flush_refusal()

    def reported(self, error: Exception) -> None:
        """A future has raised the error."""
        self._manager.reported(error)

    @property
    def has_more(self) -> bool:
        """Whether another flush may write records that the last one did not."""
        return self._manager.state in (ManagerState.READY, ManagerState.IN_TRANSACTION) and self.accumulator.has_batches

    @property
    def holds_transaction(self) -> bool:
        """Whether the chain knows an open transaction that a close would abort."""
        return self._manager.started and self._manager.state in ABORTED_BY_CLOSE

    def flush_soon(self, waiter: BatchWaiter) -> None:
        """Flush in the background, then wake the waiter."""
        if self._manager.forked:
            waiter.wake(self.flush_for(None))
        else:
            self.linger.demand(waiter)

    # Life -------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush, or abort the open transaction, then refuse further calls (API-11). Raises unreported failures."""
        manager = self._manager
        self.linger.stop()
        try:
            with self._turn.own:
                try:
                    if not manager.transactional:
                        self._flush()
                    elif manager.state in ABORTED_BY_CLOSE:
                        with suppress(ProducerFencedError):
                            self._end(Outcome.ABORT)
                finally:
                    manager.close()
                    self._abandon()
                    self.outcomes.failures_reported()
                    self.closed = True  # After an interrupt before this line, the next close repeats these steps.
        finally:
            self.outcomes.call_back()
        manager.raise_unreported()

    def _abandon(self) -> None:
        """Fail all batches; the outcome of those of a pending command is unknown."""
        pending = self._manager.pending
        if pending is not None:
            error = UnknownOutcomeError("the producer was closed while it was unknown whether this record was written")
            self.outcomes.fail_and_forget(pending.uploads, error)
            self._manager.abandoned()
        self._drop(ProducerClosedError("the producer was closed before this record was written"))


_LOG = logging.getLogger(__name__)


def fenced_or_aborted(connection: Connection, identity: ProducerIdentity, error: Exception) -> Exception:
    """The error to raise for a refused command: an abortable one if only this transaction was aborted, else ``error``.

    Kafka distinguishes INVALID_PRODUCER_EPOCH from PRODUCER_FENCED (KIP-588). The coordinator's chain keeps the last
    identity of a transactional id and the outcome of its transaction until the next init, which is enough to decide.
    One request for an error of fencing, none for any other.

    Returns:
        An :class:`InvalidProducerEpochError` if another process aborted the transaction, else ``error`` itself.

    Raises:
        StorageError: The chain could not be read.
    """
    name = identity.transactional_id
    if name is None or not isinstance(error, ProducerFencedError | InvalidPidMappingError):
        return error
    coordinator_chain = chain_of_transactional_id(name, len(connection.chains))
    txn = connection.view(refresh=(coordinator_chain,)).transactions.get(name)
    extra = {"transactional_id": name, "producer_id": identity.producer_id, "epoch": identity.epoch}
    if txn is None or outcome_of(txn, identity) is not Outcome.ABORT:
        _LOG.warning("producer fenced by a newer instance, or expired: %s", error, extra={**extra, "error": str(error)})
        return error
    _LOG.warning("transaction aborted by another process", extra=extra)
    timeout = f"{txn.timeout_ms / 1000:g} s"
    return InvalidProducerEpochError(
        f"the transaction of {identity} was aborted by another process, as happens after its timeout of {timeout}"
    )
