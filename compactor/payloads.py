"""Entries with inlined segments: which of them readers need. See docs/design/0019-inlined-segments.md.

An entry goes as a whole, with the history of its chain. Only where the history cannot end behind it, for lack of later
checkpoints, it stays as its line: the bytes before it go. All vacuums write the same bytes, however late a request
arrives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from functools import partial

from txnstore.chain.keys import Keys, is_dropped_entry
from txnstore.chain.payload import decode_entry, line_of, payload_damage, payload_of
from txnstore.compactor.history import History
from txnstore.connection import Connection
from txnstore.core.log.model import PLACE
from txnstore.core.model import sorted_items
from txnstore.core.view import View
from txnstore.errors import CorruptionError, ObjectNotFoundError, StorageRefusedError
from txnstore.storage.base import ObjectInfo

_LOG = logging.getLogger(__name__)

#: The number of entries that are listed at a time.
_PAGE = 1_000


def needed_entries(
    names: Keys, view: View, old: Callable[[Collection[str]], set[str]]
) -> tuple[set[str], Collection[str]]:
    """The entries with segments that readers need: a batch names one, or did so when the grace period began.

    Args:
        names: The keys of the store.
        view: The newest view.
        old: Chooses the names that were dropped before the grace period.

    Returns:
        The keys of these entries; and the names of the others that the states have dropped, to be forgotten.
    """
    live = {
        batch.segment.object
        for state in view.states
        for _, partition in sorted_items(state.partitions)  # In the order of the rows of index files.
        for batch in partition.batches
        if batch.segment.inlined
    }
    dropped = {name: entry for name in view.dropped if is_dropped_entry(name) and (entry := names.emptied(name))}
    # A compaction moves what is left of an entry in use, so it must know that the rest was dropped.
    forgotten = old([name for name, entry in dropped.items() if entry not in live])
    return live | {entry for name, entry in dropped.items() if name not in forgotten}, forgotten


def delete_payloads(
    connection: Connection, history: History, latest: int, in_use: Collection[str], *, dry_run: bool
) -> Iterator[list[ObjectInfo]]:
    """Delete the payloads of entries that are older than the history of their chain, and stay.

    The history can only begin after an entry that two checkpoints cover, so they are at most as many as a chain writes
    between three of them, and none in a chain that is written all the time.

    Args:
        connection: The connection to the store.
        history: The history of the chain.
        latest: The last entry that it can begin after; 0 without one.
        in_use: The keys of entries with segments that readers need.
        dry_run: Delete nothing.

    Yields:
        For each payload the key of its entry and ``#``, and its size.
    """
    after = connection.keys.entry(history.chain, max(history.last.sequence, latest))
    while True:
        page = connection.objects.list(connection.keys.entries(history.chain), after, _PAGE)
        old = [item for item in page if item.modified_ms <= history.begins_ms]
        free = [item.key for item in old if item.key not in in_use]
        sizes = connection.pool.map(partial(_delete, connection, dry_run=dry_run), free)
        yield [ObjectInfo(f"{key}{PLACE}", size, 0) for key, size in zip(free, sizes, strict=True) if size]
        if not old or len(page) < _PAGE:
            return
        after = page[-1].key


def _delete(connection: Connection, key: str, *, dry_run: bool) -> int:
    """Replace an entry by its line; returns the size of its payload, 0 if it has none or is damaged."""
    try:
        data = connection.objects.get(key)
        damage = payload_damage(decode_entry(key, data), data)
        if damage is not None:
            raise CorruptionError(f"{key}: {damage}")
    except (CorruptionError, ObjectNotFoundError) as error:
        _LOG.warning("payload kept: %s", error, extra={"key": key, "error": str(error)})
        return 0
    payload = payload_of(data)
    if payload and not dry_run:
        try:
            connection.objects.put(key, line_of(data))
        except StorageRefusedError as error:
            msg = f"{error} The records in {key} could not be deleted: a vacuum must be allowed to overwrite entries."
            raise StorageRefusedError(msg) from error.__cause__
    return len(payload)
