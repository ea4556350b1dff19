"""Deleting what nothing names any more, late enough that nobody can still need it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from txnstore.chain import checkpoint, keys
from txnstore.coordinating.copies import copy_all, has_stale_copies
from txnstore.coordinating.expiring import expire_due
from txnstore.core.commands import DropObjects, ForgetObjects
from txnstore.core.transactions import FORGET_AFTER_MS
from txnstore.core.view import View
from txnstore.errors import InvalidConfigError, ObjectNotFoundError, ReadOnlyError
from txnstore.storage.base import ObjectInfo, ObjectStore
from txnstore.storage.probe import PROBE_FOLDER

if TYPE_CHECKING:
    from txnstore.store import Store

#: The grace period unless the caller says otherwise, in seconds.
DEFAULT_GRACE = 24 * 60 * 60
#: Complete checkpoints that are kept, whatever their age.
KEPT_CHECKPOINTS = 2
#: Keys that one entry of a chain tells of, and that one request deletes.
_ENTRY, _REQUEST = 5_000, 1_000
#: A writer needs no longer than this for one file of a local store, nor a probe, so no vacuum sweeps younger ones.
_SWEEP_MS = 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class VacuumReport:
    """What a vacuum deleted; with ``dry_run``, what it would delete.

    ``deleted`` are the keys and ``bytes`` their size together; ``kept_young`` counts what nothing names, but whose
    grace period is not over; ``referenced`` the segments in use; ``swept`` temporary files of crashed local writers.
    """

    deleted: tuple[str, ...] = field(repr=False)
    bytes: int
    kept_young: int
    referenced: int
    swept: int = 0
    dry_run: bool = False


def vacuum(
    store: Store, older_than: float | None = None, *, dry_run: bool = False, expire: bool = True
) -> VacuumReport:
    """Delete segments, old checkpoints and leftovers of probes that nothing names, after a grace period.

    ``older_than``: the grace period in seconds; 24 hours by default, 0 is allowed when nobody else uses the store.
    ``dry_run``: only tell what would be deleted. ``expire``: also forget what was unused for too long
    (:meth:`txnstore.Store.expire`).

    A segment goes if the newest state does not name it and it was written at least the grace period ago, by the
    storage's own clock. If a compaction or the deletion of its topic has dropped it, that must be as long ago, too: so
    a reader whose snapshot is younger than the grace period finds all that it names (RET-09). Entries of the chain are
    never deleted. What does not look like an object of this library is left alone.

    Before segments are deleted, the chain of their partition is told: an append or a compaction that names one of them
    came earlier, and the segment stays, or comes later and is refused, however long its writer slept (RET-10). So a
    short grace period costs transactions that are open now their uploads, but never an acknowledged record. The chain
    forgets the names when they are so old that no upload of that age is accepted any more. What remains is an
    assumption about readers: a snapshot must not be used for longer than the grace period.

    In a store of several chains a deleted topic is garbage only once the chains of its partitions know that it is gone;
    a vacuum tells those that do not.
    """
    grace_ms = _grace_ms(older_than)
    if store.read_only and not dry_run:
        msg = f"the store {store.url} was opened read_only, so nothing in it can be deleted"
        raise ReadOnlyError(msg)
    # The order matters. The clock is read first, so that ages are rather too small. The objects are listed before the
    # state is read: a segment that was registered in between is then known to be in use.
    now = store.objects.now_ms()
    segments = [item for item in store.objects.list(keys.TOPICS) if keys.is_segment(item.key)]
    checkpoints = _all_old_checkpoints(store)
    probes = store.objects.list(f"{PROBE_FOLDER}/")
    state = store.state()
    if not dry_run and has_stale_copies(state):
        copy_all(store.chains)
        state = store.state(refresh=False)
    garbage = _choose(state, segments, now - grace_ms)
    leftovers = [
        *_older_as_a_whole(checkpoints, now - grace_ms),
        # A probe whose object disappears under it would take a safe storage for one that lets two writers win.
        *_older(probes, now - max(grace_ms, _SWEEP_MS)),
    ]
    swept = 0
    if not dry_run:
        garbage = _delete_segments(store, garbage)
        _delete(store.objects, leftovers)
        _forget(store, state, segments, now - FORGET_AFTER_MS)
        if expire:
            expire_due(store.chains, store.runtime.clock())
        swept = _sweep(store.objects, max(grace_ms, _SWEEP_MS))
    named = named_keys(state)
    referenced = sum(item.key in named for item in segments)
    deleted = [*garbage, *leftovers]
    return VacuumReport(
        deleted=tuple(item.key for item in deleted),
        bytes=sum(item.size for item in deleted),
        kept_young=len(segments) + len(checkpoints) + len(probes) - referenced - len(deleted),
        referenced=referenced,
        swept=swept,
        dry_run=dry_run,
    )


def _grace_ms(older_than: float | None) -> int:
    if older_than is None:
        return DEFAULT_GRACE * 1000
    number = isinstance(older_than, int | float) and not isinstance(older_than, bool)
    if not number or not math.isfinite(older_than) or older_than < 0:
        msg = f"older_than must be a number of seconds, 0 or more, not {older_than!r}"
        raise InvalidConfigError(msg)
    return math.ceil(older_than * 1000)


def named_keys(state: View) -> set[str]:
    """The keys of all segments that a chain names, if only because it does not know yet that their topic is gone."""
    return {
        batch.segment.key
        for chain in state.states
        for partition in chain.partitions.values()
        for batch in partition.batches
    }


def _choose(state: View, segments: Iterable[ObjectInfo], before: int) -> list[ObjectInfo]:
    """The segments that nothing names; ``before`` is the time, in ms, at which the grace period began."""
    named = named_keys(state)
    return [
        item
        for item in segments
        if item.key not in named and max(item.modified_ms, state.dropped.get(item.key, 0)) <= before
    ]


def _older(items: Iterable[ObjectInfo], limit: int) -> list[ObjectInfo]:
    return [item for item in items if item.modified_ms <= limit]


def _older_as_a_whole(parts: Sequence[ObjectInfo], limit: int) -> list[ObjectInfo]:
    """The objects of the checkpoints of which no part is younger: late heads keep their batches."""
    youngest: dict[str, int] = {}
    for item in parts:
        folder = _folder(item.key)
        youngest[folder] = max(item.modified_ms, youngest.get(folder, 0))
    return [item for item in parts if youngest[_folder(item.key)] <= limit]


def _folder(key: str) -> str:
    return key.rpartition("/")[0]


def _all_old_checkpoints(store: Store) -> list[ObjectInfo]:
    """Those of all chains, which are asked for at once."""
    found = store.chains.at_once(
        {chain.number: partial(_old_checkpoints, store.objects, chain.number) for chain in store.chains}
    )
    return [item for number in sorted(found) for item in found[number]]


def _old_checkpoints(objects: ObjectStore, chain: int) -> list[ObjectInfo]:
    """The objects of all checkpoints below the newest complete ones and below the one that is hinted to.

    Heads come first, so that a checkpoint is never found complete with its batches gone for long.
    """
    found = objects.list(keys.checkpoints(chain))
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


def _delete_segments(store: Store, garbage: Sequence[ObjectInfo]) -> list[ObjectInfo]:
    """Announce, then delete; the segments that were named in the meantime stay."""
    deleted: list[ObjectInfo] = []
    for start in range(0, len(garbage), _ENTRY):
        chunk = garbage[start : start + _ENTRY]
        allowed = set(store.submit(DropObjects(tuple(item.key for item in chunk))))
        free = [item for item in chunk if item.key in allowed]
        _delete(store.objects, free)
        deleted += free
    return deleted


def _delete(objects: ObjectStore, items: Sequence[ObjectInfo]) -> None:
    for start in range(0, len(items), _REQUEST):
        objects.delete([item.key for item in items[start : start + _REQUEST]])


def _forget(store: Store, state: View, segments: Iterable[ObjectInfo], before: int) -> None:
    """Let the chains forget what was dropped long ago and is not there any more."""
    there = {item.key for item in segments}
    gone = sorted(key for key, dropped in state.dropped.items() if key not in there and dropped <= before)
    for start in range(0, len(gone), _ENTRY):
        store.submit(ForgetObjects(tuple(gone[start : start + _ENTRY])))


def _sweep(objects: object, older_than_ms: int) -> int:
    """Sweep the temporary files of a local store, which may be inside wrappers; other stores have none."""
    while objects is not None:
        sweep = getattr(objects, "sweep", None)
        if sweep is not None:
            return int(sweep(older_than_ms))
        objects = getattr(objects, "inner", None)
    return 0
