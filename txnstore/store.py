"""Public entry point: create or open a store; topics, clients, SQL, administration, maintenance."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

from txnstore.admin import transactions as admin
from txnstore.admin.descriptions import (
    HangingTransaction,
    ProducerDescription,
    TransactionDescription,
    TransactionHistory,
)
from txnstore.catalog.description import Topic
from txnstore.connection import Connection, OpenParts, create_connection, open_connection, principal_of
from txnstore.coordinator.expiration import ExpiryReport, expire
from txnstore.coordinator.recovery import RecoveryReport, recover
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.model import ProducerIdentity, TopicPartition
from txnstore.core.state import State
from txnstore.core.transactions.model import Transaction
from txnstore.errors import InvalidConfigError, TxnStoreError
from txnstore.metrics import StoreMetrics
from txnstore.runtime import Runtime
from txnstore.snapshot import Snapshot
from txnstore.storage.base import ObjectStore
from txnstore.storage.redact import redact
from txnstore.storage.registry import open_store
from txnstore.threads import is_loaded, load
from txnstore.times import Time
from txnstore.validation import check_choice

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    from duckdb import DuckDBPyConnection, DuckDBPyRelation
    from opentelemetry.metrics import MeterProvider

    from txnstore.admin.acls import Acls
    from txnstore.admin.groups import GroupDescription, Target
    from txnstore.admin.logs import LogDump
    from txnstore.compactor import (
        BackupProgress,
        BackupReport,
        BackupRound,
        CompactionReport,
        DoctorReport,
        EraseReport,
        Maintenance,
        RestoreReport,
        RetentionReport,
        VacuumReport,
        VerifyReport,
    )
    from txnstore.compactor.compact.report import Progress
    from txnstore.compactor.engine import Engine
    from txnstore.consumer import Consumer
    from txnstore.consumer.membership import AssignorName, Callback
    from txnstore.consumer.subscription import ResetPolicy
    from txnstore.producer import Producer
    from txnstore.read.plan import IsolationLevel, PartitionOffsets
    from txnstore.scan import Bound, Scan
    from txnstore.tables.tables import Tables

#: What reads and uploads the segments of a compaction or a deep verification: ``"duckdb"``, this process, or
#: ``"spark"``, tasks of Spark.
EngineName = Literal["duckdb", "spark"]


def create(
    url: str | os.PathLike[str],
    chains: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    transaction_max_timeout: float | None = None,
    exist_ok: bool = False,
    principal: str | None = None,
    committer: str | None = None,
    runtime: Runtime | None = None,
) -> Store:
    """Create a store and open it.

    Args:
        url: A path, ``file://``, ``memory://`` or ``s3://``.
        chains: How many chains order its commits, 1 to 256; fixed when the store is created (COORD-02). None: 1, or as
            many as the store has that ``exist_ok`` opens.
        storage_options: Options for fsspec, passed on unchanged; and ``transport`` (docs/howto/s3.md).
        transaction_max_timeout: The largest ``transaction_timeout`` that a producer may have, in seconds
            (``transaction.max.timeout.ms``); fixed when the store is created. None: 900, or that of the store that
            ``exist_ok`` opens.
        exist_ok: Open the store if one exists.
        principal: Who asks for what this process does, as in :func:`open`.
        committer: With which processes it shares entries, as in :func:`open`.
        runtime: Clock, randomness, pauses and workers; for tests.

    Raises:
        StoreExistsError: There is a store, and ``exist_ok`` is off.
        CorruptionError: There is no ``store.json``, but other objects of a store: nothing was created.
        UnsafeStorageError: The storage lets a name be created twice.
        InvalidConfigError: ``chains`` or ``transaction_max_timeout`` is out of range, or not what the existing store
            has.
    """
    return create_on(
        open_store(url, storage_options),
        chains,
        transaction_max_timeout=transaction_max_timeout,
        exist_ok=exist_ok,
        principal=principal,
        committer=committer,
        runtime=runtime,
    )


def open(  # noqa: A001 - txnstore.open(url) is the public name
    url: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    read_only: bool = False,
    principal: str | None = None,
    committer: str | None = None,
    runtime: Runtime | None = None,
) -> Store:
    """Open a store.

    Args:
        url: A path, ``file://``, ``memory://`` or ``s3://``.
        storage_options: Options for fsspec, passed on unchanged; and ``transport`` (docs/howto/s3.md).
        read_only: Write nothing, not even the probe of the storage.
        principal: Who asks for what this process does, as ``"User:billing"``; a store that checks rights checks its
            (docs/howto/permissions.md). None: ``TXNSTORE_PRINCIPAL`` in the environment, else ``User:ANONYMOUS``.
        committer: With which processes this one shares entries (docs/howto/tuning.md): ``"on"``, with those of its user
            on its machine; ``"tcp://HOST:PORT"``, also with those of other machines, which reach it there;
            ``"tcp://"``, with these, but they do not reach it; ``"off"``, with none. None: ``TXNSTORE_COMMITTER`` in
            the environment, else ``"on"``.
        runtime: Clock, randomness, pauses and workers, for tests.

    Raises:
        StoreNotFoundError: There is none at ``url``.
        UnsupportedFormatError: A newer txnstore made it.
        UnsafeStorageError: The storage lets a name be created twice.
    """
    objects = open_store(url, storage_options)
    return open_on(objects, read_only=read_only, principal=principal, committer=committer, runtime=runtime)


def create_on(
    objects: ObjectStore,
    chains: int | None = None,
    *,
    transaction_max_timeout: float | None = None,
    exist_ok: bool = False,
    principal: str | None = None,
    committer: str | None = None,
    runtime: Runtime | None = None,
) -> Store:
    """:func:`create` on an object store of one's own, such as a wrapper that counts or injects faults."""
    return Store(
        create_connection(
            objects,
            chains,
            transaction_max_timeout=transaction_max_timeout,
            exist_ok=exist_ok,
            principal=principal,
            committer=committer,
            runtime=runtime,
        )
    )


def open_on(
    objects: ObjectStore,
    *,
    read_only: bool = False,
    principal: str | None = None,
    committer: str | None = None,
    runtime: Runtime | None = None,
) -> Store:
    """:func:`open` on an object store of one's own."""
    connection = open_connection(
        objects, read_only=read_only, principal=principal, committer=committer, runtime=runtime
    )
    return Store(connection)


def restore(
    url: str | os.PathLike[str],
    backup: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    backup_options: Mapping[str, Any] | None = None,
    new_identity: bool = False,
    verify: bool = False,
    progress: Callable[[BackupProgress], object] | None = None,
    principal: str | None = None,
    runtime: Runtime | None = None,
) -> RestoreReport:
    """Make a store of a backup (:meth:`Store.backup`), or of another store as it is now, and publish its tables.

    Args:
        url: Where the store will be: an empty place. Without ``backup``: the backup, which becomes a store itself;
            nothing may copy to it any more.
        backup: The backup, which stays as it is.
        storage_options: Options for the storage at ``url``, as in :func:`open`.
        backup_options: Those for the storage of the backup.
        new_identity: Give the store an id of its own, with which it is used beside the original. Else it has that of
            the original, in whose place it is used.
        verify: Read all of the copy, and compare it with its hashes, before it becomes a store.
        progress: Called now and then with how far it is.
        principal: Who asks, as in :func:`open`.
        runtime: Clock, randomness, pauses and workers; for tests.

    Raises:
        BackupError: ``url`` is not empty, or the backup is not complete.
        CorruptionError: The backup is damaged; there is no store yet.
        StorageError: A storage failed, or is full. The same call continues.
    """
    load("txnstore.compactor")
    from txnstore.compactor import restore as restore_copy
    from txnstore.compactor import restore_in_place

    target, principal = open_store(url, storage_options), principal_of(principal)
    if backup is None:
        return restore_in_place(target, runtime or Runtime(), principal, new_identity=new_identity, verify=verify)
    source = open_store(backup, backup_options)
    with open_connection(source, read_only=True, principal=principal, runtime=runtime) as connection:
        return restore_copy(connection, target, new_identity=new_identity, verify=verify, progress=progress)


class Store:
    """A store that is open: thread-safe, picklable, safe after ``fork``; a context manager.

    Made by :func:`txnstore.create` and :func:`txnstore.open`. :meth:`close` releases its threads and connections, and
    ends nothing else: a store that is used again connects again, and its producers and consumers continue.

    The calls for operators need no Arrow, whose import takes longer than they do on a small store, so this module
    imports it only for the others.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        connection.merge_later = _merge_later

    @property
    def url(self) -> str:
        """The URL of the store, without credentials."""
        return self._connection.url

    @property
    def store_id(self) -> str:
        """The id of the store: that which it got when it was created, or as a copy beside its original."""
        return self._connection.store_id

    @property
    def read_only(self) -> bool:
        """Whether the store was opened read-only."""
        return self._connection.read_only

    @property
    def principal(self) -> str:
        """The principal of this process."""
        return self._connection.principal

    @property
    def acls(self) -> Acls:
        """The rules of the store: who may do what (docs/howto/permissions.md)."""
        load("txnstore.admin.acls")
        from txnstore.admin.acls import Acls

        return Acls(self._connection)

    @property
    def tables(self) -> Tables:
        """Topics as Apache Iceberg tables (docs/tables.md)."""
        load("txnstore.tables.tables")
        from txnstore.tables.tables import Tables

        return Tables(self._connection)

    def snapshot(self, entry: int | Sequence[int] | None = None, timestamp: Time | None = None) -> Snapshot:
        """A consistent view of all topics, pinned now (one GET for each chain), or after an earlier entry.

        Now, transactions past their timeout that hold back records are aborted first, one PUT each, unless the store is
        read_only. :meth:`Snapshot.blocked` shows what others hold back. An earlier one takes a list, two GETs and one
        for each entry since a checkpoint, and reads what no vacuum has deleted since (docs/howto/time-travel.md).

        Args:
            entry: The last entry that it contains (:attr:`Snapshot.entry`); of several chains, that of each.
            timestamp: Or it contains all entries that were written until this time: ``"2026-01-31T12:00:00Z"`` (UTC if
                the text names no zone), a ``datetime`` with a time zone, or milliseconds since the epoch.

        Raises:
            InvalidConfigError: There is no such entry or time, or the entries of several chains do not fit together.
            SnapshotExpiredError: A vacuum has deleted the history of that time.
        """
        return self._connection.snapshot(entry, timestamp)

    def metrics(self, *, status: bool = False) -> StoreMetrics:
        """Requests, commits, conflicts and durations of this process since the store was opened. No request.

        Args:
            status: Also the state of the store: chains, partitions with the distance of their last stable offsets, open
                transactions with their age, groups with their lag. Two GETs for each chain, and one.
        """
        if not status:
            return self._connection.metrics()
        load("txnstore.admin.status")
        from txnstore.admin.status import store_metrics

        return store_metrics(self._connection, status=True)

    # Catalog ----------------------------------------------------------------------------------------------------------

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        schema: pa.Schema | None = None,
        key: str | None = None,
        timestamp: str | None = None,
        config: Mapping[str, object] | None = None,
        *,
        exist_ok: bool = False,
    ) -> Topic:
        """Create a topic of Kafka records, or of typed columns.

        Args:
            name: 1 to 249 of ``a-z A-Z 0-9 . _ -`` (Kafka's ``Topic.validate``).
            partitions: How many partitions it has, 1 to 100,000.
            schema: Its columns; None: a topic of Kafka records.
            key: The column that chooses the partition, and of whose values compaction keeps the newest row.
            timestamp: The column that holds the event time.
            config: Settings under Kafka's names; durations in milliseconds, as there.
            exist_ok: Return the topic if it exists and was created the same way.

        Raises:
            TopicExistsError: It exists, and ``exist_ok`` is off or it was created with other arguments.
            InvalidTopicError: Kafka refuses the name, too.
            InvalidConfigError: A setting is unknown or out of range.
            SchemaMismatchError: The schema, or the key in it, cannot be stored.

        Warns with :class:`txnstore.UnmaintainedStoreWarning` if a setting takes effect by maintenance, and no process
        has maintained the store for an hour.
        """
        load("txnstore.catalog.topics")
        from txnstore.catalog.topics import create_topic

        created = create_topic(self._connection, name, partitions, schema, key, timestamp, config, exist_ok=exist_ok)
        self._warn_if_neglected(created)
        return Topic(created)

    def topics(self) -> list[Topic]:
        """All topics by name."""
        return [Topic(topic) for topic in self._connection.view().sorted_topics()]

    def topic(self, name: str) -> Topic:
        """A topic.

        Raises:
            UnknownTopicOrPartitionError: There is no such topic.
        """
        return Topic(self._connection.view().find_topic(name))

    def alter_topic(
        self,
        name: str,
        partitions: int | None = None,
        schema: pa.Schema | None = None,
        config: Mapping[str, object] | None = None,
    ) -> Topic:
        """Change a topic; an argument that is None changes nothing.

        Args:
            name: The topic.
            partitions: The new number of partitions; it can only grow.
            schema: The new columns: nullable ones added, types widened, another order.
            config: Settings to change; a value of None returns one to its default.

        Raises:
            UnknownTopicOrPartitionError: There is no such topic.
            InvalidConfigError: A setting, or the number of partitions, is out of range.
            SchemaMismatchError: The columns cannot evolve that way; names the column.
            UnknownOutcomeError: It is not known whether the topic is altered, or it is, and a chain that leads some of
                its partitions does not know it yet: repeat the call.

        Warns as :meth:`create_topic`.
        """
        load("txnstore.catalog.topics")
        from txnstore.catalog.topics import alter_topic

        altered = alter_topic(self._connection, name, partitions, schema, config)
        if config:
            self._warn_if_neglected(altered)
        return Topic(altered)

    def _warn_if_neglected(self, topic: CatalogTopic) -> None:
        """Warn if nobody applies a setting of a topic."""
        load("txnstore.admin.upkeep")
        from txnstore.admin.upkeep import warn_if_neglected

        warn_if_neglected(self._connection, topic)

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all of its records. Its objects are deleted by the next vacuum.

        Raises:
            InvalidTopicError: No topic can have the name.
            UnknownTopicOrPartitionError: There is no such topic.
        """
        load("txnstore.catalog.topics")
        from txnstore.catalog.topics import delete_topic

        delete_topic(self._connection, name)

    # Producing and reading --------------------------------------------------------------------------------------------

    def producer(
        self,
        transactional_id: str | None = None,
        transaction_timeout: float = 60.0,
        *,
        batch_bytes: int = 16 * 1024 * 1024,
        buffer_bytes: int = 32 * 1024 * 1024,
        linger: float | Literal["default"] | None = "default",
        delivery_timeout: float = 120.0,
        keep_prepared: bool = False,
        two_phase_commit: bool = False,
    ) -> Producer:
        """A producer: idempotent, or transactional if it has an id.

        The arguments are those of :class:`~txnstore.producer.Producer`; durations in seconds.
        """
        load("txnstore.producer")
        from txnstore.producer import Producer

        return Producer(
            self._connection,
            transactional_id,
            transaction_timeout,
            batch_bytes=batch_bytes,
            buffer_bytes=buffer_bytes,
            linger=linger,
            delivery_timeout=delivery_timeout,
            keep_prepared=keep_prepared,
            two_phase_commit=two_phase_commit,
        )

    def consumer(
        self,
        topics: Sequence[str] | str | None = None,
        group: str | None = None,
        *,
        isolation: IsolationLevel = "read_committed",
        auto_offset_reset: ResetPolicy = "earliest",
        enable_auto_commit: bool = False,
        auto_commit_interval: float = 5.0,
        max_poll_records: int = 500,
        poll_interval: float = 0.5,
        assignor: AssignorName = "cooperative-sticky",
        group_instance_id: str | None = None,
        session_timeout: float = 45.0,
        max_poll_interval: float = 300.0,
        consumer_timeout: float = math.inf,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
    ) -> Consumer:
        """A consumer of topics; with a ``group`` it begins at the group's committed offsets.

        The arguments are those of :class:`~txnstore.consumer.Consumer`; durations in seconds.
        """
        load("txnstore.consumer")
        from txnstore.consumer import Consumer

        return Consumer(
            self._connection,
            topics,
            group,
            isolation=isolation,
            auto_offset_reset=auto_offset_reset,
            enable_auto_commit=enable_auto_commit,
            auto_commit_interval=auto_commit_interval,
            max_poll_records=max_poll_records,
            poll_interval=poll_interval,
            assignor=assignor,
            group_instance_id=group_instance_id,
            session_timeout=session_timeout,
            max_poll_interval=max_poll_interval,
            consumer_timeout=consumer_timeout,
            on_assigned=on_assigned,
            on_revoked=on_revoked,
        )

    def scan(
        self,
        topic: str,
        isolation: IsolationLevel = "read_committed",
        partitions: Iterable[int] | None = None,
        start: Bound = None,
        end: Bound = None,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        snapshot: Snapshot | None = None,
    ) -> Scan:
        """All records of a topic, or a part of them, as Arrow. The arguments are those of :class:`txnstore.Scan`."""
        load("txnstore.scan")
        from txnstore.scan import Scan

        return Scan(self._connection, topic, isolation, partitions, start, end, columns, filter, snapshot)

    def offsets(self, topic: str, partition: int) -> PartitionOffsets:
        """Log start, last stable offset and high watermark of a partition.

        Raises:
            UnknownTopicOrPartitionError: There is no such partition.
        """
        load("txnstore.read.plan")
        from txnstore.read.plan import partition_offsets

        return partition_offsets(self._connection.view(), topic, partition)

    # SQL --------------------------------------------------------------------------------------------------------------

    def sql(
        self,
        query: str,
        isolation: IsolationLevel = "read_committed",
        snapshot: Snapshot | None = None,
        *,
        params: Sequence[Any] | Mapping[str, Any] | None = None,
        sandbox: bool = False,
        checksums: bool = True,
    ) -> DuckDBPyRelation:
        """Run a query in which each topic is a view of its name; returns a DuckDB relation.

        The arguments are those of :func:`txnstore.sql.query`: ``params`` are the values of its parameters, ``sandbox``
        lets it read nothing but the store, ``checksums`` compares those of files in a local folder. A statement without
        a result, such as ``COPY … TO``, gives None, as with DuckDB's own ``sql()``, whose type does not say so either.

        The relation runs when it is read. DuckDB then raises ``RuntimeError`` after Ctrl-C, and at times does not see
        it; ``interrupt()`` of a connection of :meth:`duckdb`, from another thread, ends a query of that connection.
        """
        load("txnstore.sql")
        from txnstore.sql import query as run

        options: dict[str, Any] = {"params": params, "sandbox": sandbox, "checksums": checksums}
        relation: DuckDBPyRelation = run(self._connection, query, isolation, snapshot, **options)
        return relation

    def duckdb(
        self,
        isolation: IsolationLevel = "read_committed",
        snapshot: Snapshot | None = None,
        *,
        sandbox: bool = False,
        checksums: bool = True,
    ) -> DuckDBPyConnection:
        """A DuckDB connection with one view per topic, and the schema ``txn`` for inspection, all of one snapshot.

        The arguments are those of :func:`txnstore.sql.connect`.
        """
        load("txnstore.sql")
        from txnstore.sql import connect

        return connect(self._connection, isolation, snapshot, sandbox=sandbox, checksums=checksums)

    def refresh(self, connection: DuckDBPyConnection) -> Snapshot:
        """Move all views of a connection of :meth:`duckdb` to a new snapshot, which is returned."""
        load("txnstore.sql")
        from txnstore.sql import refresh

        return refresh(self._connection, connection)

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
            TransactionalIdNotFoundError: The store does not have the id.
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
            TransactionalIdNotFoundError: The store does not have the id, and these entries do not name it.
        """
        return admin.transaction_history(self._connection, transactional_id, limit, since)

    def producers(self, topic: str, partition: int) -> list[ProducerDescription]:
        """The producers of a partition: epoch, last sequence, open transaction (ADM-03).

        Raises:
            UnknownTopicOrPartitionError: There is no such partition.
        """
        return admin.describe_producers(self._connection.view(), TopicPartition(topic, partition))

    def dump_log(
        self,
        topic: str,
        partition: int,
        start: int | None = None,
        stop: int | None = None,
        entries: int = admin.HISTORY_ENTRIES,
    ) -> LogDump:
        """The log of a partition line by line, with the markers of transactions, as Kafka's DumpLogSegments shows it.

        What compactions have merged has no producer any more. Markers are in the entries of the chain: one GET for each
        entry back to the one that has appended ``start``. Those of entries that a vacuum has deleted are not known.

        Args:
            topic: The topic.
            partition: The partition.
            start: The first offset; None: the log start.
            stop: The offset to stop before; None: the high watermark.
            entries: How many of the newest entries of the chain are read at most.

        Raises:
            UnknownTopicOrPartitionError: There is no such partition.
            TopicAuthorizationError: The principal may not read the topic.
            CorruptionError: An entry is missing or damaged.
        """
        load("txnstore.admin.logs")
        from txnstore.admin.logs import dump_log

        return dump_log(self._connection, topic, partition, start, stop, entries)

    def find_hanging(self, topic: str | None = None, late: float = admin.LATE) -> list[HangingTransaction]:
        """Hanging transactions: unknown to their coordinator, long past their timeout, or past it and blocking readers.

        See ADM-04. The reason of each is in the result.

        Args:
            topic: Only in its partitions, and pending offsets of these.
            late: Seconds past its timeout after which an open transaction is late. One that readers wait for hangs as
                soon as its timeout has passed.

        Raises:
            UnknownTopicOrPartitionError: There is no such topic.
        """
        return admin.find_hanging(self._connection, topic, late)

    def abort_transaction(self, transactional_id: str) -> bool:
        """Abort the open transaction of an id and fence its owner.

        A decided transaction is completed as decided (END-01); a prepared one is aborted, too.

        Returns:
            Whether there was a transaction to end.

        Raises:
            TransactionalIdNotFoundError: The store does not have the id.
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

        Like Kafka's ``fenceProducers``, it initializes a new instance of each id, also of ids that are unknown.

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
        """Set the committed offsets of a group without live members.

        Args:
            group: The group; it may be new.
            to: ``"earliest"``, ``"latest"`` (the last stable offset, so that no open record is skipped), a time (the
                first record at or after it: ISO 8601, a ``datetime`` with a time zone, or milliseconds), or offsets by
                partition.
            topics: All partitions of these topics; None: the partitions in which the group has committed.
            dry_run: Change nothing.

        Returns:
            The offsets that are committed then.

        Raises:
            GroupNotEmptyError: The group has live members.
            OffsetOutOfRangeError: An offset is outside its log.
        """
        load("txnstore.admin.groups")
        from txnstore.admin.groups import reset_offsets

        return reset_offsets(self._connection, group, to, topics, dry_run=dry_run)

    def remove_members(self, group: str) -> int:
        """Remove the members of a group that a gateway keeps, for example if that gateway never returns.

        Members that are alive join again; what they have not committed they read again.

        Returns:
            The number of members that were removed; members of this library, which have leases, are not.

        Raises:
            GroupNotFoundError: There is no such group.
            IllegalGenerationError: A gateway has stored another generation meanwhile: its members are alive.
        """
        load("txnstore.admin.groups")
        from txnstore.admin.groups import remove_members

        return remove_members(self._connection, group)

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
        spark = self._engine(engine, is_used=not dry_run)
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
            engine=spark,
            on_error=on_error,
        )

    def maintain(
        self,
        only: Collection[str] | None = None,
        *,
        every: Mapping[str, float] | None = None,
        budget: int | None = None,
        max_bytes: int | None = None,
        memory_limit: int | None = None,
        past_hw: bool = False,
        rounds: int | None = None,
    ) -> Maintenance:
        """Do all that the store needs, round after round, beside any number of other processes that do so.

        ``for round_ in store.maintain(): …`` does the rounds in the loop, and pauses after each; ``with
        store.maintain(): …`` does them in the background of the block. The kinds are ``recover``, ``retain``,
        ``compact``, ``expire``, ``checkpoint``, ``tables`` and ``vacuum``. The arguments and errors are those of
        :class:`txnstore.compactor.Maintenance`.
        """
        load("txnstore.compactor")
        from txnstore.compactor import Maintenance

        return Maintenance(
            self._connection,
            only=only,
            every=every,
            budget=budget,
            max_bytes=max_bytes,
            memory_limit=memory_limit,
            past_hw=past_hw,
            rounds=rounds,
        )

    def retain(
        self,
        topic: str | None = None,
        *,
        dry_run: bool = False,
        on_error: Callable[[TxnStoreError], object] | None = None,
    ) -> RetentionReport:
        """Delete the records that ``retention.ms`` and ``retention.bytes`` of their topic have passed.

        :meth:`compact` does it, too. See :func:`txnstore.compactor.retain`.
        """
        load("txnstore.compactor")
        from txnstore.compactor import retain

        return retain(self._connection, topic, dry_run=dry_run, on_error=on_error)

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

        return {tp: deleted.new_log_start for tp, deleted in delete_records(self._connection, offsets).items()}

    def erase(
        self,
        topic: str,
        *,
        key: object = None,
        where: str | None = None,
        grace: float = 0.0,
        dry_run: bool = False,
        prove: bool = False,
        memory_limit: int | None = None,
    ) -> EraseReport:
        """Erase the records of a topic with a key, or that an expression of SQL chooses, from all objects of the store.

        The arguments are those of :func:`txnstore.compactor.erase`.
        """
        load("txnstore.compactor")
        from txnstore.compactor import erase

        return erase(
            self._connection, topic,
            key=key, where=where, grace=grace, dry_run=dry_run, prove=prove, memory_limit=memory_limit,
        )  # fmt: skip

    def vacuum(
        self,
        older_than: float | None = None,
        *,
        history: float | None = None,
        dry_run: bool = False,
        expire: bool = True,
        force: bool = False,
        foreign: Collection[str] = (),
        tables: bool = True,
    ) -> VacuumReport:
        """Delete objects that nothing refers to. The arguments are those of :func:`txnstore.compactor.vacuum`.

        Raises:
            UnsoundStoreError: The store is not sound, or there are chains of another one; nothing was deleted.
        """
        load("txnstore.compactor")
        from txnstore.compactor import vacuum

        return vacuum(
            self._connection, older_than,
            history=history, dry_run=dry_run, expire=expire, force=force, foreign=foreign, tables=tables,
        )  # fmt: skip

    def backup(
        self,
        target: str | os.PathLike[str],
        storage_options: Mapping[str, Any] | None = None,
        *,
        verify: bool = False,
        progress: Callable[[BackupProgress], object] | None = None,
    ) -> BackupReport:
        """Copy the store as it is now to a backup, without what is there already; nothing is written to the store.

        A backup is opened like a store, to be read; :func:`txnstore.restore` makes a store of it.

        Args:
            target: The URL of the backup, or of an empty place.
            storage_options: Options for its storage, as in :func:`txnstore.open`.
            verify: Read all of the copy, and compare it with its hashes, before it counts.
            progress: Called now and then with how far it is.

        Raises:
            BackupError: The target is no backup of this store; nothing was copied.
            CorruptionError: An object of the store, or with ``verify`` of the copy, is missing or damaged.
            AuthorizationError: The principal may not read a topic.
            StorageError: A storage failed, or is full. The same call continues.
        """
        load("txnstore.compactor")
        from txnstore.compactor import backup

        return backup(self._connection, open_store(target, storage_options), verify=verify, progress=progress)

    def backup_rounds(
        self,
        target: str | os.PathLike[str],
        storage_options: Mapping[str, Any] | None = None,
        *,
        interval: float = 5.0,
        rounds: int | None = None,
    ) -> Generator[BackupRound, None, None]:
        """Keep a backup seconds behind the store: copy what is new round after round; yields each round, then pauses.

        Args:
            target: The URL of the backup, or of an empty place.
            storage_options: Options for its storage, as in :func:`txnstore.open`.
            interval: The pause between two rounds, in seconds.
            rounds: The number of rounds; None: until the caller stops.

        Raises:
            BackupError: The target is no backup of this store, or is none any more.
            AuthorizationError: The principal may not read a topic.
        """
        load("txnstore.compactor")
        from txnstore.compactor import watch_backup

        return watch_backup(self._connection, open_store(target, storage_options), interval=interval, rounds=rounds)

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
        spark = self._engine(engine, is_used=deep)
        if engine == "spark" and not deep:
            raise InvalidConfigError("engine 'spark' needs deep=True: only data is read by Spark")
        load("txnstore.compactor")
        from txnstore.compactor import verify

        return verify(self._connection, deep=deep, engine=spark)

    def _engine(self, name: str, *, is_used: bool) -> Engine | None:
        """The engine of this name; None: this process."""
        if check_choice("engine", name, get_args(EngineName)) == "duckdb" or not is_used:
            return None
        load("txnstore.spark.engine")
        from txnstore.spark.engine import SparkEngine

        return SparkEngine(self._connection)

    def doctor(self, *, probe: bool = False) -> DoctorReport:
        """Examine the store, its storage and its debt, and report findings. See :func:`txnstore.compactor.doctor`.

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
            status: The state of the store, whichever processes use it. Two GETs for each chain, and one.
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

    # Life -------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Release threads and connections. Using the store again connects again.

        A process that has written leaves a checkpoint behind eight entries or more, so that the next open is fast: one
        GET and three PUTs for each chain. The close waits at most some seconds for them, and does not fail with them.
        """
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<txnstore.Store {redact(self.url)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self._connection,)


def _merge_later(opened: OpenParts, state: State) -> None:
    """Merge the small commits of a chain in the background.

    What that needs takes 0.2 s to import: no commit waits for it.
    """
    if is_loaded("txnstore.compactor.compact.background"):
        _merge(opened, state)
        return
    try:
        opened.background.submit(_merge, opened, state, in_background=True)
    except Exception:  # noqa: BLE001 - no thread or no memory for the task: it is tried again, logged and counted
        _merge(opened, state)


def _merge(opened: OpenParts, state: State, *, in_background: bool = False) -> None:
    load("txnstore.compactor.compact.background")
    from txnstore.compactor.compact.background import merge_later

    merge_later(opened, state, in_background=in_background)
