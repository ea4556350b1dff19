"""Deletes unreferenced objects after a grace period. See docs/internals/design/compaction.md."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from txnstore.catalog.settings import publishes_table
from txnstore.chain import keys
from txnstore.chain.identity import document_of
from txnstore.chain.keys import Keys
from txnstore.chain.traces import hints_of_others, no_document
from txnstore.compactor.foreign import foreign_pages, foreign_stores
from txnstore.compactor.vacuum.checkpoints import OldCheckpoints, old_checkpoints, written_until
from txnstore.compactor.vacuum.history import (
    DEFAULT_HISTORY,
    ChainHistory,
    announce,
    delete_entries,
    delete_objects,
    histories,
)
from txnstore.compactor.vacuum.payloads import delete_payloads, old_payloads
from txnstore.compactor.vacuum.soundness import check_no_others, check_sound
from txnstore.connection import Connection
from txnstore.coordinator.copies import copy_all, has_stale_copies
from txnstore.coordinator.expiration import expire_due
from txnstore.core.authorization.rights import CLUSTER_ACTION
from txnstore.core.maintenance import FORGET_AFTER_MS, DropObjects, ForgetObjects
from txnstore.core.model import sorted_items
from txnstore.core.view import View
from txnstore.errors import (
    CorruptionError,
    InvalidConfigError,
    StorageFullError,
    StoreNotFoundError,
    TxnStoreError,
)
from txnstore.phrases import counted
from txnstore.storage.base import ObjectInfo, ObjectStore, iterate_pages, make_durable, method_of, read_if_there
from txnstore.storage.probe import PROBE_FOLDER
from txnstore.tables.lost_entries import LostEntriesError
from txnstore.tables.published import published_of
from txnstore.tables.sweep import NO_TABLES, TablesInUse, tables_in_use, unused_objects
from txnstore.tables.tables import Tables
from txnstore.validation import check_milliseconds, check_writable

_LOG = logging.getLogger(__name__)

#: The default grace period in seconds.
DEFAULT_GRACE = 24 * 60 * 60
#: The number of deleted keys that a report has.
_MAX_NAMED_KEYS = 10_000
#: The maximum number of keys per entry.
_KEYS_PER_ENTRY = 5_000
#: The minimum age of temporary files, probe objects and leases of compactors before a vacuum deletes them: no write or
#: probe takes longer, and no lease lasts longer without a renewal.
SWEEP_MS = 60 * 60 * 1000
#: Of a store that may not be changed.
_READ_ONLY_CONSEQUENCE = "nothing in it can be deleted"


@dataclass(frozen=True, slots=True)
class Deleted:
    """Deleted objects of one kind.

    Attributes:
        kind: The topic, the chains of a store, or the folder that they are of; ``inlined``: records in entries.
        objects: Their number.
        bytes: Their size.
        example: The key of one.
    """

    kind: str
    objects: int
    bytes: int
    example: str


@dataclass(frozen=True, slots=True)
class VacuumReport:
    """The result of a vacuum; after a dry run, the expected result.

    Attributes:
        deleted: The keys of the deleted objects; of more than 10,000 the first ones. Of an entry whose inlined records
            were deleted, the key and ``#``.
        bytes: The size of the deleted objects, and of the records that were deleted from entries.
        kept_young: The number of unreferenced objects whose grace period has not passed.
        referenced: The number of objects with segments in use.
        swept: The number of deleted temporary files of crashed local writers.
        announced: The number of entries that this vacuum has announced: one in 24 hours or later deletes them.
        tables: Why objects of tables, or segments that they name, were kept that could be deleted; empty if none were.
        dry_run: Whether nothing was deleted.
        objects: The number of deleted objects.
        kinds: The deleted objects by kind.
    """

    deleted: tuple[str, ...] = field(repr=False)
    bytes: int
    kept_young: int
    referenced: int
    swept: int = 0
    dry_run: bool = False
    objects: int = 0
    kinds: tuple[Deleted, ...] = field(default=(), repr=False)
    announced: int = 0
    tables: str = ""


class _Tally:
    """Counts what is deleted, and remembers the first keys."""

    def __init__(self) -> None:
        self.listed = 0
        self.referenced = 0
        self._keys: list[str] = []
        self._kinds: dict[str, Deleted] = {}

    def delete(self, items: Iterable[ObjectInfo]) -> None:
        """Count deleted objects, which the caller has counted as listed."""
        for item in items:
            if len(self._keys) < _MAX_NAMED_KEYS:
                self._keys.append(item.key)
            kind = "inlined" if item.key.endswith("#") else "/".join(item.key.split("/")[:2])
            counted_kind = self._kinds.get(kind) or Deleted(kind, 0, 0, item.key)
            self._kinds[kind] = replace(
                counted_kind, objects=counted_kind.objects + 1, bytes=counted_kind.bytes + item.size
            )

    def delete_pages(self, pages: Iterable[Sequence[ObjectInfo]]) -> None:
        """Count deleted objects as listed and as deleted."""
        for page in pages:
            self.listed += len(page)
            self.delete(page)

    def report(self, *, swept: int, announced: int, dry_run: bool, tables: str = "") -> VacuumReport:
        """Return the report of all that was counted."""
        kinds = tuple(self._kinds[kind] for kind in sorted(self._kinds))
        objects = sum(kind.objects for kind in kinds)
        return VacuumReport(
            deleted=tuple(self._keys),
            bytes=sum(kind.bytes for kind in kinds),
            kept_young=self.listed - self.referenced - objects,
            referenced=self.referenced,
            swept=swept,
            dry_run=dry_run,
            objects=objects,
            kinds=kinds,
            announced=announced,
            tables=tables,
        )


def vacuum(
    connection: Connection,
    older_than: float | None = None,
    *,
    history: float | None = None,
    dry_run: bool = False,
    expire: bool = True,
    force: bool = False,
    foreign: Collection[str] = (),
    tables: bool = True,
) -> VacuumReport:
    """Delete unreferenced segments, old checkpoints and leftovers of probes and compactors after a grace period.

    Nothing is deleted from a store that is not sound, without ``force``: if a boundary or a checkpoint is damaged or an
    entry is missing, the newest known state may not be the newest one, and what it does not name may be needed; if an
    object with records in use is missing, it may be what no chain names, below another name. Nor is anything deleted
    while there are chains of another store (docs/internals/design/identity.md).

    A segment is deleted if no chain references it, it was written at least the grace period ago by the storage's clock,
    and, if a compaction or the deletion of its topic dropped it, that is also at least the grace period ago. So a
    reader whose snapshot is younger than the grace period finds all its segments (RET-09); snapshots must not be used
    for longer. Inlined segments go with their entry; of the entries that stay for lack of later checkpoints, only these
    are deleted, by the same rules. Objects whose keys do not have the form of txnstore's are never deleted.

    Entries are deleted in two steps (docs/internals/design/history.md). A vacuum that finds a checkpoint of before
    ``history`` announces that the entries up to it will go. A vacuum at least 24 hours later deletes them, except
    those with inlined segments in use, and announces the next ones. Earlier snapshots cannot be read then.

    Before segments are deleted, an entry in the chain of their partition announces it. An append or a compaction that
    references one of them either precedes this entry, and the segment is kept, or follows it and is refused, however
    long its writer was paused (RET-10). So a short grace period can cost open transactions their uploads, but never an
    acknowledged record. A later vacuum removes the announced keys from the state, when uploads of their age are no
    longer accepted.

    Segments are listed, looked up and deleted 10,000 at a time. So a vacuum needs no memory for each object that
    exists: besides a page it has the keys of the segments in use, which the state has anyway, and two objects for each
    checkpoint. The keys of deleted segments are a part of the state until a later vacuum removes them.

    Tables are published first, which ends their oldest snapshots. What the newest cut names, and what engines may have
    loaded within the grace period, stays (docs/tables.md).

    In a store with several chains, a vacuum first tells chains that do not know it yet that a topic was deleted; its
    segments are unreferenced only then.

    Args:
        connection: The connection to the store.
        older_than: The grace period in seconds; 24 hours by default. 0 is safe if there are no other clients.
        history: How long entries are kept, in seconds; 7 days by default, and at least the grace period. They are what
            earlier snapshots and the history of transactions are read from.
        dry_run: Delete nothing; return the expected result.
        expire: Also expire unused state; see :meth:`txnstore.Store.expire`.
        force: Also vacuum a store that is not sound; never one that has chains of another store.
        foreign: The ids of other stores whose chains are below this root: delete these chains and their hints, whatever
            their age, and nothing else. Their segments are unreferenced then.
        tables: Publish the tables first, if there are any.

    Raises:
        ReadOnlyError: The store was opened read-only, and this is not a dry run.
        InvalidConfigError: ``older_than`` or ``history`` is not a number of seconds, or there are no chains of a store
            of ``foreign``, or it is this one.
        UnsoundStoreError: The store is not sound, or there are chains of another one; nothing is deleted.
        UnsupportedFormatError: The store requires a feature that this release cannot write; nothing is deleted.
        CorruptionError: The store does not open, or a cut of its tables is damaged; nothing is deleted.
        StoreNotFoundError: The store was deleted, and maybe created again; nothing is deleted.
        StorageFullError: The disk is full, also after what needs no entry was deleted; the message says what was.
        StorageRefusedError: The storage refuses to overwrite entries, to delete inlined records; all else is done.
    """
    grace_ms = _period_ms("older_than", older_than, DEFAULT_GRACE)
    history_ms = max(grace_ms, _period_ms("history", history, DEFAULT_HISTORY))
    if not dry_run:
        check_writable(connection.read_only, connection.url, _READ_ONLY_CONSEQUENCE)
    if foreign:
        return _vacuum_foreign(connection, foreign, dry_run=dry_run)
    return _Vacuum(connection, grace_ms, dry_run=dry_run).run(history_ms, expire=expire, force=force, tables=tables)


class _Vacuum:
    """A vacuum of a sound store.

    The order of its steps matters:

    1. The clock of the storage is read, so that ages are rather too small; and what of the tables is in use.
    2. Objects are listed, then the states are read: a segment that was registered in between is known to be in use.
    3. What no entry has to announce is deleted: on a full disk, that frees the space for the entries.
    4. Segments are announced and deleted, page by page.
    5. The states forget what was deleted long ago.
    6. Entries of the history are deleted, and the next ones announced.
    7. Inlined segments are deleted. This is last, since a storage may refuse that entries are overwritten.

    Args:
        grace_ms: The grace period.
        dry_run: Delete nothing.
    """

    def __init__(self, connection: Connection, grace_ms: int, *, dry_run: bool) -> None:
        self._connection, self._grace_ms, self._dry_run = connection, grace_ms, dry_run
        self._now = connection.objects.now_ms()
        self._tally = _Tally()
        self._tables_in_use = NO_TABLES

    def run(self, history_ms: int, *, expire: bool, force: bool, tables: bool) -> VacuumReport:
        """Vacuum the store; ``history_ms``: how long entries are kept; ``tables``: publish them first."""
        connection, dry_run, tally = self._connection, self._dry_run, self._tally
        if not dry_run:
            connection.check_rights(CLUSTER_ACTION)
        _check_deletable(connection, force=force)
        if not dry_run:
            connection.chains.save_if_overdue()
        kept_tables = self._publish_tables(tables=tables) if self._has_tables else ""
        self._tables_in_use = tables_in_use(connection, published_of(self._connection), self._now, self._grace_ms)
        if not self._has_tables and any(
            not each.dropped for cut in self._tables_in_use.cuts[-1:] for each in cut.tables.values()
        ):
            kept_tables = self._publish_tables(tables=tables)  # The last table of the store ends.
            self._tables_in_use = tables_in_use(connection, published_of(self._connection), self._now, self._grace_ms)
        segments = _segment_pages(connection.objects)
        first_page = next(segments)
        chain_histories = histories(connection, self._now, history_ms)
        checkpoints = old_checkpoints(connection, self._now - self._grace_ms, chain_histories)
        view, swept = self._delete_leftovers(checkpoints, chain_histories)
        with _report_deleted_on_full_disk(tally, swept):
            if not dry_run and has_stale_copies(view):
                copy_all(connection.chains)
                view = connection.view(refresh=False)
            in_use = self._delete_segments(view, itertools.chain([first_page], segments))
            ends = [
                max(chain.last.sequence, latest)
                for chain, latest in zip(chain_histories, checkpoints.latest, strict=True)
            ]
            payloads = old_payloads(
                connection.keys,
                in_use.view,
                ends,
                lambda state: connection.chains.ages.newest_older_than(state, self._grace_ms),
            )
            if not dry_run:
                _forget_objects(connection, removed_before(connection, view, in_use.long_removed, FORGET_AFTER_MS))
                if expire:
                    expire_due(connection.chains, connection.runtime.clock())
                connection.check_writable(_READ_ONLY_CONSEQUENCE)
                connection.check_storage()
            announced = 0
            for chain, candidate in zip(chain_histories, checkpoints.candidates, strict=True):
                tally.delete_pages(delete_entries(connection, chain, payloads.in_use, dry_run=dry_run))
                announced += announce(connection, chain, candidate, dry_run=dry_run)
            tally.delete_pages(delete_payloads(connection, payloads.old, dry_run=dry_run))
            kept_tables = self._sweep_tables() or kept_tables
        report = tally.report(swept=swept, announced=announced, dry_run=dry_run, tables=kept_tables)
        if not dry_run:
            _LOG.info("vacuumed", extra={"objects": report.objects, "bytes": report.bytes, "swept": report.swept})
        return report

    @property
    def _has_tables(self) -> bool:
        """Whether a topic has a table."""
        return any(publishes_table(topic.config) for topic in self._connection.view(refresh=False).topics.values())

    def _publish_tables(self, *, tables: bool) -> str:
        """Publish the tables; return why that failed, or an empty text.

        Raises:
            LostEntriesError: They show what the store has lost: nothing must be deleted until that is mended.
        """
        if self._dry_run or not tables:
            return ""
        try:
            Tables(self._connection).sync()
        except LostEntriesError:
            raise
        except TxnStoreError as error:
            _LOG.warning("tables not published: %s", error, extra={"error": str(error)})
            return f"the tables could not be published, so all that their newest cut names is kept: {error}"
        return ""

    def _sweep_tables(self) -> str:
        """Delete the objects of tables that no cut in use names; return why that failed, or an empty text."""
        connection = self._connection
        try:
            for page in unused_objects(
                connection, published_of(self._connection), self._tables_in_use, self._now, self._grace_ms
            ):
                self._tally.delete_pages([page])
                if not self._dry_run:
                    delete_objects(connection.objects, page)
        except (CorruptionError, InvalidConfigError) as error:
            return f"the objects of the tables are kept: {error}"
        return ""

    def _delete_leftovers(
        self, checkpoints: OldCheckpoints, chain_histories: Sequence[ChainHistory]
    ) -> tuple[View, int]:
        """Delete old checkpoints, what processes leave, and temporary files; return the view and their number."""
        objects, tally = self._connection.objects, self._tally
        # A running probe whose object is deleted would report a safe storage as unsafe.
        sweep_ms = max(self._grace_ms, SWEEP_MS)
        probes = objects.list(f"{PROBE_FOLDER}/")
        leases = [item for item in objects.list(keys.LEASES) if keys.lease_number(item.key) is not None]
        # A committer loses nothing when its announcement is deleted: callers that cannot find it announce themselves.
        announcements = [item for item in objects.list(keys.COMMITTERS) if keys.is_of_committers(item.key)]
        view = _view_after_lists(self._connection)
        temporary = [*probes, *leases, *announcements]
        leftovers = [*checkpoints.unneeded, *written_until(temporary, self._now - sweep_ms)]
        tally.listed += len(checkpoints.old) + len(temporary)
        tally.delete(leftovers)
        if self._dry_run:
            return view, 0
        self._connection.check_writable(_READ_ONLY_CONSEQUENCE)
        _make_durable(self._connection, view, checkpoints.remaining, chain_histories)
        delete_objects(objects, leftovers)
        return view, sweep_temporary_files(objects, sweep_ms)

    def _delete_segments(self, view: View, pages: Iterable[list[ObjectInfo]]) -> _ObjectsInUse:
        """Announce and delete the unreferenced segments; return the objects that are in use after the last page."""
        limit = self._now - FORGET_AFTER_MS
        in_use = _ObjectsInUse(view, {key for key, at in view.removals.items() if at <= limit})
        for number, page in enumerate(pages):
            if number:  # The first page was listed before the view.
                in_use.refresh(_view_after_lists(self._connection))
            garbage = _garbage_in_page(
                self._connection, in_use, page, self._now, self._grace_ms, self._tables_in_use, self._tally
            )
            self._tally.delete(garbage if self._dry_run else _delete_announced(self._connection, garbage))
        return in_use


@contextmanager
def _report_deleted_on_full_disk(tally: _Tally, swept: int) -> Iterator[None]:
    """Add to the error of a full disk what a vacuum has deleted, and what it needs to continue."""
    try:
        yield
    except StorageFullError as error:
        report = tally.report(swept=swept, announced=0, dry_run=False)
        msg = (
            f"{error} The vacuum has deleted {counted(report.objects, 'object')} of {report.bytes:,} bytes and "
            f"{counted(swept, 'temporary file')}. The rest is deleted only after an entry has announced it, which "
            "takes a few kilobytes: free so much beside the store, or enlarge the disk or the quota, then repeat the "
            "vacuum"
        )
        raise StorageFullError(msg) from error


def _check_deletable(connection: Connection, *, force: bool) -> None:
    """Refuse to delete anything of a store that was replaced, is not alone, or not sound."""
    connection.chains.identity.confirm()
    check_no_others(connection, foreign_stores(connection.objects, connection.keys))
    if not force:
        check_sound(connection)


def _vacuum_foreign(connection: Connection, store_ids: Collection[str], *, dry_run: bool) -> VacuumReport:
    """Delete the chains of other stores, and the hints to them.

    This store is not opened: an empty one refuses to open while chains of another store are beside it.
    """
    objects, tally = connection.objects, _Tally()
    names = Keys(_current_store_id(connection))
    ids = check_ids(store_ids)
    hints = hints_of_others(objects, names.store_id)
    _check_foreign_ids(connection, ids, own=names.store_id, others={*foreign_stores(objects, names), *hints.values()})
    old_hints = [objects.stat(key) for key, store_id in sorted(hints.items()) if store_id in ids]
    for page in itertools.chain(foreign_pages(objects, names, ids), [old_hints]):
        # Before each page: if the store was replaced meanwhile, one of these ids may be its own.
        if _current_store_id(connection) != names.store_id:
            msg = f"the store {names.store_id} at {connection.url} was replaced while it was looked at"
            raise StoreNotFoundError(msg)
        tally.delete_pages([page])
        if not dry_run:
            delete_objects(objects, page)
    report = tally.report(swept=0, announced=0, dry_run=dry_run)
    if not dry_run:
        _LOG.warning("chains of other stores deleted", extra={"stores": sorted(ids), "objects": report.objects})
    return report


def _check_foreign_ids(connection: Connection, ids: Collection[str], *, own: str, others: Collection[str]) -> None:
    """Refuse the id of the store itself, and ids of which no object exists here."""
    for store_id in ids:
        if store_id == own:
            reason = f"{keys.STORE} names it"
        elif store_id in others:
            continue
        elif others:
            reason = f"there are chains of the stores {', '.join(sorted(others))}"
        else:
            reason = "there are chains of no other store"
        msg = f"the chains of {store_id} at {connection.url} are not deleted: {reason}"
        raise InvalidConfigError(msg)


def check_ids(ids: object) -> frozenset[str]:
    """Check the ids of other stores.

    Raises:
        InvalidConfigError: They are not a collection of texts.
    """
    if isinstance(ids, str | bytes) or not isinstance(ids, Collection):
        msg = f"foreign must be a list of ids of stores, not {ids!r}"
        raise InvalidConfigError(msg)
    for each in ids:
        if not isinstance(each, str):
            msg = f"foreign must have ids of stores, not {each!r}"
            raise InvalidConfigError(msg)
    return frozenset(ids)


def _current_store_id(connection: Connection) -> str:
    """Read the id in ``store.json``."""
    data = read_if_there(connection.objects, keys.STORE)
    if data is None:
        raise no_document(connection.objects)
    return document_of(data, connection.url).store_id


class _ObjectsInUse:
    """The objects with segments in use, and those that batches were removed from, as of the newest view.

    Args:
        long_removed: Keys that were released or dropped long ago; those whose objects a page has are removed.
    """

    def __init__(self, view: View, long_removed: set[str]) -> None:
        self.long_removed = long_removed
        self._collect_keys(view)

    def refresh(self, view: View) -> None:
        """Continue with a newer view; the keys are collected again only if something has changed."""
        if view is not self.view:
            self._collect_keys(view)

    def _collect_keys(self, view: View) -> None:
        # A file system that ignores case lists the folder of a topic as the first topic of such a name had it.
        self.view, self.removals = view, view.removals
        self.keys = {key.casefold() for key in named_keys(view)}


def _segment_pages(objects: ObjectStore) -> Iterator[list[ObjectInfo]]:
    """Yield the objects with segments, a page at a time; at least one page."""
    for page in iterate_pages(objects, keys.TOPICS):
        yield [item for item in page if keys.has_segments(item.key)]


def _view_after_lists(connection: Connection) -> View:
    """Return the view after objects were listed; fails if another store has replaced this one since."""
    connection.chains.identity.confirm()
    return connection.view()


def _make_durable(
    connection: Connection, view: View, checkpoints: Sequence[ObjectInfo], chain_histories: Sequence[ChainHistory]
) -> None:
    """Flush the objects that replace deleted ones, which may be visible and not yet survive a power cut.

    That is the newest entry of each chain, which dropped segments or names the ones in use (with the name of one entry
    those of all are flushed); the checkpoints that are kept; and the boundaries up to which entries are deleted.
    """
    connection.chains.make_durable(view)
    needed = [item.key for item in checkpoints]
    needed += [connection.keys.boundary(chain.chain, chain.number) for chain in chain_histories if chain.number]
    make_durable(connection.objects, needed)


def _period_ms(name: str, seconds: float | None, default: int) -> int:
    return default * 1000 if seconds is None else check_milliseconds(name, seconds)


def named_keys(view: View) -> set[str]:
    """Return the objects of all segments that a chain references, also by its copy of a deleted topic."""
    return {
        batch.segment.object
        for chain in view.states
        for _, partition in sorted_items(chain.partitions)  # In the order of the rows of index files.
        for batch in partition.batches
    }


def _garbage_in_page(
    connection: Connection,
    objects_in_use: _ObjectsInUse,
    page: Sequence[ObjectInfo],
    now: int,
    grace_ms: int,
    in_use: TablesInUse,
    tally: _Tally,
) -> list[ObjectInfo]:
    """Return the unreferenced objects of a page that were written, and released, before the grace period.

    By the storage's clock. Objects that tables may name are left out.
    """
    objects_in_use.long_removed.difference_update(item.key for item in page)
    unreferenced = [item for item in page if item.key.casefold() not in objects_in_use.keys]
    tally.listed += len(page)
    tally.referenced += len(page) - len(unreferenced)
    old_objects = [item for item in unreferenced if item.modified_ms <= now - grace_ms]
    removed_keys = {item.key for item in old_objects if item.key in objects_in_use.removals}
    young_keys = removed_keys - removed_before(connection, objects_in_use.view, removed_keys, grace_ms)
    young_keys |= {key for key in removed_keys if _is_in_tables(objects_in_use.view, in_use, key)}
    return [item for item in old_objects if item.key not in young_keys]


def _is_in_tables(view: View, in_use: TablesInUse, key: str) -> bool:
    """Whether an object that a chain has dropped or released may be part of a table."""
    times = ((state.chain, max(state.released.get(key, -1), state.dropped.get(key, -1))) for state in view.states)
    return any(at >= 0 and in_use.protects(key, chain, at) for chain, at in times)


def removed_before(connection: Connection, view: View, keys: Collection[str], age_ms: int) -> set[str]:
    """Return the keys whose last removal is in an entry that is ``age_ms`` old by the storage's clock."""
    old_keys = set(keys)
    for state in view.states:
        removed_keys = [key for key in keys if key in state.released or key in state.dropped]
        if removed_keys:
            limit = connection.chains.ages.newest_older_than(state, age_ms)
            old_keys.difference_update(
                key for key in removed_keys if max(state.released.get(key, 0), state.dropped.get(key, 0)) > limit
            )
    return old_keys


def _delete_announced(connection: Connection, garbage: Sequence[ObjectInfo]) -> list[ObjectInfo]:
    """Announce objects, then delete them; keep objects that were referenced meanwhile."""
    deleted_objects: list[ObjectInfo] = []
    for start in range(0, len(garbage), _KEYS_PER_ENTRY):
        chunk = garbage[start : start + _KEYS_PER_ENTRY]
        allowed_keys = set(connection.submit(DropObjects(tuple(item.key for item in chunk))))
        allowed_objects = [item for item in chunk if item.key in allowed_keys]
        delete_objects(connection.objects, allowed_objects)
        deleted_objects += allowed_objects
    return deleted_objects


def _forget_objects(connection: Connection, names: Collection[str]) -> None:
    """Remove objects that were dropped long ago from the states."""
    ordered = sorted(names)
    for start in range(0, len(ordered), _KEYS_PER_ENTRY):
        connection.submit(ForgetObjects(tuple(ordered[start : start + _KEYS_PER_ENTRY])))


def sweep_temporary_files(objects: ObjectStore, older_than_ms: int) -> int:
    """Delete old temporary files of a local store, and return their number; other stores have none."""
    sweep = method_of(objects, "sweep")
    return int(sweep(older_than_ms)) if sweep is not None else 0
