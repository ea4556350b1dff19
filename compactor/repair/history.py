"""Find lost entries of the history, and write boundaries again.

See docs/internals/design/history.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import Executor

from txnstore.chain import keys
from txnstore.chain.boundary import NO_BOUNDARY, BoundaryDocument
from txnstore.chain.chains import entry_numbers
from txnstore.chain.checkpoints import checkpoint
from txnstore.chain.codec import encode
from txnstore.chain.keys import Keys
from txnstore.compactor.repair.plan import Loss, Repair
from txnstore.storage.base import ObjectStore, read_if_there


def missing_entries(
    objects: ObjectStore, names: Keys, chain: int, first: int, last_entry: int
) -> Iterator[tuple[int, int]]:
    """Yield the first and the last number of each run of entries of the history that do not exist.

    A list is no snapshot: of two entries that are created meanwhile it may have the later one only. So the last one of
    each run is asked for.

    Args:
        first: The entry of the last boundary.
        last_entry: The newest entry that is known to have existed.
    """
    newest = first
    for number in entry_numbers(objects, names, chain, first):
        if number > newest + 1 and read_if_there(objects, names.entry(chain, number - 1)) is None:
            yield newest + 1, number - 1
        newest = number
    if newest < last_entry:
        yield newest + 1, last_entry


def boundary_repairs(
    objects: ObjectStore, pool: Executor, names: Keys, chain: int, boundaries: Mapping[int, BoundaryDocument | None]
) -> Iterator[Repair | Loss]:
    """Plan the repair of lost boundaries: each becomes like the one after it, the last one follows from the entries.

    Args:
        boundaries: What :func:`read_boundaries` has returned: None for a lost one.
    """
    damage = "it is missing or damaged: a process that has slept would not notice that entries were deleted"
    next_boundary: BoundaryDocument | None = None
    for number in sorted(boundaries, reverse=True):
        boundary = boundaries[number]
        if boundary is not None:
            next_boundary = boundary
            continue
        key = names.boundary(chain, number)
        if next_boundary is None:
            last_known = max((known.sequence for known in boundaries.values() if known is not None), default=0)
            next_boundary = _boundary_after_gaps(objects, pool, names, chain, last_known)
        if next_boundary is None:
            consequence = "no checkpoint can be read that the remaining entries follow"
            yield Loss(key, damage, consequence, blocks=False)
            return
        action = f"written again: entries up to {next_boundary.sequence} may be deleted"
        yield Repair(key, damage, action, ((key, encode(next_boundary)),))


def _boundary_after_gaps(
    objects: ObjectStore, pool: Executor, names: Keys, chain: int, last_known: int
) -> BoundaryDocument | None:
    """Return a boundary at the first readable checkpoint after which no entry is missing; None if there is none."""
    last_entry = complete_from = last_known
    for number in entry_numbers(objects, names, chain, last_known):
        if number != last_entry + 1:
            complete_from = number - 1
        last_entry = number
    if complete_from == 0:
        return NO_BOUNDARY
    checkpoints = {keys.checkpoint_sequence(listed.key): listed for listed in objects.list(names.checkpoints(chain))}
    for number in sorted(number for number in checkpoints if number is not None and number >= complete_from):
        requested = checkpoint.request(objects, pool, names, chain, number)
        saved = checkpoint.receive(names, chain, number, requested)
        if saved is not None:
            modified_ms = checkpoints[number].modified_ms
            return BoundaryDocument(sequence=number, timestamp=saved.state.timestamp, modified_ms=modified_ms)
    return None
