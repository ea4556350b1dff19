"""Find earlier states of chains: the newest checkpoint before them, and the entries in between."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor

from txnstore.chain.boundary import Boundaries, BoundaryDocument
from txnstore.chain.checkpoints import checkpoint
from txnstore.chain.codec import Entry
from txnstore.chain.keys import Keys
from txnstore.chain.tail import Tail, missing_entry, read_entry
from txnstore.core.state import State, first_state
from txnstore.errors import InvalidConfigError, ObjectNotFoundError, SnapshotExpiredError
from txnstore.runtime import instant
from txnstore.storage.base import ObjectStore
from txnstore.times import check_time
from txnstore.validation import as_integer, check_integer

#: The clocks of a writer and of the storage may differ by less than this, in milliseconds: a tenth of what S3 accepts.
SKEW_MS = 90_000


class EarlierStates:
    """The earlier states of one chain. Nothing is kept: each call reads what it needs.

    Args:
        head: The newest known state of the chain.
        pool: Runs concurrent requests.
        boundaries: Those of the chain: only entries after the last one exist for certain.
    """

    def __init__(self, objects: ObjectStore, keys: Keys, head: State, pool: Executor, boundaries: Boundaries) -> None:
        self._objects = objects
        self._keys = keys
        self._head = head
        self._pool = pool
        self._boundaries = boundaries

    def at(self, sequence: int) -> State:
        """Return the state after entry ``sequence``, between the last boundary and the head.

        A list of the checkpoints, two GETs for one of them, and a GET for each entry after it. No request at the head.

        Raises:
            CorruptionError: An entry is missing or damaged.
            SnapshotExpiredError: There is no checkpoint any more that the entry follows.
        """
        head, chain = self._head, self._head.chain
        if sequence == head.sequence:
            return head
        saved = checkpoint.newest(self._objects, self._pool, self._keys, chain, until=sequence) if sequence else None
        if saved is not None:
            checkpoint.check_chain(self._keys, saved.state, chain, head.chains)
        base = first_state(chain, head.chains)
        first = self._boundaries.last().sequence
        if saved is not None:
            base = saved.state
        if base.sequence < first:
            msg = f"entry {sequence} of chain {chain} is before the oldest checkpoint that is left of its history"
            raise SnapshotExpiredError(msg)
        tail = Tail(self._objects, self._keys, chain, self._pool, boundaries=self._boundaries)
        newest = tail.follow(base, lambda _: None, sequence - base.sequence, until=sequence)
        if newest.sequence < sequence:
            raise missing_entry(self._keys, chain, newest.sequence + 1, f"entry {head.sequence} exists")
        return newest

    def last_until(self, timestamp: int) -> int:
        """Return the number of the last entry written at or before a time; 0 if the first one is later.

        The timestamps of a chain never decrease. One GET for each halving of its length.

        Args:
            timestamp: In milliseconds since the epoch; not before that of the last boundary.

        Raises:
            CorruptionError: An entry is missing or damaged.
        """
        if timestamp >= self._head.timestamp:
            return self._head.sequence
        first = self._boundaries.last().sequence
        numbers = range(first + 1, self._head.sequence)
        return first + bisect_right(numbers, timestamp, key=lambda number: self._read_entry(number).timestamp)

    def first_time(self) -> int | None:
        """Return the time of the first entry of a chain without a boundary; None without an entry. One GET."""
        return self._read_entry(1).timestamp if self._head.sequence else None

    def is_late(self, sequence: int, timestamp: int) -> bool:
        """Whether the entry after ``sequence`` was written at or before ``timestamp``, though its own time is later.

        The clock of its writer, or of the writer of an entry before it, was ahead. One HEAD; none at the head.
        """
        return sequence < self._head.sequence and self._modified_ms(sequence + 1) <= timestamp - SKEW_MS

    def last_written_until(self, timestamp: int) -> int:
        """Find the last entry written until a time by the storage's clock. One HEAD per halving of the entries."""
        first = self._boundaries.last().sequence
        return first + bisect_right(range(first + 1, self._head.sequence + 1), timestamp, key=self._modified_ms)

    def _modified_ms(self, sequence: int) -> int:
        key = self._keys.entry(self._head.chain, sequence)
        try:
            return self._objects.stat(key).modified_ms
        except ObjectNotFoundError:
            raise missing_entry(self._keys, self._head.chain, sequence, f"entry {self._head.sequence} exists") from None

    def _read_entry(self, sequence: int) -> Entry:
        stored = read_entry(self._objects, self._keys, self._head.chain, sequence)
        if stored is None:
            raise missing_entry(self._keys, self._head.chain, sequence, f"entry {self._head.sequence} exists")
        return stored[0]


def check_entries(entries: object, heads: Sequence[State], firsts: Mapping[int, BoundaryDocument]) -> tuple[int, ...]:
    """Check ``entries``: a number for a store with one chain, else one for each chain; return them as a tuple.

    ``firsts``: the last boundary of each chain.

    Raises:
        InvalidConfigError: It is neither, or an entry does not exist yet.
        SnapshotExpiredError: A vacuum has deleted its history.
    """
    numbers = (entries,) if as_integer(entries) is not None else entries
    if isinstance(numbers, str | bytes) or not isinstance(numbers, Sequence) or len(numbers) != len(heads):
        now = tuple(state.sequence for state in heads)
        shown = repr(entries[0] if isinstance(entries, tuple) and len(entries) == 1 else entries)
        msg = f"entry must be a number from {firsts[0].sequence} to {now[0]}, not {shown}"
        if len(now) > 1:
            wanted = f"a number for each of the {len(now)} chains, such as {now} for now"
            msg = f"entry must be {wanted}, not {shown}; or give a timestamp"
        raise InvalidConfigError(msg)
    return tuple(
        _check_entry(entry, state, firsts[state.chain].sequence) for entry, state in zip(numbers, heads, strict=True)
    )


def _check_entry(entry: object, head: State, first: int) -> int:
    """Check the number of an entry of the retained history of a chain."""
    number = as_integer(entry)
    if number is not None and 0 <= number < first:
        msg = (
            f"a vacuum has deleted the history of chain {head.chain} before entry {first}; entry must be an integer "
            f"from {first} to {head.sequence}, not {number}"
        )
        raise SnapshotExpiredError(msg)
    return check_integer(f"entry of chain {head.chain}", entry, first, head.sequence)


def check_timestamp(timestamp: object, now: int, heads: Sequence[State], firsts: Mapping[int, BoundaryDocument]) -> int:
    """Check that ``timestamp`` is a point in time that is not in the future, and return it in ms since the epoch.

    ``firsts``: the last boundary of each chain.

    Raises:
        InvalidConfigError: It is none.
        SnapshotExpiredError: A vacuum has deleted the history of that time.
    """
    moment_ms = check_time("timestamp", timestamp)
    latest = max(now, *(state.timestamp for state in heads))
    if moment_ms > latest:
        msg = (
            f"timestamp must not be in the future: {moment_ms} ms since the epoch is {instant(moment_ms)}, and now is "
            f"{latest}, {instant(latest)}"
        )
        raise InvalidConfigError(msg)
    oldest = max(first.timestamp for first in firsts.values())
    if moment_ms < oldest:
        msg = (
            f"the history of {instant(moment_ms)} ({moment_ms} milliseconds since the epoch) was deleted: the "
            f"oldest snapshot is that of {instant(oldest)}, timestamp {oldest}"
        )
        raise SnapshotExpiredError(msg)
    return moment_ms
