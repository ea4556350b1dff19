"""A store: what a process holds to work with one URL, and the doors to everything else."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from txnstore.chain import keys
from txnstore.chain.chains import Chains, read_if_there
from txnstore.chain.codec import StoreDocument, decode, encode
from txnstore.chain.log import Chain
from txnstore.coordinating import administration
from txnstore.coordinating.administration import (
    HangingTransaction,
    ProducerDescription,
    TransactionDescription,
    TransactionHistory,
)
from txnstore.coordinating.coordinator import Coordinator
from txnstore.coordinating.expiring import ExpiryReport, expire
from txnstore.coordinating.recovery import RecoveryReport, recover, unblock
from txnstore.core.commands import Command, ProducerIdentity
from txnstore.core.model import Topic, TopicPartition, Transaction
from txnstore.core.routing import CATALOG, MAX_CHAINS
from txnstore.core.view import View
from txnstore.errors import (
    InvalidConfigError,
    StoreExistsError,
    StoreNotFoundError,
)
from txnstore.ids import Runtime
from txnstore.reading.snapshot import Snapshot
from txnstore.storage.base import ObjectStore
from txnstore.storage.claim import Claim
from txnstore.storage.counting import CountingStore
from txnstore.storage.probe import probe_once
from txnstore.storage.redact import redact
from txnstore.storage.registry import open_store

if TYPE_CHECKING:
    import pyarrow as pa
    from duckdb import DuckDBPyConnection

    from txnstore.compactor import CompactionReport, VacuumReport, VerifyReport
    from txnstore.consumer import Consumer, PartitionOffsets
    from txnstore.groups import GroupDescription, Target
    from txnstore.producer import Producer
    from txnstore.scan import Scan

#: How every ``store.json`` of ours begins, in any version.
_OURS = b'{"version":'


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
        msg = f"the store at {redact(objects.url)} has {len(store.chains)} chains, not {chains}; that cannot be changed"
        raise InvalidConfigError(msg)
    return store


def open_on(objects: ObjectStore, *, read_only: bool = False, runtime: Runtime | None = None) -> Store:
    """Open a store on an object store of one's own."""
    store = Store(objects, read_only=read_only, runtime=runtime)
    store.load()
    if not read_only:
        probe_once(objects, store.runtime.new_id)
    return store


@dataclass(frozen=True, slots=True)
class StoreMetrics:
    """Counters of this process since the store was opened: requests by kind, bytes, commits, conflicts."""

    gets: int
    puts: int
    lists: int
    deletes: int
    bytes_in: int
    bytes_out: int
    commits: int
    commands: int
    conflicts: int
    unknown_outcomes: int
    checkpoints: int


@dataclass(frozen=True, slots=True)
class _Opened:
    """What was read of a store, and what works on it."""

    document: StoreDocument
    chains: Chains
    coordinator: Coordinator


class Store:
    """A store that is open: thread-safe, picklable, safe after ``fork``; a context manager.

    Made by :func:`create` and :func:`open`.
    """

    def __init__(self, objects: ObjectStore, *, read_only: bool = False, runtime: Runtime | None = None) -> None:
        self.objects = objects if isinstance(objects, CountingStore) else CountingStore(objects)
        self.read_only = read_only
        self.runtime = runtime or Runtime()
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.RLock()
        self._forget()
        self._pid = os.getpid()

    def _forget(self) -> None:
        """What is needed again is read again; all of it goes at once, under the lock that it is made under."""
        self._pools: dict[str, Executor] = {}
        self._opened: _Opened | None = None

    # What it stands on ------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Where the store is, without credentials."""
        return self.objects.url

    @property
    def store_id(self) -> str:
        """The id that the store got when it was created."""
        return self._open().document.store_id

    @property
    def chains(self) -> Chains:
        """The manifest chains; read again in a process that inherited or unpickled this object."""
        return self._open().chains

    def _open(self) -> _Opened:
        opened = self._opened
        if opened is not None and self._pid == os.getpid():
            return opened
        self._own_process()
        with self._lock:
            return self._opened or self._load()

    @property
    def chain(self) -> Chain:
        """The chain of the catalog: the only one, unless the store was created with several."""
        return self.chains[CATALOG]

    @property
    def pool(self) -> Executor:
        """The workers for requests in parallel."""
        return self._workers("requests", self.runtime.executor)

    def _workers(self, purpose: str, make: Callable[[], Executor]) -> Executor:
        self._own_process()
        with self._lock:
            if purpose not in self._pools:
                self._pools[purpose] = make()
            return self._pools[purpose]

    def _own_process(self) -> None:
        """After a fork, forget what belongs to the parent: its threads and its locks are not here."""
        if self._pid != os.getpid():
            self._reset()

    def load(self) -> Chains:
        """Read everything again."""
        self._own_process()
        with self._lock:
            return self._load().chains

    def _load(self) -> _Opened:
        """Read the identity and the first hint at once, then the chains."""
        identity = self.pool.submit(read_if_there, self.objects, keys.STORE)
        hint = read_if_there(self.objects, keys.latest(0))
        data = identity.result()
        if data is None:
            msg = f"there is no txnstore at {redact(self.url)}: it has no {keys.STORE}"
            raise StoreNotFoundError(msg)
        if not data.startswith(_OURS[: len(data)]):
            what = f"its {keys.STORE} belongs to something else; a store needs a URL of its own"
            msg = f"there is no txnstore at {redact(self.url)}: {what}"
            raise StoreNotFoundError(msg)
        document = decode(StoreDocument, keys.STORE, data)
        count = document.chains
        # Each chain has its own, so that callers who wait for one that cannot be written keep nobody from the others.
        workers = [self._workers(f"chain {number}", self.runtime.executor) for number in range(count) if count > 1]
        chains = Chains(self.objects, count, self.runtime, self.pool, workers, read_only=self.read_only)
        chains.load(hint)
        self._opened = _Opened(document, chains, Coordinator(chains, self.runtime, self._in_background))
        return self._opened

    def _in_background(self) -> Executor:
        return self._workers("background", self.runtime.background)

    def submit(self, command: Command) -> Any:
        """Commit a command and return its answer; see :meth:`txnstore.coordinating.coordinator.Coordinator.submit`."""
        return self.coordinator.submit(command)

    @property
    def coordinator(self) -> Coordinator:
        """What takes commands to the chains."""
        return self._open().coordinator

    def state(self, *, refresh: bool | Collection[int] = True) -> View:
        """The state of the store: at the head (one GET a chain if nothing is new), or as last known.

        ``refresh``: True or False, or the numbers of the chains to read.
        """
        if isinstance(refresh, bool):
            return self.chains.view(None if refresh else ())
        return self.chains.view(refresh)

    def unblock(self, producer_ids: Iterable[int]) -> bool:
        """End the open transactions of these producers that their owners have left; whether there was such a thing."""
        if self.read_only:
            return False
        return unblock(self.coordinator, self.state(refresh=False), producer_ids, self.runtime.clock())

    def snapshot(self) -> Snapshot:
        """A consistent view of all topics, pinned now."""
        return Snapshot(self.state())

    def metrics(self) -> StoreMetrics:
        """What this object has cost so far."""
        counts, metrics = self.objects.snapshot(), [chain.metrics for chain in self.chains]
        return StoreMetrics(
            gets=counts.get + counts.stat,
            puts=counts.puts,
            lists=counts.list,
            deletes=counts.delete,
            bytes_in=counts.bytes_in,
            bytes_out=counts.bytes_out,
            commits=sum(chain.commits for chain in metrics),
            commands=sum(chain.commands for chain in metrics),
            conflicts=sum(chain.conflicts for chain in metrics),
            unknown_outcomes=sum(chain.unknown_outcomes for chain in metrics),
            checkpoints=sum(chain.checkpoints for chain in metrics),
        )

    def checkpoint(self) -> int:
        """Save the state of every chain now, so that the next open is fast; returns how many entries that covers."""
        return sum(self.chains.at_once({chain.number: chain.checkpoint for chain in self.chains}).values())

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
        """Open data whose coordinator knows no such open transaction, or one ``late`` seconds past its time-out."""
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
        from txnstore.groups import list_groups

        return list_groups(self)

    def group(self, name: str) -> GroupDescription:
        """A consumer group. Raises :class:`GroupNotFoundError`."""
        from txnstore.groups import describe_group

        return describe_group(self, name)

    def reset_offsets(self, group: str, to: Target, **options: Any) -> dict[TopicPartition, int]:
        """Set the committed offsets of a group without live members; see :func:`txnstore.groups.reset_offsets`."""
        from txnstore.groups import reset_offsets

        return reset_offsets(self, group, to, **options)

    def delete_group(self, name: str) -> None:
        """Delete a group without live members, and its offsets."""
        from txnstore.groups import delete_group

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

    # Life -------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Release threads and connections. Using the store again connects again."""
        self._own_process()
        with self._lock:
            # Forgotten first: who comes now connects again. Who is in the middle of something goes on by itself.
            pools = self._pools
            self._forget()
        for purpose in sorted(pools):  # The background first: what it finishes needs the others.
            pools[purpose].shutdown(wait=True)
        self.objects.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<txnstore.Store {redact(self.url)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self.objects, self.read_only)


def _unpickle(objects: ObjectStore, read_only: bool) -> Store:
    return Store(objects, read_only=read_only)
