"""Public entry point: create or open a store; topics, clients, SQL, administration, maintenance."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

from txnstore.catalog import topics as catalog
from txnstore.catalog.description import Topic
from txnstore.connection import create_connection, open_connection
from txnstore.metrics import StoreMetrics
from txnstore.operations import Operations
from txnstore.read.plan import IsolationLevel, PartitionOffsets, partition_offsets
from txnstore.runtime import Runtime
from txnstore.snapshot import Snapshot
from txnstore.storage.base import ObjectStore
from txnstore.storage.redact import redact
from txnstore.storage.registry import open_store
from txnstore.threads import load
from txnstore.times import Time

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
    from duckdb import DuckDBPyConnection

    from txnstore.consumer import Consumer
    from txnstore.consumer.membership import AssignorName, Callback
    from txnstore.consumer.subscription import ResetPolicy
    from txnstore.producer import Producer
    from txnstore.scan import Bound, Scan


def create(
    url: str | os.PathLike[str],
    chains: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    transaction_max_timeout: float | None = None,
    exist_ok: bool = False,
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
        runtime: Clock, randomness, pauses and workers; for tests.

    Raises:
        StoreExistsError: There is a store, and ``exist_ok`` is off.
        CorruptionError: There is no ``store.json``, but something of a store is left: nothing was created.
        UnsafeStorageError: The storage lets a name be created twice.
        InvalidConfigError: ``chains`` or ``transaction_max_timeout`` is out of range, or not what the existing store
            has.
    """
    return create_on(
        open_store(url, storage_options),
        chains,
        transaction_max_timeout=transaction_max_timeout,
        exist_ok=exist_ok,
        runtime=runtime,
    )


def open(  # noqa: A001 - txnstore.open(url) is the public name
    url: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    read_only: bool = False,
    runtime: Runtime | None = None,
) -> Store:
    """Open a store.

    Args:
        url: A path, ``file://``, ``memory://`` or ``s3://``.
        storage_options: Options for fsspec, passed on unchanged; and ``transport`` (docs/howto/s3.md).
        read_only: Write nothing, not even the probe of the storage.
        runtime: Clock, randomness, pauses and workers, for tests.

    Raises:
        StoreNotFoundError: There is none at ``url``.
        UnsupportedFormatError: A newer txnstore made it.
        UnsafeStorageError: The storage lets a name be created twice.
    """
    return open_on(open_store(url, storage_options), read_only=read_only, runtime=runtime)


def create_on(
    objects: ObjectStore,
    chains: int | None = None,
    *,
    transaction_max_timeout: float | None = None,
    exist_ok: bool = False,
    runtime: Runtime | None = None,
) -> Store:
    """:func:`create` on an object store of one's own, such as a wrapper that counts or injects faults."""
    return Store(
        create_connection(
            objects, chains, transaction_max_timeout=transaction_max_timeout, exist_ok=exist_ok, runtime=runtime
        )
    )


def open_on(objects: ObjectStore, *, read_only: bool = False, runtime: Runtime | None = None) -> Store:
    """:func:`open` on an object store of one's own."""
    return Store(open_connection(objects, read_only=read_only, runtime=runtime))


class Store(Operations):
    """A store that is open: thread-safe, picklable, safe after ``fork``; a context manager.

    Made by :func:`txnstore.create` and :func:`txnstore.open`. :meth:`close` releases its threads and connections and
    nothing else: a store that is used again connects again, and its producers and consumers continue.
    """

    @property
    def url(self) -> str:
        """Where the store is, without credentials."""
        return self._connection.url

    @property
    def store_id(self) -> str:
        """The id that the store got when it was created."""
        return self._connection.store_id

    @property
    def read_only(self) -> bool:
        """Whether the store was opened read-only."""
        return self._connection.read_only

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
                transactions with their age, groups with their lag. Two GETs for each chain.
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
        """
        created = catalog.create_topic(
            self._connection, name, partitions, schema, key, timestamp, config, exist_ok=exist_ok
        )
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
        """Change a topic; what is None stays as it is.

        Args:
            name: The topic.
            partitions: The new number of partitions; it can only grow.
            schema: The new columns: nullable ones added, types widened, another order.
            config: Settings to change; a value of None returns one to its default.

        Raises:
            UnknownTopicOrPartitionError: There is no such topic.
            InvalidConfigError: A setting, or the number of partitions, is out of range.
            SchemaMismatchError: The columns cannot evolve that way; names the column.
        """
        return Topic(catalog.alter_topic(self._connection, name, partitions, schema, config))

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all of its records. Its objects are deleted by the next vacuum.

        Raises:
            UnknownTopicOrPartitionError: There is no such topic.
        """
        catalog.delete_topic(self._connection, name)

    # Producing and reading --------------------------------------------------------------------------------------------

    def producer(
        self,
        transactional_id: str | None = None,
        transaction_timeout: float = 60.0,
        *,
        batch_bytes: int = 16 * 1024 * 1024,
        buffer_bytes: int = 64 * 1024 * 1024,
        linger: float | Literal["default"] | None = "default",
        delivery_timeout: float = 120.0,
        keep_prepared: bool = False,
        two_phase_commit: bool = False,
    ) -> Producer:
        """A producer: idempotent, or transactional if it has an id; see :class:`~txnstore.producer.Producer`.

        Args:
            transactional_id: Fences all earlier instances of this id, and aborts their open transaction.
            transaction_timeout: Seconds after which any process may abort an open transaction
                (``transaction.timeout.ms``).
            batch_bytes: The size at which the batch of a partition is uploaded.
            buffer_bytes: How many bytes may wait for their upload; above it ``send`` blocks.
            linger: Seconds after which a record is flushed (``linger.ms``); None: no flush by time. ``"default"``:
                0.1, and None with a ``transactional_id``.
            delivery_timeout: Seconds for which an upload that fails is repeated (``delivery.timeout.ms``).
            keep_prepared: Take over a prepared transaction of an earlier instance instead of aborting it (KIP-939).
                Implies ``two_phase_commit``.
            two_phase_commit: Transactions have no timeout, since an external coordinator ends all of them (KIP-939).
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
    ) -> Any:
        """Run a query in which each topic is a view of its name; returns a DuckDB relation.

        The arguments are those of :func:`txnstore.sql.query`: ``params`` are the values of its parameters, ``sandbox``
        lets it read nothing but the store, ``checksums`` compares those of files in a local folder.
        """
        load("txnstore.sql")
        from txnstore.sql import query as run

        options: dict[str, Any] = {"params": params, "sandbox": sandbox, "checksums": checksums}
        return run(self._connection, query, isolation, snapshot, **options)

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

    # Life -------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Release threads and connections. Using the store again connects again."""
        self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<txnstore.Store {redact(self.url)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self._connection,)
