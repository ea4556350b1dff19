"""Old checkpoints, and the ages of objects that belong together: what a vacuum deletes besides segments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class OldCheckpoints:
    """The objects of checkpoints that newer ones replace, but for the one that the grace period begins with.

    Attributes:
        found: All of them.
        unneeded: Those to delete: they are older than the grace period. Heads come first, so that a checkpoint does not
            look complete after its batches have been deleted.
    """

    found: list[ObjectInfo]
    unneeded: list[ObjectInfo]


def old_checkpoints(connection: Connection, limit: int) -> OldCheckpoints:
    """The old checkpoints of all chains, listed concurrently.

    ``limit``: the time at which the grace period began, in milliseconds since the epoch.
    """
    found = connection.chains.at_once(
        {
            chain.number: partial(_old_checkpoints, connection.objects, connection.keys, chain.number, limit)
            for chain in connection.chains
        }
    )
    chains = [found[number] for number in sorted(found)]
    return OldCheckpoints(
        [item for old in chains for item in old.found], [item for old in chains for item in old.unneeded]
    )


def _old_checkpoints(objects: ObjectStore, names: Keys, chain: int, limit: int) -> OldCheckpoints:
    """The checkpoints of a chain older than the newest complete ones, except the one that the hint names.

    The newest one that is older than the grace period is not among them: the first snapshots of the grace period are
    read from it.
    """
    found = objects.list(names.checkpoints(chain))
    complete = sorted(sequence for item in found if (sequence := keys.checkpoint_sequence(item.key)) is not None)
    if len(complete) < KEPT_CHECKPOINTS:
        return OldCheckpoints([], [])
    oldest, hinted = complete[-KEPT_CHECKPOINTS], _hinted(objects, chain)
    numbers = {item.key: sequence for item in found if (sequence := keys.checkpoint_of(item.key)) is not None}
    past = {numbers[item.key] for item in older_as_a_whole(found, limit, folder) if item.key in numbers}
    needed = {hinted, max(past.intersection(complete), default=0)}
    replaced = [item for item in found if oldest > numbers.get(item.key, oldest) and numbers[item.key] not in needed]
    unneeded = [item for item in replaced if numbers[item.key] in past]
    return OldCheckpoints(replaced, sorted(unneeded, key=lambda item: keys.checkpoint_sequence(item.key) is None))


def _hinted(objects: ObjectStore, chain: int) -> int:
    try:
        hint = objects.get(keys.latest(chain))
    except ObjectNotFoundError:
        return 0
    return checkpoint.hinted(chain, hint)
