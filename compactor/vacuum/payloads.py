"""Entries with inlined segments: which of them readers need. See docs/design/0019-inlined-segments.md.

An entry goes as a whole, with the history of its chain. Where the history cannot end behind it, for lack of later
checkpoints, its line stays, and the bytes before it go. All vacuums write the same bytes, however late a request
arrives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from txnstore.chain.keys import Keys
from txnstore.chain.payload import decode_entry, line_of, payload_damage, payload_of
from txnstore.connection import Connection
from txnstore.core.log.places import PLACE, dropped_entry
from txnstore.core.maintenance import ForgetObjects
from txnstore.core.model import sorted_items
from txnstore.core.view import View
from txnstore.errors import CorruptionError, ObjectNotFoundError, StorageRefusedError
from txnstore.storage.base import ObjectInfo

_LOG = logging.getLogger(__name__)

#: The number of payloads that are deleted before their entries are forgotten.
_CHUNK = 1_000


@dataclass(frozen=True, slots=True)
class OldPayloads:
    """Entries with inlined segments.

    Attributes:
        in_use: Those with segments that readers need: a batch names one, or did so when the grace period began.
        forgotten: The names of the others, which the states have dropped, if they will go with the history.
        free: The names and keys of the rest: the history cannot end behind them.
    """

    in_use: set[str]
    forgotten: list[str]
    free: dict[str, str]


def old_payloads(
    names: Keys, view: View, ends: Sequence[int], old: Callable[[Collection[str]], set[str]]
) -> OldPayloads:
    """The entries with inlined segments that readers do not need any more.

    Args:
        names: The keys of the store.
        view: The newest view.
        ends: For each chain the last entry behind which its history can end, when it is old enough.
        old: Chooses the names that were dropped before the grace period.
    """
    live = {
        batch.segment.object
        for state in view.states
        for _, partition in sorted_items(state.partitions)  # In the order of the rows of index files.
        for batch in partition.batches
        if batch.segment.inlined
    }
    entries = {name: entry for name in view.dropped if (entry := dropped_entry(name)) is not None}
    dropped = {name: names.entry(*entry) for name, entry in entries.items()}
    # A compaction moves the remaining segments of an entry in use, so it must know that the others were dropped.
    unneeded = old([name for name, entry in dropped.items() if entry not in live])
    staying = [name for name in unneeded if entries[name].sequence > ends[entries[name].chain]]
    return OldPayloads(
        live | {entry for name, entry in dropped.items() if name not in unneeded},
        sorted(unneeded.difference(staying)),
        {name: dropped[name] for name in sorted(staying)},
    )


def delete_payloads(connection: Connection, free: Mapping[str, str], *, dry_run: bool) -> Iterator[list[ObjectInfo]]:
    """Delete the payloads of entries, and forget these.

    The history can only end behind an entry that two checkpoints cover, so they are at most as many as a chain writes
    between three of them, and none in a chain that is written all the time.

    Args:
        connection: The connection to the store.
        free: The names and keys of the entries.
        dry_run: Delete nothing.

    Yields:
        For each payload the key of its entry and ``#``, and its size.
    """
    entries = list(free.items())
    for start in range(0, len(entries), _CHUNK):
        chunk = entries[start : start + _CHUNK]
        sizes = connection.pool.map(partial(_delete, connection, dry_run=dry_run), (entry for _, entry in chunk))
        done = [(name, entry, size) for (name, entry), size in zip(chunk, sizes, strict=True) if size is not None]
        if done and not dry_run:
            connection.submit(ForgetObjects(tuple(name for name, *_ in done)))
        yield [ObjectInfo(f"{entry}{PLACE}", size, 0) for _, entry, size in done if size]


def _delete(connection: Connection, key: str, *, dry_run: bool) -> int | None:
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
    if payload and not dry_run:
        try:
            connection.objects.put(key, line_of(data))
        except StorageRefusedError as error:
            msg = f"{error} The records in {key} could not be deleted: a vacuum must be allowed to overwrite entries."
            raise StorageRefusedError(msg) from error.__cause__
    return len(payload)
