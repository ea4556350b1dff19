"""The sender: owns the state of a producer, uploads batches and submits commands, one at a time.

Kafka's ``Sender`` is a thread. Here the calls that flush or commit do its work, one at a time, and a background thread
flushes after the linger time and for callers that wait with a timeout. The transaction is a value that the sender
replaces (:mod:`~txnstore.producer.transaction`); it has the pending command, and the buffer has the batches that are
not settled, so after an interrupt or an unknown outcome the next call continues.

The locks of a producer, in the order in which a thread may acquire them:

1. ``Sender._turn``: one thread at a time flushes, commits, aborts, prepares, completes or closes. It is held during the
   requests of the call, so at most one command is pending, and commands reach the chain in the order of their sequence
   numbers.
2. ``Sender._lock``: the transaction and the buffer. It is held for a few instructions and never during a request, so
   ``send`` does not wait for a commit.

``send`` acquires only the second. The locks of the connection and its chains are acquired with the turn, or with none
of the two. The callbacks of futures are called with none of them, because they may use the producer.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, TypeAlias, TypeVar

from txnstore.connection import Connection
from txnstore.core.groups.commands import TxnOffsets
from txnstore.core.log.commands import Appended
from txnstore.core.model import Command, Outcome, ProducerIdentity
from txnstore.core.routing import chain_of_transactional_id
from txnstore.core.transactions.commands import Ended, EndTxn, PrepareTxn
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
from txnstore.producer.batches import RECORD_OVERHEAD, TABLE_OVERHEAD, ProducerBatch, split_for_window
from txnstore.producer.buffer import Buffer
from txnstore.producer.futures import RecordFuture, TablePart
from txnstore.producer.linger import Linger
from txnstore.producer.prepared import PreparedTxn
from txnstore.producer.records import MAX_TIMESTAMP, check_accepted, check_record
from txnstore.producer.topics import REFUSALS, TablePiece, Topics, TopicVersion
from txnstore.producer.transaction import ABORTED_BY_CLOSE, PendingCommand, ProducerEvent, ProducerState, Transaction
from txnstore.producer.upload import Uploads
from txnstore.segment.schema import fill_timestamps
from txnstore.threads import ForkLock, Task

_LOG = logging.getLogger(__name__)

T = TypeVar("T")

Headers: TypeAlias = Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]]


class Sender:
    """Writes the batches of the buffer. The arguments are those of a producer; durations in seconds.

    Attributes:
        topics: The topics. Constant, as are the next two.
        buffer: The batches.
        linger: The background thread.
        txn: The transaction. Replaced with the lock.
        takes_records: Whether a record may be sent now. It follows from the transaction, and is written with it:
            ``send`` reads it once per record.
        pid: The process that the producer was made in. Constant.
        closed: Whether :meth:`close` has come to its end. Written by the thread that closes, with the turn; read by
            later calls of ``close``.
    """

    def __init__(
        self,
        connection: Connection,
        txn: Transaction,
        batch_bytes: int,
        buffer_bytes: int,
        linger: float | None,
        delivery_timeout: float,
    ) -> None:
        self._connection = connection
        #: The turn of a call that submits commands; see the order of the locks above.
        self._turn = ForkLock()
        #: Guards the next two, and the buffer.
        self._lock = ForkLock()
        self.txn = txn
        self.takes_records = txn.takes_records
        self.pid = os.getpid()
        self._clock = connection.runtime.clock
        self.topics = Topics(connection)
        self._uploads = Uploads(connection, self.topics, delivery_timeout)
        self.buffer = Buffer(connection, self.topics, self._uploads, batch_bytes, buffer_bytes)
        #: Settled batches whose callbacks have not been called, in the order in which they were settled. Appended to by
        #: the threads that settle, taken by any thread that holds no lock; each step of a deque is atomic.
        self._callbacks_due: deque[ProducerBatch] = deque()
        #: The batches that failed in the current call, with their errors. Changed with the turn.
        self._failures: list[tuple[ProducerBatch, Exception]] = []
        self.linger = Linger(self, linger)
        self.closed = False

    # State ------------------------------------------------------------------------------------------------------------

    def _set_txn(self, txn: Transaction) -> None:
        """Replace the transaction. The caller holds the lock."""
        takes_records = txn.takes_records
        self.txn, self.takes_records = txn, takes_records

    def _change_txn(self, change: Callable[[Transaction], Transaction]) -> Transaction:
        """Replace the transaction by the value that ``change`` returns, and return that."""
        with self._lock.own:
            txn = change(self.txn)
            if txn is not self.txn:
                self._set_txn(txn)
            return txn

    @property
    def forked(self) -> bool:
        """Whether this process was forked from the one that made the producer."""
        return self.pid != os.getpid()

    def check_process(self) -> None:
        """Raise :class:`ProducerClosedError` in a forked child."""
        if self.forked:
            msg = "this producer was made in the parent process: make a new one after a fork"
            raise ProducerClosedError(msg)

    def check_usable(self) -> None:
        """Raise if the producer is closed, has failed with a fatal error, or belongs to another process."""
        self.check_process()
        if self.txn.state in (ProducerState.CLOSED, ProducerState.FATAL_ERROR):
            with self._lock.own:
                self._check_event(ProducerEvent.FLUSH)

    def check_send(self, event: ProducerEvent = ProducerEvent.SEND) -> None:
        """Raise unless records (or offsets) may be sent now. Also raises an unreported error, once."""
        self.check_process()
        with self._lock.own:
            self._check_event(event)

    def check_flushed(self) -> None:
        """Raise the error that kept the last flush from writing records, if there is one."""
        self.txn.check_flushed()
        self.raise_unreported()

    def raise_unreported(self) -> None:
        """Raise, once, the error of the background since the last call, if there is one."""
        with self._lock.own:
            self._check_event(ProducerEvent.CLOSE)

    def _check_event(self, event: ProducerEvent) -> None:
        """Raise the error of a refused call, or an unreported one. The caller holds the lock."""
        txn = self.txn
        error = txn.unreported if txn.allows(event) else txn.refusal(event)
        if error is not None:
            self._set_txn(txn.with_raised(error))
            raise error

    def begin(self) -> None:
        """Begin a transaction. Nothing is written before its first record (API-02)."""
        self.check_usable()
        self._change_txn(Transaction.begin)

    def add_offsets(self, offsets: TxnOffsets) -> None:
        """Add offsets that the transaction commits."""
        now = self._connection.runtime.monotonic()
        self._change_txn(lambda txn: txn.with_offsets(offsets, now))

    # Adding records ---------------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | Mapping[str, Any] | None,
        key: Any,
        partition: int | None,
        headers: Headers | None,
        timestamp: int | None,
    ) -> RecordFuture:
        """Add one record to the open batch of its partition. Checks it first, so an invalid record fails alone."""
        topics = self.topics
        version = topics.known.get(topic) if type(topic) is str else None
        if version is None or partition is not None or version.state is not topics.catalog.state:
            version = topics.find(topic, partition)
        now, given_key = self._clock(), key
        record: Any
        moment: int | None
        try:
            if version.row_format is not None:
                record, key, size, moment = version.row_format.check_sent(value, key, headers, timestamp, now)
            else:
                moment = now if timestamp is None else timestamp
                if (
                    type(value) is bytes
                    and (key is None or type(key) is bytes)
                    and not headers
                    and type(moment) is int
                    and 0 <= moment <= MAX_TIMESTAMP
                ):
                    record = (key, value, None, moment)
                    size = len(value) if key is None else len(value) + len(key)
                else:
                    record, key, size = check_record(topic, value, key, headers, moment)
                    headers = record[2]  # An iterator gives them once, and the record may be checked again.
            if size > version.max_bytes or (version.keyed and key is None):
                check_accepted(version.writer, key, size)
        except REFUSALS:
            if not topics.has_newer(version):
                raise
            return self.send(topic, value, given_key, partition, headers, timestamp)
        buffer = self.buffer
        with self._lock.own:
            if not self.takes_records:
                self._check_event(ProducerEvent.SEND)
            batch = version.sticky if key is None and partition is None else None
            if batch is None or batch.sealed:
                batch = self._open_batch(version, key, partition)
            if type(record) is tuple:
                row = batch.add_record(record, size)
                buffer.bytes += size + RECORD_OVERHEAD
            else:  # A row that was converted alone.
                row = batch.add_table(record, TABLE_OVERHEAD)
                buffer.bytes += size + TABLE_OVERHEAD
            if batch.bytes >= buffer.batch_bytes:
                buffer.seal(batch)
        if batch.sealed:
            self._run_in_pool([batch.upload])
        return RecordFuture(self, batch, row, moment if version.stamped else None)

    def _open_batch(self, version: TopicVersion, key: bytes | None, partition: int | None) -> ProducerBatch:
        """Return the open batch of the partition. The caller holds the lock."""
        batch = self.buffer.open_batch(version, key, partition)
        self._start_timeout()
        return batch

    def _start_timeout(self) -> None:
        """Start the timeout of the transaction with its first record. The caller holds the lock."""
        if self.txn.transactional and self.txn.first_at is None:
            self._set_txn(self.txn.with_first(self._connection.runtime.monotonic()))

    def send_table(self, piece: TablePiece, partition: int | None) -> list[TablePart]:
        """Add rows to the open batches of their partitions."""
        table, now = piece.rows, self._clock()
        if piece.version.writer.event_time is not None:
            table = fill_timestamps(table, piece.version.writer.event_time, now)
        with self._lock.own:
            self._check_event(ProducerEvent.SEND)
            parts = self.buffer.add_table(piece, table, partition)
            if parts:
                self._start_timeout()
        self._run_in_pool([part.batch.upload for part in parts if part.batch.sealed])
        return parts

    # Uploads ----------------------------------------------------------------------------------------------------------

    def _run_in_pool(self, tasks: Sequence[Task[None] | None]) -> None:
        with suppress(RuntimeError):  # No thread can start: the call that waits for an upload runs it.
            for task in tasks:
                if task is not None:
                    self._connection.pool.submit(_run_task, task)

    def _upload_together(self, ending_producer: ProducerIdentity | None) -> None:
        """Begin the uploads of all sealed batches but one, which the caller uploads; small ones share segments.

        ``ending_producer``: the producer whose next command commits all of them, so that small ones are inlined.
        """
        sealed = list(self.buffer.sealed)
        batches = [batch for batch in sealed if batch.take_upload()]
        if (
            ending_producer is not None
            and len(batches) == len(sealed)
            and self._uploads.inline(batches, ending_producer)
        ):
            return
        tasks = self._uploads.group_for_segments(batches)
        # Without the last one, with which the caller begins.
        self._run_in_pool([task for task in tasks if task is not batches[-1].upload])

    def _collect_uploaded(self, *, until_room: bool = False) -> list[ProducerBatch]:
        """Wait for uploads, all or until the buffer has room; return the uploaded batches in seal order.

        A failed upload fails its batch and the transaction; without a transaction the other batches are registered.
        """
        buffer, batches = self.buffer, list(self.buffer.sealed)
        waited_bytes, ended_batches = 0, list[ProducerBatch]()
        if batches and batches[-1].uploaded is None and not until_room:
            self._await_upload(batches[-1])
        for batch in batches:
            if batch.uploaded is None:
                if until_room and (buffer.bytes - waited_bytes) * 2 < buffer.limit:
                    break
                self._await_upload(batch)
                waited_bytes += batch.bytes
            ended_batches.append(batch)
        registrable = [batch for batch in ended_batches if batch.is_registrable]
        errors: list[Exception] = []
        for batch in ended_batches:
            if not batch.is_registrable:
                failure = batch.uploaded if isinstance(batch.uploaded, Exception) else None
                if failure is not None and not batch.settled:
                    errors.append(failure)
                self._fail_batches([batch], failure or TransactionAbortedError("the transaction failed"))
        if errors:
            self._fail_txn(errors[0])
            if not self.txn.transactional:
                self._register(registrable)
            raise errors[0]
        return registrable

    def _await_upload(self, batch: ProducerBatch) -> None:
        """Upload the batch here if no thread has begun it, or if an interrupt ended it; else wait."""
        assert batch.upload is not None
        if batch.upload.done() and batch.take_upload():
            batch.upload = self._uploads.upload_task((batch,))
        batch.upload.run()
        with suppress(CancelledError):  # The batch was abandoned.
            batch.upload.result()

    def flush(self, *, until_room: bool = False) -> None:
        """Upload and register all records that were sent before. Raises the first error.

        ``until_room``: only until the buffer has room.
        """
        self._in_turn(lambda: self._flush(until_room=until_room))

    def make_room(self) -> None:
        """Upload and register batches until the buffer has room, without a time limit."""
        self.check_usable()
        with self._lock.own:
            self.buffer.count_bytes()
        if self.buffer.bytes >= self.buffer.limit:
            self.flush(until_room=True)

    def _flush(self, *, until_room: bool = False) -> None:
        """Upload and register batches, all or until the buffer has room; nothing in a state that writes none."""
        if not self.txn.writes:
            return
        with self._lock.own:
            sealed = self.buffer.seal_largest() if until_room else self.buffer.seal_all()
        self._check_timeout()  # Before the first request: nothing of a transaction past its timeout is written.
        if until_room:
            self._run_in_pool([batch.upload for batch in sealed])
        else:
            self._upload_together(None if self.txn.transactional else self.txn.identity)
        self._add_partitions()  # While the segments are uploaded.
        if self.txn.pending is not None:
            self._submit(self.txn.pending)  # Its sequences make a repetition idempotent (SEQ-14).
        self._register(self._collect_uploaded(until_room=until_room))
        if not until_room and self.txn.state is ProducerState.IN_TRANSACTION and self.txn.offsets:
            # Offsets without records: after the flush, no reader of the group may begin before them (OFF-10).
            self._submit(self.txn.append(()))
        self.topics.refresh_catalog()

    def _check_timeout(self) -> None:
        """Fail a transaction that begins after its timeout: nothing of it is written."""
        try:
            self.txn.check_timeout(self._connection.runtime.monotonic())
        except InvalidProducerEpochError as error:
            self._fail_txn(error)
            raise

    def _add_partitions(self) -> None:
        """Add partitions and groups of other chains to the transaction while their segments are uploaded (ADD-01)."""
        txn = self.txn
        if txn.transactional and self._connection.several_chains:
            partitions = self.buffer.sealed_partitions
            if self._connection.coordinator.add_in_background(txn.identity, partitions, txn.groups):
                self._change_txn(Transaction.with_started)  # They have to be ended there (ADD-01).

    def _register(self, batches: list[ProducerBatch]) -> None:
        """Register batches, one entry per round, in the open transaction if there is one."""
        for round_batches in split_for_window(batches):
            unsettled = [batch for batch in round_batches if not batch.settled]
            if unsettled:
                self._submit(self.txn.append(unsettled))

    def _submit(self, pending: PendingCommand) -> None:
        """Submit a command, settle its batches, then replace the transaction by the one after it.

        After an unknown outcome or an interrupt the command stays pending, for the next call (API-08). An interrupt
        after the answer leaves it pending, too: the chain returns the same answer, and each step may be repeated.
        """
        self._change_txn(lambda txn: txn.with_submitting(pending))
        answer = self._submit_command(
            pending.command, Transaction.with_started, lambda error: self._fail_command(pending, error)
        )
        ended = answer if isinstance(answer, Ended) else None
        for batch, appended in zip(pending.batches, ended.appended if ended is not None else answer, strict=True):
            batch.settle(appended)
        self._callbacks_due += pending.batches
        self._remove_batches(pending.batches)
        if isinstance(pending.command, EndTxn):
            outcome, identity = pending.command.outcome, answer.producer
            self._change_txn(lambda txn: txn.with_end(outcome, identity))
        else:
            self._change_txn(Transaction.with_registered)
        for batch in pending.batches:
            batch.forget_upload()

    def _submit_command(
        self,
        command: Command,
        unknown: Callable[[Transaction], Transaction],
        refused: Callable[[Exception], None],
    ) -> Any:
        """Commit a command and return its answer; without one, change the transaction, and raise the reason.

        Args:
            unknown: Returns the transaction after an unknown outcome.
            refused: Called with the reason of a refusal.
        """
        try:
            return self._connection.submit(command)
        except StorageError as error:
            self._change_txn(unknown if isinstance(error, UnknownOutcomeError) else Transaction.with_not_written)
            raise
        except TxnStoreError as error:
            reason = self._translate_refusal(error)
            refused(reason)
            if reason is error:
                raise
            raise reason from error
        except BaseException:  # An interrupt, which may be any exception that a signal handler raises.
            self._change_txn(unknown)
            raise

    def _translate_refusal(self, error: Exception) -> Exception:
        """Return the error to raise for a refused command: see :func:`~txnstore.producer.sender.fenced_or_aborted`."""
        try:
            return fenced_or_aborted(self._connection, self.txn.identity, error)
        except StorageError:
            # It was refused, so nothing happened; the next call submits again.
            self._change_txn(Transaction.with_not_written)
            raise

    def _fail_command(self, pending: PendingCommand, error: Exception) -> None:
        """Fail the batches of a refused command, and the transaction.

        Without a transaction, each batch is submitted alone: batches of other partitions may be accepted, or be in the
        log already if an earlier attempt had an unknown outcome (SEQ-15, SEQ-18).
        """
        self._change_txn(lambda txn: txn.with_refused(error, several_chains=self._connection.several_chains))
        is_fatal = isinstance(error, TxnStoreError) and error.fatal
        if not self.txn.transactional and len(pending.batches) > 1 and not is_fatal:
            for batch in pending.batches:
                try:
                    self._submit(self.txn.append((batch,)))
                except StorageError:
                    raise
                except TxnStoreError:  # Its future has it; the caller gets the first error.
                    continue
            return
        self._fail_batches(pending.batches, error)
        self._fail_txn(error)

    # Transactions -----------------------------------------------------------------------------------------------------

    def end(self, outcome: Outcome) -> None:
        """Commit or abort the transaction. Until the call returns to the application, it can be repeated."""
        self._in_turn(lambda: self._end(outcome))

    def _end(self, outcome: Outcome) -> None:
        """End the transaction, or repeat the end whose outcome is unknown."""
        if self.txn.has_ended(outcome):
            return
        self.check_usable()
        txn = self._change_txn(lambda txn: txn.with_ending(outcome))
        try:
            pending = txn.pending_end or self._last_command(outcome)
            if pending is not None:
                self._submit(pending)
            else:
                self._change_txn(lambda txn: txn.with_end(outcome, txn.identity))
        except BaseException as error:
            reason = error
            self._change_txn(lambda txn: txn.with_end_error(outcome, reason))
            raise

    def _last_command(self, outcome: Outcome) -> PendingCommand | None:
        """Return the command that ends the transaction with its unregistered batches; None without any (API-07)."""
        if outcome is Outcome.ABORT:
            # Records that are not registered are dropped (API-06); their uploads become orphans.
            name = self.txn.identity.transactional_id
            msg = f"the transaction of {name!r} was aborted before this record was written"
            self._drop_batches(TransactionAbortedError(msg))
            return self._change_txn(Transaction.without_unsent).end(outcome, ())
        with self._lock.own:
            self.buffer.seal_all()
        self._check_timeout()
        self._upload_together(self.txn.identity)
        self._add_partitions()
        if self.txn.pending is not None:
            self._submit(self.txn.pending)  # Its sequences make a repetition idempotent (SEQ-14).
        rounds = split_for_window(self._collect_uploaded())
        for batches in rounds[:-1]:
            self._register(batches)  # The last batches go with the end, in one entry.
        self.topics.refresh_catalog()
        return self.txn.end(outcome, rounds[-1] if rounds else ())

    def end_reported(self) -> None:
        """Record that the call which ended the transaction returns to the application."""
        with self._lock.own:
            self.txn = self.txn.end_reported()  # The last step: an interrupt before it repeats the call.

    def prepare(self) -> PreparedTxn:
        """Register all batches and prepare the transaction for an external coordinator (KIP-939, TPC-03)."""
        return self._in_turn(self._prepare)

    def _prepare(self) -> PreparedTxn:
        """Flush, and prepare the transaction for an external coordinator (KIP-939). A repeated call writes nothing."""
        self.check_usable()
        try:
            self._change_txn(lambda txn: txn.with_preparing(preparing=True))  # Until the end, no record is accepted.
            self._flush()
            self.check_flushed()
            # A transaction that has not started has nothing in the chain: only this producer knows that it is prepared.
            if self.txn.started and self.txn.prepared is None:
                command = PrepareTxn(self.txn.identity)
                self._submit_command(command, unknown=Transaction.with_prepare_unknown, refused=self._fail_txn)
            prepared = self._change_txn(Transaction.with_prepared).prepared
            assert prepared is not None
            return prepared
        finally:
            self._change_txn(lambda txn: txn.with_preparing(preparing=False))

    def complete(self, decided: PreparedTxn) -> bool:
        """Commit the prepared transaction if it is the decided one, else abort it; return whether it was committed."""
        return self._in_turn(lambda: self._complete(decided))

    def _complete(self, decided: PreparedTxn) -> bool:
        """End the prepared transaction as decided; return whether it was committed."""
        self.check_usable()
        if self.txn.state is ProducerState.READY:
            return False
        if self.txn.prepared is None:
            msg = "cannot complete: the transaction is not prepared; commit or abort it"
            raise InvalidTxnStateError(msg)
        commits = decided == self.txn.prepared
        self._end(Outcome.COMMIT if commits else Outcome.ABORT)
        self.end_reported()
        return commits

    # Calls and failures -----------------------------------------------------------------------------------------------

    def _in_turn(self, call: Callable[[], T]) -> T:
        """Run a call of the application with the turn, then the callbacks.

        Raises the error of the call. Its other failures are known to the futures of their records, and are not kept.
        """
        self.check_process()  # Before the lock: a forked child may have inherited it locked.
        try:
            with self._turn.own:
                try:
                    return call()
                finally:
                    self._failures.clear()
        finally:
            self.call_back()

    def call_back(self) -> None:
        """Call the done callbacks of settled batches. The caller must hold no lock."""
        while not self.forked:
            try:
                batch = self._callbacks_due.popleft()
            except IndexError:
                return
            try:
                batch.call_back()
            except BaseException:
                self._callbacks_due.appendleft(batch)
                raise

    def _fail_batches(self, batches: Sequence[ProducerBatch], error: Exception) -> None:
        """Fail those of the batches that are not settled, and remove all of them."""
        self._failures += [(batch, error) for batch in batches if batch.settle(error)]
        self._callbacks_due += batches
        self._remove_batches(batches)

    def _remove_batches(self, batches: Sequence[ProducerBatch]) -> None:
        with self._lock.own:
            self.buffer.forget(batches)

    def _abandon_batches(self) -> list[ProducerBatch]:
        """Abandon all batches."""
        with self._lock.own:
            return self.buffer.abandon()

    def _fail_txn(self, error: BaseException) -> None:
        """End the producer if the error is fatal, else the transaction (API-09, ERR-05)."""
        if self._change_txn(lambda txn: txn.with_failure(error)).state is not ProducerState.READY:
            self._drop_batches(record_error(error))

    def record_refused(self, error: BaseException) -> None:
        """Make the open transaction abortable after a refused record, or refused offsets (API-05).

        A commit without the record would be partial, and one without the offsets would let the input be read again.

        Does not wait. Kafka: ``KafkaProducer.doSend`` calls ``maybeTransitionToErrorState``.
        """
        if self.forked:
            return
        with self._lock.own:
            txn = self.txn.with_record_refused(error)
            is_refused = txn is not self.txn
            self._set_txn(txn)
        if is_refused:
            pending = txn.pending
            submitted_batches = set(pending.batches) if pending is not None else set()
            for batch in self._abandon_batches():
                if batch not in submitted_batches:
                    batch.settle(record_error(error))
                    self._callbacks_due.append(batch)
            self.call_back()

    def _drop_batches(self, error: Exception) -> None:
        """Fail all batches that are not registered, after their running uploads have ended.

        After an interrupt the rest stays in the buffer, for the next call to drop.
        """
        for batch in (batches := self._abandon_batches()):
            assert batch.upload is not None
            batch.upload.wait()
        self._fail_batches(batches, error)

    # In the background ------------------------------------------------------------------------------------------------

    def flush_for(self, batch: ProducerBatch | None) -> Exception | None:
        """Flush for a waiter of ``batch``, or after the linger time; return the error that prevented the write."""
        try:
            self.check_process()
            with self._turn.own:
                try:
                    self._flush()
                finally:
                    other_errors = [error for failed_batch, error in self._failures if failed_batch is not batch]
                    self._failures.clear()
                    if other_errors:
                        self._change_txn(lambda txn: txn.with_background_failure(other_errors[0]))
        except Exception as error:  # noqa: BLE001 - it is raised to the waiter
            return error
        finally:
            self.call_back()
        return self.txn.flush_refusal()

    @property
    def has_more(self) -> bool:
        """Whether another flush may write records that the last one did not."""
        return self.txn.writes and self.buffer.has_batches

    @property
    def holds_transaction(self) -> bool:
        """Whether the chain knows an open transaction that a close would abort."""
        return self.txn.started and self.txn.state in ABORTED_BY_CLOSE

    def wait(self, batch: ProducerBatch, timeout: float | None) -> Appended:
        """Flush, wait for the outcome of a batch, and return its offsets.

        Flushes in this thread without a ``timeout``, else in the background, so that the wait ends after ``timeout``
        seconds even if the flush does not.

        Raises:
            TimeoutError: The batch is not settled after ``timeout`` seconds.
            TxnStoreError: The error of the batch, or of the flush that could not write it.
        """
        if not batch.settled:
            flush_error = self.flush_for(batch) if timeout is None else None
            if not batch.settled and flush_error is None:
                flush_error = self._wait(batch, timeout)
            if not batch.settled and flush_error is not None:
                raise flush_error
        outcome = batch.outcome
        assert outcome is not None
        if isinstance(outcome, Exception):
            self._change_txn(lambda txn: txn.with_reported_by_future(outcome))
            raise outcome
        return outcome

    def _wait(self, batch: ProducerBatch, timeout: float | None) -> Exception | None:
        """Wait until the batch is settled, or for the error that prevents its write.

        Uses ``SimpleQueue``, which is implemented in C: an interrupt cannot leave its lock acquired.
        """
        waiter: SimpleQueue[Exception | None] = SimpleQueue()
        batch.waiters.append(waiter)  # From here on, the thread that settles the batch wakes this one.
        if timeout is not None and not batch.settled:
            self._flush_in_background(waiter)
        flush_error: Exception | None = None
        while not batch.settled and flush_error is None:
            try:
                flush_error = waiter.get(timeout=timeout if timeout is None else max(0.0, timeout))
            except Empty:
                with suppress(ValueError):  # Else a caller that polls with short timeouts leaves one each time.
                    batch.waiters.remove(waiter)
                if not batch.settled:
                    msg = f"no outcome for a batch of {batch.tp} within {timeout} s"
                    raise TimeoutError(msg) from None
        return flush_error

    def _flush_in_background(self, waiter: SimpleQueue[Exception | None]) -> None:
        """Flush in the background; the waiter gets the error that prevented it, or None."""
        if self.forked:
            waiter.put(self.flush_for(None))
        else:
            self.linger.demand(waiter)

    # Life -------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush, or abort the open transaction, then refuse further calls (API-11). Raises unreported failures."""
        # Refused in a signal handler that interrupts a holder of a lock: the thread, which stops, may wait for it.
        _ = self._turn.own, self._lock.own
        self.linger.stop()
        self._in_turn(self._close)
        self.raise_unreported()

    def _close(self) -> None:
        """Flush, or abort an open transaction, then abandon what is left."""
        try:
            if not self.txn.transactional:
                self._flush()
            elif self.txn.state in ABORTED_BY_CLOSE:
                with suppress(ProducerFencedError):
                    self._end(Outcome.ABORT)
        finally:
            self._change_txn(lambda txn: txn.after(ProducerEvent.CLOSE))
            self._abandon_all()
            self.closed = True  # After an interrupt before this line, the next close repeats these steps.

    def _abandon_all(self) -> None:
        """Fail all batches; the outcome of batches of a pending command is unknown."""
        pending = self.txn.pending
        if pending is not None:
            error = UnknownOutcomeError("the producer was closed while it was unknown whether this record was written")
            self._fail_batches(pending.batches, error)
            self._change_txn(Transaction.without_pending)
        self._drop_batches(ProducerClosedError("the producer was closed before this record was written"))


def _run_task(task: Task[None]) -> None:
    """Run a task if no thread has begun it. Raises what interrupts it: a pool that is closed runs it in the caller."""
    if task.run():
        task.result()


def fenced_or_aborted(connection: Connection, identity: ProducerIdentity, error: Exception) -> Exception:
    """Return an abortable error if only this transaction was aborted by another process, else ``error``.

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


def record_error(error: BaseException) -> Exception:
    """Return the error for records that ``error`` keeps from being written; never an interrupt."""
    if isinstance(error, Exception):
        return error
    return TransactionAbortedError("the call that sent this record was interrupted before the record was written")
