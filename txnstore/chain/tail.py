"""Reads the entries of a chain: single ones, and those after a known state, which it folds.

A name without an object is the end of the chain only if the names after it have no objects either: a missing entry
would otherwise look like the end, and a commit would fill the gap and change history.
See docs/internals/design/commit.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import TypeAlias

from txnstore.chain.boundary import Boundaries
from txnstore.chain.codec import Entry, reason
from txnstore.chain.keys import Keys
from txnstore.chain.payload import decode_entry, entry_hash, payload_of
from txnstore.core.evolve import evolve
from txnstore.core.model import NO_FEATURES
from txnstore.core.state import State, begin_entry, replace
from txnstore.errors import CorruptionError
from txnstore.storage.base import ObjectStore, read_if_there
from txnstore.storage.recent import keep

#: Called with an entry, the states inside it that were asked for, by number of events, the state after it, its bytes.
OnEntry: TypeAlias = Callable[[Entry, Mapping[int, State], State, bytes], None]
#: Returns which states inside an entry to keep: after so many of its events each, ascending.
Places: TypeAlias = Callable[[Entry], Sequence[int]]


def newest(heads: Sequence[int], count: int, deletable_up_to: Sequence[int] = ()) -> list[range]:
    """Return the ranges of the newest entries of each chain, ``count`` in total.

    Each chain gets an equal share; a chain with fewer entries leaves the rest of its share to the others.

    Args:
        heads: The sequence number of the head of each chain.
        count: The total number of entries.
        deletable_up_to: The last entry of each chain that may be deleted; by default 0.
    """
    before = deletable_up_to or [0] * len(heads)
    lengths = [0] * len(heads)
    remaining = count
    # Short chains first, so that the remaining share is divided among the longer ones.
    for position, chain in enumerate(sorted(range(len(heads)), key=lambda number: heads[number] - before[number])):
        lengths[chain] = min(max(0, heads[chain] - before[chain]), remaining // (len(heads) - position))
        remaining -= lengths[chain]
    return [range(head - length + 1, head + 1) for head, length in zip(heads, lengths, strict=True)]


def read_entry(objects: ObjectStore, keys: Keys, chain: int, sequence: int) -> tuple[Entry, int] | None:
    """Read an entry; returns it with its size in bytes, or None if it does not exist.

    Raises:
        CorruptionError: The object does not hold this entry.
    """
    data = read_if_there(objects, keys.entry(chain, sequence))
    return None if data is None else (entry_in(data, keys, chain, sequence), len(data))


def entry_in(data: bytes, keys: Keys, chain: int, sequence: int) -> Entry:
    """Decode the entry ``sequence`` from the bytes of its object.

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


#: The number of names without an object in a row that are the end of a chain.
ABSENT = 3
#: The number of entries that are read first where nothing is known of them, and the most that are read concurrently.
FIRST_WINDOW, _MAX_WINDOW = 4, 64
#: The entries that an open reads first, by their distance from the newest one that it knows of. Those far ahead show
#: how many follow, so that the second request is for these, and for few that do not exist. The last one is before the
#: next checkpoint of a small state.
AHEAD = (1, 2, 3, 4, 15, 30, 45, 60)


class Tail:
    """Reads the entries of one chain. It has no state of its own, so any number of threads may use it.

    Args:
        pool: Runs concurrent requests.
        on_entry: Called with each entry that is folded.
        places: Which states inside it ``on_entry`` gets.
        boundaries: Tell whether the entries that are read may have been deleted; None: no vacuum runs meanwhile.
    """

    def __init__(
        self,
        objects: ObjectStore,
        keys: Keys,
        number: int,
        pool: Executor,
        on_entry: OnEntry | None = None,
        boundaries: Boundaries | None = None,
        places: Places = lambda _: (),
    ) -> None:
        self._objects = objects
        self._keys = keys
        self._number = number
        self._pool = pool
        self._on_entry, self._places = on_entry, places
        self._boundaries = boundaries

    def _check(self, sequence: int) -> None:
        """Raise :class:`OvertakenError` if entry ``sequence`` may have been deleted, or another one has its name."""
        if self._boundaries is not None:
            self._boundaries.check(sequence)

    def get(self, sequence: int) -> bytes | None:
        """Read the bytes of an entry; None if it does not exist."""
        return read_if_there(self._objects, self._keys.entry(self._number, sequence))

    def request(self, sequence: int) -> Future[bytes | None]:
        """Begin to read an entry, as :meth:`get` does."""
        return self._pool.submit(self.get, sequence)

    def fold(self, state: State, data: bytes, *, is_whole: bool = True) -> State:
        """Fold the entry that follows ``state``, and keep its payload in memory; see :func:`fold`.

        ``is_whole``: the bytes include its payload, if it has one.

        Raises:
            OvertakenError: The bytes may be those of a writer that has slept while the entry was deleted.
        """
        self._check(state.sequence + 1)
        folded = fold(self._keys, self._number, state, data, self._on_entry, self._places)
        if is_whole:
            keep(self._objects, self._keys.entry(self._number, folded.sequence), payload_of(data))
        return folded

    def read(self, numbers: Sequence[int]) -> dict[int, bytes | None]:
        """Read these entries concurrently; None for one that does not exist."""
        if len(numbers) == 1:
            return {numbers[0]: self.get(numbers[0])}
        return dict(zip(numbers, self._pool.map(self.get, numbers), strict=True))

    def ahead(self, sequence: int, head: int) -> dict[int, bytes | None]:
        """Read the entries after ``sequence`` up to ``head``, which should exist, and then those of :data:`AHEAD`."""
        last = min(max(sequence, head), sequence + _MAX_WINDOW)
        return self.read([*range(sequence + 1, last + 1), *(last + distance for distance in AHEAD)])

    def follow(
        self,
        state: State,
        publish: Callable[[State], None],
        size: int,
        *,
        window: Mapping[int, bytes | None] | None = None,
        until: int | None = None,
        sure: bool = False,
    ) -> State:
        """Fold all entries after ``state``, or those up to ``until``; returns the newest state.

        Args:
            state: The state to begin with.
            publish: Called with each new state, so that none is lost if a later entry is damaged.
            size: The number of entries to read first; each further request reads twice as many, up to
                :data:`_MAX_WINDOW`.
            window: The entries after ``state`` that were read before, by number.
            until: Read no further than this entry.
            sure: Look at :data:`ABSENT` names before the chain ends; else the first one without an object ends it,
                unless a later entry was found before, or by the same request.

        Raises:
            CorruptionError: An entry is missing though a later one exists, or an entry is damaged.
            OvertakenError: The entries after the last known state may have been deleted.
        """
        unfolded = dict(window or ())
        if sure and not unfolded:
            size = max(size, ABSENT)
        while until is None or state.sequence < until:
            following = state.sequence + 1
            if following not in unfolded:
                end, size = _end_of_window(following, unfolded, size)
                end = end if until is None else min(end, until)
                unread = [number for number in range(following, end + 1) if number not in unfolded]
                unfolded |= self.read(unread[:_MAX_WINDOW])
                size = min(2 * size, _MAX_WINDOW)
            data = unfolded[following]
            if data is None:
                data = self._read_missing(following, unfolded, sure=sure)
                if data is None:
                    return state
            state = self.fold(state, data)
            publish(state)
            del unfolded[following]
        return state

    def _read_missing(self, sequence: int, unfolded: dict[int, bytes | None], *, sure: bool) -> bytes | None:
        """Read again an entry that did not exist; None at the end of the chain.

        ``unfolded``: this entry and later ones that were read.
        """
        if sure and not any(unfolded.values()):
            unread = [number for number in range(sequence + 1, sequence + ABSENT) if number not in unfolded]
            unfolded |= self.read(unread) if unread else {}
        if all(follower is None for follower in unfolded.values()):
            self._check(sequence)
            return None
        # Most likely both were written while these requests were on their way; then it exists by now.
        data = self.get(sequence)
        if data is None:
            self._check(sequence)
            raise missing_entry(self._keys, self._number, sequence, "later entries exist")
        return data


def _end_of_window(first: int, unfolded: Mapping[int, bytes | None], size: int) -> tuple[int, int]:
    """Return the last entry to read next, from ``first`` on, and the size of this window.

    Up to the first name that is known to have no object, and those that show whether the chain ends there; else as many
    entries after the newest known one as are known to follow, at least ``size``.
    """
    newest = max((number for number, data in unfolded.items() if data is not None), default=first - 1)
    size = max(size, newest + 1 - first)
    absent = min((number for number, data in unfolded.items() if data is None), default=0)
    return (absent + ABSENT - 1 if absent else newest + size), size


def missing_entry(keys: Keys, number: int, sequence: int, evidence: str) -> CorruptionError:
    """Return the error for a missing entry that existed, as ``evidence`` shows."""
    return CorruptionError(f"{keys.entry(number, sequence)} is missing, but {evidence}")


def fold(
    keys: Keys,
    number: int,
    before: State,
    data: bytes,
    on_entry: OnEntry | None = None,
    places: Places = lambda _: (),
) -> State:
    """Fold the entry that follows the state ``before`` in chain ``number``.

    Raises:
        CorruptionError: The entry is damaged, does not name the bytes of its predecessor, or cannot be folded.
        UnsupportedFormatError: A newer txnstore wrote it.
    """
    key = keys.entry(number, before.sequence + 1)
    entry = entry_in(data, keys, number, before.sequence + 1)
    if entry.previous != before.entry_hash:
        altered = keys.entry(number, before.sequence)
        msg = f"{altered} was altered: {key} follows one whose hash is {entry.previous}, not {before.entry_hash}"
        raise CorruptionError(msg)
    inside, folded = dict[int, State](), 0
    try:
        state = begin_entry(before, entry.timestamp, entry.requires or NO_FEATURES)
        for place in places(entry):
            state, folded = evolve(state, *entry.events[folded:place]), place
            inside[place] = state
        state = evolve(state, *entry.events[folded:])
    except MemoryError:
        raise
    except Exception as error:
        msg = f"{key} contains an event that is invalid in the state before it: {reason(error)}"
        raise CorruptionError(msg) from error
    if on_entry is not None:
        on_entry(entry, inside, state, data)
    return replace(state, entry_hash=entry_hash(data))
