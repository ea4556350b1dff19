"""Old checkpoints, and the ages of objects that belong together: what a vacuum deletes besides segments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from txnstore.chain import checkpoint, keys
from txnstore.chain.keys import Keys
from txnstore.connection import Connection
from txnstore.errors import ObjectNotFoundError
from txnstore.storage.base import ObjectInfo, ObjectStore

#: The number of complete checkpoints that are kept regardless of their age.
KEPT_CHECKPOINTS = 2


def older(items: Iterable[ObjectInfo], limit: int) -> list[ObjectInfo]:
    return [item for item in items if item.modified_ms <= limit]


def older_as_a_whole(
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


def folder(key: str) -> str:
    return key.rpartition("/")[0]


def all_old_checkpoints(connection: Connection) -> list[ObjectInfo]:
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
