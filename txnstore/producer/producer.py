"""The producer that applications use: a facade of the sender and the transaction manager."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from os import getpid
from types import TracebackType
from typing import Any, Self

from txnstore.connection import Connection
from txnstore.core.groups.model import GroupMetadata, OffsetAndMetadata
from txnstore.core.groups.offsets import check_offset
from txnstore.core.model import NO_PRODUCER, Outcome, ProducerIdentity, TopicPartition
from txnstore.core.transactions.commands import InitProducer
from txnstore.errors import InvalidConfigError
from txnstore.producer.futures import RecordFuture, TableFuture, TablePart
from txnstore.producer.linger import linger_seconds
from txnstore.producer.offsets import txn_offsets
from txnstore.producer.prepared import PreparedTxn
from txnstore.producer.scope import TransactionScope
from txnstore.producer.sender import Sender
from txnstore.producer.transaction_manager import TransactionManager
from txnstore.producer.transaction_state import Event, State
from txnstore.validation import check_id


class Producer:
    """An idempotent producer; a transactional one if it has a ``transactional_id``. Thread-safe; a context manager.

    Args:
        connection: The open store.
        transactional_id: The id whose transactions this producer continues; it fences all earlier instances of it.
        transaction_timeout: Seconds after which somebody else may abort an open transaction.
        batch_bytes: A partition's batch is uploaded when it has grown to this.
        buffer_bytes: What may wait for its upload; above it ``send`` blocks, and what is uploaded gets registered.
        linger: Seconds after which a record is flushed by itself; None: only when a batch is full, on flush and commit,
            or when somebody waits for a future (the default inside transactions, where nobody sees the records earlier
            anyway).
        delivery_timeout: Seconds for which a failing upload is tried again (Kafka: ``delivery.timeout.ms``).
        keep_prepared: A transaction that a predecessor has prepared for an outside coordinator is not aborted;
            :meth:`complete_transaction` ends it (KIP-939).

    What fails in the background is raised by the next ``send``, ``flush``, ``commit_transaction`` or ``close``.
    """

    def __init__(
        self,
        connection: Connection,
        transactional_id: str | None = None,
        transaction_timeout: float = 60.0,
        *,
        batch_bytes: int = 16 * 1024 * 1024,
        buffer_bytes: int = 64 * 1024 * 1024,
        linger: float | str | None = "default",
        delivery_timeout: float = 120.0,
        keep_prepared: bool = False,
    ) -> None:
        if transactional_id is not None:
            transactional_id = check_id("transactional_id", transactional_id)
        elif keep_prepared:
            msg = "keep_prepared needs a transactional_id: nothing else can have been prepared"
            raise InvalidConfigError(msg)
        seconds = linger_seconds(linger, transactional_id)
        batch_bytes, buffer_bytes = _bytes("batch_bytes", batch_bytes), _bytes("buffer_bytes", buffer_bytes)
        delivery_timeout = _seconds("delivery_timeout", delivery_timeout)
        timeout_ms = round(_seconds("transaction_timeout", transaction_timeout, limited=False) * 1000)
        command = InitProducer(transactional_id, timeout_ms, keep_held=keep_prepared)
        identity: ProducerIdentity = connection.submit(command)
        self._manager = TransactionManager(identity)
        if keep_prepared:
            self._take_over(connection)
        self._sender = Sender(connection, self._manager, batch_bytes, buffer_bytes, seconds, delivery_timeout)
        self._accumulator = self._sender.accumulator
        self._uploader = self._sender.uploader
        self._linger = self._sender.linger

    def _take_over(self, connection: Connection) -> None:
        """Go on with the transaction that a predecessor has prepared, if there is one."""
        txn = connection.view(refresh=False).transactions.get(self.transactional_id or "")
        if txn is not None and txn.held != NO_PRODUCER:
            self._manager.take_over(PreparedTxn(txn.producer_id, txn.held))

    # What it is -------------------------------------------------------------------------------------------------------

    @property
    def transactional_id(self) -> str | None:
        """The transactional id, or None for an idempotent producer."""
        return self._manager.identity.transactional_id

    @property
    def producer_id(self) -> int:
        """The producer id that the chain granted."""
        return self._manager.identity.producer_id

    @property
    def epoch(self) -> int:
        """The epoch of the current or next transaction."""
        return self._manager.identity.epoch

    def __repr__(self) -> str:
        return f"<txnstore.Producer {self._manager.identity}, {self._manager.state.name}>"

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

        Args:
            topic: The topic's name.
            value: Bytes, or a mapping of columns for a topic with a schema.
            key: Chooses the partition as Kafka's Java client does, unless ``partition`` is given.
            partition: The partition's number.
            headers: Names and bytes; a name may come twice.
            timestamp: Milliseconds; now by default.

        Raises:
            TxnStoreError: The record was not taken in. Inside a transaction, the transaction has to be aborted.
        """
        manager, accumulator = self._manager, self._accumulator
        if not manager.takes_records or manager.pid != getpid():
            manager.check_send()
        try:
            if accumulator.buffered >= accumulator.buffer_bytes:
                self._sender.make_room()
            future = accumulator.send(topic, value, key, partition, headers, timestamp)
            if accumulator.unstarted:
                self._uploader.start()
        except BaseException as error:
            self._sender.refuse(error)
            raise
        if not self._linger.woken:
            self._linger.wake()
        return future

    def send_table(self, topic: str, data: object, partition: int | None = None) -> TableFuture:
        """Send rows: anything Arrow (a table, a batch, a reader, ``__arrow_c_stream__``), pandas, or a list of dicts.

        A reader is taken batch by batch, so it may be larger than memory; if one of its batches is refused, the
        transaction has to be aborted (without one, the batches before it are sent). Returns the future of a list with
        one :class:`RecordMetadata` per row, in the order of the rows.
        """
        manager, accumulator = self._manager, self._accumulator
        if not manager.takes_records or manager.pid != getpid():
            manager.check_send()
        parts: list[TablePart] = []
        try:
            for piece in accumulator.pieces(topic, data, partition):
                if accumulator.buffered >= accumulator.buffer_bytes:
                    self._sender.make_room()
                parts += accumulator.send_table(piece, partition)
                if accumulator.unstarted:
                    self._uploader.start()
        except BaseException as error:
            self._sender.refuse(error)
            raise
        finally:
            if parts and not self._linger.woken:
                self._linger.wake()
        return TableFuture(parts)

    def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: str | GroupMetadata
    ) -> None:
        """Commit consumed positions (the *next* offsets to read) of a group with the transaction.

        A position that can never be committed is refused here, and the transaction stays as it was.
        """
        self._manager.check_send(Event.SEND_OFFSETS)
        found = txn_offsets(offsets, group)
        for item in found.offsets:
            check_offset(found.group, item)
            self._accumulator.check_partition(item.topic, item.partition)
        self._manager.add_offsets(found)

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
        self._manager.check_usable()
        self._sender.flush()
        self._manager.check_flush()

    # Transactions -----------------------------------------------------------------------------------------------------

    def transaction(self) -> TransactionScope[Producer]:
        """A transaction as a ``with`` block: it commits at the end, and aborts if the block raises."""
        return TransactionScope(self)

    def begin_transaction(self) -> None:
        """Begin a transaction. Nothing is written before the first record (API-02)."""
        self._manager.begin()

    def commit_transaction(self) -> None:
        """Commit: all records in all partitions and all offsets become visible together, with one entry.

        Raises:
            UnknownOutcomeError: Call it again, it finds out (never abort then).
            StorageError: Nothing happened, it may be called again.
            TxnStoreError: Abort the transaction, or close the producer if the error is fatal.
        """
        self._sender.end(Outcome.COMMIT)

    def abort_transaction(self) -> None:
        """Abort: what was sent will never be read by read_committed; unsent records are dropped."""
        self._sender.end(Outcome.ABORT)

    def prepare_transaction(self) -> PreparedTxn:
        """Write everything, then leave the decision to an outside coordinator (KIP-939, TPC-03).

        From now on the transaction takes no more records and has no timeout: it stays open until somebody commits,
        aborts or completes it, also another process (``keep_prepared``). Store the answer with what decides.
        """
        return self._sender.prepare()

    def complete_transaction(self, prepared: PreparedTxn | str) -> bool:
        """Commit the prepared transaction if it is this one, else abort it (KIP-939); whether it was committed.

        ``prepared``: what the outside coordinator has recorded as decided. Without a prepared transaction nothing
        happens, and False does not tell what became of it: it was completed, or aborted, before
        (:meth:`~txnstore.Store.transaction_history` tells). One that is open and not prepared is
        :class:`InvalidTxnStateError`.
        """
        return self._sender.complete(PreparedTxn.parse(prepared))

    # Life -------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush (idempotent) or abort what is open (transactional), then refuse further use (API-11).

        A producer that was fenced closes in silence, as in Kafka: who fenced it has aborted what was open.
        """
        if self._manager.state is not State.CLOSED and not self._manager.forked:
            self._sender.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _bytes(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        msg = f"{name} must be a number of bytes of at least 1, not {value!r}"
        raise InvalidConfigError(msg)
    return value


def _seconds(name: str, value: object, *, limited: bool = True) -> float:
    """A number of seconds; with ``limited`` of at least 0 (the chain checks the other one)."""
    try:
        seconds = float("nan") if isinstance(value, str | bytes) else float(value)  # type: ignore[arg-type]
        round(seconds * 1000)
    except (TypeError, ValueError, OverflowError):
        seconds = float("nan")
    if isnan(seconds) or (limited and seconds < 0):
        msg = f"{name} must be a number of seconds{' of at least 0' if limited else ''}, not {value!r}"
        raise InvalidConfigError(msg)
    return seconds
