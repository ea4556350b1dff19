"""Deletes unreferenced objects after a grace period. See docs/design/0003-vacuum-announces.md."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from txnstore.chain import checkpoint, keys
from txnstore.chain.keys import Keys
from txnstore.compactor.foreign import foreign_objects
from txnstore.connection import Connection
from txnstore.coordinator.copies import copy_all, has_stale_copies
from txnstore.coordinator.expiration import expire_due
from txnstore.core.maintenance import FORGET_AFTER_MS, DropObjects, ForgetObjects
from txnstore.core.view import View
from txnstore.errors import ObjectNotFoundError, ReadOnlyError
from txnstore.storage.base import ObjectInfo, ObjectStore
from txnstore.storage.probe import PROBE_FOLDER
from txnstore.validation import check_milliseconds

_LOG = logging.getLogger(__name__)

#: The default grace period in seconds.
DEFAULT_GRACE = 24 * 60 * 60
#: The number of complete checkpoints that are kept regardless of their age.
KEPT_CHECKPOINTS = 2
#: The maximum number of keys per entry and per delete request.
_ENTRY, _REQUEST = 5_000, 1_000
#: The minimum age of temporary files and probe objects before a vacuum deletes them: no write or probe takes longer.
_SWEEP_MS = 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class VacuumReport:
    """The result of a vacuum; after a dry run, the expected result.

    Attributes:
        deleted: The keys of the deleted objects.
        bytes: The size of the deleted objects.
        kept_young: The number of unreferenced objects whose grace period has not passed.
        referenced: The number of segments in use.
        swept: The number of deleted temporary files of crashed local writers.
        dry_run: Whether nothing was deleted.
    """

    deleted: tuple[str, ...] = field(repr=False)
    bytes: int
    kept_young: int
    referenced: int
    swept: int = 0
    dry_run: bool = False


def vacuum(
    connection: Connection, older_than: float | None = None, *, dry_run: bool = False, expire: bool = True
) -> VacuumReport:
    """Delete unreferenced segments, old checkpoints, leftovers of probes and of other stores after a grace period.

    A segment is deleted if no chain references it, it was written at least the grace period ago by the storage's
    clock, and, if a compaction or the deletion of its topic dropped it, that is also at least the grace period ago. So
    a reader whose snapshot is younger than the grace period finds all its segments (RET-09); snapshots must not be
    used for longer. Entries of this store's chains, and objects whose keys do not have the form of txnstore's, are
    never deleted. The chains of another store that was at this URL before are deleted when the newest of their objects
    is that old.

    Before segments are deleted, an entry in the chain of their partition announces it. An append or a compaction that
    references one of them either precedes this entry, and the segment is kept, or follows it and is refused, however
    long its writer was paused (RET-10). So a short grace period can cost open transactions their uploads, but never an
    acknowledged record. A later vacuum removes the announced keys from the state, when uploads of their age are no
    longer accepted.

    In a store with several chains, a vacuum first tells chains that do not know it yet that a topic was deleted; its
    segments are unreferenced only then.

    Args:
        connection: The connection to the store.
        older_than: The grace period in seconds; 24 hours by default. 0 is safe if there are no other clients.
        dry_run: Delete nothing; return the expected result.
        expire: Also expire unused state; see :meth:`txnstore.Store.expire`.

    Raises:
        ReadOnlyError: The store was opened read-only, and this is not a dry run.
        InvalidConfigError: ``older_than`` is not a number of seconds.
        StoreNotFoundError: The store was deleted, and maybe created again; nothing is deleted.
    """
    grace_ms = _grace_ms(older_than)
    if connection.read_only and not dry_run:
        msg = f"the store {connection.url} was opened read_only, so nothing in it can be deleted"
        raise ReadOnlyError(msg)
    # The order matters. The clock is read first, so that ages are rather too small. The objects are listed before the
    # state is read: a segment that was registered in between is then known to be in use.
    now = connection.objects.now_ms()
    segments = [item for item in connection.objects.list(keys.TOPICS) if keys.is_segment(item.key)]
    checkpoints = _all_old_checkpoints(connection)
    probes = connection.objects.list(f"{PROBE_FOLDER}/")
    foreign = foreign_objects(connection.objects, connection.keys)
    # After the lists: then none of these objects belongs to a store that was created in the place of this one.
    connection.chains.identity.confirm()
    view = connection.view()
    if not dry_run and has_stale_copies(view):
        copy_all(connection.chains)
        view = connection.view(refresh=False)
    garbage = _choose(connection, view, segments, now, grace_ms)
    leftovers = [
        *_older_as_a_whole(checkpoints, now - grace_ms, _folder),
        *_older_as_a_whole(foreign, now - grace_ms, keys.store_of),
        # A running probe whose object is deleted would report a safe storage as unsafe.
        *_older(probes, now - max(grace_ms, _SWEEP_MS)),
    ]
    swept = 0
    if not dry_run:
        garbage = _delete_segments(connection, garbage)
        _delete(connection.objects, leftovers)
        _forget(connection, view, segments, now - FORGET_AFTER_MS)
        if expire:
            expire_due(connection.chains, connection.runtime.clock())
        swept = _sweep(connection.objects, max(grace_ms, _SWEEP_MS))
    named = named_keys(view)
    referenced = sum(item.key in named for item in segments)
    deleted = [*garbage, *leftovers]
    if not dry_run:
        size = sum(item.size for item in deleted)
        _LOG.info("vacuumed", extra={"objects": len(deleted), "bytes": size, "swept": swept})
    return VacuumReport(
        deleted=tuple(item.key for item in deleted),
        bytes=sum(item.size for item in deleted),
        kept_young=len(segments) + len(checkpoints) + len(probes) + len(foreign) - referenced - len(deleted),
        referenced=referenced,
        swept=swept,
        dry_run=dry_run,
    )


def _grace_ms(older_than: float | None) -> int:
    if older_than is None:
        return DEFAULT_GRACE * 1000
    return check_milliseconds("older_than", older_than)


def named_keys(view: View) -> set[str]:
    """The keys of all segments that a chain references, also for a deleted topic that it still has a copy of."""
    return {
        batch.segment.key
        for chain in view.states
        for partition in chain.partitions.values()
        for batch in partition.batches
    }


def _choose(
    connection: Connection, view: View, segments: Iterable[ObjectInfo], now: int, grace_ms: int
) -> list[ObjectInfo]:
    """The unreferenced segments that were written, and dropped, before the grace period by the storage's clock."""
    named, dropped = named_keys(view), view.dropped
    old = [item for item in segments if item.key not in named and item.modified_ms <= now - grace_ms]
    long_dropped = _dropped_before(connection, view, {item.key for item in old if item.key in dropped}, grace_ms)
    return [item for item in old if item.key not in dropped or item.key in long_dropped]


def _dropped_before(connection: Connection, view: View, wanted: Collection[str], age_ms: int) -> set[str]:
    """Those of the dropped keys whose entry is at least ``age_ms`` old by the storage's clock, not by its writer's."""
    found: set[str] = set()
    for state in view.states:
        mine = [key for key in wanted if key in state.dropped]
        if mine:
            limit = connection.chains.ages.newest_older_than(state, age_ms)
            found.update(key for key in mine if state.dropped[key] <= limit)
    return found


def _older(items: Iterable[ObjectInfo], limit: int) -> list[ObjectInfo]:
    return [item for item in items if item.modified_ms <= limit]


def _older_as_a_whole(
    parts: Sequence[ObjectInfo], limit: int, whole_of: Callable[[str], str | None]
) -> list[ObjectInfo]:
    """The objects of wholes all of whose objects are old.

    So a head that was written late keeps the batches of its checkpoint, and an entry all of its store.
    """
    youngest: dict[str | None, int] = {}
    for item in parts:
        whole = whole_of(item.key)
        youngest[whole] = max(item.modified_ms, youngest.get(whole, 0))
    return [item for item in parts if youngest[whole_of(item.key)] <= limit]


def _folder(key: str) -> str:
    return key.rpartition("/")[0]


def _all_old_checkpoints(connection: Connection) -> list[ObjectInfo]:
    """The old checkpoints of all chains, listed concurrently."""
    found = connection.chains.at_once(
        {
            chain.number: partial(_old_checkpoints, connection.objects, connection.keys, chain.number)
            for chain in connection.chains
        }
    )
    return [item for number in sorted(found) for item in found[number]]


def _old_checkpoints(objects: ObjectStore, names: Keys, chain: int) -> list[ObjectInfo]:
    """The objects of all checkpoints older than the newest complete ones, except the one that the hint names.

    Heads come first, so that a checkpoint does not look complete after its batches have been deleted.
    """
    found = objects.list(names.checkpoints(chain))
    complete = sorted(sequence for item in found if (sequence := keys.checkpoint_sequence(item.key)) is not None)
    if len(complete) < KEPT_CHECKPOINTS:
        return []
    oldest, hinted = complete[-KEPT_CHECKPOINTS], _hinted(objects, chain)
    old = []
    for item in found:
        sequence = keys.checkpoint_of(item.key)
        if sequence is not None and sequence < oldest and sequence != hinted:
            old.append(item)
    return sorted(old, key=lambda item: keys.checkpoint_sequence(item.key) is None)


def _hinted(objects: ObjectStore, chain: int) -> int:
    try:
        hint = objects.get(keys.latest(chain))
    except ObjectNotFoundError:
        return 0
    return checkpoint.hinted(chain, hint)


def _delete_segments(connection: Connection, garbage: Sequence[ObjectInfo]) -> list[ObjectInfo]:
    """Announce segments, then delete them; keeps those that have been referenced in the meantime."""
    deleted: list[ObjectInfo] = []
    for start in range(0, len(garbage), _ENTRY):
        chunk = garbage[start : start + _ENTRY]
        allowed = set(connection.submit(DropObjects(tuple(item.key for item in chunk))))
        free = [item for item in chunk if item.key in allowed]
        _delete(connection.objects, free)
        deleted += free
    return deleted


def _delete(objects: ObjectStore, items: Sequence[ObjectInfo]) -> None:
    for start in range(0, len(items), _REQUEST):
        objects.delete([item.key for item in items[start : start + _REQUEST]])


def _forget(connection: Connection, view: View, segments: Iterable[ObjectInfo], before: int) -> None:
    """Remove the keys of segments that were dropped long ago and no longer exist from the states.

    Long ago by the age of their entries, and also by the times of the chain, which decide which uploads are too old.
    """
    existing = {item.key for item in segments}
    gone = {key for key, dropped in view.dropped.items() if key not in existing and dropped <= before}
    deleted = sorted(_dropped_before(connection, view, gone, FORGET_AFTER_MS))
    for start in range(0, len(deleted), _ENTRY):
        connection.submit(ForgetObjects(tuple(deleted[start : start + _ENTRY])))


def _sweep(objects: object, older_than_ms: int) -> int:
    """Delete old temporary files of a local store, which may be wrapped; other stores have none."""
    while objects is not None:
        sweep = getattr(objects, "sweep", None)
        if sweep is not None:
            return int(sweep(older_than_ms))
        objects = getattr(objects, "inner", None)
    return 0
