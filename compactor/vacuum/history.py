"""Deletes old entries of chains, which a boundary announces and a later vacuum deletes.

See docs/internals/design/history.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from txnstore.chain import boundary, keys
from txnstore.chain.boundary import BoundaryDocument, read_boundary
from txnstore.chain.checkpoints import checkpoint
from txnstore.chain.codec import encode
from txnstore.connection import Connection
from txnstore.errors import CorruptionError, UnknownOutcomeError
from txnstore.storage.base import ObjectInfo, ObjectStore, read_if_there

#: The maximum number of keys per request.
_REQUEST = 1_000


def delete_objects(objects: ObjectStore, items: Sequence[ObjectInfo]) -> None:
    """Delete objects, in the order in which they are given, as far as they exist."""
    for start in range(0, len(items), _REQUEST):
        objects.delete([item.key for item in items[start : start + _REQUEST]])


_LOG = logging.getLogger(__name__)

#: The default length of the history in seconds.
DEFAULT_HISTORY = 7 * 24 * 60 * 60
#: The number of parts of the history. It keeps a checkpoint for each, so that a snapshot reads at most one part.
_PARTS = 8
#: The number of entries that are listed before they are deleted.
_PAGE = 10_000


@dataclass(frozen=True, slots=True)
class ChainHistory:
    """The history of a chain, and the part of it that a vacuum may delete.

    Attributes:
        hinted: The checkpoint that the hint names; 0 without one.
        number: The number of its last boundary; 0 if there is none.
        deletable_up_to: The last entry that may be deleted now: that of the last boundary that is old enough.
        is_last_deletable: Whether that is the entry of the last boundary, so that the next one may follow.
        begins_ms: The history begins at this time, by the storage's clock.
        part_ms: The length of a part of it.
        open_from: The entry in which the earliest open transaction began, and which stays with all later ones.
    """

    chain: int
    hinted: int
    number: int
    last: BoundaryDocument
    deletable_up_to: int
    is_last_deletable: bool
    begins_ms: int
    part_ms: int
    open_from: int

    def checkpoints_before(self, written: dict[int, ObjectInfo]) -> set[int]:
        """Return the checkpoints in ``written`` from before the history began.

        An open transaction can always be explained: its first entry belongs to the history, however old it is.
        """
        old_checkpoints = {sequence for sequence, item in written.items() if item.modified_ms <= self.begins_ms}
        return {sequence for sequence in old_checkpoints if sequence < self.open_from}

    def needed_checkpoints(self, written: dict[int, ObjectInfo]) -> set[int]:
        """Return the checkpoints that snapshots begin with: at the boundaries, and the last one of each part."""
        sequences, newer_part = {self.last.sequence, self.deletable_up_to}, None
        for sequence in sorted(written.keys() - self.checkpoints_before(written), reverse=True):
            part = written[sequence].modified_ms // self.part_ms
            if sequence >= self.deletable_up_to and (newer_part is None or part < newer_part):
                sequences.add(sequence)
                newer_part = part  # One that was written late, after those of newer checkpoints, is none of its part.
        return sequences


def histories(connection: Connection, now: int, history_ms: int) -> list[ChainHistory]:
    """Return the histories of all chains.

    Args:
        now: The time of the storage's clock in ms.
        history_ms: The length of the history in ms.
    """
    by_chain = connection.chains.concurrently(
        {chain.number: partial(_read_history, connection, chain.number, now, history_ms) for chain in connection.chains}
    )
    return [by_chain[number] for number in sorted(by_chain)]


def _read_history(connection: Connection, chain: int, now: int, history_ms: int) -> ChainHistory:
    """Read the boundaries of a chain, and decide which entries may be deleted now."""
    objects, names = connection.objects, connection.keys
    # The hint first: a boundary that it names exists, or is lost, and its number must not be used again.
    hint = checkpoint.decode_hint(names, chain, read_if_there(objects, keys.latest(chain)))
    boundary_objects = {keys.boundary_number(item.key): item for item in objects.list(names.boundaries(chain))}
    number = max([hint.boundary, *(number for number in boundary_objects if number is not None)])
    if missing_boundary := next((each for each in range(1, number) if each not in boundary_objects), None):
        msg = (
            f"{names.boundary(chain, missing_boundary)} is missing, and a later one exists: a process that has slept "
            "may not notice that entries are deleted. `txnstore recover` writes it again; until then a vacuum deletes "
            "nothing"
        )
        raise CorruptionError(msg)
    last_boundary = read_boundary(objects, names, chain, number)
    is_last_deletable = not number or boundary_objects[number].modified_ms <= now - boundary.WAIT_MS
    deletable = last_boundary if is_last_deletable else read_boundary(objects, names, chain, number - 1)
    part_ms = max(1, history_ms // _PARTS)
    # Of a state that others have passed, it is an earlier entry: the watermark never goes back.
    open_from = connection.chains[chain].state.journal_watermark
    return ChainHistory(
        chain,
        hint.sequence,
        number,
        last_boundary,
        deletable.sequence,
        is_last_deletable,
        now - history_ms,
        part_ms,
        open_from,
    )


def delete_entries(
    connection: Connection, history: ChainHistory, in_use: Callable[[int, int], bool], *, dry_run: bool
) -> Iterator[list[ObjectInfo]]:
    """Delete the entries of the history of a chain that are not needed any more.

    Args:
        in_use: Whether inlined segments of an entry are needed, by the numbers of its chain and of the entry.
        dry_run: Delete nothing.

    Yields:
        The entries that are deleted, page by page.
    """
    objects, prefix, last_key = connection.objects, connection.keys.entries(history.chain), ""
    while history.deletable_up_to:
        page = objects.list(prefix, last_key, _PAGE)
        numbers = [(item, keys.entry_sequence(item.key)) for item in page]
        old_entries = [
            (item, number) for item, number in numbers if number is not None and number <= history.deletable_up_to
        ]
        garbage = [item for item, number in old_entries if not in_use(history.chain, number)]
        if not dry_run and garbage:
            delete_objects(objects, garbage)
        yield garbage
        if len(page) < _PAGE or (keys.entry_sequence(page[-1].key) or 0) > history.deletable_up_to:
            return
        last_key = page[-1].key


def announce(connection: Connection, history: ChainHistory, candidate: ObjectInfo | None, *, dry_run: bool) -> int:
    """Create the next boundary of a chain: from then on, it is known that entries will be deleted.

    Args:
        candidate: The checkpoint that the remaining history begins with.
        dry_run: Create nothing.

    Returns:
        The number of entries that it adds to those that may be deleted when it is old enough.
    """
    sequence = keys.checkpoint_sequence(candidate.key) if candidate is not None else None
    if candidate is None or sequence is None or not history.is_last_deletable or sequence <= history.last.sequence:
        return 0
    objects, names, chain = connection.objects, connection.keys, history.chain
    requested = checkpoint.request(objects, connection.pool, names, chain, sequence)
    saved = checkpoint.receive(names, chain, sequence, requested)
    if saved is None:
        return 0
    if not dry_run:
        document = BoundaryDocument(
            sequence=sequence, timestamp=saved.state.timestamp, modified_ms=candidate.modified_ms
        )
        try:
            created = objects.put_if_absent(names.boundary(chain, history.number + 1), encode(document))
        except UnknownOutcomeError as error:
            _LOG.warning("a boundary may exist: %s", error, extra={"chain": chain, "error": str(error)})
            created = False
        if not created:
            return 0  # Another vacuum was faster, or the next one will know.
        extra = {"chain": chain, "boundary": history.number + 1, "sequence": sequence}
        _LOG.info("history will be deleted", extra=extra)
    return sequence - history.last.sequence
