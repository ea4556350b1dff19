"""Reads the entries of a chain: single ones, and those after a known state, which it folds.

A name without an object is the end of the chain only if the names after it have no objects either: a missing entry
would otherwise look like the end, and a commit would fill the gap and change history. See docs/design/0002-commit.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future

from txnstore.chain.boundary import Boundaries
from txnstore.chain.codec import Entry, reason
from txnstore.chain.keys import Keys
from txnstore.chain.payload import decode_entry, entry_hash, payload_of
from txnstore.core.evolve import evolve
from txnstore.core.model import NO_FEATURES
from txnstore.core.state import State, begin_entry, replace
from txnstore.errors import CorruptionError, ObjectNotFoundError
from txnstore.storage.base import ObjectStore
from txnstore.storage.recent import keep


def newest(heads: Sequence[int], count: int, firsts: Sequence[int] = ()) -> list[range]:
    """The ranges of the newest entries of each chain, ``count`` in total.

    Each chain gets an equal share; a chain with fewer entries leaves the rest of its share to the others.

    Args:
        heads: The sequence number of the head of each chain.
        count: The total number of entries.
        firsts: The last entry of each chain that may be deleted; by default 0.
    """
    before = firsts or [0] * len(heads)
    lengths = [0] * len(heads)
    rest = count
    # Short chains first, so that the remaining share is divided among the longer ones.
    for done, chain in enumerate(sorted(range(len(heads)), key=lambda number: heads[number] - before[number])):
        lengths[chain] = min(max(0, heads[chain] - before[chain]), rest // (len(heads) - done))
        rest -= lengths[chain]
    return [range(head - length + 1, head + 1) for head, length in zip(heads, lengths, strict=True)]


def read_entry(objects: ObjectStore, keys: Keys, chain: int, sequence: int) -> tuple[Entry, int] | None:
    """An entry and its size in bytes; None if it does not exist.

    Raises:
        CorruptionError: The object does not hold this entry.
    """
    try:
        data = objects.get(keys.entry(chain, sequence))
    except ObjectNotFoundError:
        return None
    return entry_in(data, keys, chain, sequence), len(data)


def entry_in(data: bytes, keys: Keys, chain: int, sequence: int) -> Entry:
    """The entry ``sequence`` in the bytes of its object.

    Raises:
        CorruptionError: They are damaged, or those of another entry.
        UnsupportedFormatError: A newer txnstore wrote them.
    """
    key = keys.entry(chain, sequence)
    entry = decode_entry(key, data)
    if entry.sequence != sequence:
        msg = f"{key} contains entry {entry.sequence}; expected {sequence}"
        raise CorruptionError(msg)
    return entry


#: Entries read concurrently: few at first, because the tail is usually short; doubles up to a bound for a long tail.
FIRST_WINDOW, _MAX_WINDOW = 4, 64
#: The number of names without an object in a row that are the end of a chain.
ABSENT = 3


class Tail:
    """Reads the entries of one chain. It has no state of its own, so any number of threads may use it.

    Args:
        objects: The object store.
        keys: The keys of the store.
        number: The number of the chain.
        pool: Runs concurrent requests.
        on_entry: Called with the number and the writer of each entry that is folded.
        boundaries: Tell whether the entries that are read may have been deleted; None: no vacuum runs meanwhile.
    """

    def __init__(
        self,
        objects: ObjectStore,
        keys: Keys,
        number: int,
        pool: Executor,
        on_entry: Callable[[int, str], None] | None = None,
        boundaries: Boundaries | None = None,
    ) -> None:
        self._objects = objects
        self._keys = keys
        self._number = number
        self._pool = pool
        self._on_entry = on_entry
        self._boundaries = boundaries

    def _check(self, sequence: int) -> None:
        """Raise :class:`OvertakenError` if entry ``sequence`` may have been deleted, or another one has its name."""
        if self._boundaries is not None:
            self._boundaries.check(sequence)

    def get(self, sequence: int) -> bytes | None:
        """The bytes of an entry; None if it does not exist."""
        try:
            return self._objects.get(self._keys.entry(self._number, sequence))
        except ObjectNotFoundError:
            return None

    def request(self, sequence: int) -> Future[bytes | None]:
        """Begin to read an entry; the answer is that of :meth:`get`."""
        return self._pool.submit(self.get, sequence)

    def fold(self, state: State, data: bytes) -> State:
        """The state after the entry that follows ``state``, whose payload is kept; see :func:`fold`.

        Raises:
            OvertakenError: The bytes may be those of a writer that has slept while the entry was deleted.
        """
        self._check(state.sequence + 1)
        folded = fold(self._keys, self._number, state, data, self._on_entry)
        keep(self._objects, self._keys.entry(self._number, folded.sequence), payload_of(data))
        return folded

    def window(self, first: int, count: int) -> list[bytes | None]:
        """Read ``count`` entries from ``first`` concurrently; None for an entry that does not exist."""
        if count == 1:
            return [self.get(first)]
        return list(self._pool.map(self.get, range(first, first + count)))

    def follow(
        self,
        state: State,
        publish: Callable[[State], None],
        size: int,
        *,
        window: list[bytes | None] | None = None,
        until: int | None = None,
        sure: bool = False,
    ) -> State:
        """Fold all entries after ``state``, or those up to ``until``; returns the newest state.

        Args:
            state: The state to begin with.
            publish: Called with each new state, so that none is lost if a later entry is damaged.
            size: The number of entries to read first; each further request reads twice as many.
            window: The entries after ``state``, if they were read before.
            until: Read no further than this entry.
            sure: Look at :data:`ABSENT` names before the chain ends; else the first one without an object ends it,
                unless the same request has found a later entry.

        Raises:
            CorruptionError: An entry is missing though a later one exists, or an entry is damaged.
            OvertakenError: The entries after the last known state may have been deleted.
        """
        if sure and window is None:
            size = max(size, ABSENT)
        while True:
            if until is not None:
                size = min(size, until - state.sequence)
                if size < 1:
                    return state
            if window is None:
                window = self.window(state.sequence + 1, min(size, _MAX_WINDOW))
            for place, data in enumerate(window):
                if data is None:
                    data = self._missing(state.sequence + 1, window[place:], sure=sure)
                    if data is None:
                        return state
                state = self.fold(state, data)
                publish(state)
            window, size = None, size * 2

    def _missing(self, sequence: int, window: list[bytes | None], *, sure: bool) -> bytes | None:
        """An entry that did not exist when it was read; None at the end of the chain.

        ``window``: this entry and those read with it.
        """
        followers = window[1:]
        if sure and len(window) < ABSENT and not any(followers):
            followers = self.window(sequence + len(window), ABSENT - len(window))
        if all(follower is None for follower in followers):
            self._check(sequence)
            return None
        # Most likely both were written while these requests were on their way; then it exists by now.
        data = self.get(sequence)
        if data is None:
            self._check(sequence)
            raise missing_entry(self._keys, self._number, sequence, "later entries exist")
        return data


def missing_entry(keys: Keys, number: int, sequence: int, evidence: str) -> CorruptionError:
    """The error for an entry that is missing, although ``evidence`` shows that it was written."""
    return CorruptionError(f"{keys.entry(number, sequence)} is missing, but {evidence}")


def fold(
    keys: Keys, number: int, state: State, data: bytes, on_entry: Callable[[int, str], None] | None = None
) -> State:
    """The state after the entry that follows ``state`` in chain ``number``.

    ``on_entry``: called with the number and the writer of the entry.

    Raises:
        CorruptionError: The entry is damaged, does not name the bytes of its predecessor, or cannot be folded.
        UnsupportedFormatError: A newer txnstore wrote it.
    """
    key = keys.entry(number, state.sequence + 1)
    entry = entry_in(data, keys, number, state.sequence + 1)
    if entry.previous != state.entry_hash:
        before = keys.entry(number, state.sequence)
        msg = f"{before} was altered: {key} follows one whose hash is {entry.previous}, not {state.entry_hash}"
        raise CorruptionError(msg)
    try:
        state = evolve(begin_entry(state, entry.timestamp, entry.requires or NO_FEATURES), *entry.events)
    except MemoryError:
        raise
    except Exception as error:
        msg = f"{key} contains an event that is invalid in the state before it: {reason(error)}"
        raise CorruptionError(msg) from error
    if on_entry is not None:
        on_entry(entry.sequence, entry.writer_id)
    return replace(state, entry_hash=entry_hash(data))
