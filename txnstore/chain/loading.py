"""Finds the state that a process begins a chain with: when it opens the store, and when it was overtaken."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from typing import NamedTuple

from txnstore.chain import checkpoint
from txnstore.chain.boundary import Boundaries
from txnstore.chain.checkpoint import Saved
from txnstore.chain.keys import Keys, entry_sequence
from txnstore.chain.tail import FIRST_WINDOW, Tail, missing_entry
from txnstore.core.state import State
from txnstore.errors import CorruptionError
from txnstore.storage.base import ObjectStore


class Start(NamedTuple):
    """What an open has found.

    Attributes:
        saved: The checkpoint to begin with; None: begin before entry 1.
        window: The entries after it, as far as they were read.
        interval: The answer to a request for the entry that the first checkpoint is of, if there was no hint.
    """

    saved: Saved | None
    window: list[bytes | None] | None
    interval: Future[bytes | None] | None


class Loader:
    """Loads one chain.

    Args:
        objects: The object store.
        keys: The keys of the store.
        number: The number of the chain.
        chains: The number of chains of the store.
        pool: Runs concurrent requests.
        tail: Reads the entries of the chain.
        boundaries: The boundaries of the chain.
        every: A process writes a checkpoint after so many entries.
    """

    def __init__(
        self,
        objects: ObjectStore,
        keys: Keys,
        number: int,
        chains: int,
        pool: Executor,
        tail: Tail,
        boundaries: Boundaries,
        every: int,
    ) -> None:
        self._objects, self._keys, self._number, self._chains = objects, keys, number, chains
        self._pool, self._tail, self._boundaries, self._every = pool, tail, boundaries, every

    def first(self, hint: bytes | None) -> Start:
        """Read the checkpoint that the hint names, and concurrently the next boundary and the entries after it.

        A missing, stale or damaged hint or checkpoint costs additional requests, never correctness.

        Raises:
            CorruptionError: The checkpoint belongs to another chain.
        """
        hinted = checkpoint.hinted(self._number, hint)
        sequence = hinted.sequence
        self._boundaries.start(hinted.boundary)
        requested = checkpoint.request(self._objects, self._pool, self._keys, self._number, sequence)
        # Without a hint, the chain is too short for a checkpoint, or the hint is missing: one entry decides.
        interval = None if sequence else self._pool.submit(self._tail.get, self._every)
        window: list[bytes | None] | None = self._tail.window(sequence + 1, FIRST_WINDOW)
        saved = checkpoint.receive(self._keys, self._number, sequence, requested)
        if saved is None and (interval is None or interval.result() is not None):
            saved, window = self._newest(), None
        return Start(self._checked(saved), window, interval)

    def check(self, start: Start, state: State) -> None:
        """Make sure that the chain does not end before an entry that exists, and does not only seem to be empty.

        Raises:
            CorruptionError: It does.
            OvertakenError: The entries after ``state`` were deleted since they were looked for.
        """
        if start.interval is not None and start.interval.result() is not None and state.sequence < self._every:
            raise self._ends_before(state, self._every)
        if state.sequence == 0:
            listed = self._objects.list(self._keys.entries(self._number), limit=1)
            found = [number for item in listed if (number := entry_sequence(item.key)) is not None]
            if found and found[0] > 1:
                raise self._ends_before(state, found[0])

    def _ends_before(self, state: State, later: int) -> CorruptionError:
        """The error for a chain that ends with ``state``, although the entry ``later`` exists."""
        self._boundaries.check(state.sequence + 1)
        return missing_entry(self._keys, self._number, state.sequence + 1, f"entry {later} exists")

    def again(self) -> Saved:
        """The newest checkpoint, for a process that was overtaken by the deletion of entries.

        Raises:
            CorruptionError: It is missing or damaged.
        """
        saved, first = self._newest(), self._boundaries.last().sequence
        if saved is None or saved.state.sequence < first:
            saved = self._newest()  # It was there, and new enough: this process was suspended while it read it.
        if saved is None or saved.state.sequence < first:
            msg = (
                f"{self._keys.checkpoints(self._number)} has no readable checkpoint of entry {first} or a later one, "
                f"and the entries up to {first} may be deleted"
            )
            raise CorruptionError(msg)
        self._checked(saved)
        return saved

    def _newest(self) -> Saved | None:
        return checkpoint.newest(self._objects, self._pool, self._keys, self._number)

    def _checked(self, saved: Saved | None) -> Saved | None:
        if saved is not None:
            checkpoint.check_chain(self._keys, saved.state, self._number, self._chains)
        return saved
