"""Checkpoints: saved states of a chain, so that opening a store does not read its whole history.

A checkpoint consists of index files (the batches, :mod:`~txnstore.chain.checkpoints.index`), most of which it shares
with others, and ``state.json`` (the rest of the state), which is written last and names them. A hint names the newest
one.
See docs/format.md.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Executor, Future
from itertools import pairwise, takewhile
from typing import NamedTuple

from txnstore.chain.checkpoints.document import StateDocument, from_document, to_document
from txnstore.chain.checkpoints.index import Edge, IndexFile, decoded_edges, edge_numbers, encode_file
from txnstore.chain.codec import LatestDocument, decode, encode, reason
from txnstore.chain.keys import STORE, Keys, checkpoint_sequence, index_range, latest
from txnstore.core.invariants.logs import topics_own_their_partitions
from txnstore.core.model import sorted_items
from txnstore.core.state import State, check_observed
from txnstore.errors import CorruptionError, ObjectNotFoundError, StorageError, StorageRefusedError
from txnstore.storage.base import ObjectStore

_LOG = logging.getLogger(__name__)

#: A state with this many names makes its checkpoints half as frequent; each doubling halves that again, down to 1/16.
MANY_NAMES = 4_000
_MAX_INTERVAL_SHIFT = 4
#: The number of complete checkpoints that a vacuum keeps regardless of their age; a repair reads as many, and the
#: history of a chain begins at one of them or before.
KEPT_CHECKPOINTS = 2
#: Stands for a hint that is missing, or of no use: it names nothing.
NO_HINT = LatestDocument(sequence=0, boundary=0, store_id="", entry_hash="", head=0, head_hash="")


class Saved(NamedTuple):
    """A checkpoint that was read: its state, and the edges from before entry 1 to its last entry."""

    state: State
    edges: list[Edge]


def interval(state: State, every: int) -> int:
    """Return the number of entries from one checkpoint to the next; ``every`` for a small state.

    It has all topics, partitions, ids, groups, rules, and dropped and released objects: a large one costs more than
    the entries that an open reads instead.
    """
    names = len(state.transactions) + len(state.groups) + len(state.dropped) + len(state.released)
    names += len(state.authorization.acls) + len(state.topics) + len(state.partitions)
    return every << min(_MAX_INTERVAL_SHIFT, (names // MANY_NAMES).bit_length())


def edge_of(state: State) -> Edge:
    """Return the edge at the last entry of a state."""
    return Edge(state.sequence, state.entry_hash, state.partitions)


def encode_checkpoint(
    keys: Keys, chain: int, edges: Sequence[Edge], state: State, stored: Collection[str] = ()
) -> Iterator[tuple[str, bytes]]:
    """Yield the objects of a checkpoint as keys with bytes, in the order in which they are written.

    Args:
        chain: The number of the chain.
        edges: The edges of the state, from that before entry 1 to its own: an index file lies between two neighbours.
        stored: The keys of index files that exist already.
    """
    for before, after in pairwise(edges):
        key = keys.index_file(chain, before.sequence, after.sequence)
        if key not in stored:
            yield key, encode_file(before, after)
    document = to_document(state, [edge.sequence for edge in edges[1:]])
    yield keys.checkpoint_state(chain, state.sequence), encode(document)


def hint_to(keys: Keys, state: State, boundary: int = 0, head: State | None = None) -> tuple[str, bytes]:
    """Return the key and the bytes of a hint to the checkpoint of a state, and to a boundary not after it.

    ``head``: a newer state, whose entries are durable: a reader refuses a chain that ends before it. None: the same.
    """
    newest = head if head is not None and head.sequence > state.sequence else state
    document = LatestDocument(
        sequence=state.sequence,
        boundary=boundary,
        store_id=keys.store_id,
        entry_hash=state.entry_hash,
        head=newest.sequence,
        head_hash=newest.entry_hash,
    )
    return latest(state.chain), encode(document)


def read_hint(objects: ObjectStore, chain: int) -> bytes | None:
    """Read the bytes of a chain's hint; None if it is missing or cannot be read, because nothing depends on it.

    Raises:
        StorageRefusedError: The storage refuses to answer, and would refuse what an open depends on.
    """
    try:
        return objects.get(latest(chain))
    except ObjectNotFoundError:
        return None
    except StorageRefusedError:
        raise
    except (StorageError, CorruptionError) as error:
        # If the storage fails altogether, the request for store.json raises that.
        level = logging.WARNING if isinstance(error, CorruptionError) else logging.INFO
        _LOG.log(level, "checkpoint hint ignored: %s", error, extra={"error": str(error)})
        return None


def decode_hint(keys: Keys, chain: int, hint: bytes | None) -> LatestDocument:
    """Decode a hint; :data:`NO_HINT` if there is no readable hint of this store."""
    if hint is None:
        return NO_HINT
    try:
        return hint_of_this_store(keys, decode(LatestDocument, latest(chain), hint))
    except CorruptionError as error:
        _LOG.warning("checkpoint hint ignored: %s", error, extra={"error": str(error)})
        return NO_HINT


def hint_of_this_store(keys: Keys, document: LatestDocument) -> LatestDocument:
    """Return the hint; :data:`NO_HINT` for another store's, which had this root before or was copied here."""
    return document if document.store_id == keys.store_id else NO_HINT


def hinted_entries(hint: LatestDocument) -> dict[int, str]:
    """Return the entries that existed when the hint was written, each with the hash of its line."""
    return {hint.sequence: hint.entry_hash, hint.head: hint.head_hash} if hint is not NO_HINT else {}


def hint_mismatch(keys: Keys, hint: LatestDocument, state: State) -> str:
    """Describe how the hash in a hint differs from that of its checkpoint; empty if they agree."""
    expected = hinted_entries(hint).get(state.sequence, state.entry_hash)
    if expected == state.entry_hash:
        return ""
    entry = keys.entry(state.chain, state.sequence)
    return f"it names {entry} with the hash {expected}, and the checkpoint one with {state.entry_hash}"


class Requested(NamedTuple):
    """The pending requests for a checkpoint.

    Attributes:
        files: The index files that it should name, by key; if its state names others, they are requested then.
        shared: The edges of another checkpoint; index files between those that both have need not be read.
    """

    objects: ObjectStore
    state: Future[bytes]
    files: dict[str, Future[bytes]]
    shared: Sequence[Edge]

    def file(self, key: str) -> bytes:
        """Return the bytes of an index file."""
        return self.files[key].result() if key in self.files else self.objects.get(key)


def request(
    objects: ObjectStore, pool: Executor, keys: Keys, chain: int, sequence: int, shared: Sequence[Edge] = ()
) -> Requested | None:
    """Request all objects of a checkpoint concurrently; None if ``sequence`` is 0 (no checkpoint).

    ``shared``: the edges of another checkpoint of this chain, whose files are not read again.
    """
    if not 0 < sequence < 2**63:
        return None
    state = pool.submit(objects.get, keys.checkpoint_state(chain, sequence))
    complete_checkpoints = [0, *edge_numbers(sequence)]
    files = [
        keys.index_file(chain, *pair)
        for pair in pairwise(complete_checkpoints[len(_shared_edges(shared, complete_checkpoints)) - 1 :])
    ]
    return Requested(objects, state, {key: pool.submit(objects.get, key) for key in files}, shared)


def _shared_edges(edges: Sequence[Edge], complete_checkpoints: Sequence[int]) -> list[Edge]:
    """Return the first of the edges, as far as they are at these checkpoints.

    At least the edge before entry 1, which all checkpoints have.
    """
    same = takewhile(lambda pair: pair[0].sequence == pair[1], zip(edges, complete_checkpoints, strict=False))
    return [edge for edge, _ in same] or [Edge()]


def receive(keys: Keys, chain: int, sequence: int, requested: Requested | None) -> Saved | None:
    """Return a checkpoint; None if none was requested, or, with a logged warning, if it is missing or damaged."""
    if requested is None:
        return None
    try:
        return read(keys, chain, sequence, requested)
    except (ObjectNotFoundError, CorruptionError) as error:
        _LOG.warning("checkpoint ignored: %s", error, extra={"sequence": sequence, "error": str(error)})
        return None


def read(keys: Keys, chain: int, sequence: int, requested: Requested) -> Saved:
    """Return the checkpoint of entry ``sequence``.

    Raises:
        ObjectNotFoundError: Its ``state.json`` or an index file is missing.
        CorruptionError: One of them is damaged; names it.
    """
    key = keys.checkpoint_state(chain, sequence)
    document = decode(StateDocument, key, requested.state.result())
    if document.sequence != sequence:
        msg = f"{key} contains the state after entry {document.sequence}; expected {sequence}"
        raise CorruptionError(msg)
    shared = _shared_edges(requested.shared, [0, *document.index])
    names = _index_file_keys(document, keys, chain)[len(shared) - 1 :]
    edges = decoded_edges([IndexFile(name, requested.file(name)) for name in names], shared)
    return _decode_state(document, edges, key)


def _decode_state(document: StateDocument, edges: list[Edge], key: str) -> Saved:
    """Decode the saved state; an intact object that cannot be decoded is damage, which another checkpoint repairs."""
    if (edges[-1].sequence, edges[-1].entry_hash) != (document.sequence, document.entry_hash):
        msg = f"{key} is of entry {document.sequence} ({document.entry_hash}), and its index ends at another one"
        raise CorruptionError(msg)
    try:
        state = from_document(document, edges[-1].partitions)
        # Looked up without a check by all readers; everything else that a state must be is checked by a verification.
        missing = next(topics_own_their_partitions(state), None)
        for chain, seen in sorted_items(state.seen):
            check_observed(state, chain, seen)
    except MemoryError:
        raise
    except Exception as error:
        raise CorruptionError(f"{key} does not hold a state: {reason(error)}") from error
    if missing is not None:
        raise CorruptionError(f"{key} does not hold a state: {missing}")
    return Saved(state, edges)


def decode_all(state: State) -> None:
    """Decode all batches of a state from a checkpoint, and drop them: a check of its index files.

    Raises:
        CorruptionError: Some cannot be decoded.
    """
    for _, log in sorted_items(state.partitions):  # In the order of the rows: a group is decoded once.
        deque(log.batches, maxlen=0)


def named_files(objects: ObjectStore, keys: Keys, chain: int, sequence: int) -> list[str] | None:
    """Return the keys of the index files of a checkpoint; None if its ``state.json`` is missing or damaged."""
    key = keys.checkpoint_state(chain, sequence)
    try:
        document = decode(StateDocument, key, objects.get(key))
    except (ObjectNotFoundError, CorruptionError):
        return None
    return _index_file_keys(document, keys, chain)


def _index_file_keys(document: StateDocument, keys: Keys, chain: int) -> list[str]:
    return [keys.index_file(chain, after, until) for after, until in pairwise([0, *document.index])]


class NamedEntry(NamedTuple):
    """An entry named by the key of a checkpoint's object. It existed: that object is written after it is durable."""

    sequence: int = 0
    key: str = ""

    @property
    def is_checkpoint(self) -> bool:
        """Whether the object is a ``state.json``, which completes a checkpoint; else an index file."""
        return checkpoint_sequence(self.key) is not None


def entries_named_after(objects: ObjectStore, keys: Keys, chain: int, after: int = 0) -> list[NamedEntry]:
    """Return the entries after ``after`` that keys of checkpoints and index files name, ascending. One LIST request.

    These objects may be damaged, and those of an unfinished or incomplete checkpoint count, too.
    """
    start = keys.checkpoint_state(chain, after) if 0 <= after < 2**63 else ""
    listed = [info.key for info in objects.list(keys.checkpoints(chain), start)]
    named = [NamedEntry(number, key) for key in listed if (number := checkpoint_sequence(key)) is not None]
    named += [NamedEntry(entry_range[1], key) for key in listed if (entry_range := index_range(key)) is not None]
    return sorted(entry for entry in named if after < entry.sequence < 2**63)


def complete_checkpoints(objects: ObjectStore, keys: Keys, chain: int) -> list[int]:
    """Return the numbers of the complete checkpoints, ascending. One LIST request."""
    return [entry.sequence for entry in entries_named_after(objects, keys, chain) if entry.is_checkpoint]


def newest(objects: ObjectStore, pool: Executor, keys: Keys, chain: int, *, until: int | None = None) -> Saved | None:
    """Find the newest readable checkpoint by listing: for an earlier state, or without a usable hint.

    ``until``: the last entry that it may contain.
    """
    sequences = complete_checkpoints(objects, keys, chain)
    for sequence in sorted(
        sequences if until is None else (number for number in sequences if number <= until), reverse=True
    ):
        saved = receive(keys, chain, sequence, request(objects, pool, keys, chain, sequence))
        if saved is not None:
            return saved
    return None


def check_chain(keys: Keys, state: State, number: int, chains: int) -> None:
    """Raise :class:`CorruptionError` for a checkpoint that does not belong to chain ``number`` of ``chains``."""
    if (state.chain, state.chains) != (number, chains):
        msg = (
            f"{keys.checkpoint_state(number, state.sequence)} belongs to chain {state.chain} of {state.chains}; "
            f"expected chain {number} of {chains}: {STORE} belongs to another store"
        )
        raise CorruptionError(msg)
