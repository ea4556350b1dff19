"""The choice of the checkpoints and index files that a vacuum deletes, and of the begin of a chain's history.

Only chooses: ``vacuum.py`` deletes them, ``history.py`` has the boundaries and the entries, ``payloads.py`` the entries
with inlined segments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

from txnstore.chain.checkpoints import checkpoint
from txnstore.chain.checkpoints.checkpoint import KEPT_CHECKPOINTS
from txnstore.chain.checkpoints.index import may_need
from txnstore.chain.keys import Keys, checkpoint_sequence, index_range
from txnstore.compactor.vacuum.history import ChainHistory
from txnstore.connection import Connection
from txnstore.storage.base import ObjectInfo, ObjectStore


def written_until(items: Iterable[ObjectInfo], limit: int) -> list[ObjectInfo]:
    """Return the objects that were last written at or before ``limit`` (milliseconds since the epoch)."""
    return [item for item in items if item.modified_ms <= limit]


@dataclass(frozen=True, slots=True)
class OldCheckpoints:
    """The old checkpoints and index files of chains that nothing needs, and where the history may begin.

    Attributes:
        old: ``state.json`` of old checkpoints, of any age, and the index files that no remaining checkpoint names.
        unneeded: The objects of ``old`` from before the grace period, to be deleted. A ``state.json`` comes first, so
            that a checkpoint does not look complete after its index files have been deleted.
        remaining: All other objects of checkpoints. They replace the unneeded ones, so they are made durable first.
        candidates: For each chain the ``state.json`` that the next boundary may name; None without one.
        latest: For each chain the last entry that a boundary may name, however old it is: that of the oldest checkpoint
            that is kept regardless of its age; 0 without one.
    """

    old: list[ObjectInfo]
    unneeded: list[ObjectInfo]
    remaining: Sequence[ObjectInfo]
    candidates: list[ObjectInfo | None]
    latest: list[int]


def old_checkpoints(connection: Connection, limit: int, histories: Sequence[ChainHistory]) -> OldCheckpoints:
    """The old checkpoints of all chains, listed concurrently.

    Args:
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


def _old_checkpoints(objects: ObjectStore, keys: Keys, limit: int, history: ChainHistory) -> OldCheckpoints:
    """The old checkpoints of a chain.

    Kept are, whatever their age:

    - the newest complete ones (``KEPT_CHECKPOINTS``), and all that are newer than these;
    - the one that the hint names;
    - the newest complete one from before the grace period, from which its first snapshots are read;
    - the one that the history begins with, or will begin with after the next boundary, and those that it needs.

    A checkpoint is complete if all index files that it names exist. One may lack some whose writer was suspended
    for longer than the grace period before it wrote ``state.json``; readers ignore it.
    """
    chain = history.chain
    listed_objects = objects.list(keys.checkpoints(chain))
    written_checkpoints = {
        number: item for item in listed_objects if (number := checkpoint_sequence(item.key)) is not None
    }
    index = [item for item in listed_objects if index_range(item.key) is not None]
    index_keys = {item.key for item in index}

    def complete_checkpoints(sequences: Iterable[int]) -> Iterator[int]:
        """Yield the complete checkpoints, newest first."""
        for sequence in sorted(sequences, reverse=True):
            named_files = checkpoint.named_files(objects, keys, chain, sequence)
            if named_files is not None and index_keys.issuperset(named_files):
                yield sequence

    newest = list(islice(complete_checkpoints(written_checkpoints), KEPT_CHECKPOINTS))
    if len(newest) < KEPT_CHECKPOINTS:
        return OldCheckpoints([], [], listed_objects, [None], [0])
    before_grace = {sequence for sequence, item in written_checkpoints.items() if item.modified_ms <= limit}
    candidate = min(next(complete_checkpoints(history.checkpoints_before(written_checkpoints)), 0), newest[-1])
    needed_checkpoints = history.needed_checkpoints(written_checkpoints) | {history.hinted, candidate}
    needed_checkpoints.add(next(complete_checkpoints(before_grace), 0))
    unused_checkpoints = {sequence for sequence in written_checkpoints if sequence < newest[-1]} - needed_checkpoints
    remaining = written_checkpoints.keys() - (unused_checkpoints & before_grace)
    unnamed_files = [item for item in index if _is_garbage(item.key, remaining, newest[0])]
    unneeded = [
        *(written_checkpoints[sequence] for sequence in sorted(unused_checkpoints & before_grace)),
        *written_until(unnamed_files, limit),
    ]
    deleted_keys = {item.key for item in unneeded}
    return OldCheckpoints(
        [*(written_checkpoints[sequence] for sequence in sorted(unused_checkpoints)), *unnamed_files],
        unneeded,
        [item for item in listed_objects if item.key not in deleted_keys],
        [written_checkpoints.get(candidate)],
        [newest[-1]],
    )


def _is_garbage(key: str, remaining: Iterable[int], newest: int) -> bool:
    """Whether an index file is named by no remaining checkpoint, nor by one that a writer is about to complete.

    A writer may be about to complete a checkpoint after ``newest``, so a file that ends later is needed.
    """
    covered_range = index_range(key)
    return (
        covered_range is not None
        and covered_range[1] <= newest
        and not any(may_need(sequence, *covered_range) for sequence in remaining)
    )
