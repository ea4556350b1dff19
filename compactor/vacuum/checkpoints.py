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
from txnstore.compactor.vacuum.history import ChainHistory
from txnstore.connection import Connection
from txnstore.storage.base import ObjectInfo, ObjectStore


def older(items: Iterable[ObjectInfo], limit: int) -> list[ObjectInfo]:
    return [item for item in items if item.modified_ms <= limit]


@dataclass(frozen=True, slots=True)
class OldCheckpoints:
    """Checkpoints that newer ones replace, but for the one that the grace period begins with, and their index files.

    Attributes:
        old: All of them.
        unneeded: Those to delete: they are older than the grace period. Heads come first, so that a checkpoint does not
            look complete after its index files have been deleted.
        remaining: The other heads and index files: those that the deleted ones are replaced by, and others.
        candidates: For each chain the head of the checkpoint that its history may begin with; None without one.
        latest: For each chain the last entry that its history can begin after, when that is old enough; 0 without one.
    """

    old: list[ObjectInfo]
    unneeded: list[ObjectInfo]
    remaining: Sequence[ObjectInfo]
    candidates: list[ObjectInfo | None]
    latest: list[int]


def old_checkpoints(connection: Connection, limit: int, histories: Sequence[ChainHistory]) -> OldCheckpoints:
    """The old checkpoints of all chains, listed concurrently.

    Args:
        connection: The connection to the store.
        limit: The time at which the grace period began, in milliseconds since the epoch.
        histories: The histories of all chains.
    """
    by_chain = connection.chains.concurrently(
        {
            history.chain: partial(_old_checkpoints, connection.objects, connection.keys, limit, history)
            for history in histories
        }
    )
    chains = [by_chain[number] for number in sorted(by_chain)]
    return OldCheckpoints(
        [item for each in chains for item in each.old],
        [item for each in chains for item in each.unneeded],
        [item for each in chains for item in each.remaining],
        [item for each in chains for item in each.candidates],
        [sequence for each in chains for sequence in each.latest],
    )


def _old_checkpoints(objects: ObjectStore, names: Keys, limit: int, history: ChainHistory) -> OldCheckpoints:
    """The checkpoints of a chain older than the newest complete ones, except the one that the hint names.

    The newest one that is older than the grace period is not among them, since the first snapshots of the grace period
    are read from it, nor are those that the history needs. A checkpoint whose writer slept for longer than the grace
    period, before it wrote the head, may lack index files: it is not complete, and readers ignore it.
    """
    chain = history.chain
    listed = objects.list(names.checkpoints(chain))
    heads = {number: item for item in listed if (number := keys.checkpoint_sequence(item.key)) is not None}
    index = [item for item in listed if keys.index_range(item.key) is not None]
    index_keys = {item.key for item in index}

    def complete(sequences: Iterable[int]) -> Iterator[int]:
        for sequence in sorted(sequences, reverse=True):
            named = checkpoint.named_files(objects, names, chain, sequence)
            if named is not None and index_keys.issuperset(named):
                yield sequence

    newest = list(islice(complete(heads), KEPT_CHECKPOINTS))
    if len(newest) < KEPT_CHECKPOINTS:
        return OldCheckpoints([], [], listed, [None], [0])
    past = {sequence for sequence, item in heads.items() if item.modified_ms <= limit}
    begins = min(next(complete(history.before(heads)), 0), newest[-1])
    needed = {history.hinted, next(complete(past), 0), begins} | history.needed(heads)
    replaced = {sequence for sequence in heads if sequence < newest[-1]} - needed
    remaining = heads.keys() - (replaced & past)
    unnamed = [item for item in index if _is_garbage(item.key, remaining, newest[0])]
    unneeded = [*(heads[sequence] for sequence in sorted(replaced & past)), *older(unnamed, limit)]
    deleted = {item.key for item in unneeded}
    return OldCheckpoints(
        [*(heads[sequence] for sequence in sorted(replaced)), *unnamed],
        unneeded,
        [item for item in listed if item.key not in deleted],
        [heads.get(begins)],
        [newest[-1]],
    )


def _is_garbage(key: str, remaining: Iterable[int], newest: int) -> bool:
    """Whether no kept checkpoint may name an index file, nor one that a writer is about to complete."""
    covered = keys.index_range(key)
    return (
        covered is not None and covered[1] <= newest and not any(may_need(sequence, *covered) for sequence in remaining)
    )
