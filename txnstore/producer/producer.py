"""The producer of applications: a facade over the sender."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from os import getpid
from typing import Any, Self, cast

from txnstore.connection import Connection
from txnstore.core.authorization.rights import read_group, read_topics
from txnstore.core.groups.model import GroupMetadata, OffsetAndMetadata
from txnstore.core.groups.offsets import check_offset
from txnstore.core.model import Outcome, ProducerIdentity, TopicPartition
from txnstore.core.transactions.commands import InitProducer
from txnstore.errors import InvalidConfigError
from txnstore.producer.futures import RecordFuture, TableFuture, TablePart
from txnstore.producer.linger import linger_seconds
from txnstore.producer.offsets import check_member, txn_offsets
from txnstore.producer.prepared import PreparedTxn
from txnstore.producer.scope import TransactionScope
from txnstore.producer.sender import Sender
from txnstore.producer.transaction import ProducerEvent, ProducerState, Transaction
from txnstore.validation import check_id, check_integer, check_milliseconds

_LOG = logging.getLogger(__name__)


class Producer:
    """Appends records to partitions; idempotent, and transactional if it has a ``transactional_id``.

    Made by :meth:`txnstore.Store.producer`. Thread-safe; a context manager that closes it. Failures in the background
    are raised by the next ``send``, ``flush``, ``commit_transaction`` or ``close``.

    Args:
        connection: The connection to the store.
        transactional_id: The transactional id; the producer fences all earlier instances of it and aborts their open
            transaction. None: no transactions.
        transaction_timeout: Seconds after which any process may abort an open transaction
            (``transaction.timeout.ms``). It runs from the first record or offsets of the transaction. At most the
            ``transaction_max_timeout`` of the store.
        batch_bytes: The size in bytes at which the batch of a partition is uploaded (``batch.size``).
        buffer_bytes: Bytes that may wait for their upload (``buffer.memory``). Above it ``send`` blocks until uploaded
            batches are registered.
        linger: Seconds after which a record is flushed (``linger.ms``). None: no flush by time; records are written
            when a batch is full, on flush and commit, and when a thread waits for a future. ``"default"``: 0.1, and
            None with a ``transactional_id``, since records become visible with the commit only. Records that linger in
            a producer that was not closed are written when it is collected, or when the interpreter exits; the exit
            also aborts its open transaction.
        delivery_timeout: Seconds for which a failing upload is repeated (``delivery.timeout.ms``).
        keep_prepared: Do not abort a transaction that an earlier instance has prepared for an external coordinator;
            :meth:`complete_transaction` ends it (KIP-939). Implies ``two_phase_commit``.
        two_phase_commit: Transactions have no timeout, also before they are prepared: an external coordinator ends all
            of them (``transaction.two.phase.commit.enable``, KIP-939). ``transaction_timeout`` has no effect.

    Raises:
        InvalidConfigError: An argument has a wrong type, or is out of range.
        StorageError: The producer could not be registered with the store.
    """

    def __init__(
        self,
        connection: Connection,
        transactional_id: str | None = None,
        transaction_timeout: float = 60.0,
        *,
        batch_bytes: int = 16 * 1024 * 1024,
        buffer_bytes: int = 32 * 1024 * 1024,
        linger: float | str | None = "default",
        delivery_timeout: float = 120.0,
        keep_prepared: bool = False,
        two_phase_commit: bool = False,
    ) -> None:
        if transactional_id is not None:
            transactional_id = check_id("transactional_id", transactional_id)
        elif keep_prepared:
            msg = "keep_prepared needs a transactional_id: nothing else can have been prepared"
            raise InvalidConfigError(msg)
        elif two_phase_commit:
            msg = "two_phase_commit needs a transactional_id: without one there are no transactions"
            raise InvalidConfigError(msg)
        seconds = linger_seconds(linger, transactional_id)
        batch_bytes = check_integer("batch_bytes", batch_bytes, 1)
        buffer_bytes = check_integer("buffer_bytes", buffer_bytes, 1)
        delivery_timeout = check_milliseconds("delivery_timeout", delivery_timeout) / 1000
        # The command checks the range, with an error of its own.
        timeout_ms = check_milliseconds("transaction_timeout", transaction_timeout, least=None)
        two_phase = two_phase_commit or keep_prepared
        command = InitProducer(transactional_id, timeout_ms, keep_prepared=keep_prepared, two_phase=two_phase)
        identity: ProducerIdentity = connection.submit(command)
        self._connection = connection
        txn = Transaction(identity, None if two_phase or transactional_id is None else timeout_ms)
        if keep_prepared:
            txn = _take_over(connection, txn)
        self._sender = Sender(connection, txn, batch_bytes, buffer_bytes, seconds, delivery_timeout)
        self._linger = self._sender.linger
        if transactional_id is not None:
            _LOG.info("producer initialized; earlier instances are fenced", extra=self._log_fields())

    def _log_fields(self) -> dict[str, object]:
        """Return the identity as fields of a log record."""
        return {"transactional_id": self.transactional_id, "producer_id": self.producer_id, "epoch": self.epoch}

    # Identity ---------------------------------------------------------------------------------------------------------

    @property
    def transactional_id(self) -> str | None:
        """The transactional id; None for a producer without transactions."""
        return self._sender.txn.identity.transactional_id

    @property
    def producer_id(self) -> int:
        """The producer id (PID) that the chain granted."""
        return self._sender.txn.identity.producer_id

    @property
    def epoch(self) -> int:
        """The epoch of the current or next transaction."""
        return self._sender.txn.identity.epoch

    def __repr__(self) -> str:
        return f"<txnstore.Producer {self._sender.txn.identity}, {self._sender.txn.state.name}>"

    def __reduce__(self) -> tuple[Any, ...]:
        msg = "a producer cannot be pickled: its records and its epoch belong to one process. Pickle the store instead"
        raise TypeError(f"{msg}, and create a producer in the other process")

    # Sending ----------------------------------------------------------------------------------------------------------

    def send(
        self,
        topic: str,
        value: bytes | Mapping[str, Any] | None = None,
        key: bytes | str | float | None = None,
        partition: int | None = None,
        headers: Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]] | None = None,
        timestamp: int | None = None,
    ) -> RecordFuture:
        """Add one record to the batch of its partition. Blocks while the buffer is full.

        Args:
            topic: The topic's name.
            value: Bytes, or a mapping of columns for a topic with a schema. None: a tombstone, which deletes the key;
                a topic with a schema has them if it has ``tombstone.column``, and gets a row with that column true.
            key: The key in bytes; without ``partition`` it chooses the partition, as in Kafka's Java client. In a topic
                with a schema only of a tombstone: the value of the key column, of the column's type.
            partition: The number of the partition; None: chosen by the key, else one partition per batch.
            headers: Names and values; a name may occur several times. Only for topics without a schema.
            timestamp: Milliseconds since the epoch; None: now. Only for topics without a schema.

        Returns:
            A future whose result is the record's :class:`RecordMetadata`.

        Raises:
            InvalidTxnStateError: A producer with a transactional id has no open transaction.
            SchemaMismatchError: The record does not fit the topic.
            RecordTooLargeError: The record is larger than ``max.message.bytes``.
            UnknownTopicOrPartitionError: There is no such topic or partition.
            TopicAuthorizationError: The principal has no right to write to the topic.
            TxnStoreError: An earlier record failed in the background.

        A record that is refused inside a transaction makes the transaction abortable: only
        :meth:`abort_transaction` may follow (API-05).
        """
        sender = self._sender
        buffer = sender.buffer
        if not sender.takes_records or sender.pid != getpid():
            sender.check_send()
        try:
            if buffer.bytes >= buffer.limit:
                sender.make_room()
            future = sender.send(topic, value, key, partition, headers, timestamp)
        except BaseException as error:
            sender.record_refused(error)
            raise
        if not self._linger.woken:
            self._linger.wake()
        return future

    def send_table(self, topic: str, data: object, partition: int | None = None) -> TableFuture:
        """Add rows to the batches of their partitions. Blocks while the buffer is full.

        Args:
            topic: The topic's name.
            data: An Arrow table, batch, reader or any object with ``__arrow_c_stream__``, a pandas DataFrame, or a
                list of dicts. A reader is read batch by batch, so it may be larger than memory. A level of a
                DataFrame's index that has a name is a column. Times without a zone do not fit a column with one.
            partition: The number of the partition of all rows; None: chosen by the key column of each row, else one
                partition per call.

        Returns:
            A future whose result is a list with one :class:`RecordMetadata` per row, in the order of the rows.

        Raises:
            TxnStoreError: As for :meth:`send`. Batches of a reader before the refused one are sent, unless a
                transaction is open, which must be aborted then.
        """
        sender = self._sender
        buffer = sender.buffer
        if not sender.takes_records or sender.pid != getpid():
            sender.check_send()
        parts: list[TablePart] = []
        try:
            for piece in sender.topics.pieces(topic, data, partition, max(1, buffer.limit // 2)):
                if buffer.bytes >= buffer.limit:
                    sender.make_room()
                parts += sender.send_table(piece, partition)
        except BaseException as error:
            sender.record_refused(error)
            raise
        finally:
            if parts and not self._linger.woken:
                self._linger.wake()
        return TableFuture(sender, parts)

    def send_offsets(
        self, offsets: Mapping[TopicPartition, int | OffsetAndMetadata], group: str | GroupMetadata
    ) -> None:
        """Commit offsets of a group with the transaction.

        Args:
            offsets: The *next* offset to read for each partition, as :meth:`txnstore.Consumer.position` returns it.
            group: The group's name, or :meth:`txnstore.Consumer.group_metadata`, with which the commit of a consumer
                that has lost its partitions is refused.

        Raises:
            InvalidTxnStateError: No transaction is open; without offsets the call has no effect.
            InvalidConfigError: An offset or the group is invalid.
            OffsetMetadataTooLargeError: The metadata of an offset is too large.
            UnknownTopicOrPartitionError: There is no such partition.
            UnknownMemberError: The group has removed the consumer, as far as this process knows; so for the next two.
                What this process does not know yet, the flush or the commit raises.
            IllegalGenerationError: The group has rebalanced since the consumer's last poll.
            FencedInstanceError: Another consumer has the consumer's static name.
            GroupAuthorizationError: The principal has no right to read the group.
            TopicAuthorizationError: The principal has no right to read one of the topics.

        Offsets that are refused make the transaction abortable: only :meth:`abort_transaction` may follow. A commit
        without them would let the input be read, and written, again (API-05).
        """
        sender = self._sender
        if isinstance(cast("object", offsets), Mapping) and not offsets:
            sender.check_usable()
            return
        sender.check_send(ProducerEvent.SEND_OFFSETS)
        try:
            group_offsets = txn_offsets(offsets, group)
            self._connection.check_rights(
                read_group(group_offsets.group), read_topics(offset.topic for offset in group_offsets.offsets)
            )
            for offset in group_offsets.offsets:
                check_offset(group_offsets.group, offset)
                sender.topics.find(offset.topic, write=False).check_number(offset.partition)
            check_member(self._connection, group_offsets)
        except BaseException as error:
            sender.record_refused(error)
            raise
        sender.add_offsets(group_offsets)

    def send_offsets_to_transaction(
        self,
        offsets: Mapping[TopicPartition, int | OffsetAndMetadata],
        group: str | GroupMetadata,
    ) -> None:
        """The same as :meth:`send_offsets`, under Kafka's name."""
        self.send_offsets(offsets, group)

    def flush(self) -> None:
        """Upload and register all records and offsets that were sent before.

        Raises:
            TxnStoreError: The first error; the futures of the records have the error of each.
        """
        self._sender.check_usable()
        self._sender.flush()
        self._sender.check_flushed()

    # Transactions -----------------------------------------------------------------------------------------------------

    def transaction(self) -> TransactionScope[Producer]:
        """A transaction as a ``with`` block.

        Returns:
            A context manager that begins a transaction, commits it at the end of the block, and aborts it if the block
            raises an exception; the block may also commit or abort it by itself.
        """
        return TransactionScope(self, lambda: self._sender.txn.state is not ProducerState.READY)

    def begin_transaction(self) -> None:
        """Begin a transaction. Nothing is written before the first record (API-02).

        Raises:
            InvalidTxnStateError: The producer has no transactional id, or a transaction is open.
            TxnStoreError: The producer is closed or has failed.
        """
        self._sender.begin()

    def commit_transaction(self) -> None:
        """Commit the transaction: all of its records and offsets become visible together, with one entry.

        Raises:
            UnknownOutcomeError: The outcome is unknown; repeat the call, which returns or raises the outcome. Do not
                abort.
            StorageError: Nothing happened; the call may be repeated.
            TxnStoreError: Abort the transaction, or close the producer if the error is fatal.
        """
        self._sender.end(Outcome.COMMIT)
        self._sender.end_reported()

    def abort_transaction(self) -> None:
        """Abort the transaction: ``read_committed`` readers never see its records; unsent ones are dropped (API-06).

        Raises:
            UnknownOutcomeError: The outcome is unknown; repeat the call.
            InvalidTxnStateError: No transaction is open, or the outcome of its commit is unknown.
            TxnStoreError: The abort failed and may be repeated, unless the error is fatal.
        """
        extra = self._log_fields()  # Before the end, which may give the next transaction another epoch.
        self._sender.end(Outcome.ABORT)
        _LOG.info("transaction aborted", extra=extra)
        self._sender.end_reported()  # After the last step: an interrupt before it lets the call be repeated.

    def prepare_transaction(self) -> PreparedTxn:
        """Register all records and offsets, then leave the decision to an external coordinator (KIP-939, TPC-03).

        The transaction takes no more records and has no timeout: it stays open until this producer, or another one with
        ``keep_prepared``, commits, aborts or completes it. The call may be repeated: it then returns the same name, and
        asks nobody. What another process has done meanwhile, the end of the transaction says: ``ProducerFencedError``
        after a newer instance, ``InvalidProducerEpochError`` of a commit after an abort.

        Returns:
            The name of the prepared transaction, which the external coordinator stores with its decision.

        Raises:
            InvalidTxnStateError: No transaction is open.
            UnknownOutcomeError: The outcome is unknown; repeat the call, or abort the transaction.
            TxnStoreError: A record or offset could not be written; abort the transaction.
        """
        return self._sender.prepare()

    def complete_transaction(self, prepared: PreparedTxn | str) -> bool:
        """Commit the prepared transaction if it is the given one, else abort it (KIP-939).

        Args:
            prepared: The transaction that the external coordinator has recorded as committed.

        Returns:
            Whether it was committed by this call. False also if no transaction is prepared, because it was completed
            or aborted before; :meth:`txnstore.Store.transaction_history` shows its outcome.

        Raises:
            InvalidTxnStateError: The open transaction is not prepared.
            InvalidConfigError: ``prepared`` is not the text of a prepared transaction.
        """
        return self._sender.complete(PreparedTxn.parse(prepared))

    # Life -------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Flush, or abort the open transaction, then refuse further calls (API-11). May be repeated.

        A fenced producer closes without an error, as in Kafka: its open transaction is aborted already.

        Raises:
            TxnStoreError: A flush or abort failed, or records failed in the background before; the producer is closed.
        """
        if self._sender.closed:
            self._sender.call_back()  # An interrupt may have kept the first close from it.
        elif not self._sender.forked:
            self._sender.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _take_over(connection: Connection, txn: Transaction) -> Transaction:
    """Continue the transaction that an earlier instance has prepared, if there is one."""
    prepared = connection.view(refresh=False).transactions.get(txn.identity.transactional_id or "")
    if prepared is not None and prepared.is_prepared:
        return txn.take_over(PreparedTxn(prepared.producer_id, prepared.prepared_epoch))
    return txn
