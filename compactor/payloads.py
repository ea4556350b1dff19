"""Deletes the payloads of entries, after the segments in them were dropped. See docs/design/0019-inlined-segments.md.

An entry stays, as its line: only the bytes before it go. All vacuums write the same bytes, however late a
request arrives.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Collection, Iterator, Sequence

from txnstore.chain.keys import Keys, is_dropped_entry
from txnstore.chain.payload import decode_entry, line_of, payload_damage, payload_of
from txnstore.connection import Connection
from txnstore.core.log.model import PLACE
from txnstore.core.maintenance import ForgetObjects
from txnstore.core.model import sorted_items
from txnstore.core.view import View
from txnstore.errors import CorruptionError, ObjectNotFoundError, StorageRefusedError
from txnstore.storage.base import ObjectInfo

_LOG = logging.getLogger(__name__)

#: The number of payloads that are deleted before their segments are forgotten.
_CHUNK = 1_000


def delete_payloads(
    connection: Connection, view: View, old: Callable[[Collection[str]], set[str]], *, dry_run: bool
) -> Iterator[list[ObjectInfo]]:
    """Delete the payloads of which no batch names a segment, and whose segments were all dropped long ago.

    Args:
        connection: The connection to the store.
        view: The newest view.
        old: Chooses the keys that were dropped before the grace period.
        dry_run: Delete nothing, and read no entry: the sizes are those of the whole entries, which a list tells.

    Yields:
        For each payload the key of its entry and ``#``, and its size.
    """
    dropped = dropped_entries(connection.keys, view)
    for entry in _entries_of_batches(view):
        dropped.pop(entry, None)
    long_ago = old(dropped.values())
    free = sorted(entry for entry, name in dropped.items() if name in long_ago)
    if dry_run:
        yield from _listed(connection, free)
        return
    for start in range(0, len(free), _CHUNK):
        chunk = free[start : start + _CHUNK]
        sizes = connection.pool.map(lambda entry: _delete(connection, entry), chunk)
        done = [(entry, size) for entry, size in zip(chunk, sizes, strict=True) if size is not None]
        if done:
            connection.submit(ForgetObjects(tuple(dropped[entry] for entry, _ in done)))
        yield [ObjectInfo(f"{entry}{PLACE}", size, 0) for entry, size in done if size]


def dropped_entries(names: Keys, view: View) -> dict[str, str]:
    """The entries with inlined segments that were dropped: the key of each, and what the state has of it."""
    found = ((names.emptied(name), name) for name in view.dropped if is_dropped_entry(name))
    return {entry: name for entry, name in found if entry is not None}


def entries_in_use(names: Keys, view: View) -> set[str]:
    """The entries with a segment that a batch names, or an earlier snapshot may name, as it was dropped lately."""
    return _entries_of_batches(view) | dropped_entries(names, view).keys()


def _entries_of_batches(view: View) -> set[str]:
    """The entries with a segment that a batch names."""
    return {
        batch.segment.object
        for state in view.states
        for _, partition in sorted_items(state.partitions)  # In the order of the rows of index files.
        for batch in partition.batches
        if batch.segment.inlined
    }


def _listed(connection: Connection, entries: Sequence[str]) -> Iterator[list[ObjectInfo]]:
    """The entries, which ascend, with their sizes, page by page."""
    for prefix, group in itertools.groupby(entries, key=lambda key: key[: key.rindex("/") + 1]):
        wanted = [*group]
        after, last, names = wanted[0][:-1], wanted[-1], set(wanted)
        while after < last:
            page = connection.objects.list(prefix, after, _CHUNK)
            yield [ObjectInfo(f"{item.key}{PLACE}", item.size, 0) for item in page if item.key in names]
            after = page[-1].key if page else last


def _delete(connection: Connection, key: str) -> int | None:
    """Replace an entry by its line; returns the size of its payload, or None if the entry is damaged."""
    try:
        data = connection.objects.get(key)
        damage = payload_damage(decode_entry(key, data), data)
        if damage is not None:
            raise CorruptionError(f"{key}: {damage}")
    except (CorruptionError, ObjectNotFoundError) as error:
        _LOG.warning("payload kept: %s", error, extra={"key": key, "error": str(error)})
        return None
    payload = payload_of(data)
    if payload:
        try:
            connection.objects.put(key, line_of(data))
        except StorageRefusedError as error:
            msg = f"{error} The records in {key} could not be deleted: a vacuum must be allowed to overwrite entries."
            raise StorageRefusedError(msg) from error.__cause__
    return len(payload)
