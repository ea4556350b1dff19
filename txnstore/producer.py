"""Producers: records in, batches out, transactions around them.

The path of a record: ``send`` puts it into its partition's open batch; a full batch is sealed and uploaded by a thread
of the pool; ``flush`` registers uploaded batches with one entry; ``commit_transaction`` registers the last ones with
the decision itself. The protocol's rules are the chain's; here is only what a client must keep: its state, its
sequences, the futures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from txnstore.core.commands import EndTxn, HoldTxn, InitProducer, ProducerIdentity
from txnstore.core.groups import check_offset
from txnstore.core.model import NO_PRODUCER, OffsetAndMetadata, Outcome, TopicPartition
from txnstore.errors import (
    InvalidConfigError,
    InvalidTxnStateError,
    ProducerClosedError,
    ProducerFencedError,
    StorageError,
    TransactionAbortedError,
    TxnStoreError,
    UnknownOutcomeError,
)
from txnstore.producing.accumulator import Accumulator
from txnstore.producing.batching import RecordFuture, TableFuture, TablePart, fail_all
from txnstore.producing.linger import Lingerer, linger_seconds
from txnstore.producing.prepared import PreparedTxn
from txnstore.producing.registrar import Registrar
from txnstore.producing.scope import TransactionScope
from txnstore.producing.session import GroupMetadata, Pending, Session, rounds, txn_offsets
from txnstore.producing.states import Lifecycle, Phase
from txnstore.validation import check_id

if TYPE_CHECKING:
    from txnstore.connection import Connection

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
        store: Connection,
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
        elif keep_prepared:
            msg = "keep_prepared needs a transactional_id: nothing else can have been prepared"
            raise InvalidConfigError(msg)
        seconds = linger_seconds(linger, transactional_id)
        self._store = store
        self._prepared: PreparedTxn | None = None
        self._accumulator = Accumulator(store, batch_bytes, buffer_bytes, self._flush_on_demand)
        self._life = Lifecycle(transactional_id)
        identity = self._init(transactional_id, transaction_timeout, keep_prepared=keep_prepared)
        self._registrar = Registrar(store, identity, self._life, self._accumulator)
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
        txn = self._store.view(refresh=False).transactions.get(self.transactional_id or "")
        if txn is not None and txn.held != NO_PRODUCER:
            self._life.phase = Phase.PREPARED
            self._prepared = PreparedTxn(txn.producer_id, txn.held)
            self._session.started = True

    @property
    def _session(self) -> Session:
        return self._registrar.session

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
        with self._registrar.lock:
            if not self._life.takes_records:
                self._check_send()
            try:
                future = self._accumulator.send(topic, value, key, partition, headers, timestamp)
            except BaseException as error:
                self._registrar.check_interrupt(error)
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
        with self._registrar.lock:
            self._check_send()
            pieces = self._accumulator.pieces(topic, data, partition)
        try:
            for piece in pieces:
                self._make_room()
                with self._registrar.lock:
                    self._check_send()
                    try:
                        parts += self._accumulator.send_table(piece, partition)
                    except BaseException as error:
                        self._registrar.check_interrupt(error)
                        raise
        except BaseException as error:
            if parts:
                self._registrar.fail(error)
            raise
        finally:
            self._wake_lingerer()
        return TableFuture(parts)

    def _make_room(self) -> None:
        """Block while the buffer is full. An error is raised before the record is taken in, so nothing is half done."""
        if self._accumulator.crowded:
            self._life.check_usable()
            self._registrar.flush(crowd_only=True)

    def _wake_lingerer(self) -> None:
        if self._lingerer is not None and self._accumulator.waiting:
            self._lingerer.wake()

    def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: str | GroupMetadata
    ) -> None:
        """Commit consumed positions (the *next* offsets to read) of a group with the transaction.

        A position that can never be committed is refused here, and the transaction stays as it was.
        """
        with self._registrar.lock:
            self._check_in_transaction("send offsets")
            found = txn_offsets(offsets, group)
            for item in found.offsets:
                check_offset(found.group, item)
                self._accumulator.check_partition(item.topic, item.partition)
            if found.offsets:
                self._session.offsets.append(found)

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
        self._registrar.flush()
        if self._life.phase is Phase.ABORTABLE_ERROR:
            self._check_in_transaction("flush")
        if self._unknown_end is not None:
            raise UnknownOutcomeError(_END_UNKNOWN)

    def _flush_on_demand(self) -> BaseException | None:
        """A flush that somebody's wait or the linger asked for; returns why it could not end."""
        if self._life.forked:
            return ProducerClosedError("this producer belongs to the process that this one was forked from")
        try:
            self._registrar.flush()
        except Exception as error:  # noqa: BLE001 - it is handed to whoever waits
            return error
        return UnknownOutcomeError(_END_UNKNOWN) if self._life.phase is Phase.ENDING else None

    # Transactions -----------------------------------------------------------------------------------------------------

    def transaction(self) -> TransactionScope:
        """A transaction as a ``with`` block: it commits at the end, and aborts if the block raises."""
        return TransactionScope(self)

    def begin_transaction(self) -> None:
        """Begin a transaction. Nothing is written before the first record (API-02)."""
        with self._registrar.lock:
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
        with self._registrar.sending:
            with self._registrar.lock:
                self._check_in_transaction("prepare")
            self.flush()
            with self._registrar.lock:
                self._check_in_transaction("prepare")
                identity = self._session.identity
                if self._session.started:
                    self._hold(identity)
                self._life.phase = Phase.PREPARED
                self._prepared = PreparedTxn(identity.producer_id, identity.epoch)
                return self._prepared

    def _hold(self, identity: ProducerIdentity) -> None:
        try:
            self._store.submit(HoldTxn(identity))
        except StorageError:
            raise  # Nothing changes by asking again.
        except TxnStoreError as error:
            self._registrar.fail(error)
            raise

    def complete_transaction(self, prepared: PreparedTxn | str) -> bool:
        """Commit the prepared transaction if it is this one, else abort it (KIP-939); whether it was committed.

        ``prepared``: what the outside coordinator has recorded as decided. Without a prepared transaction nothing
        happens, and False does not tell what became of it: it was completed, or aborted, before
        (:meth:`~txnstore.Store.transaction_history` tells). One that is open and not prepared is
        :class:`InvalidTxnStateError`.
        """
        decided = PreparedTxn.parse(prepared)
        with self._registrar.sending:
            self._life.check_usable()
            if self._life.phase is Phase.READY:
                return False
            if self._prepared is None:
                msg = "cannot complete: the transaction is not prepared; commit or abort it"
                raise InvalidTxnStateError(msg)
            ours = decided == self._prepared
            self._end(Outcome.COMMIT if ours else Outcome.ABORT)
            return ours

    def _end(self, outcome: Outcome) -> None:
        with self._registrar.sending:
            before = self._life.phase
            try:
                with self._registrar.lock:
                    self._life.check_end(outcome, self._unknown_end)
                    # From here on no record is taken in, so that each belongs to this transaction or to the next
                    # (API-19).
                    self._life.phase = Phase.ENDING
                pending = self._registrar.pending if before is Phase.ENDING else self._last_command(outcome)
                ended = self._registrar.submit(pending) if pending is not None else None
                self._begin_session(ended.producer if ended is not None else self._session.identity)
            except BaseException as error:
                self._not_ended(outcome, before, error)
                raise

    def _not_ended(self, outcome: Outcome, before: Phase, error: BaseException) -> None:
        """Back to where the end was asked for, unless nobody knows whether it happened, or the error says otherwise."""
        with self._registrar.lock:
            if self._registrar.pending is not None and isinstance(self._registrar.pending.command, EndTxn):
                self._registrar.pending.unknown = True  # The same call repeats it, and gets the same answer.
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
        pending = self._registrar.pending
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
            begun = self._session.started or self._registrar.pending is not None
            self._drop_unsent()
            return Pending(EndTxn(self._session.identity, outcome), []) if begun else None
        with self._registrar.lock:
            self._registrar.seal()
        self._registrar.announce()
        self._registrar.settle()
        parts = rounds(self._registrar.uploaded())
        for uploads in parts[:-1]:
            self._registrar.register(uploads)
        uploads = parts[-1] if parts else []
        session = self._session
        if not (session.started or uploads or session.offsets):
            return None
        return Pending(EndTxn(session.identity, outcome, session.numbered(uploads), tuple(session.offsets)), uploads)

    def _drop_unsent(self) -> None:
        """Records that are not registered are gone with the transaction (API-06); uploads become garbage."""
        msg = f"the transaction of {self.transactional_id!r} was aborted before this record was written"
        with self._registrar.lock:
            self._accumulator.drop(TransactionAbortedError(msg))
            self._session.offsets = []
            self._registrar.pending = None

    def _begin_session(self, identity: ProducerIdentity) -> None:
        with self._registrar.lock:
            self._registrar.session = Session(identity)
            self._registrar.pending = self._life.error = self._prepared = None
            if self._life.phase is not Phase.CLOSED:  # A done callback may have closed it.
                self._life.phase = Phase.READY

    # Life -------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush (idempotent) or abort what is open (transactional), then refuse further use (API-11).

        A producer that was fenced closes in silence, as in Kafka: who fenced it has aborted what was open.
        """
        if self._life.phase is Phase.CLOSED or self._life.forked:
            return
        if self._lingerer is not None:
            self._lingerer.stop()
        with self._registrar.sending:
            try:
                if self.transactional_id is None:
                    self._registrar.flush()
                elif self._life.phase in (Phase.IN_TRANSACTION, Phase.ABORTABLE_ERROR):
                    with suppress(ProducerFencedError):
                        self._end(Outcome.ABORT)
            finally:
                with self._registrar.lock:
                    self._life.phase = Phase.CLOSED
                    self._give_up()

    def _give_up(self) -> None:
        """Fail what still waits; of the records of a command without an answer nobody can say that they failed."""
        if self._registrar.pending is not None:
            uploads, self._registrar.pending = self._registrar.pending.uploads, None
            error = UnknownOutcomeError("the producer was closed before the storage told whether this was written")
            self._registrar.forget(uploads)
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
