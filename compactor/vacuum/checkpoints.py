"""What a vacuum deletes besides segments: old checkpoints and index files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from txnstore.chain import keys
from txnstore.chain.checkpoints import checkpoint
from txnstore.chain.checkpoints.checkpoint import KEPT_CHECKPOINTS
from txnstore.chain.checkpoints.index import may_need
from txnstore.chain.keys import Keys
from txnstore.compactor.vacuum.history import History
from txnstore.connection import Connection
from txnstore.storage.base import ObjectInfo, ObjectStore


def older(items: Iterable[ObjectInfo], limit: int) -> list[ObjectInfo]:
    return [item for item in items if item.modified_ms <= limit]


@dataclass(frozen=True, slots=True)
class OldCheckpoints:
    """Checkpoints that newer ones replace, but for the one that the grace period begins with, and their index files.

    Attributes:
        found: All of them.
        unneeded: Those to delete: they are older than the grace period. Heads come first, so that a checkpoint does not
            look complete after its index files have been deleted.
        kept: The heads and index files that are left: those that the deleted ones are replaced by, and others.
        candidates: For each chain the head of the checkpoint that its history may begin with; None without one.
        latest: For each chain the last entry that its history can begin after, when that is old enough; 0 without one.
    """

    found: list[ObjectInfo]
    unneeded: list[ObjectInfo]
    kept: Sequence[ObjectInfo]
    candidates: list[ObjectInfo | None]
    latest: list[int]


def old_checkpoints(connection: Connection, limit: int, histories: Sequence[History]) -> OldCheckpoints:
    """The old checkpoints of all chains, listed concurrently.

    Args:
        connection: The connection to the store.
        limit: The time at which the grace period began, in milliseconds since the epoch.
        histories: The histories of all chains.
    """
    found = connection.chains.at_once(
        {
            history.chain: partial(_old_checkpoints, connection.objects, connection.keys, limit, history)
            for history in histories
        }
    )
    chains = [found[number] for number in sorted(found)]
    return OldCheckpoints(
        [item for old in chains for item in old.found],
        [item for old in chains for item in old.unneeded],
        [item for old in chains for item in old.kept],
        [item for old in chains for item in old.candidates],
        [sequence for old in chains for sequence in old.latest],
    )


def _old_checkpoints(objects: ObjectStore, names: Keys, limit: int, history: History) -> OldCheckpoints:
    """The checkpoints of a chain older than the newest complete ones, except the one that the hint names.

    The newest one that is older than the grace period is not among them, since the first snapshots of the grace period
    are read from it, nor are those that the history needs. A checkpoint whose writer slept for longer than the grace
    period, before it wrote the head, may lack index files: it is not complete, and readers ignore it.
    """
    chain = history.chain
    found = objects.list(names.checkpoints(chain))
    heads = {number: item for item in found if (number := keys.checkpoint_sequence(item.key)) is not None}
    index = [item for item in found if keys.index_range(item.key) is not None]
    listed = {item.key for item in index}

    def complete(sequences: Iterable[int]) -> Iterator[int]:
        for sequence in sorted(sequences, reverse=True):
            named = checkpoint.named_files(objects, names, chain, sequence)
            if named is not None and listed.issuperset(named):
                yield sequence

    newest = list(islice(complete(heads), KEPT_CHECKPOINTS))
    if len(newest) < KEPT_CHECKPOINTS:
        return OldCheckpoints([], [], found, [None], [0])
    past = {sequence for sequence, item in heads.items() if item.modified_ms <= limit}
    begins = min(next(complete(history.before(heads)), 0), newest[-1])
    needed = {history.hinted, next(complete(past), 0), begins} | history.needed(heads)
    replaced = {sequence for sequence in heads if sequence < newest[-1]} - needed
    kept = heads.keys() - (replaced & past)
    unnamed = [item for item in index if _is_garbage(item.key, kept, newest[0])]
    unneeded = [*(heads[sequence] for sequence in sorted(replaced & past)), *older(unnamed, limit)]
    deleted = {item.key for item in unneeded}
    return OldCheckpoints(
        [*(heads[sequence] for sequence in sorted(replaced)), *unnamed],
        unneeded,
        [item for item in found if item.key not in deleted],
        [heads.get(begins)],
        [newest[-1]],
    )


def _is_garbage(key: str, kept: Iterable[int], newest: int) -> bool:
    """Whether no kept checkpoint may name an index file, nor one that a writer is about to complete."""
    found = keys.index_range(key)
    return found is not None and found[1] <= newest and not any(may_need(sequence, *found) for sequence in kept)
