"""Producers: records in, batches out, transactions around them.

The path of a record: ``send`` puts it into its partition's open batch; a full batch is sealed and uploaded by a thread
of the pool; ``flush`` registers uploaded batches with one entry; ``commit_transaction`` registers the last ones with
the decision itself. The protocol's rules are the chain's; here is only what a client must keep: state, sequences, futures.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from txnstore.accumulator import Accumulator, Upload
from txnstore.batching import RecordFuture, TableFuture, TablePart
from txnstore.core.commands import Append, Appended, Ended, EndTxn, InitProducer, ProducerIdentity, TxnOffsets
from txnstore.core.groups import group_offset
from txnstore.core.model import WINDOW, NewBatch, OffsetAndMetadata, Outcome, TopicPartition, next_sequence
from txnstore.core.names import check_id
from txnstore.errors import (
    InvalidConfigError,
    InvalidTxnStateError,
    ProducerClosedError,
    StorageError,
    TransactionAbortedError,
    TxnStoreError,
    UnknownOutcomeError,
)
from txnstore.linger import Lingerer

if TYPE_CHECKING:
    from txnstore.store import Store


class GroupMetadata(Protocol):
    """A consumer's membership, as :meth:`Consumer.group_metadata` gives it (KIP-447)."""

    @property
    def group(self) -> str: ...

    @property
    def generation(self) -> int: ...

    @property
    def member_id(self) -> str: ...


class _State(Enum):
    """The client's states (API-01). ENDING: an end was sent whose outcome nobody could tell yet (API-08)."""

    READY = auto()
    IN_TRANSACTION = auto()
    ENDING = auto()
    ABORTABLE_ERROR = auto()
    FATAL_ERROR = auto()
    CLOSED = auto()


@dataclass(slots=True)
class _Pending:
    """A command whose outcome is unknown, and whose batches it carries: it is repeated before anything else."""

    command: Append | EndTxn
    uploads: list[Upload]


@dataclass(slots=True)
class _Session:
    """What lasts for one epoch: sequences, and what the open transaction has sent so far."""

    identity: ProducerIdentity
    sequences: dict[TopicPartition, int] = field(default_factory=dict)
    offsets: list[TxnOffsets] = field(default_factory=list)
    started: bool = False


class Producer:
    """An idempotent producer; a transactional one if it has a ``transactional_id``. Thread-safe; a context manager.

    ``batch_bytes``: a partition's batch is uploaded when it has grown to this. ``buffer_bytes``: what may wait for its
    upload; above it ``send`` blocks, and what is uploaded gets registered. ``linger``: seconds after which a record is
    flushed by itself; None: only when a batch is full, on flush and commit, or when somebody waits for a future (the
    default inside transactions, where nobody sees the records earlier anyway).
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
    ) -> None:
        if transactional_id is not None:
            check_id("transactional_id", transactional_id)
        linger_seconds = _linger(linger, transactional_id)
        self._store = store
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._sending = threading.RLock()
        self._error: BaseException | None = None
        self._pending: _Pending | None = None
        self._accumulator = Accumulator(store, batch_bytes, buffer_bytes, self._flush_on_demand)
        self._session = _Session(self._init(transactional_id, transaction_timeout))
        self._state = _State.READY
        self._lingerer = Lingerer(linger_seconds, self._flush_on_demand) if linger_seconds is not None else None

    def _init(self, transactional_id: str | None, transaction_timeout: float) -> ProducerIdentity:
        try:
            timeout_ms = round(transaction_timeout * 1000)
        except (TypeError, ValueError, OverflowError):
            msg = f"transaction_timeout must be a number of seconds, not {transaction_timeout!r}"
            raise InvalidConfigError(msg) from None
        identity: ProducerIdentity = self._store.chain.submit(InitProducer(transactional_id, timeout_ms))
        return identity

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
        return f"<txnstore.Producer {self._session.identity}, {self._state.name}>"

    # Sending ----------------------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | Mapping[str, Any] | None = None,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Mapping[str, bytes] | Sequence[tuple[str, bytes]] | None = None,
        timestamp: int | None = None,
    ) -> RecordFuture:
        """Send one record; returns a future :class:`RecordMetadata`.

        ``value`` is bytes, or a mapping of columns for a topic with a schema. Without ``partition``, the key chooses
        it as in Kafka's Java client. ``timestamp`` in ms; now by default.
        """
        self._make_room()
        with self._lock:
            self._check_send()
            future = self._accumulator.send(topic, value, key, partition, headers, timestamp)
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
            pieces = self._accumulator.pieces(topic, data)
        try:
            for first, piece in pieces:
                self._make_room()
                with self._lock:
                    self._check_send()
                    parts += self._accumulator.send_table(topic, piece, partition, first)
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
                self._session.offsets.append(_txn_offsets(offsets, group))

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group: str | GroupMetadata,
    ) -> None:
        """Kafka's name for :meth:`send_offsets`."""
        self.send_offsets(offsets, group)

    def flush(self) -> None:
        """Upload and register everything sent so far. Raises the first error; the futures tell which records failed."""
        self._check_usable()
        self._flush()

    def _flush_on_demand(self) -> BaseException | None:
        """A flush that somebody's wait or the linger asked for; returns why it could not end."""
        try:
            self._flush()
        except TxnStoreError as error:
            return error
        if self._state is _State.ENDING:
            return UnknownOutcomeError("the outcome of the commit or abort is not known yet: repeat that call")
        return None

    def _flush(self, *, crowd_only: bool = False) -> None:
        """Register what is uploaded: everything sent so far, or only as much as makes room for more."""
        with self._sending:
            with self._lock:
                if self._state in (_State.CLOSED, _State.FATAL_ERROR, _State.ENDING):
                    return
                if crowd_only:
                    self._accumulator.make_room()
                else:
                    self._accumulator.seal()
            self._settle()
            self._register(self._uploaded(crowd_only=crowd_only))

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
            self._forget([upload])
            upload.batch.fail(error)
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
        for part in _rounds(uploads):
            session = self._session
            command = Append(session.identity, self._numbered(part), tuple(session.offsets))
            self._submit(_Pending(command, part))

    def _settle(self) -> None:
        """Repeat the command whose outcome is unknown; its sequences make that harmless (SEQ-14)."""
        if self._pending is not None:
            self._submit(self._pending)

    def _numbered(self, uploads: list[Upload]) -> tuple[NewBatch, ...]:
        """The batches with their sequence numbers: contiguous in each partition, from 0 in each epoch (SEQ-01)."""
        batches, following = [], dict(self._session.sequences)
        for upload in uploads:
            sequence = following.get(upload.batch.tp, 0)
            batches.append(replace(upload.new_batch, base_sequence=sequence))
            following[upload.batch.tp] = next_sequence(sequence, upload.batch.rows)
        return tuple(batches)

    def _submit(self, pending: _Pending) -> Ended | None:
        """Submit a command and settle its batches. An unknown outcome keeps the command for the next call."""
        command = pending.command
        try:
            answer = self._store.chain.submit(command)
        except UnknownOutcomeError:
            self._pending = pending
            self._session.started = True
            raise
        except StorageError:
            raise  # Nothing happened: the batches stay uploaded, and the same call may be repeated.
        except TxnStoreError as error:
            self._pending = None
            self._forget(pending.uploads)
            for upload in pending.uploads:
                upload.batch.fail(error)
            self._fail(error)
            raise
        self._pending = None
        self._forget(pending.uploads)
        ended = answer if isinstance(answer, Ended) else None
        appended: tuple[Appended, ...] = ended.appended if ended is not None else answer
        if ended is None:
            self._advance(command)
        for upload, landed in zip(pending.uploads, appended, strict=True):
            upload.batch.resolve(landed)
        return ended

    def _advance(self, command: Append | EndTxn) -> None:
        self._session.started = True
        self._session.offsets = self._session.offsets[len(command.offsets) :]
        for batch in command.batches:
            self._session.sequences[batch.tp] = next_sequence(batch.base_sequence, batch.records)

    # Transactions -----------------------------------------------------------------------------------------------------

    def transaction(self) -> TransactionScope:
        """A transaction as a ``with`` block: it commits at the end, and aborts if the block raises."""
        return TransactionScope(self)

    def begin_transaction(self) -> None:
        """Begin a transaction. Nothing is written before the first record (API-02)."""
        with self._lock:
            self._check_usable()
            if self.transactional_id is None:
                msg = "this producer has no transactional_id, so it cannot begin a transaction"
                raise InvalidTxnStateError(msg)
            if self._state is not _State.READY:
                msg = f"cannot begin a transaction: the producer is {self._state.name}"
                raise InvalidTxnStateError(msg) from self._error
            self._state = _State.IN_TRANSACTION

    def commit_transaction(self) -> None:
        """Commit: all records in all partitions and all offsets become visible at once, with one entry.

        :class:`UnknownOutcomeError`: call it again, it finds out (never abort then). A :class:`StorageError`: nothing
        happened, it may be called again. Another error: abort the transaction, or close the producer if it is fatal.
        """
        self._end(Outcome.COMMIT)

    def abort_transaction(self) -> None:
        """Abort: what was sent will never be read by read_committed; unsent records are dropped."""
        self._end(Outcome.ABORT)

    def _end(self, outcome: Outcome) -> None:
        with self._sending:
            with self._lock:
                self._check_end(outcome)
            if self._state is _State.ENDING:
                self._finish(self._pending)
                return
            if outcome is Outcome.ABORT:
                self._drop_unsent()
                pending = _Pending(EndTxn(self._session.identity, outcome), [])
                needed = self._session.started
            else:
                pending = self._last_batches()
                needed = self._session.started or bool(pending.uploads or self._session.offsets)
            if needed:
                self._finish(pending)
            else:
                self._begin_session(self._session.identity)

    def _check_end(self, outcome: Outcome) -> None:
        self._check_usable()
        verb = "commit" if outcome is Outcome.COMMIT else "abort"
        if self._state is _State.ENDING:
            sent = self._pending.command if self._pending is not None else None
            if isinstance(sent, EndTxn) and sent.outcome is outcome:
                return
            msg = f"cannot {verb}: the outcome of the other end is not known yet; repeat that call"
            raise InvalidTxnStateError(msg)
        if self._state is _State.ABORTABLE_ERROR and outcome is Outcome.COMMIT:
            msg = f"cannot commit: the transaction failed ({self._error}); abort it"
            raise InvalidTxnStateError(msg) from self._error
        if self._state not in (_State.IN_TRANSACTION, _State.ABORTABLE_ERROR):
            msg = f"cannot {verb}: no transaction is open"
            raise InvalidTxnStateError(msg)

    def _last_batches(self) -> _Pending:
        """Everything that is not registered yet; only what one entry may carry is left for the end itself."""
        with self._lock:
            self._accumulator.seal()
        self._settle()
        rounds = list(_rounds(self._uploaded()))
        for uploads in rounds[:-1]:
            self._register(uploads)
        uploads = rounds[-1] if rounds else []
        session = self._session
        command = EndTxn(session.identity, Outcome.COMMIT, self._numbered(uploads), tuple(session.offsets))
        return _Pending(command, uploads)

    def _drop_unsent(self) -> None:
        """Records that are not registered are gone with the transaction (API-06); uploads become garbage."""
        msg = f"the transaction of {self.transactional_id!r} was aborted before this record was written"
        with self._lock:
            self._accumulator.drop(TransactionAbortedError(msg))
            self._session.offsets = []
        if self._pending is not None:
            for upload in self._pending.uploads:
                upload.batch.fail(TransactionAbortedError(msg))
            self._pending = None

    def _finish(self, pending: _Pending | None) -> None:
        assert pending is not None
        try:
            ended = self._submit(pending)
        except UnknownOutcomeError:
            self._state = _State.ENDING
            raise
        assert ended is not None
        self._begin_session(ended.producer)

    def _begin_session(self, identity: ProducerIdentity) -> None:
        with self._lock:
            self._session = _Session(identity)
            self._error = None
            self._state = _State.READY

    # States -----------------------------------------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        """An error ends the producer if it is fatal, and the transaction otherwise (API-09, ERR-05)."""
        with self._lock:
            self._error = error
            if isinstance(error, TxnStoreError) and error.fatal:
                self._state = _State.FATAL_ERROR
                self._accumulator.drop(error)
            elif self._state is _State.IN_TRANSACTION:
                self._state = _State.ABORTABLE_ERROR

    def _check_usable(self) -> None:
        if self._pid != os.getpid():
            msg = "this producer belongs to the process that this one was forked from"
            raise ProducerClosedError(msg)
        if self._state is _State.CLOSED:
            msg = "the producer is closed"
            raise ProducerClosedError(msg)
        if self._state is _State.FATAL_ERROR:
            assert self._error is not None
            raise self._error

    def _check_send(self) -> None:
        if self.transactional_id is not None:
            self._check_in_transaction("send")
        else:
            self._check_usable()

    def _check_in_transaction(self, what: str) -> None:
        self._check_usable()
        if self._state is _State.ABORTABLE_ERROR:
            msg = f"cannot {what}: the transaction failed ({self._error}); abort it"
            raise InvalidTxnStateError(msg) from self._error
        if self._state is not _State.IN_TRANSACTION:
            msg = f"cannot {what}: no transaction is open; call begin_transaction() first"
            raise InvalidTxnStateError(msg)

    # Life -------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush (idempotent) or abort what is open (transactional), then refuse further use (API-11)."""
        if self._state is _State.CLOSED or self._pid != os.getpid():
            return
        if self._lingerer is not None:
            self._lingerer.stop()
        try:
            if self.transactional_id is None:
                if self._state is not _State.FATAL_ERROR:
                    self._flush()
            elif self._state in (_State.IN_TRANSACTION, _State.ABORTABLE_ERROR):
                self._end(Outcome.ABORT)
        finally:
            with self._lock:
                self._state = _State.CLOSED
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


class TransactionScope:
    """The ``with`` block of :meth:`Producer.transaction`."""

    __slots__ = ("_producer",)

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def __enter__(self) -> Producer:
        self._producer.begin_transaction()
        return self._producer

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self._commit()
        elif isinstance(error, Exception):
            self._abort_quietly(error)

    def _commit(self) -> None:
        try:
            self._producer.commit_transaction()
        except UnknownOutcomeError:
            raise  # Only the same call may follow (API-08).
        except TxnStoreError as error:
            if not error.fatal:
                self._abort_quietly(error)
            raise

    def _abort_quietly(self, error: Exception) -> None:
        """Abort after the block's own error, which stays the one that the caller sees."""
        try:
            self._producer.abort_transaction()
        except TxnStoreError as second:
            error.add_note(f"the transaction could not be aborted either: {second}")


def _linger(linger: float | str | None, transactional_id: str | None) -> float | None:
    if linger == "default":
        return 0.1 if transactional_id is None else None
    if linger is None:
        return None
    if isinstance(linger, str) or not 0 <= linger < threading.TIMEOUT_MAX:
        msg = f"linger must be a number of seconds of at least 0, or None, not {linger!r}"
        raise InvalidConfigError(msg)
    return float(linger)


def _txn_offsets(
    offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
    group: str | GroupMetadata,
) -> TxnOffsets:
    name = group if isinstance(group, str) else getattr(group, "group", None)
    if name is None:
        msg = f"group must be a name or a consumer's group_metadata(), not {group!r}"
        raise InvalidConfigError(msg)
    check_id("group", name)
    items = tuple(group_offset(tp, value) for tp, value in offsets.items())
    generation = -1 if isinstance(group, str) else group.generation
    return TxnOffsets(name, items, generation, "" if isinstance(group, str) else group.member_id)


def _rounds(uploads: list[Upload]) -> list[list[Upload]]:
    """Batches in order, cut where a partition would get more of them than its producer window remembers.

    A repeated append is recognised by that window, so one entry carries at most five batches a partition.
    """
    rounds: list[list[Upload]] = []
    counts: dict[TopicPartition, int] = {}
    for upload in uploads:
        tp = upload.batch.tp
        if not rounds or counts.get(tp, 0) >= WINDOW:
            rounds.append([])
            counts = {}
        rounds[-1].append(upload)
        counts[tp] = counts.get(tp, 0) + 1
    return rounds
