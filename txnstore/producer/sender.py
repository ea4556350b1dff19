"""The sender: uploads batches, registers them with the chain, ends transactions; one command at a time.

Kafka's ``Sender`` is a thread. Here whoever flushes or commits does its work in turn, and a thread of the sender's own
flushes what lingers and what somebody waits for with a time limit. What an interrupt or an unknown outcome must not
lose is kept by the transaction manager (a command without an answer) and by the accumulator (batches without an
outcome), so the next call goes on where one stopped.
"""

from __future__ import annotations

import threading
from concurrent import futures
from contextlib import suppress

from txnstore.connection import Connection
from txnstore.core.model import Outcome
from txnstore.core.transactions.commands import Ended, HoldTxn
from txnstore.errors import (
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
from txnstore.producer.batches import Batch, Upload, Waiter, rounds
from txnstore.producer.fencing import refusal
from txnstore.producer.linger import Linger
from txnstore.producer.outcomes import Outcomes
from txnstore.producer.prepared import PreparedTxn
from txnstore.producer.transaction_manager import Pending, TransactionManager
from txnstore.producer.transaction_state import State
from txnstore.producer.upload import Uploader


class Sender:
    """Sends what the accumulator holds. ``linger``: seconds after which it does so by itself; None: never."""

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
        self._turn = threading.RLock()  # Held by whoever submits. Never taken by who holds the manager's lock.
        self.accumulator = RecordAccumulator(connection, manager, self, batch_bytes, buffer_bytes)
        self.outcomes = Outcomes(manager, self.accumulator)
        self.uploader = Uploader(connection, self.accumulator, delivery_timeout)
        self.linger = Linger(self, linger)

    # Uploads ----------------------------------------------------------------------------------------------------------

    def _uploaded(self, *, crowd_only: bool = False) -> list[Upload]:
        """The uploaded batches in the order of their seals; waits for all, or for the oldest until there is room.

        A failed upload ends its batch, and with it the transaction. Without one, the good batches go on alone.
        """
        accumulator = self.accumulator
        good: list[Upload] = []
        bad: list[Upload] = []
        if not crowd_only:
            self.uploader.upload_rest()  # While the others are on their way.
        for upload in list(accumulator.sealed):
            if crowd_only and not upload.ended and accumulator.buffered * 2 < accumulator.buffer_bytes:
                break
            self.uploader.wait_for(upload)
            (good if upload.new_batch is not None and not upload.batch.settled else bad).append(upload)
        errors = [upload.error for upload in bad if upload.error is not None and not upload.batch.settled]
        for upload in bad:
            self.outcomes.fail_and_forget([upload], upload.error or TransactionAbortedError("the transaction failed"))
        if errors:
            self.fail(errors[0])
            if not self._manager.transactional:
                self._register(good)
            raise errors[0]
        return good

    # Registration -----------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Upload and register everything that was sent before. Raises the first error."""
        try:
            with self._turn:
                try:
                    self._flush()
                finally:
                    self.outcomes.heard()
        finally:
            self.outcomes.tell()

    def make_room(self) -> None:
        """Register what is uploaded until the buffer has room, however long that takes."""
        self._manager.check_usable()
        try:
            with self._turn:
                try:
                    self._flush(crowd_only=True)
                finally:
                    self.outcomes.heard()
        finally:
            self.outcomes.tell()

    def _flush(self, *, crowd_only: bool = False) -> None:
        manager, accumulator = self._manager, self.accumulator
        if manager.state not in (State.READY, State.IN_TRANSACTION):
            return
        if crowd_only:
            accumulator.make_room()
        else:
            accumulator.seal_all()
        self.uploader.start(keep_last=not crowd_only)
        self._announce()
        self._resolve_pending()
        self._register(self._uploaded(crowd_only=crowd_only))
        if not crowd_only and manager.state is State.IN_TRANSACTION and manager.has_offsets:
            # Offsets that came without records: once flushed, no reader of the group may begin before them (OFF-10).
            self._submit(manager.append([]))
        accumulator.look_again()

    def _announce(self) -> None:
        """What lies in other chains joins the transaction while its segments are on their way (ADD-01)."""
        manager = self._manager
        if manager.transactional and len(self._connection.chains) > 1:
            partitions = self.accumulator.sealed_partitions
            if self._connection.coordinator.announce(manager.identity, partitions, manager.groups):
                manager.started = True

    def _resolve_pending(self) -> None:
        """Repeat the command whose outcome is unknown; its sequences make that harmless (SEQ-14)."""
        if self._manager.pending is not None:
            self._submit(self._manager.pending)

    def _register(self, uploads: list[Upload]) -> None:
        """Give batches their offsets, with one entry per round, inside the open transaction if there is one."""
        for part in rounds(uploads):
            waiting = [upload for upload in part if not upload.batch.settled]
            if waiting:
                self._submit(self._manager.append(waiting))

    def _submit(self, pending: Pending) -> Ended | None:
        """Submit a command and settle its batches. An unknown outcome keeps the command for the next call.

        So does an interrupt, wherever it comes: the outcome is as unknown as after a timeout (API-08).
        """
        manager = self._manager
        repeated, manager.pending = manager.pending is pending, pending
        try:
            answer = self._connection.submit(pending.command)
        except UnknownOutcomeError:
            manager.started = True
            raise
        except StorageError:
            if not repeated:
                manager.pending = None  # Nothing happened: the batches stay uploaded, the call may be repeated.
            raise
        except Exception as error:
            found = self._refusal(error, repeated=repeated)
            self._refused(pending, found)
            if found is error:
                raise
            raise found from error
        except BaseException:
            manager.started = True
            raise
        ended = answer if isinstance(answer, Ended) else None
        if ended is None:
            manager.advance(pending.command)
        for upload, landed in zip(pending.uploads, ended.appended if ended is not None else answer, strict=True):
            upload.batch.resolve(landed)
        self.outcomes.settled([upload.batch for upload in pending.uploads])
        self.accumulator.forget(pending.uploads)
        if ended is None:
            manager.pending = None
        else:
            pending.unknown = False
        return ended

    def _refusal(self, error: Exception, *, repeated: bool = False) -> Exception:
        """What to raise for a refused command: see :func:`~txnstore.producer.fencing.refusal`."""
        manager = self._manager
        try:
            found = refusal(self._connection, manager.identity, error)
        except StorageError:
            if not repeated:
                manager.pending = None  # The command was refused, so nothing happened; the next call asks again.
            raise
        if isinstance(found, InvalidProducerEpochError):
            manager.started = True  # The abort tells the epoch that follows.
        return found

    def _refused(self, pending: Pending, error: Exception) -> None:
        """A refused command ends its batches, and with them the transaction.

        Without one, each batch is tried alone: those of other partitions may be fine, and if an earlier attempt had an
        unknown outcome, they may even be in the log (SEQ-15, SEQ-18).
        """
        manager = self._manager
        manager.pending = None
        fatal = isinstance(error, TxnStoreError) and error.fatal
        if not manager.transactional and len(pending.uploads) > 1 and not fatal:
            for upload in pending.uploads:
                try:
                    self._submit(manager.append([upload]))
                except StorageError:
                    raise
                except Exception:  # noqa: BLE001, S112 - its future tells; the caller gets the first error
                    continue
            return
        # With several chains a part of it may be written, or its partitions added: there is something to abort.
        manager.started = manager.started or len(self._connection.chains) > 1
        self.outcomes.fail_and_forget(pending.uploads, error)
        self.fail(error)

    # Transactions -----------------------------------------------------------------------------------------------------

    def end(self, outcome: Outcome) -> None:
        """Commit or abort the transaction."""
        self._manager.check_process()  # Before the turn, which nobody gives back in a forked child.
        try:
            with self._turn:
                try:
                    self._end(outcome)
                finally:
                    self.outcomes.heard()
        finally:
            self.outcomes.tell()
        self._manager.heard()

    def _end(self, outcome: Outcome) -> None:
        manager = self._manager
        if manager.was_ended(outcome):
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

    def _last_command(self, outcome: Outcome) -> Pending | None:
        """The end of the transaction with all that is not registered yet; None if there is nothing to end (API-07)."""
        manager, accumulator = self._manager, self.accumulator
        if outcome is Outcome.ABORT:
            # Records that are not registered are dropped (API-06); their uploads become garbage.
            name = manager.identity.transactional_id
            msg = f"the transaction of {name!r} was aborted before this record was written"
            self._drop(TransactionAbortedError(msg))
            manager.drop_unsent()
            return manager.end(outcome, [])
        accumulator.seal_all()
        self.uploader.start(keep_last=True)
        self._announce()
        self._resolve_pending()
        parts = rounds(self._uploaded())
        for uploads in parts[:-1]:
            self._register(uploads)
        accumulator.look_again()
        return manager.end(outcome, parts[-1] if parts else [])

    def prepare(self) -> PreparedTxn:
        """Write everything, and leave the decision to an outside coordinator (KIP-939, TPC-03)."""
        manager = self._manager
        manager.check_process()
        try:
            with self._turn:
                try:
                    manager.begin_prepare()
                    self._flush()
                    manager.check_flush()
                    if manager.started:
                        self._hold()
                    return manager.prepare()
                finally:
                    manager.end_prepare()
        finally:
            self.outcomes.tell()

    def _hold(self) -> None:
        try:
            self._connection.submit(HoldTxn(self._manager.identity))
        except StorageError:
            raise  # Nothing changes by asking again.
        except TxnStoreError as error:
            found = self._refusal(error)
            self.fail(found)
            if found is error:
                raise
            raise found from error

    def complete(self, decided: PreparedTxn) -> bool:
        """Commit the prepared transaction if it is this one, else abort it; whether it was committed."""
        manager = self._manager
        manager.check_process()
        try:
            with self._turn:
                manager.check_usable()
                if manager.state is State.READY:
                    return False
                if manager.prepared is None:
                    msg = "cannot complete: the transaction is not prepared; commit or abort it"
                    raise InvalidTxnStateError(msg)
                ours = decided == manager.prepared
                self._end(Outcome.COMMIT if ours else Outcome.ABORT)
                manager.heard()
                return ours
        finally:
            self.outcomes.tell()

    # Failing ----------------------------------------------------------------------------------------------------------

    def fail(self, error: BaseException) -> None:
        """An error ends the producer if it is fatal, and the transaction otherwise (API-09, ERR-05)."""
        if self._manager.fail(error):
            self._drop(error if isinstance(error, Exception) else _interrupted())

    def refuse(self, error: BaseException) -> None:
        """A record was refused: a commit without it would be a part of the transaction (API-05), so it must abort.

        Nothing is waited for. Kafka: ``KafkaProducer.doSend`` calls ``maybeTransitionToErrorState``.
        """
        if self._manager.refuse(error):
            failure = error if isinstance(error, Exception) else _interrupted()
            pending = self._manager.pending
            kept = set(pending.uploads) if pending is not None else set()
            self.outcomes.fail([upload for upload in self.accumulator.abandon() if upload not in kept], failure)
            self.outcomes.tell()

    def _drop(self, error: Exception) -> None:
        """Give up all that is not registered; uploads under way are waited for, so that none is left running.

        An interrupt leaves what is not settled yet with the accumulator, for the next call to drop.
        """
        uploads = self.accumulator.abandon()
        futures.wait([upload.task for upload in uploads if upload.task is not None])
        self.outcomes.fail_and_forget(uploads, error)

    # In the background ------------------------------------------------------------------------------------------------

    def flush_for(self, batch: Batch | None) -> Exception | None:
        """Flush because somebody waits for a batch, or because records lingered; why it could not be written.

        What failed beside that batch is reported by the producer's next call.
        """
        manager = self._manager
        try:
            manager.check_process()
            with self._turn:
                try:
                    self._flush()
                finally:
                    failed, self.outcomes.failed = self.outcomes.failed, []
                    others = [error for other, error in failed if other is not batch]
                    if others:
                        manager.remember(others[0])
        except Exception as error:  # noqa: BLE001 - it is handed to whoever waits
            return error
        finally:
            if not manager.forked:
                self.outcomes.tell()
        if manager.state in (State.COMMITTING_TRANSACTION, State.ABORTING_TRANSACTION):
            return UnknownOutcomeError("the outcome of the commit or abort is not known yet: repeat that call")
        if manager.state in (State.READY, State.IN_TRANSACTION):
            return None
        return manager.refusal_of_flush()

    @property
    def has_more(self) -> bool:
        """Whether another flush may write what this one did not."""
        return self._manager.state in (State.READY, State.IN_TRANSACTION) and self.accumulator.waiting

    def flush_soon(self, waiter: Waiter) -> None:
        """Flush in the background; the waiter is woken when that has ended."""
        if self._manager.forked:
            waiter.wake(self.flush_for(None))
        else:
            self.linger.demand(waiter)

    # Life -------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush, or abort what is open, then refuse further use (API-11). Reports what failed in the background."""
        manager = self._manager
        self.linger.stop()
        try:
            with self._turn:
                try:
                    if not manager.transactional:
                        self._flush()
                    elif manager.state in (State.IN_TRANSACTION, State.ABORTABLE_ERROR):
                        with suppress(ProducerFencedError):
                            self._end(Outcome.ABORT)
                finally:
                    self.outcomes.failed.clear()
                    manager.close()
                    self._give_up()
        finally:
            self.outcomes.tell()
        manager.report()

    def _give_up(self) -> None:
        """Fail what still waits; of the records of a command without an answer nobody can say that they failed."""
        pending = self._manager.pending
        if pending is not None:
            error = UnknownOutcomeError("the producer was closed before the storage told whether this was written")
            self.outcomes.fail_and_forget(pending.uploads, error)
            self._manager.pending = None
        self._drop(ProducerClosedError("the producer was closed before this record was written"))
        self.outcomes.failed.clear()


def _interrupted() -> Exception:
    return TransactionAbortedError("the call that sent this record was interrupted before the record was written")
