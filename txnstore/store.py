"""A store: what a process holds to work with one URL, and the doors to everything else."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from txnstore.admin import transactions as administration
from txnstore.admin.transactions import (
    HangingTransaction,
    ProducerDescription,
    TransactionDescription,
    TransactionHistory,
)
from txnstore.chain import keys
from txnstore.chain.codec import StoreDocument, encode
from txnstore.connection import Connection
from txnstore.coordinating.expiring import ExpiryReport, expire
from txnstore.coordinating.recovery import RecoveryReport, recover
from txnstore.core.commands import ProducerIdentity
from txnstore.core.model import Topic, TopicPartition, Transaction
from txnstore.core.routing import MAX_CHAINS
from txnstore.errors import (
    InvalidConfigError,
    StoreExistsError,
)
from txnstore.ids import Runtime
from txnstore.snapshot import Snapshot
from txnstore.storage.base import ObjectStore
from txnstore.storage.claim import Claim
from txnstore.storage.probe import probe_once
from txnstore.storage.redact import redact
from txnstore.storage.registry import open_store

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection

    from txnstore.admin.groups import GroupDescription, Target
    from txnstore.compactor import CompactionReport, VacuumReport, VerifyReport
    from txnstore.consumer import Consumer, PartitionOffsets
    from txnstore.producer import Producer
    from txnstore.scan import Scan


def create(
    url: str | os.PathLike[str],
    chains: int | None = None,
    storage_options: Mapping[str, Any] | None = None,
    *,
    exist_ok: bool = False,
    runtime: Runtime | None = None,
) -> Store:
    """Create a store and open it.

    ``url``: a path, ``file://``, ``memory://`` or ``s3://``. ``chains``: how many order its commits, for ever; None: 1,
    or as many as the store has that ``exist_ok`` opens. ``storage_options`` go to fsspec unchanged.
    Raises :class:`StoreExistsError` if there is one (unless ``exist_ok``), and :class:`UnsafeStorageError` if the
    storage lets a name be created twice.
    """
    return create_on(open_store(url, storage_options), chains, exist_ok=exist_ok, runtime=runtime)


def open(  # noqa: A001 - txnstore.open(url) is the public name
    url: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    read_only: bool = False,
    runtime: Runtime | None = None,
) -> Store:
    """Open a store.

    Raises :class:`StoreNotFoundError` if there is none at ``url``, :class:`UnsupportedFormatError` if a newer txnstore
    made it. ``read_only``: nothing is written, not even the probe of the storage.
    """
    return open_on(open_store(url, storage_options), read_only=read_only, runtime=runtime)


def create_on(
    objects: ObjectStore,
    chains: int | None = None,
    *,
    exist_ok: bool = False,
    runtime: Runtime | None = None,
) -> Store:
    """Create a store on an object store of one's own, such as a wrapper that counts or injects faults."""
    count = 1 if chains is None else chains
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= MAX_CHAINS:
        msg = f"chains must be a number from 1 to {MAX_CHAINS}, not {chains!r}"
        raise InvalidConfigError(msg)
    runtime = runtime or Runtime()
    probe_once(objects, runtime.new_id)
    document = StoreDocument(store_id=runtime.new_id(), chains=count, created_at=runtime.clock())
    claim = Claim(keys.STORE, encode(document))
    created = claim.settle(objects, runtime.backoff) == claim.data
    if not created and not exist_ok:
        msg = f"there is a store at {redact(objects.url)} already: it has a {keys.STORE}"
        raise StoreExistsError(msg)
    store = open_on(objects, runtime=runtime)
    if chains is not None and len(store.chains) != chains:
        has = f"{len(store.chains)} chain{'s' if len(store.chains) > 1 else ''}"
        msg = f"the store at {redact(objects.url)} has {has}, not {chains}; that cannot be changed"
        raise InvalidConfigError(msg)
    return store


def open_on(objects: ObjectStore, *, read_only: bool = False, runtime: Runtime | None = None) -> Store:
    """Open a store on an object store of one's own."""
    store = Store(objects, read_only=read_only, runtime=runtime)
    store.load()
    if not read_only:
        probe_once(objects, store.runtime.new_id)
    return store


class Store(Connection):
    """A store that is open: thread-safe, picklable, safe after ``fork``; a context manager.

    Made by :func:`create` and :func:`open`. :meth:`close` releases its threads and connections and ends nothing else: a
    store that is used again connects again, and what producers and consumers of it have under way goes on.
    """

    # What it shows of itself ------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """A consistent view of all topics, pinned now."""
        return Snapshot(self.state())

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
        """Create a topic of Kafka records, or of typed columns if ``schema`` is given.

        ``key``: the column that chooses the partition and that compaction keeps the newest row of.
        ``timestamp``: the column that holds the event time. ``config``: settings under Kafka's names.
        """
        from txnstore.catalog.topics import create_topic

        return create_topic(self, name, partitions, schema, key, timestamp, config, exist_ok=exist_ok)

    def topics(self) -> list[Topic]:
        """All topics by name."""
        return self.state().sorted_topics()

    def topic(self, name: str) -> Topic:
        """A topic. Raises :class:`UnknownTopicOrPartitionError`."""
        from txnstore.catalog.topics import find_topic

        return find_topic(self.state(), name)

    def alter_topic(
        self,
        name: str,
        partitions: int | None = None,
        schema: pa.Schema | None = None,
        config: Mapping[str, object] | None = None,
    ) -> Topic:
        """Add partitions, evolve the schema, change settings (a value of None returns one to its default)."""
        from txnstore.catalog.topics import alter_topic

        return alter_topic(self, name, partitions, schema, config)

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all of its records. Its objects go with the next vacuum."""
        from txnstore.catalog.topics import delete_topic

        delete_topic(self, name)

    # Producing and reading --------------------------------------------------------------------------------------------

    def producer(
        self,
        transactional_id: str | None = None,
        transaction_timeout: float = 60.0,
        **options: Any,
    ) -> Producer:
        """A producer: idempotent, or transactional if it has an id; then its predecessor is fenced and recovered.

        ``options``: see :class:`~txnstore.producer.Producer`.
        """
        from txnstore.producer import Producer

        return Producer(self, transactional_id, transaction_timeout, **options)

    def consumer(self, topics: Sequence[str] | None = None, group: str | None = None, **options: Any) -> Consumer:
        """A consumer of topics; with a ``group``, it begins where the group committed.

        ``options``: see :class:`~txnstore.consumer.Consumer`.
        """
        from txnstore.consumer import Consumer

        return Consumer(self, topics, group, **options)

    def scan(self, topic: str, isolation: str = "read_committed", **options: Any) -> Scan:
        """All records of a topic, or a part of them, as Arrow. ``options``: see :class:`~txnstore.scan.Scan`."""
        from txnstore.scan import Scan

        return Scan(self, topic, isolation, **options)

    def offsets(self, topic: str, partition: int) -> PartitionOffsets:
        """Log start, last stable offset and high watermark of a partition."""
        from txnstore.consumer import partition_offsets

        return partition_offsets(self.state(), topic, partition)

    # Transactions -----------------------------------------------------------------------------------------------------

    def transactions(
        self,
        state: str | None = None,
        older_than: float | None = None,
        *,
        producer_id: int | None = None,
        pattern: str | None = None,
    ) -> list[Transaction]:
        """The transactions by id: those in ``state`` (such as ``"ONGOING"``), begun over ``older_than`` seconds ago.

        ``producer_id``: of this producer. ``pattern``: a regular expression that the whole id matches.
        """
        view, now = self.state(), self.runtime.clock()
        return administration.list_transactions(view, now, state, older_than, producer_id, pattern)

    def transaction(self, transactional_id: str) -> TransactionDescription:
        """The last transaction of an id. Raises :class:`TransactionalIdNotFoundError`."""
        return administration.describe_transaction(self.state(), transactional_id)

    def transaction_history(
        self, transactional_id: str, limit: int = administration.HISTORY_ENTRIES, since: int | None = None
    ) -> TransactionHistory:
        """The steps of an id's transactions, in the newest ``limit`` entries of all chains, from ``since`` (ms) on."""
        view = self.state()
        return administration.transaction_history(view, self.objects, self.pool, transactional_id, limit, since)

    def producers(self, topic: str, partition: int) -> list[ProducerDescription]:
        """What a partition knows of producers: epoch, last sequence, open transaction."""
        return administration.describe_producers(self.state(), TopicPartition(topic, partition))

    def find_hanging(self, topic: str | None = None, late: float = administration.LATE) -> list[HangingTransaction]:
        """Open data and pending offsets of groups whose transaction its coordinator does not know, or that is late.

        ``late``: by how many seconds past its time-out. ``topic``: only in its partitions, or offsets of these.
        """
        return administration.find_hanging(self.state(), self.runtime.clock(), topic, late)

    def abort_transaction(self, transactional_id: str) -> bool:
        """Abort the open transaction of an id and fence its owner; whether there was something to end."""
        return administration.abort_transaction(self.coordinator, self.state(), transactional_id)

    def abort_hanging(self, topic: str, partition: int, producer_id: int) -> bool:
        """End what a producer holds open in a partition, also if no coordinator knows it; whether there was such."""
        tp, view = TopicPartition(topic, partition), self.state()
        return administration.abort_open_data(self.chains, self.coordinator, view, tp, producer_id)

    def fence_producers(self, transactional_ids: Iterable[str]) -> dict[str, ProducerIdentity]:
        """Fence the owners of these ids and abort what they left open; the identities that come after."""
        return administration.fence_producers(self.coordinator, self.state(), transactional_ids)

    # Groups -----------------------------------------------------------------------------------------------------------

    def groups(self) -> list[GroupDescription]:
        """All consumer groups by name: members, committed offsets, lag."""
        from txnstore.admin.groups import list_groups

        return list_groups(self)

    def group(self, name: str) -> GroupDescription:
        """A consumer group. Raises :class:`GroupNotFoundError`."""
        from txnstore.admin.groups import describe_group

        return describe_group(self, name)

    def reset_offsets(self, group: str, to: Target, **options: Any) -> dict[TopicPartition, int]:
        """Set the committed offsets of a group without live members; see ``admin.groups``."""
        from txnstore.admin.groups import reset_offsets

        return reset_offsets(self, group, to, **options)

    def delete_group(self, name: str) -> None:
        """Delete a group without live members, and its offsets."""
        from txnstore.admin.groups import delete_group

        delete_group(self, name)

    # SQL --------------------------------------------------------------------------------------------------------------

    def sql(self, query: str, isolation: str = "read_committed", snapshot: Snapshot | None = None) -> Any:
        """The DuckDB relation of a query over the topics as views."""
        from txnstore.sql import query as run

        return run(self, query, isolation, snapshot)

    def duckdb(self, isolation: str = "read_committed", snapshot: Snapshot | None = None) -> DuckDBPyConnection:
        """A DuckDB connection with a view a topic, and the schema ``txn`` for inspection, all of one snapshot."""
        from txnstore.sql import connect

        return connect(self, isolation, snapshot)

    def refresh(self, connection: DuckDBPyConnection) -> Snapshot:
        """Move all views of a connection of :meth:`duckdb` to the newest snapshot."""
        from txnstore.sql import refresh

        return refresh(self, connection)

    # Maintenance ------------------------------------------------------------------------------------------------------

    def compact(self, topic: str | None = None, **options: Any) -> CompactionReport:
        """Merge small segments below the transactional high-watermark; drop aborted data."""
        from txnstore.compactor import compact

        return compact(self, topic, **options)

    def vacuum(self, older_than: float | None = None, *, dry_run: bool = False, expire: bool = True) -> VacuumReport:
        """Delete objects that nothing refers to, after a grace period in seconds."""
        from txnstore.compactor import vacuum

        return vacuum(self, older_than, dry_run=dry_run, expire=expire)

    def recover(self) -> RecoveryReport:
        """End what others left: carry out what is decided, abort what is past its time-out, in all chains.

        Safe at any time, by any number of processes at once.
        """
        return recover(self.chains, self.coordinator, self.runtime.clock())

    def expire(
        self,
        producer_ids: float = 86_400.0,
        transactional_ids: float = 604_800.0,
        offsets: float = 604_800.0,
    ) -> ExpiryReport:
        """Forget what was unused for so many seconds: producers, transactional ids, offsets of groups without members.

        The defaults are Kafka's. :meth:`compact` and :meth:`vacuum` do this, too, with the defaults.
        """
        return expire(self.chains, producer_ids, transactional_ids, offsets)

    def verify(self, *, deep: bool = False) -> VerifyReport:
        """Check every invariant; ``deep`` reads and checks all data."""
        from txnstore.compactor import verify

        return verify(self, deep=deep)

    def __repr__(self) -> str:
        return f"<txnstore.Store {redact(self.url)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self.objects, self.read_only)


def _unpickle(objects: ObjectStore, read_only: bool) -> Store:
    return Store(objects, read_only=read_only)
