"""Find the state that a process begins a chain with: when it opens the store, and when it was overtaken."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Future
from typing import NamedTuple

from txnstore.chain.boundary import Boundaries
from txnstore.chain.checkpoints import checkpoint
from txnstore.chain.checkpoints.checkpoint import NamedEntry, Saved
from txnstore.chain.codec import LatestDocument
from txnstore.chain.context import ChainContext
from txnstore.chain.keys import entry_sequence, is_of_chain, latest
from txnstore.chain.payload import entry_hash
from txnstore.chain.tail import Tail, missing_entry
from txnstore.chain.traces import other_store
from txnstore.core.routing import CATALOG
from txnstore.core.state import State
from txnstore.errors import CorruptionError, LostIdentityError, StorageError, StorageRefusedError

_LOG = logging.getLogger(__name__)

#: The number of objects in a list of a chain that seems to be empty.
_PAGE = 1_000


class Start(NamedTuple):
    """The checkpoint and the entries that an open reads.

    Attributes:
        saved: The checkpoint to begin with; None: begin before entry 1.
        window: The entries after it that were read, by number; None if those that were read are others.
        first_due_entry: Without a hint, a request for the entry at which the first checkpoint of a small state is due:
            if it exists, there should be a hint. None with a hint.
        hint: The document of the hint; ``NO_HINT`` without one of this store.
    """

    saved: Saved | None
    window: Mapping[int, bytes | None] | None
    first_due_entry: Future[bytes | None] | None
    hint: LatestDocument


class Loader:
    """Loads one chain.

    Args:
        tail: Reads the entries of the chain.
    """

    def __init__(self, context: ChainContext, number: int, tail: Tail, boundaries: Boundaries) -> None:
        self._objects, self._keys, self._pool = context.objects, context.keys, context.pool
        self._number, self._tail, self._boundaries = number, tail, boundaries
        self._chains, self._every = context.count, context.checkpoint_every
        #: The newest entry that a list of checkpoints has named. Assigned in one step, without a lock: a lost update
        #: leaves an older one, which is true, too.
        self._newest_named = NamedEntry()

    def first(self, hint: bytes | None) -> Start:
        """Read the checkpoint that the hint names, and concurrently the next boundary and entries after the checkpoint.

        A missing, stale or damaged hint or checkpoint costs additional requests, never correctness. A list of later
        checkpoints, which is sent concurrently too, shows that the hint is stale: then the entries that follow its
        checkpoint may be deleted, or lost, and the newest checkpoint needs none of them. Each object in the list, sound
        or not, shows that its entry existed: :meth:`check_end`.

        Raises:
            CorruptionError: The checkpoint belongs to another chain, or is of another entry than the hint names.
        """
        hinted = checkpoint.decode_hint(self._keys, self._number, hint)
        sequence = hinted.sequence
        self._boundaries.start(hinted.boundary)
        requested = checkpoint.request(self._objects, self._pool, self._keys, self._number, sequence)
        # Without a hint, the chain is too short for a checkpoint, or the hint is missing: one entry decides, where the
        # list shows nothing, or is refused.
        first_due_entry = None if sequence else self._pool.submit(self._tail.get, self._every)
        listed = self._pool.submit(self._list_after, sequence)
        window: Mapping[int, bytes | None] | None = self._tail.ahead(sequence, hinted.head)
        saved = checkpoint.receive(self._keys, self._number, sequence, requested)
        if saved is not None:
            self._check_hint(checkpoint.hint_mismatch(self._keys, hinted, saved.state))
        later_entries = listed.result()
        is_due = first_due_entry is not None and first_due_entry.result() is not None
        if is_due or (sequence and saved is None) or any(entry.is_checkpoint for entry in later_entries):
            saved, window = self._newest_checkpoint() or saved, None
        elif later_entries:
            window = None  # It was read beside the list, and may lack an entry that was created meanwhile.
        if saved is not None:
            self._check_hint(checkpoint.hint_mismatch(self._keys, hinted, saved.state))
        return Start(self._check_chain(saved), window, first_due_entry, hinted)

    def check_end(self, state: State) -> None:
        """Check that a chain which ends with ``state`` does not end before an entry that a checkpoint names.

        Raises:
            CorruptionError: It does.
            OvertakenError: The entries after ``state`` were deleted since they were looked for.
        """
        if self.names_after(state):
            raise self._missing_entry_error(
                state, f"{self._newest_named.key} was written after entry {self._newest_named.sequence}"
            )

    def names_after(self, state: State) -> bool:
        """Whether an object of a checkpoint names a later entry."""
        return self._newest_named.sequence > state.sequence

    def check(self, start: Start, state: State) -> bool:
        """Check that the chain does not end before an existing entry, and does not only seem to be empty.

        Returns:
            False if an empty chain was written to since: it must be read, and checked again.

        Raises:
            CorruptionError: It does, or an entry that the hint names is another one.
            OvertakenError: The entries after ``state`` were deleted since they were looked for.
        """
        if (
            start.first_due_entry is not None
            and start.first_due_entry.result() is not None
            and state.sequence < self._every
        ):
            raise self._missing_entry_error(state, f"entry {self._every} exists")
        if state.sequence == 0 and not self._check_empty(state):
            return False
        hinted = start.hint
        newest = max(hinted.sequence, hinted.head)
        if newest > state.sequence:
            raise self._missing_entry_error(state, f"{latest(self._number)} names entry {newest}")
        for sequence, digest in checkpoint.hinted_entries(hinted).items():
            if start.saved is None or start.saved.state.sequence < sequence:
                self._check_hinted_entry(sequence, digest, start.window or {})
        return True

    def _check_empty(self, state: State) -> bool:
        """Check that a chain which seems to be empty has no objects; for the catalog, that no other store has any.

        The other objects below the root are listed before the chain: if another process that uses this store has
        created them, the later list of the chain has its entries. Entries alone do not explain other objects: this
        process may have been suspended while files of two stores were put here and removed.

        Returns:
            False if the chain was written to since.
        """
        other = other_store(self._objects, self._keys) if self._number == CATALOG else ""
        listed = [info.key for info in self._objects.list(self._keys.chain(self._number), limit=_PAGE)]
        remaining = [key for key in listed if is_of_chain(key)]
        if not remaining:
            if other:
                raise LostIdentityError(other)
            return True
        entries = [number for key in listed if (number := entry_sequence(key)) is not None]
        if not entries:  # They come last in the list.
            last = self._objects.list(self._keys.entries(self._number), limit=1)
            entries = [number for info in last if (number := entry_sequence(info.key)) is not None]
        if entries[:1] != [1]:
            raise self._missing_entry_error(
                state, f"entry {entries[0]} exists" if entries else f"{remaining[0]} exists"
            )
        return False

    def _check_hinted_entry(self, sequence: int, digest: str, window: Mapping[int, bytes | None]) -> None:
        """Compare the hash of a folded entry with the hash in the hint that names it.

        ``window``: the entries that were read first; the entry is requested if it is not one of them.
        """
        if self._boundaries.last().sequence >= sequence:
            return  # Another object may have the name of a deleted entry.
        data = window.get(sequence) or self._tail.get(sequence)
        if data is not None and entry_hash(data) != digest:
            entry = self._keys.entry(self._number, sequence)
            self._check_hint(f"it names {entry} with the hash {digest}, and that has another one")

    def _check_hint(self, conflict: str) -> None:
        """Raise CorruptionError if the hint belongs to another history of the store."""
        if conflict:
            msg = (
                f"{latest(self._number)} belongs to another history of the store {self._keys.store_id}: {conflict}. "
                "Objects of two histories are mixed, such as those of a backup with newer ones: put back what belongs "
                "together, or accept the chain as it is with `txnstore recover`"
            )
            raise CorruptionError(msg)

    def _missing_entry_error(self, state: State, evidence: str) -> CorruptionError:
        """Return the error for a chain that ends with ``state`` although ``evidence`` shows that it was longer."""
        self._boundaries.check(state.sequence + 1)
        repair = (
            "put it and those after it back, from older versions in the bucket or from a backup; `txnstore recover` "
            "shows what is lost, and can accept the chain without it"
        )
        return missing_entry(self._keys, self._number, state.sequence + 1, f"{evidence}: {repair}")

    def again(self) -> Saved:
        """Return the newest checkpoint, for a process that was overtaken by the deletion of entries.

        Raises:
            CorruptionError: It is missing or damaged.
        """
        saved = self._newest_checkpoint()
        first = self._boundaries.last().sequence
        if saved is None or saved.state.sequence < first:
            # It was there, and new enough: this process was suspended while it read it.
            saved = self._newest_checkpoint()
        if saved is None or saved.state.sequence < first:
            msg = (
                f"{self._keys.checkpoints(self._number)} has no readable checkpoint of entry {first} or a later one, "
                f"and the entries up to {self._keys.entry(self._number, first)} may be deleted, or lost"
            )
            raise CorruptionError(msg)
        self._check_chain(saved)
        self._list_after(saved.state.sequence)
        return saved

    def _list_after(self, sequence: int) -> list[NamedEntry]:
        """List the objects that name later entries. A failed list fails no open: it only adds to the hint."""
        try:
            entries = checkpoint.entries_named_after(self._objects, self._keys, self._number, sequence)
            self._newest_named = max([self._newest_named, *entries])
            return entries
        except StorageError as error:
            # A reader need not have the right to list, and each of its opens would warn of it for each chain.
            level = logging.INFO if isinstance(error, StorageRefusedError) else logging.WARNING
            extra = {"chain": self._number, "error": str(error)}
            _LOG.log(level, "later checkpoints not listed: %s", error, extra=extra)
            return []

    def _newest_checkpoint(self) -> Saved | None:
        return checkpoint.newest(self._objects, self._pool, self._keys, self._number)

    def _check_chain(self, saved: Saved | None) -> Saved | None:
        if saved is not None:
            checkpoint.check_chain(self._keys, saved.state, self._number, self._chains)
        return saved
