"""The connection of a process to a store: objects, chains, coordinator, threads.

Every client (producer, consumer, scan, administration, maintenance, SQL, Spark) is given a :class:`Connection`; users
hold a :class:`~txnstore.store.Store`, which has one.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import groupby, islice
from typing import Any, Self, TypeVar, cast

from txnstore.chain import keys
from txnstore.chain.backups import BackupObjects, open_backup
from txnstore.chain.chain import Chain
from txnstore.chain.chains import Chains
from txnstore.chain.checkpoints.checkpoint import read_hint
from txnstore.chain.codec import StoreDocument, encode
from txnstore.chain.committer.rendezvous import Network, Rendezvous, rendezvous
from txnstore.chain.committer.sharing import sharing_of
from txnstore.chain.context import ChainContext
from txnstore.chain.identity import document_of
from txnstore.chain.principals import asking
from txnstore.chain.traces import check_new, no_document
from txnstore.coordinator.coordinator import Coordinator
from txnstore.coordinator.recovery import end_abandoned, find_abandoned
from txnstore.core.authorization.changes import check_principal
from txnstore.core.authorization.model import ANONYMOUS
from txnstore.core.authorization.rights import Right, check_rights
from txnstore.core.authorization.rules import Authorization
from txnstore.core.blocked import Offsets, blocked_partitions, blocking_producers
from txnstore.core.log.commands import Append
from txnstore.core.model import Command, TopicPartition
from txnstore.core.routes import sole_chain_of, with_expired
from txnstore.core.routing import CATALOG, MAX_CHAINS
from txnstore.core.state import State
from txnstore.core.transactions.commands import InitProducer
from txnstore.core.transactions.model import MAX_TIMEOUT_MS, NO_TIMEOUT_MS
from txnstore.core.view import View
from txnstore.errors import (
    AuthorizationError,
    CorruptionError,
    InvalidConfigError,
    StorageError,
    StorageFullError,
    StorageRefusedError,
    StoreExistsError,
    TxnStoreError,
    UnknownTopicOrPartitionError,
)
from txnstore.metrics import ChainMetrics, StoreMetrics
from txnstore.runtime import Measurements, Runtime
from txnstore.snapshot import Snapshot
from txnstore.storage.base import Claim, ObjectStore, iterate_layers, read_if_there
from txnstore.storage.counting import CountingStore
from txnstore.storage.probe import probe_once, remember_probe
from txnstore.storage.recent import RecentObjects
from txnstore.storage.redact import redact
from txnstore.threads import load
from txnstore.times import Time
from txnstore.validation import check_integer, check_milliseconds, check_writable

T = TypeVar("T")

_LOG = logging.getLogger(__name__)

#: The environment variable that names the principal of a process.
PRINCIPAL = "TXNSTORE_PRINCIPAL"
#: Milliseconds after a failure to end a transaction, after which a reader tries again.
_END_RETRY_MS = 30_000
#: The purpose of the executor for what no caller waits for.
_BACKGROUND = "background"
#: Milliseconds for which a close waits for its checkpoints: a storage that does not answer must not hold it up.
_LAST_CHECKPOINTS_MS = 5_000


@dataclass(frozen=True, slots=True)
class _Opened:
    """The document, chains and coordinator of an open store; ``catalog`` is the chain of the catalog."""

    document: StoreDocument
    chains: Chains
    catalog: Chain
    coordinator: Coordinator


@dataclass(frozen=True, slots=True)
class OpenParts:
    """Handle of a connection for background tasks, which never connect again after a close.

    Attributes:
        connection: The connection, of which only what it was made with may be used.
        pool: The workers for requests in parallel.
        background: The workers for what no caller waits for, which a close waits for.
    """

    connection: Connection
    chains: Chains
    pool: Executor
    background: Executor

    @property
    def open(self) -> bool:
        """Whether the connection was not closed since."""
        opened = self.connection._opened  # noqa: SLF001 - a part of it
        return opened is not None and opened.chains is self.chains


class Connection:
    """Access to the objects of a store. Loaded on first use, and again after a fork or a close.

    Thread-safe, picklable, safe after ``fork``.

    Args:
        objects: The objects of the store; requests are counted.
        read_only: Refuse commands; nothing is written.
        runtime: Clock, randomness, pauses and workers.
        checked: Whether the storage was checked to create a name once, so that it is safe to write to.
        principal: Who asks for the commands of this process.
        committer: With which processes it shares entries; see :func:`~txnstore.chain.committer.sharing.sharing_of`.
    """

    def __init__(
        self,
        objects: ObjectStore,
        *,
        read_only: bool = False,
        runtime: Runtime | None = None,
        checked: bool = True,
        principal: str = ANONYMOUS,
        committer: str | None = None,
    ) -> None:
        self.read_only = read_only
        self.principal = principal
        self._committer, self._sharing = committer, sharing_of(committer)
        self.runtime = runtime or _default_runtime()
        if not isinstance(objects, CountingStore):
            objects = CountingStore(objects, measurements=Measurements(self.runtime.monotonic))
        self.counts, self.objects, self.measurements = objects, RecentObjects(objects), objects.measurements
        #: Called with the state of a chain when a checkpoint of it is due: merges its small commits in the background,
        #: and raises nothing. None: nothing does that. Set once, by the store.
        self.merge_later: Callable[[OpenParts, State], None] | None = None
        #: Whether :meth:`check_storage` has succeeded, or need not; never reset.
        self._checked = checked
        self._reset()

    def _reset(self) -> None:
        """Reset all fields, as after a fork: the child has a new lock, and none of the parent's threads."""
        #: Guards what :meth:`_forget` drops: each is made once, by the first thread that needs it. Held while a store
        #: is opened, so other threads wait for that.
        self._lock = threading.RLock()
        self._forget()
        #: The process that the fields of :meth:`_forget` belong to. Written last: a fork or an interrupt before it
        #: repeats the whole.
        self._pid = os.getpid()

    def _forget(self) -> None:
        """Drop all cached state, with the lock; it is made again on next use."""
        #: The executors by purpose, which :meth:`close` shuts down.
        self._pools: dict[str, Executor] = {}
        #: The open store; None before the first use. Read without the lock: it is replaced as a whole.
        self._opened: _Opened | None = None
        #: Objects of integrations, by name.
        self._cached: dict[Hashable, Any] = {}

    def cached(self, name: Hashable, make: Callable[[], T]) -> T:
        """Return an object of an integration by name, made once; a close or a fork drops it."""
        self._reset_after_fork()
        with self._lock:
            if name not in self._cached:
                self._cached[name] = make()
            entry: T = self._cached[name]
            return entry

    @property
    def url(self) -> str:
        """The URL of the store, without credentials."""
        return self.objects.url

    @property
    def store_id(self) -> str:
        """The id of the store: that which it got when it was created, or as a copy beside its original."""
        return self._open().document.known_as

    @property
    def chains(self) -> Chains:
        """The manifest chains; read again in a process that inherited or unpickled this object."""
        return self._open().chains

    @property
    def keys(self) -> keys.Keys:
        """The keys of the chains' objects."""
        return self.chains.keys

    @property
    def chain(self) -> Chain:
        """The chain of the catalog: the only one, unless the store was created with several."""
        return self._open().catalog

    @property
    def transaction_max_timeout_ms(self) -> int:
        """The largest timeout of a transaction, in ms; fixed when the store was created."""
        return self._open().document.transaction_max_timeout_ms

    @property
    def created_at(self) -> int:
        """When the store was created, in ms since the epoch, by the clock of its creator."""
        return self._open().document.created_at

    @property
    def several_chains(self) -> bool:
        """Whether the store has more than one chain."""
        return self._open().document.chains > 1

    @property
    def coordinator(self) -> Coordinator:
        """The component that takes commands over the chains."""
        return self._open().coordinator

    def _open(self) -> _Opened:
        """Return the open store; load it at the first use, after a close, and in a forked child."""
        opened = self._opened
        if opened is not None and self._pid == os.getpid():
            return opened
        self._reset_after_fork()
        with self._lock:
            return self._opened or self._load()

    @property
    def pool(self) -> Executor:
        """The workers for requests in parallel."""
        return self._executor_for("requests", self.runtime.executor)

    def _executor_for(self, purpose: str, make: Callable[[], Executor]) -> Executor:
        self._reset_after_fork()
        with self._lock:
            if purpose not in self._pools:
                self._pools[purpose] = make()
            return self._pools[purpose]

    def _reset_after_fork(self) -> None:
        """Drop the threads and locks of the parent process after a fork."""
        if self._pid != os.getpid():
            self._reset()

    def load(self) -> Chains:
        """Read everything again.

        Raises:
            StoreNotFoundError: There is no store at this URL.
            CorruptionError: It has lost its ``store.json``, or that is another store's; or a chain is damaged.
            UnsupportedFormatError: A newer txnstore made it.
        """
        self._reset_after_fork()
        with self._lock:
            return self._load().chains

    def _load(self) -> _Opened:
        """Read the identity and the first hint concurrently, then the chains."""
        began_at = self.runtime.monotonic()
        if isinstance(self.objects.inner, BackupObjects):  # It may have a later cut by now, or be a store.
            self.objects = RecentObjects(self.counts)
        identity = self.pool.submit(read_if_there, self.objects, keys.STORE)
        hint = read_hint(self.objects, 0)
        data = identity.result()
        if data is None and self.find_backup():
            data = self.objects.get(keys.STORE)
        if data is None:
            error = no_document(self.objects)
            # The remains of a store may be a store that another process has created since.
            data = read_if_there(self.objects, keys.STORE) if isinstance(error, CorruptionError) else None
            if data is None:
                raise error
        document = document_of(data, redact(self.url))
        chain_count, chain_keys = document.chains, keys.Keys(document.store_id)
        # One pool per chain, so that callers waiting for a chain that cannot be written do not block the others.
        workers = [
            self._executor_for(f"chain {number}", self.runtime.executor)
            for number in range(chain_count)
            if chain_count > 1
        ]
        runtime, background = self.runtime, self._in_background
        context = ChainContext(
            self.objects, chain_keys, runtime, self.pool, chain_count,
            read_only=self.read_only, background=background, check_storage=self.check_storage,
            on_checkpoint=self._merge_later, principal=self.principal,
            rendezvous=self.rendezvous(),
            network=self._network(document.store_id),
        )  # fmt: skip
        chains = Chains(context, workers)
        chains.identity.was_read(began_at)
        chains.load(hint)
        self._opened = _Opened(document, chains, chains[CATALOG], Coordinator(chains, runtime, background))
        duration_ms = self.runtime.monotonic() - began_at
        entries = sum(chain.state.sequence for chain in chains)
        fields = {
            "url": redact(self.url),
            "store_id": document.store_id,
            "chains": chain_count,
            "sequence": entries,
            "ms": duration_ms,
        }
        _LOG.info("store opened", extra={**fields, "read_only": self.read_only})
        return self._opened

    def find_backup(self) -> bool:
        """Look for a backup, where there is no ``store.json``, to read it as the store that it is a copy of.

        Returns:
            Whether one is here.

        Raises:
            BackupError: It has no complete cut yet.
            CorruptionError: Its newest document is damaged.
        """
        backup = open_backup(self.counts)
        if backup is not None:
            self.objects = RecentObjects(backup)
        return backup is not None

    def rendezvous(self) -> Rendezvous | None:
        """Where this process meets others of its machine; None: it shares no entries."""
        meeting: Rendezvous | None = self.runtime.rendezvous() if self._sharing.is_on else None
        return meeting

    def _network(self, store_id: str) -> Network | None:
        """Return how this process meets those of other machines; None: it does not."""
        address = self._sharing.address
        if address is None:
            return None
        load("txnstore.chain.committer.network")  # It takes time to import.
        from txnstore.chain.committer.network import TcpNetwork

        return TcpNetwork(address, self.objects, keys.Keys(store_id), self.runtime)

    def check_network(self) -> None:
        """Check that this process can commit for other machines, if it has an address for that.

        Raises:
            OSError: The address is none of this machine.
            InvalidConfigError: The package for certificates is not installed.
        """
        network = self._network(self.keys.store_id)
        if network is not None:
            network.check()

    def _in_background(self) -> Executor:
        return self._executor_for(_BACKGROUND, self.runtime.background)

    def _merge_later(self, state: State) -> None:
        """Merge the small commits of a chain in the background, if this connection is to do that."""
        parts = self.parts_if_open() if self.merge_later is not None else None
        if self.merge_later is not None and parts is not None:
            self.merge_later(parts, state)

    # Commands and views -----------------------------------------------------------------------------------------------

    def submit(self, command: Command) -> Any:
        """Commit a command and return its answer; see :meth:`txnstore.coordinator.coordinator.Coordinator.submit`.

        In a store with one chain, that chain decides every command alone.
        """
        return self._submit(self._open(), command)

    def submit_all(self, requests: Sequence[tuple[Command, str | None]]) -> list[Any]:
        """Commit commands in their order, together where possible; return the answer or the error of each.

        In a store with one chain they share an entry, and each is refused alone; so do appends outside of transactions
        to the partitions of one of several chains. Several chains take all else one after the other through the
        coordinator, but consecutive batches of a transaction together, which takes as many steps as for one of them.

        Args:
            requests: Each command, and the principal who asks for it; None: that of the process.
        """
        opened = self._open()
        chain_count = opened.document.chains
        chain_numbers = {sole_chain_of(command, chain_count) for command, _ in requests}
        chain_number = chain_numbers.pop() if len(chain_numbers) == 1 and len(requests) > 1 else None
        if chain_number is None:
            return [
                answer for _, group in groupby(requests, _group_key) for answer in self._submit_group(opened, [*group])
            ]
        began_at, chain = self.measurements.clock(), opened.chains[chain_number]
        commits: list[Callable[[], Any]] = []
        for command, principal in requests:
            try:
                with asking(principal):
                    waiter = chain.enqueue(self._add_context(opened, command))
                commits.append(partial(chain.commit_queued, waiter))
            except Exception as error:  # noqa: BLE001 - The caller of this command gets it.
                commits.append(partial(_raise_error, error))
        answers = [_result_or_error(commit) for commit in commits]
        self.measurements.add("commit", began_at)
        # The coordinator copies a topic that a chain does not know yet, and those that wait for it keep their order.
        for index, (command, principal) in enumerate(requests) if chain_count > 1 else ():
            if isinstance(answers[index], UnknownTopicOrPartitionError):
                answers[index] = _result_or_error(partial(self._submit, opened, command, principal))
        return answers

    def _submit_group(self, opened: _Opened, requests: Sequence[tuple[Command, str | None]]) -> list[Any]:
        """Commit commands by the coordinator; several are batches of a transaction.

        If these are refused together, each is refused, or appended, alone: those that a chain has appended already are
        answered as duplicates.
        """
        if len(requests) > 1:
            appends = [cast("Append", command) for command, _ in requests]
            combined = replace(appends[0], batches=tuple(batch for append in appends for batch in append.batches))
            answer = _result_or_error(partial(self._submit, opened, combined, requests[0][1]))
            if isinstance(answer, StorageError):
                return [answer] * len(requests)
            if not isinstance(answer, Exception):
                appended = iter(answer)
                return [tuple(islice(appended, len(append.batches))) for append in appends]
        return [_result_or_error(partial(self._submit, opened, command, principal)) for command, principal in requests]

    def submit_if_open(self, command: Command) -> bool:
        """Commit a command unless the connection was closed; return whether it was open. Never connects again."""
        opened = self._opened if self._pid == os.getpid() else None
        if opened is not None:
            self._submit(opened, command)
        return opened is not None

    def _submit(self, opened: _Opened, command: Command, principal: str | None = None) -> Any:
        """Submit a command as a principal to the only chain, or through the coordinator, and measure it."""
        began_at = self.measurements.clock()
        target = opened.catalog if opened.document.chains == 1 else opened.coordinator
        try:
            with asking(principal):
                return target.submit(self._add_context(opened, command))
        finally:
            self.measurements.add("commit", began_at)

    def _add_context(self, opened: _Opened, command: Command) -> Command:
        """Add to a command what only this process knows: limits of the store, expired members."""
        if isinstance(command, InitProducer):
            command = replace(command, max_timeout_ms=opened.document.transaction_max_timeout_ms)
        return with_expired(command, opened.chains.expired_members)

    def parts_if_open(self) -> OpenParts | None:
        """Return a handle for background tasks; None if the connection was closed. Never connects."""
        if self._pid != os.getpid():
            return None
        with self._lock:
            opened = self._opened
            return OpenParts(self, opened.chains, self.pool, self._in_background()) if opened is not None else None

    def view_if_open(self) -> View | None:
        """Return the cached view, without a request; None if the connection was closed. Never connects again."""
        opened = self._opened if self._pid == os.getpid() else None
        return opened.chains.view(()) if opened is not None else None

    def view(self, *, refresh: bool | Collection[int] = True) -> View:
        """Return a consistent view of the store.

        Args:
            refresh: True: at the head of all chains, one GET for each if nothing is new. False: as last read, without a
                request. Or the numbers of the chains to read up to their heads.
        """
        if isinstance(refresh, bool):
            return self.chains.view(None if refresh else ())
        return self.chains.view(refresh)

    def loaded_view(self) -> View | None:
        """Return the loaded view, without a request; None if a state follows from an entry that is not loaded."""
        return self.chains.loaded_view()

    def snapshot(self, entry: int | Sequence[int] | None = None, timestamp: Time | None = None) -> Snapshot:
        """Return a consistent view of all topics; :meth:`txnstore.Store.snapshot` describes the arguments."""
        is_earlier = entry is not None or timestamp is not None
        view = self.chains.past_view(entry, timestamp) if is_earlier else self.unblocked(self.view())
        return Snapshot(view, self.store_id)

    def unblocked(
        self,
        view: View,
        partitions: Iterable[TopicPartition] | None = None,
        start: Offsets | None = None,
        end: Offsets | None = None,
    ) -> View:
        """End abandoned transactions that hold back committed records, and return the view to read.

        Each of them takes one entry per chain that it touched. Without one, and if nothing may be written, nothing is
        requested and ``view`` is returned.

        Args:
            view: A view at the heads of the chains.
            partitions: The partitions to read; None: all.
            start: The first offset to read, by partition; the log start of the others.
            end: The offset to read up to, by partition; the end of the log of the others.
        """
        blocked = blocked_partitions(view, partitions, start, end)
        return self.view(refresh=False) if blocked and self.end_abandoned(blocking_producers(view, blocked)) else view

    def end_abandoned(self, producer_ids: Iterable[int], *, decided_at_once: bool = False) -> bool:
        """End the abandoned transactions of these producers: decided ones, and ones past their timeout.

        After a failure to end one, half a minute passes before the next attempt: a consumer calls this several times a
        second.

        Args:
            decided_at_once: Whether to complete decided ones at any age, also after a failure: for a command that their
                missing markers refuse. Readers leave them to their producer for ten seconds.

        Returns:
            True if an abandoned transaction was found and this process may write: each was ended (take the cached view
            again) or its failure logged.
        """
        if self.read_only:
            return False
        failed_at: dict[int, int] = self.cached("transactions not ended", dict)
        now = self.runtime.monotonic()
        candidates = [
            producer_id
            for producer_id in producer_ids
            if decided_at_once or producer_id not in failed_at or now - failed_at[producer_id] >= _END_RETRY_MS
        ]
        view = self.view(refresh=False)
        abandoned = find_abandoned(self.chains.ages, view, candidates, decided_at_once=decided_at_once)
        if not abandoned:
            return False
        refusal = self._write_refusal()
        if refusal is None:
            unended = end_abandoned(self.coordinator, abandoned)
        else:
            msg = "an expired transaction blocks readers; it cannot be ended: %s"
            _LOG.warning(msg, refusal, extra={"error": str(refusal)})
            unended = abandoned
        for txn in unended:
            failed_at[txn.producer_id] = now
        return refusal is None

    def check_writable(self, consequence: str) -> None:
        """Check that this process may change the store, and knows how to, as far as its chains were read.

        Args:
            consequence: The end of the message: what cannot be done.

        Raises:
            ReadOnlyError: The store was opened with ``read_only=True``.
            UnsupportedFormatError: It requires a feature that this release cannot write.
        """
        check_writable(self.read_only, self.url, consequence)
        self.chains[CATALOG].check_features()

    def check_rights(self, *rights: Right) -> Authorization:
        """Check rights of the principal; makes a request only if the cached rules lack one.

        The chains check each command. This is for what should fail before its data is uploaded, and for reads.

        Returns:
            The authorization by which it has them: they need no check while the store has the same one.

        Raises:
            AuthorizationError: It lacks one.
        """
        catalog = self.chain
        authorization = catalog.state.authorization  # Once: another thread may read newer rules meanwhile.
        try:
            check_rights(authorization, self.principal, rights)
        except AuthorizationError:
            authorization = catalog.refresh().authorization
            try:
                check_rights(authorization, self.principal, rights)
            except AuthorizationError:
                catalog.metrics.refusals += 1
                raise
        return authorization

    @property
    def authorization(self) -> Authorization:
        """The cached rules of the store; another object after each change of them."""
        return self.chain.state.authorization

    def refusal(self, *rights: Right) -> AuthorizationError | None:
        """Return the error for the first right that the principal lacks by the cached rules; None if it has all."""
        try:
            check_rights(self.authorization, self.principal, rights)
        except AuthorizationError as error:
            return error
        return None

    def refresh_rules(self) -> None:
        """Read the newest rules, for a read of an earlier state, which reads nothing else of the chains' heads.

        One GET in a store that checks rights, as far as is known; none in others.
        """
        if self.authorization.mode != "off":
            self.chain.refresh()

    def check_storage(self) -> None:
        """Check once that the storage creates a name only once. Each chain does it before it writes.

        A connection that was made to read, or on a full disk, has not checked it yet.

        Raises:
            UnsafeStorageError: It does not.
            StorageError: It cannot be checked.
        """
        if not self._checked:
            probe_once(self.objects, self.runtime.new_id, store_id=self.keys.store_id, now=self.runtime.clock())
            self._checked = True

    def _write_refusal(self) -> TxnStoreError | None:
        """Return why this release cannot write to the store, or the storage is not safe to write to; else None."""
        try:
            self.check_writable("")
            self.check_storage()
        except TxnStoreError as error:
            return error
        return None

    # Statistics and maintenance ---------------------------------------------------------------------------------------

    def metrics(self) -> StoreMetrics:
        """The counters and durations since the store was opened."""
        counts = self.counts.snapshot()
        of_chains: dict[str, Any] = {
            counter.name: sum(getattr(chain.metrics, counter.name) for chain in self.chains)
            for counter in fields(ChainMetrics)
        }
        retries = self.measurements.retries + of_chains.pop("retries") + _retries_of_layers(self.objects)
        return StoreMetrics(
            gets=counts.get + counts.stat,
            puts=counts.puts,
            lists=counts.list,
            deletes=counts.delete,
            failures=counts.failed,
            retries=retries,
            bytes_in=counts.bytes_in,
            bytes_out=counts.bytes_out,
            durations=self.measurements.durations(),
            **of_chains,
        )

    def checkpoint(self) -> int:
        """Save the state of every chain, so that the next open is fast; return the number of entries covered."""
        self.chains.identity.begin()()
        return sum(self.chains.concurrently({chain.number: chain.checkpoint for chain in self.chains}).values())

    # Life -------------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Release threads and connections. The next use connects again.

        What makes the next open fast is written before, if this process has written much since the last checkpoint.
        """
        self._reset_after_fork()
        with self._lock:
            # Forget first: new calls connect again; running calls use the pools that they have.
            pools, opened = self._pools, self._opened
            self._forget()
        if opened is not None:
            opened.chains.close()
        background = pools.pop(_BACKGROUND, None)
        if background is not None:  # First: its tasks need the other pools, and may commit.
            background.shutdown(wait=True)
        if opened is not None:
            self._save_last(opened.chains)
        for pool in pools.values():
            pool.shutdown(wait=True)
        self.objects.close()

    def _save_last(self, chains: Chains) -> None:
        """Write the checkpoints that are due at a close, in workers of their own; those that take long are left alone.

        They use no other workers of the connection, which the close waits for. The exit of the interpreter waits for
        workers that something refers to: their tasks do not.
        """
        saves = chains.last_checkpoints()
        if not saves:
            return
        workers, tasks = self.runtime.background(), list[Future[None]]()
        deadline = self.runtime.monotonic() + _LAST_CHECKPOINTS_MS
        # First: nothing of a deleted store may be written beside another one.
        steps = [[chains.identity.confirm], saves] if chains.identity.is_due() else [saves]
        try:
            for step in steps:
                tasks += [workers.submit(call) for call in step]
                for task in tasks:
                    task.result(max(0, deadline - self.runtime.monotonic()) / 1000)
        except Exception as error:  # noqa: BLE001 - the next open takes longer, and nothing else
            extra = {"url": redact(self.url), "error": f"{type(error).__name__}: {error}"}
            _LOG.info("closed without its last checkpoint", extra=extra)
        finally:
            workers.shutdown(wait=all(task.done() for task in tasks))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Connection to {redact(self.url)}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickle, (self.counts, self.read_only, self._checked, self.principal, self._committer)


def _retries_of_layers(objects: object) -> int:
    """Return the number of requests that wrapped stores have repeated."""
    return sum(getattr(layer, "retries", 0) for layer in iterate_layers(objects))


def _unpickle(
    objects: ObjectStore, read_only: bool, checked: bool, principal: str, committer: str | None
) -> Connection:
    return Connection(objects, read_only=read_only, checked=checked, principal=principal, committer=committer)


def principal_of(name: str | None) -> str:
    """Return the principal of a process: ``name``, else that of the environment (:data:`PRINCIPAL`), else anonymous.

    Raises:
        InvalidConfigError: It is not ``User:`` and a name.
    """
    principal = name if name is not None else os.environ.get(PRINCIPAL) or ANONYMOUS
    check_principal(principal)
    return principal


def _default_runtime() -> Runtime:
    """Make the runtime of a store that is given none: with it, processes of this machine may share entries."""
    return Runtime(rendezvous=rendezvous)


def create_connection(
    objects: ObjectStore,
    chains: int | None = None,
    *,
    transaction_max_timeout: float | None = None,
    exist_ok: bool = False,
    principal: str | None = None,
    committer: str | None = None,
    runtime: Runtime | None = None,
) -> Connection:
    """Create a store on these objects and connect to it; :func:`txnstore.create` describes the arguments."""
    sharing_of(committer)  # Nothing is created by a wrong call.
    principal = principal_of(principal)
    max_timeout_ms = MAX_TIMEOUT_MS if transaction_max_timeout is None else _max_timeout_ms(transaction_max_timeout)
    chain_count = 1 if chains is None else check_integer("chains", chains, 1, MAX_CHAINS)
    runtime = runtime or _default_runtime()
    probed_at = runtime.clock()
    is_probed = probe_once(objects, runtime.new_id)
    if read_if_there(objects, keys.STORE) is None:
        try:
            check_new(objects)
        except CorruptionError:
            if read_if_there(objects, keys.STORE) is None:
                raise
            # Another process has created the store meanwhile, and written to it: store.json comes first.
    document = StoreDocument(
        store_id=runtime.new_store_id(),
        chains=chain_count,
        created_at=runtime.clock(),
        transaction_max_timeout_ms=max_timeout_ms,
    )
    claim = Claim(keys.STORE, encode(document))
    created = claim.resolve(objects, runtime.backoff) == claim.data
    if not created and not exist_ok:
        msg = f"there is a store at {redact(objects.url)} already: it has a {keys.STORE}"
        raise StoreExistsError(msg)
    connection = open_connection(objects, principal=principal, committer=committer, runtime=runtime)
    with _closing_on_error(connection):
        if is_probed:  # The next processes of the user need not, now that the store has an id.
            remember_probe(objects, connection.keys.store_id, probed_at)
        chain_count = len(connection.chains)
        if chains is not None and chain_count != chains:
            actual = f"{chain_count} chain{'s' if chain_count > 1 else ''}"
            store = f"the store at {redact(objects.url)}"
            msg = f"{store} has {actual}, not {chains}; the number of chains cannot be changed"
            raise InvalidConfigError(msg)
        if transaction_max_timeout is not None and connection.transaction_max_timeout_ms != max_timeout_ms:
            actual = f"a transaction.max.timeout.ms of {connection.transaction_max_timeout_ms}"
            msg = f"the store at {redact(objects.url)} has {actual}, not of {max_timeout_ms}; it cannot be changed"
            raise InvalidConfigError(msg)
    return connection


@contextmanager
def _closing_on_error(connection: Connection) -> Iterator[None]:
    """Close a new connection that its caller does not get, because the block raises: its threads end with it."""
    try:
        yield
    except Exception:
        connection.close()
        raise


def _max_timeout_ms(seconds: float) -> int:
    """Check the setting ``transaction.max.timeout.ms`` of a new store, and return it in ms.

    Raises:
        InvalidConfigError: It is out of range.
    """
    timeout_ms = check_milliseconds("transaction_max_timeout", seconds)
    if not 0 < timeout_ms < NO_TIMEOUT_MS:
        max_seconds = (NO_TIMEOUT_MS - 1) / 1000
        msg = f"transaction_max_timeout must be more than 0 and at most {max_seconds} seconds, not {seconds!r}"
        raise InvalidConfigError(msg)
    return timeout_ms


def _result_or_error(commit: Callable[[], Any]) -> Any:
    """Return the result of a call, or the error that it raises."""
    try:
        return commit()
    except Exception as error:  # noqa: BLE001 - The caller of this command gets it.
        return error


def _group_key(request: tuple[Command, str | None]) -> Hashable:
    """Return an equal key for commands that can be one: appends with sequences to one transaction."""
    command, principal = request
    if not isinstance(command, Append) or command.producer.transactional_id is None:
        return object()
    if any(batch.base_sequence < 0 for batch in command.batches):
        return object()
    return replace(command, batches=()), principal


def _raise_error(error: Exception) -> None:
    raise error


def open_connection(
    objects: ObjectStore,
    *,
    read_only: bool = False,
    principal: str | None = None,
    committer: str | None = None,
    runtime: Runtime | None = None,
) -> Connection:
    """Connect to the store on these objects, and read it; :func:`txnstore.open` describes the arguments."""
    connection = Connection(
        objects,
        read_only=read_only,
        runtime=runtime,
        checked=False,
        principal=principal_of(principal),
        committer=committer,
    )
    with _closing_on_error(connection):
        connection.load()
        if not read_only:
            _check_storage(connection)
    return connection


def _check_storage(connection: Connection) -> None:
    """Check the storage of a store that is opened to be written."""
    try:
        connection.check_storage()
    except StorageFullError as error:
        # The store can be read, and a vacuum may free some space; a write checks the storage first.
        _LOG.warning("opened on a full disk: %s", error, extra={"url": redact(connection.url), "error": str(error)})
    except StorageRefusedError as error:
        # The store could be read, so the permission to write is missing.
        msg = (
            f"{error} Without permission to write, open the store with read_only=True; commands that only read, such "
            "as `txnstore consume`, do so by themselves."
        )
        raise StorageRefusedError(msg) from error.__cause__


def open_to_read(objects: ObjectStore, principal: str | None = None) -> Connection:
    """Connect to the store on these objects for a command or a job that only reads.

    The connection needs no permission to write. With one, it ends expired transactions that hold back what it reads.
    The check that the storage supports create-if-absent is deferred until that first write.
    """
    connection = Connection(objects, checked=False, principal=principal_of(principal))
    with _closing_on_error(connection):
        connection.load()
    return connection
