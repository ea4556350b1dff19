"""The objects that a cut has beside those of an earlier one, found in the entries between them: without lists."""

from __future__ import annotations

from functools import partial

from txnstore.chain.backups import BackupDocument
from txnstore.chain.codec import segments_of
from txnstore.chain.payload import entry_hash, payload_damage, payload_of
from txnstore.chain.tail import entry_in
from txnstore.compactor.backup.copying import Copier
from txnstore.compactor.backup.cut import Hashes, Part, VanishedError, add_hash, is_needed
from txnstore.connection import Connection
from txnstore.core.log.model import Segment
from txnstore.core.state import State
from txnstore.core.view import View
from txnstore.errors import CorruptionError, ObjectNotFoundError
from txnstore.storage.base import ObjectStore

#: With more new entries than this, lists are cheaper.
MAX_ENTRIES = 2_000
#: Checkpoints are looked for when a chain has passed a multiple of this.
_CHECKPOINT_EVERY = 64


def copy_later(
    connection: Connection, target: ObjectStore, copier: Copier, document: BackupDocument, view: View
) -> int:
    """Copy what a cut has that the complete one before it lacks; return the number of objects.

    Raises:
        VanishedError: An object does not exist any more; the cut may need it or not.
        CorruptionError: An entry does not follow the one before it, or an object is damaged.
    """
    objects: dict[str, Hashes] = {}
    sizes: dict[str, int] = {}
    entries = 0
    for state, head, digest in zip(view.states, document.heads, document.hashes, strict=True):
        numbers = range(head + 1, state.sequence + 1)
        entries += len(numbers)
        copied = connection.pool.map(partial(_copy_entry, connection, target, state), numbers)
        for size, previous, line_hash, segments in copied:
            copier.count(size)
            if previous != digest:
                msg = f"{connection.keys.entry(state.chain, head + 1)}, or one after it, does not follow the backup"
                raise CorruptionError(msg)
            digest = line_hash
            for segment in segments:
                if not segment.inlined:
                    add_hash(objects, segment)
                    sizes[segment.object] = segment.size
    for key, hashes in sorted(objects.items()):
        copier.copy(_part(connection, key, sizes[key], hashes))
    for part in _checkpoints(connection, document, view):
        copier.copy(part)
    copier.finish()
    return entries + len(objects)


def _copy_entry(
    connection: Connection, target: ObjectStore, state: State, number: int
) -> tuple[int, str, str, list[Segment]]:
    """Copy an entry; return its size, the hash of the one before it, its own, and its segments."""
    key = connection.keys.entry(state.chain, number)
    try:
        data = connection.objects.get(key)
    except ObjectNotFoundError as error:
        raise VanishedError([key]) from error
    entry = entry_in(data, connection.keys, state.chain, number)
    if entry.payload is not None and not payload_of(data):
        raise VanishedError([key])  # Its records were erased, or moved and vacuumed, maybe since the view was read.
    if (damage := payload_damage(entry, data)) is not None:
        raise CorruptionError(f"{key}: {damage}")
    target.put(key, data)
    return len(data), entry.previous, entry_hash(data), [*segments_of(entry)]


def _part(connection: Connection, key: str, size: int, hashes: Hashes) -> Part:
    if not isinstance(hashes, bytes):  # The object may have more than its ranges that are known.
        try:
            size = connection.objects.stat(key).size
        except ObjectNotFoundError as error:
            raise VanishedError([key]) from error
    return Part(key, size, hashes)


def _checkpoints(connection: Connection, document: BackupDocument, view: View) -> list[Part]:
    """Return the checkpoints that were written since; one of an earlier entry is found by the next list of all."""
    names = connection.keys
    found: list[Part] = []
    for state, head in zip(view.states, document.heads, strict=True):
        if state.sequence // _CHECKPOINT_EVERY > head // _CHECKPOINT_EVERY:
            after = names.checkpoint_state(state.chain, head)
            items = connection.objects.list(names.checkpoints(state.chain), after)
            found += [
                Part(item.key, item.size, is_optional=True)
                for item in items
                if is_needed(item.key, head, state.sequence)
            ]
    return found
