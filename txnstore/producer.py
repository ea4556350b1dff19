"""Producers: records in, batches out, transactions around them.

The path of a record: ``send`` puts it into its partition's open batch; a full batch is sealed and uploaded by a thread
of the pool; ``flush`` registers uploaded batches with one entry; ``commit_transaction`` registers the last ones with
the decision itself. The protocol's rules are the chain's; here is only what a client must keep: its state, its
sequences, the futures.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from txnstore.core.commands import Ended, EndTxn, HoldTxn, InitProducer, ProducerIdentity
from txnstore.core.model import NO_PRODUCER, OffsetAndMetadata, Outcome, TopicPartition
from txnstore.core.names import check_id
from txnstore.errors import (
    InvalidConfigError,
    ProducerClosedError,
    StorageError,
    TransactionAbortedError,
    TxnStoreError,
    UnknownOutcomeError,
)
from txnstore.producing.accumulator import Accumulator
from txnstore.producing.batching import RecordFuture, TableFuture, TablePart, fail_all, resolve_all
from txnstore.producing.linger import Lingerer, linger_seconds
from txnstore.producing.prepared import PreparedTxn
from txnstore.producing.scope import TransactionScope
from txnstore.producing.session import GroupMetadata, Pending, Session, rounds, txn_offsets
from txnstore.producing.states import Lifecycle, Phase
from txnstore.producing.uploads import Upload

if TYPE_CHECKING:
    from txnstore.store import Store

_END_UNKNOWN = "the outcome of the commit or abort is not known yet: repeat that call"


class Producer:
    """An idempotent producer; a transactional one if it has a ``transactional_id``. Thread-safe; a context manager.

    ``batch_bytes``: a partition's batch is uploaded when it has grown to this. ``buffer_bytes``: what may wait for its
    upload; above it ``send`` blocks, and what is uploaded gets registered. ``linger``: seconds after which a record is
    flushed by itself; None: only when a batch is full, on flush and commit, or when somebody waits for a future (the
    default inside transactions, where nobody sees the records earlier anyway). ``keep_prepared``: a transaction that a
    predecessor has prepared for an outside coordinator is not aborted; :meth:`complete_transaction` ends it (KIP-939).
    """

    def __init__(
        self,
        store: Store,
        transactional_id: str | None = None,
        transaction_timeout: float = 60.0,
        *,
        batch_bytes: int = 16 * 1024 * 1024,
        buffer_bytes: int = 64 * 1024 * 1024,
        linger: float | str | None = "default",
        keep_prepared: bool = False,
    ) -> None:
        if transactional_id is not None:
            transactional_id = check_id("transactional_id", transactional_id)
        seconds = linger_seconds(linger, transactional_id)
        self._store = store
        self._lock = threading.RLock()
        self._sending = threading.RLock()
        self._pending: Pending | None = None
        self._prepared: PreparedTxn | None = None
        self._accumulator = Accumulator(store, batch_bytes, buffer_bytes, self._flush_on_demand)
        self._session = Session(self._init(transactional_id, transaction_timeout, keep_prepared=keep_prepared))
        self._life = Lifecycle(transactional_id)
        if keep_prepared:
            self._take_over()
        self._lingerer = Lingerer(seconds, self._flush_on_demand) if seconds is not None else None

    def _init(
        self, transactional_id: str | None, transaction_timeout: float, *, keep_prepared: bool
    ) -> ProducerIdentity:
        try:
            timeout_ms = round(transaction_timeout * 1000)
        except (TypeError, ValueError, OverflowError):
            msg = f"transaction_timeout must be a number of seconds, not {transaction_timeout!r}"
            raise InvalidConfigError(msg) from None
        command = InitProducer(transactional_id, timeout_ms, keep_held=keep_prepared)
        identity: ProducerIdentity = self._store.submit(command)
        return identity

    def _take_over(self) -> None:
        """Go on with the transaction that a predecessor has prepared, if there is one."""
        txn = self._store.state(refresh=False).transactions.get(self.transactional_id or "")
        if txn is not None and txn.held != NO_PRODUCER:
            self._life.phase = Phase.PREPARED
            self._prepared = PreparedTxn(txn.producer_id, txn.held)
            self._session.started = True

    # What it is -------------------------------------------------------------------------------------------------------

    @property
    def transactional_id(self) -> str | None:
        """The transactional id, or None for an idempotent producer."""
        return self._session.identity.transactional_id

    @property
    def producer_id(self) -> int:
        """The producer id that the chain granted."""
        return self._session.identity.producer_id

    @property
    def epoch(self) -> int:
        """The epoch of the current or next transaction."""
        return self._session.identity.epoch

    def __repr__(self) -> str:
        return f"<txnstore.Producer {self._session.identity}, {self._life.phase.name}>"

    # Sending ----------------------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | Mapping[str, Any] | None = None,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]] | None = None,
        timestamp: int | None = None,
    ) -> RecordFuture:
        """Send one record; returns a future :class:`RecordMetadata`.

        ``value`` is bytes, or a mapping of columns for a topic with a schema. Without ``partition``, the key chooses
        it as in Kafka's Java client. ``timestamp`` in ms; now by default.
        """
        self._make_room()
        with self._lock:
            if not self._life.takes_records:
                self._check_send()
            try:
                future = self._accumulator.send(topic, value, key, partition, headers, timestamp)
            except BaseException as error:
                self._check_interrupt(error)
                raise
        self._wake_lingerer()
        return future

    def send_table(self, topic: str, data: object, partition: int | None = None) -> TableFuture:
        """Send rows: anything Arrow (a table, a batch, a reader, ``__arrow_c_stream__``), pandas, or a list of dicts.

        A reader is taken batch by batch, so it may be larger than memory; if one of its batches is refused, the
        transaction has to be aborted (without one, the batches before it are sent). Returns the future of a list with
        one :class:`RecordMetadata` a row, in the order of the rows.
        """
        parts: list[TablePart] = []
        with self._lock:
            self._check_send()
            pieces = self._accumulator.pieces(topic, data, partition)
        try:
            for piece in pieces:
                self._make_room()
                with self._lock:
                    self._check_send()
                    try:
                        parts += self._accumulator.send_table(piece, partition)
                    except BaseException as error:
                        self._check_interrupt(error)
                        raise
        except BaseException as error:
            if parts:
                self._fail(error)
            raise
        finally:
            self._wake_lingerer()
        return TableFuture(parts)

    def _make_room(self) -> None:
        """Block while the buffer is full. An error is raised before the record is taken in, so nothing is half done."""
        if self._accumulator.crowded:
            self._life.check_usable()
            self._flush(crowd_only=True)

    def _wake_lingerer(self) -> None:
        if self._lingerer is not None and self._accumulator.waiting:
            self._lingerer.wake()

    def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: str | GroupMetadata
    ) -> None:
        """Commit consumed positions (the *next* offsets to read) of a group with the transaction."""
        with self._lock:
            self._check_in_transaction("send offsets")
            if offsets:
                self._session.offsets.append(txn_offsets(offsets, group))

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group: str | GroupMetadata,
    ) -> None:
        """Kafka's name for :meth:`send_offsets`."""
        self.send_offsets(offsets, group)

    def flush(self) -> None:
        """Upload and register everything sent so far, offsets too. Raises the first error.

        The futures tell which records failed.
        """
        self._life.check_usable()
        self._flush()
        if self._life.phase is Phase.ABORTABLE_ERROR:
            self._check_in_transaction("flush")
        if self._unknown_end is not None:
            raise UnknownOutcomeError(_END_UNKNOWN)

    def _flush_on_demand(self) -> BaseException | None:
        """A flush that somebody's wait or the linger asked for; returns why it could not end."""
        if self._life.forked:
            return ProducerClosedError("this producer belongs to the process that this one was forked from")
        try:
            self._flush()
        except Exception as error:  # noqa: BLE001 - it is handed to whoever waits
            return error
        return UnknownOutcomeError(_END_UNKNOWN) if self._life.phase is Phase.ENDING else None

    def _flush(self, *, crowd_only: bool = False) -> None:
        """Register what is uploaded: everything sent so far, or only as much as makes room for more."""
        with self._sending:
            with self._lock:
                if self._life.phase not in (Phase.READY, Phase.IN_TRANSACTION):
                    return
                self._seal(crowd_only=crowd_only)
            self._announce()
            self._settle()
            self._register(self._uploaded(crowd_only=crowd_only))
            if not crowd_only:
                self._register_offsets()

    def _seal(self, *, crowd_only: bool = False) -> None:
        try:
            if crowd_only:
                self._accumulator.make_room()
            else:
                self._accumulator.seal()
        except BaseException as error:
            self._check_interrupt(error)
            raise

    def _announce(self) -> None:
        """What lies in other chains joins the transaction while its segments are on their way (ADD-01)."""
        session = self._session
        groups = [offsets.group for offsets in session.offsets]
        if self.transactional_id is not None and self._store.coordinator.announce(
            session.identity, self._accumulator.sealed, groups
        ):
            session.started = True

    def _check_interrupt(self, error: BaseException) -> None:
        """An interrupt may have left the buffers half changed: what they hold is failed, so that nothing gets lost.

        A command without an answer stays, because its sequences may be taken.
        """
        if isinstance(error, Exception):
            return
        self._fail(error)
        if self._life.phase is Phase.READY:
            self._accumulator.drop(error, self._pending.uploads if self._pending is not None else ())

    def _uploaded(self, *, crowd_only: bool = False) -> list[Upload]:
        """The batches that are uploaded and not registered, in the order of their sends; waits for the uploads.

        A failed upload ends its batch, and with it the transaction. Without one, the good batches go on alone.
        """
        good, errors = [], []
        for upload in self._accumulator.wait(crowd_only=crowd_only):
            error = upload.future.exception()
            if error is None:
                good.append(upload)
                continue
            errors.append(error)
            fail_all([upload.batch], error)
            self._forget([upload])
        if errors:
            self._fail(errors[0])
            if self.transactional_id is None:
                self._register(good)
            raise errors[0]
        return good

    def _forget(self, uploads: list[Upload]) -> None:
        with self._lock:
            self._accumulator.forget(uploads)

    def _register(self, uploads: list[Upload]) -> None:
        """Give batches their offsets, with one entry a round, inside the open transaction if there is one."""
        for part in rounds(uploads):
            # A done callback that waits for another record has flushed the later rounds already.
            waiting = [upload for upload in part if not upload.batch.settled]
            if waiting:
                self._submit(Pending(self._session.append(waiting), waiting))

    def _register_offsets(self) -> None:
        """Offsets that came without records: once flushed, no reader of the group may begin before them (OFF-10)."""
        if self._life.phase is Phase.IN_TRANSACTION and self._session.offsets:
            self._submit(Pending(self._session.append([]), []))

    def _settle(self) -> None:
        """Repeat the command whose outcome is unknown; its sequences make that harmless (SEQ-14)."""
        if self._pending is not None:
            self._submit(self._pending)

    def _submit(self, pending: Pending) -> Ended | None:
        """Submit a command and settle its batches. An unknown outcome keeps the command for the next call.

        So does an interrupt, wherever it comes: as after a time-out, nobody knows (API-08).
        """
        repeated, self._pending = self._pending is pending, pending
        try:
            answer = self._store.submit(pending.command)
        except UnknownOutcomeError:
            self._session.started = True
            raise
        except StorageError:
            if not repeated:
                self._pending = None  # Nothing happened: the batches stay uploaded, the same call may be repeated.
            raise
        except Exception as error:
            self._refused(pending, error)
            raise
        except BaseException:
            self._session.started = True
            raise
        batches = [upload.batch for upload in pending.uploads]
        if isinstance(answer, Ended):
            pending.unknown = False
            self._forget(pending.uploads)
            resolve_all(batches, answer.appended)
            return answer
        self._session.advance(pending.command)
        for batch, landed in zip(batches, answer, strict=True):
            batch.resolve(landed)
        self._forget(pending.uploads)
        self._pending = None
        resolve_all(batches, answer)
        return None

    def _refused(self, pending: Pending, error: Exception) -> None:
        """A refused command ends its batches, and with them the transaction.

        Without one, each batch is tried alone: those of other partitions may be fine, and if an earlier attempt had an
        unknown outcome, they may even be in the log (SEQ-15, SEQ-18).
        """
        self._pending = None
        fatal = isinstance(error, TxnStoreError) and error.fatal
        if self.transactional_id is None and len(pending.uploads) > 1 and not fatal:
            for upload in pending.uploads:
                try:
                    self._submit(Pending(self._session.append([upload]), [upload]))
                except StorageError:
                    raise
                except Exception:  # noqa: BLE001, S112 - its future tells; the caller gets the first error
                    continue
            return
        # With several chains a part of it may be written, or its partitions added: there is something to abort.
        self._session.started = self._session.started or len(self._store.chains) > 1
        self._forget(pending.uploads)
        fail_all([upload.batch for upload in pending.uploads], error)
        self._fail(error)

    # Transactions -----------------------------------------------------------------------------------------------------

    def transaction(self) -> TransactionScope:
        """A transaction as a ``with`` block: it commits at the end, and aborts if the block raises."""
        return TransactionScope(self)

    def begin_transaction(self) -> None:
        """Begin a transaction. Nothing is written before the first record (API-02)."""
        with self._lock:
            self._life.check_begin()
            self._life.phase = Phase.IN_TRANSACTION

    def commit_transaction(self) -> None:
        """Commit: all records in all partitions and all offsets become visible at once, with one entry.

        :class:`UnknownOutcomeError`: call it again, it finds out (never abort then). A :class:`StorageError`: nothing
        happened, it may be called again. Another error: abort the transaction, or close the producer if it is fatal.
        """
        self._end(Outcome.COMMIT)

    def abort_transaction(self) -> None:
        """Abort: what was sent will never be read by read_committed; unsent records are dropped."""
        self._end(Outcome.ABORT)

    def prepare_transaction(self) -> PreparedTxn:
        """Write everything, then leave the decision to an outside coordinator (KIP-939, TPC-03).

        From now on the transaction takes no more records and has no time-out: it stays open until somebody commits,
        aborts or completes it, also another process (``keep_prepared``). Store the answer with what decides.
        """
        with self._sending:
            with self._lock:
                self._check_in_transaction("prepare")
            self.flush()
            with self._lock:
                self._check_in_transaction("prepare")
                identity = self._session.identity
                if self._session.started:
                    self._store.submit(HoldTxn(identity))
                self._life.phase = Phase.PREPARED
                self._prepared = PreparedTxn(identity.producer_id, identity.epoch)
                return self._prepared

    def complete_transaction(self, prepared: PreparedTxn | str) -> bool:
        """Commit the prepared transaction if it is this one, else abort it (KIP-939); whether it was committed.

        ``prepared``: what the outside coordinator has recorded as decided. Without a prepared transaction nothing
        happens: what it means was completed, or aborted, before.
        """
        decided = PreparedTxn.parse(prepared)
        with self._sending:
            self._life.check_usable()
            if self._life.phase is Phase.READY:
                return False
            ours = decided == self._prepared
            self._end(Outcome.COMMIT if ours else Outcome.ABORT)
            return ours

    def _end(self, outcome: Outcome) -> None:
        with self._sending:
            before = self._life.phase
            try:
                with self._lock:
                    self._life.check_end(outcome, self._unknown_end)
                    # From here on no record is taken in, so that each belongs to this transaction or to the next
                    # (API-19).
                    self._life.phase = Phase.ENDING
                pending = self._pending if before is Phase.ENDING else self._last_command(outcome)
                ended = self._submit(pending) if pending is not None else None
                self._begin_session(ended.producer if ended is not None else self._session.identity)
            except BaseException as error:
                self._not_ended(outcome, before, error)
                raise

    def _not_ended(self, outcome: Outcome, before: Phase, error: BaseException) -> None:
        """Back to where the end was asked for, unless nobody knows whether it happened, or the error says otherwise."""
        with self._lock:
            if self._pending is not None and isinstance(self._pending.command, EndTxn):
                self._pending.unknown = True  # The same call repeats it, and gets the same answer.
                return
            if self._life.phase is not Phase.ENDING:
                return
            self._life.phase = before
            if outcome is Outcome.ABORT:
                # Its unsent records are dropped, so this transaction must never be committed.
                self._life.phase, self._life.error = Phase.ABORTABLE_ERROR, self._life.error or error

    @property
    def _unknown_end(self) -> Outcome | None:
        """The end that was asked for, and whose outcome nobody could tell."""
        pending = self._pending
        if pending is None or not pending.unknown or not isinstance(pending.command, EndTxn):
            return None
        return pending.command.outcome

    def _check_send(self) -> None:
        self._life.check_send(end_is_unknown=self._unknown_end is not None)

    def _check_in_transaction(self, what: str) -> None:
        self._life.check_in_transaction(what, end_is_unknown=self._unknown_end is not None)

    def _last_command(self, outcome: Outcome) -> Pending | None:
        """The end of the transaction with all that is not registered yet; None if there is nothing to end (API-07)."""
        if outcome is Outcome.ABORT:
            begun = self._session.started or self._pending is not None
            self._drop_unsent()
            return Pending(EndTxn(self._session.identity, outcome), []) if begun else None
        with self._lock:
            self._seal()
        self._announce()
        self._settle()
        parts = rounds(self._uploaded())
        for uploads in parts[:-1]:
            self._register(uploads)
        uploads = parts[-1] if parts else []
        session = self._session
        if not (session.started or uploads or session.offsets):
            return None
        return Pending(EndTxn(session.identity, outcome, session.numbered(uploads), tuple(session.offsets)), uploads)

    def _drop_unsent(self) -> None:
        """Records that are not registered are gone with the transaction (API-06); uploads become garbage."""
        msg = f"the transaction of {self.transactional_id!r} was aborted before this record was written"
        with self._lock:
            self._accumulator.drop(TransactionAbortedError(msg))
            self._session.offsets = []
            self._pending = None

    def _begin_session(self, identity: ProducerIdentity) -> None:
        with self._lock:
            self._session = Session(identity)
            self._pending = self._life.error = self._prepared = None
            if self._life.phase is not Phase.CLOSED:  # A done callback may have closed it.
                self._life.phase = Phase.READY

    def _fail(self, error: BaseException) -> None:
        """An error ends the producer if it is fatal, and the transaction otherwise (API-09, ERR-05)."""
        with self._lock:
            if self._life.fail(error):
                self._accumulator.drop(error)

    # Life -------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush (idempotent) or abort what is open (transactional), then refuse further use (API-11)."""
        if self._life.phase is Phase.CLOSED or self._life.forked:
            return
        if self._lingerer is not None:
            self._lingerer.stop()
        with self._sending:
            try:
                if self.transactional_id is None:
                    self._flush()
                elif self._life.phase in (Phase.IN_TRANSACTION, Phase.ABORTABLE_ERROR):
                    self._end(Outcome.ABORT)
            finally:
                with self._lock:
                    self._life.phase = Phase.CLOSED
                    self._give_up()

    def _give_up(self) -> None:
        """Fail what still waits; of the records of a command without an answer nobody can say that they failed."""
        if self._pending is not None:
            uploads, self._pending = self._pending.uploads, None
            error = UnknownOutcomeError("the producer was closed before the storage told whether this was written")
            self._forget(uploads)
            fail_all([upload.batch for upload in uploads], error)
        self._accumulator.drop(ProducerClosedError("the producer was closed before this record was written"))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
