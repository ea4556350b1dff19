"""The calls of :class:`txnstore.Store` for operators: transactions, groups, maintenance."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, get_args

from txnstore.admin import transactions as admin
from txnstore.admin.descriptions import (
    HangingTransaction,
    ProducerDescription,
    TransactionDescription,
    TransactionHistory,
)
from txnstore.connection import Connection
from txnstore.coordinator.expiration import ExpiryReport, expire
from txnstore.coordinator.recovery import RecoveryReport, recover
from txnstore.core.model import ProducerIdentity, TopicPartition
from txnstore.core.transactions.model import Transaction
from txnstore.errors import InvalidConfigError, TxnStoreError
from txnstore.threads import load
from txnstore.validation import check_choice

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider

    from txnstore.admin.groups import GroupDescription, Target
    from txnstore.compactor import CompactionReport, DoctorReport, RetentionReport, Round, VacuumReport, VerifyReport
    from txnstore.compactor.engine import Engine
    from txnstore.compactor.report import Progress

#: What reads and uploads the segments of a compaction or a deep verification: ``"duckdb"``, this process, or
#: ``"spark"``, tasks of Spark.
EngineName = Literal["duckdb", "spark"]


class Operations:
    """The part of :class:`txnstore.Store` that operators use. Each change is a command, decided at the head.

    It needs no Arrow, which takes longer to import than these calls take on a small store; so the command line uses it
    on its own.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    # Transactions -----------------------------------------------------------------------------------------------------

    def transactions(
        self,
        state: str | None = None,
        older_than: float | None = None,
        *,
        producer_id: int | None = None,
        pattern: str | None = None,
    ) -> list[Transaction]:
        """The transactions by transactional id that pass all filters (ADM-01).

        Args:
            state: Only those in this state, such as ``"ONGOING"``.
            older_than: Only those begun more than this many seconds ago.
            producer_id: Only that of this producer.
            pattern: Only those whose whole id matches this regular expression.
        """
        return admin.list_transactions(self._connection, state, older_than, producer_id, pattern)

    def transaction(self, transactional_id: str) -> TransactionDescription:
        """The last transaction of an id (ADM-02).

        Raises:
            TransactionalIdNotFoundError: Nothing is known of the id.
        """
        return admin.describe_transaction(self._connection.view(), transactional_id)

    def transaction_history(
        self, transactional_id: str, limit: int = admin.HISTORY_ENTRIES, since: int | None = None
    ) -> TransactionHistory:
        """The steps of the transactions of an id. One GET for each entry.

        Args:
            transactional_id: The id.
            limit: How many of the newest entries, in all chains together, are read.
            since: Only entries from this time on, in milliseconds since the epoch.

        Raises:
            TransactionalIdNotFoundError: Nothing is known of the id, nor was in these entries.
        """
        return admin.transaction_history(self._connection, transactional_id, limit, since)

    def producers(self, topic: str, partition: int) -> list[ProducerDescription]:
        """The producers of a partition: epoch, last sequence, open transaction (ADM-03).

        Raises:
            UnknownTopicOrPartitionError: There is no such partition.
        """
        return admin.describe_producers(self._connection.view(), TopicPartition(topic, partition))

    def find_hanging(self, topic: str | None = None, late: float = admin.LATE) -> list[HangingTransaction]:
        """Hanging transactions: unknown to their coordinator, long past their timeout, or past it and blocking readers.

        See ADM-04. The reason of each is in the result.

        Args:
            topic: Only in its partitions, and pending offsets of these.
            late: Seconds past its timeout after which an open transaction is late, also if it blocks no reader.
        """
        return admin.find_hanging(self._connection, topic, late)

    def abort_transaction(self, transactional_id: str) -> bool:
        """Abort the open transaction of an id and fence its owner.

        Returns:
            Whether there was a transaction to end.

        Raises:
            TransactionalIdNotFoundError: Nothing is known of the id.
        """
        return admin.abort_transaction(self._connection, transactional_id)

    def abort_hanging(self, topic: str, partition: int, producer_id: int) -> bool:
        """Abort the open transaction of a producer in a partition, also if no coordinator knows it (ADM-05).

        Returns:
            Whether there was an open transaction.
        """
        return admin.abort_open_data(self._connection, TopicPartition(topic, partition), producer_id)

    def fence_producers(self, transactional_ids: Iterable[str]) -> dict[str, ProducerIdentity]:
        """Fence the owners of these ids and abort their open transactions (INIT-17).

        Returns:
            The identity that each id has now.
        """
        return admin.fence_producers(self._connection, transactional_ids)

    # Groups -----------------------------------------------------------------------------------------------------------

    def groups(self) -> list[GroupDescription]:
        """All consumer groups by name: members, committed offsets, lag."""
        load("txnstore.admin.groups")
        from txnstore.admin.groups import list_groups

        return list_groups(self._connection)

    def group(self, name: str) -> GroupDescription:
        """A consumer group: members, committed offsets, lag.

        Raises:
            GroupNotFoundError: There is no such group.
        """
        load("txnstore.admin.groups")
        from txnstore.admin.groups import describe_group

        return describe_group(self._connection, name)

    def reset_offsets(
        self, group: str, to: Target, topics: Sequence[str] | None = None, *, dry_run: bool = False
    ) -> dict[TopicPartition, int]:
        """Set the committed offsets of a group without live members; see :func:`txnstore.admin.groups.reset_offsets`.

        Args:
            group: The group; it may be new.
            to: ``"earliest"``, ``"latest"``, a time (ISO 8601, a ``datetime`` with a time zone, or milliseconds), or
                offsets by partition.
            topics: All partitions of these topics; None: the partitions in which the group has committed.
            dry_run: Change nothing.

        Returns:
            The offsets that are committed then.
        """
        load("txnstore.admin.groups")
        from txnstore.admin.groups import reset_offsets

        return reset_offsets(self._connection, group, to, topics, dry_run=dry_run)

    def delete_group(self, name: str) -> None:
        """Delete a group without live members, and its offsets (OFF-17).

        Raises:
            GroupNotFoundError: There is no such group.
            GroupNotEmptyError: The group has live members.
        """
        load("txnstore.admin.groups")
        from txnstore.admin.groups import delete_group

        delete_group(self._connection, name)

    # Maintenance ------------------------------------------------------------------------------------------------------

    def compact(
        self,
        topic: str | None = None,
        *,
        target_bytes: int | None = None,
        min_segments: int = 2,
        dry_run: bool = False,
        progress: Progress | None = None,
        expire: bool = True,
        force: bool = False,
        memory_limit: int | None = None,
        past_hw: bool = False,
        engine: EngineName = "duckdb",
        on_error: Callable[[TxnStoreError], object] | None = None,
    ) -> CompactionReport:
        """Clean compacted topics by key, merge small segments, drop aborted data: all below the last stable offset.

        The other arguments are those of :func:`txnstore.compactor.compact`.

        Args:
            engine: ``"spark"``: each clean and merge is a task of Spark, in the active session or a new one.
        """
        found = self._engine(engine, used=not dry_run)
        load("txnstore.compactor")
        from txnstore.compactor import compact

        return compact(
            self._connection,
            topic,
            target_bytes=target_bytes,
            min_segments=min_segments,
            dry_run=dry_run,
            progress=progress,
            expire=expire,
            force=force,
            memory_limit=memory_limit,
            past_hw=past_hw,
            engine=found,
            on_error=on_error,
        )

    def compact_rounds(
        self,
        topic: str | None = None,
        *,
        interval: float = 30.0,
        max_bytes: int | None = None,
        memory_limit: int | None = None,
        past_hw: bool = False,
        rounds: int | None = None,
    ) -> Generator[Round, None, None]:
        """Compact round after round, beside other compactors; yields each round, then pauses.

        The arguments are those of :func:`txnstore.compactor.watch`.
        """
        load("txnstore.compactor")
        from txnstore.compactor import watch

        limits = {"max_bytes": max_bytes, "memory_limit": memory_limit}
        return watch(self._connection, topic=topic, interval=interval, **limits, past_hw=past_hw, rounds=rounds)

    def retain(self, topic: str | None = None, *, dry_run: bool = False) -> RetentionReport:
        """Delete the records that ``retention.ms`` and ``retention.bytes`` of their topic have passed.

        :meth:`compact` does it, too. See :func:`txnstore.compactor.retain`.
        """
        load("txnstore.compactor")
        from txnstore.compactor import retain

        return retain(self._connection, topic, dry_run=dry_run)

    def delete_records(self, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Delete the records of partitions below an offset (Kafka's ``deleteRecords``). A vacuum deletes their objects.

        The partitions of a chain take one entry, all or none; an offset at or below the log start changes nothing.
        Records at or above the last stable offset are never deleted.

        Args:
            offsets: The new log start of each partition; -1: its high watermark. Keys may be pairs (topic, number).

        Returns:
            The log starts after that.

        Raises:
            OffsetOutOfRangeError: An offset is above the high watermark, or below -1.
            UndecidedRecordsError: An open transaction, which the message names, has records below an offset.
            PolicyViolationError: The ``cleanup.policy`` of a topic has no ``delete``.
            UnknownTopicOrPartitionError: There is no such partition.
        """
        load("txnstore.compactor")
        from txnstore.compactor import delete_records

        return {tp: item.new_log_start for tp, item in delete_records(self._connection, offsets).items()}

    def vacuum(
        self,
        older_than: float | None = None,
        *,
        history: float | None = None,
        dry_run: bool = False,
        expire: bool = True,
        force: bool = False,
        foreign: Collection[str] = (),
    ) -> VacuumReport:
        """Delete objects that nothing refers to; see :func:`txnstore.compactor.vacuum`.

        Args:
            older_than: The grace period in seconds; None: 24 hours.
            history: How long entries are kept, in seconds; None: 7 days. Never shorter than the grace period.
            dry_run: Change nothing.
            expire: Also do what :meth:`expire` does.
            force: Also vacuum a store that is not sound.
            foreign: The ids of other stores below this root: delete their chains, and nothing else.

        Raises:
            UnsoundStoreError: The store is not sound, or there are chains of another one; nothing was deleted.
        """
        load("txnstore.compactor")
        from txnstore.compactor import vacuum

        return vacuum(
            self._connection, older_than,
            history=history, dry_run=dry_run, expire=expire, force=force, foreign=foreign,
        )  # fmt: skip

    def recover(self) -> RecoveryReport:
        """Complete decided transactions and abort those past their timeout, in all chains (REC-01, TMO-01).

        Safe at any time, by any number of processes concurrently.
        """
        return recover(self._connection.chains, self._connection.coordinator)

    def expire(
        self,
        producer_ids: float = 86_400.0,
        transactional_ids: float = 604_800.0,
        offsets: float = 604_800.0,
        *,
        dry_run: bool = False,
    ) -> ExpiryReport:
        """Remove state that was unused for longer than its limit; :meth:`compact` and :meth:`vacuum` use the defaults.

        Args:
            producer_ids: Seconds for producers (``producer.id.expiration.ms``).
            transactional_ids: Seconds for transactional ids (``transactional.id.expiration.ms``).
            offsets: Seconds for offsets of groups without members (``offsets.retention.minutes``).
            dry_run: Change nothing; return the expected result.
        """
        preview_at = self._connection.runtime.clock() if dry_run else None
        return expire(self._connection.chains, producer_ids, transactional_ids, offsets, preview_at=preview_at)

    def verify(self, *, deep: bool = False, engine: EngineName = "duckdb") -> VerifyReport:
        """Check every invariant; see :func:`txnstore.compactor.verify`.

        Args:
            deep: Read and check all data, too.
            engine: ``"spark"``: tasks of Spark read the data, in the active session or a new one; with ``deep`` only.
        """
        found = self._engine(engine, used=deep)
        if engine == "spark" and not deep:
            raise InvalidConfigError("engine 'spark' needs deep=True: only data is read by Spark")
        load("txnstore.compactor")
        from txnstore.compactor import verify

        return verify(self._connection, deep=deep, engine=found)

    def _engine(self, name: str, *, used: bool) -> Engine | None:
        """The engine of this name; None: this process."""
        if check_choice("engine", name, get_args(EngineName)) == "duckdb" or not used:
            return None
        load("txnstore.spark.engine")
        from txnstore.spark.engine import SparkEngine

        return SparkEngine(self._connection)

    def doctor(self, *, probe: bool = False) -> DoctorReport:
        """Look at the store, its storage and what it has to do, and say so. See :func:`txnstore.compactor.doctor`.

        Args:
            probe: Also check by writes that the storage creates a name once, and deletes. Else nothing is written.
        """
        load("txnstore.compactor")
        from txnstore.compactor import doctor

        return doctor(self._connection, probe=probe)

    def checkpoint(self) -> int:
        """Save the state of every chain now, so that the next open is fast; the number of entries that this covers."""
        return self._connection.checkpoint()

    # Monitoring -------------------------------------------------------------------------------------------------------

    def prometheus(self, *, process: bool = True, status: bool = True) -> str:
        """:meth:`metrics` in Prometheus's text format 0.0.4; each sample has the label ``store`` with the URL.

        Args:
            process: The counters and durations of this process, since it opened the store. No request.
            status: The state of the store, whichever processes use it. Two GETs for each chain.
        """
        load("txnstore.monitoring.prometheus")
        from txnstore.monitoring.prometheus import prometheus

        return prometheus(self._connection, process=process, status=status)

    def instrument(self, meter_provider: MeterProvider | None = None, *, status: bool = False) -> None:
        """Report :meth:`metrics` through OpenTelemetry each time that its SDK collects, until the store is collected.

        Needs the extra ``otel``, and an SDK with an exporter that the application has configured before. Each value has
        the attribute ``store`` with the URL.

        Args:
            meter_provider: The provider; None: the global one.
            status: Also the state of the store, which one process of many needs to report. Two GETs for each chain and
                collection.

        Raises:
            InvalidConfigError: ``opentelemetry-api`` is not installed.
        """
        load("txnstore.monitoring.opentelemetry")
        from txnstore.monitoring.opentelemetry import instrument

        instrument(self._connection, meter_provider, status=status)
