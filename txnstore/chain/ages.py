"""The age of entries, measured without the clocks of their writers (``docs/internals/design/fences.md``).

The time of an entry comes from the clock of its writer, which may be wrong. It orders the entries of a chain and names
one of them; it does not tell how old the entry is. Two clocks do: the monotonic clock of this process, for what has
passed since it read an entry, and the clock of the storage, for the entries that existed before.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from txnstore.chain.boundary import Boundaries
from txnstore.chain.context import ChainContext
from txnstore.chain.payload import decode_entry
from txnstore.core.groups.commands import ExpiredMembers
from txnstore.core.routing import chain_of_group
from txnstore.core.state import State
from txnstore.core.transactions.model import Transaction
from txnstore.errors import TxnStoreError

_LOG = logging.getLogger(__name__)

#: The most known heads of a chain, and the most modification times, and answers of the storage, in memory.
_MAX_KNOWN_HEADS, _MAX_TIMES = 512, 4_096
#: The storage is asked about one entry this many times at most per length of a lease or timeout.
_REQUESTS_PER_LENGTH = 4


@dataclass(slots=True)
class _KnownHead:
    """An entry that was the newest one that this process knew.

    The times of the process are those of its monotonic clock in ms.

    Attributes:
        stamp: The time of the entry, from the clock of its writer.
        first_known: When the process read the entry: it exists since then at least.
        last_head: When the process last read the head, and it was this entry; None: it never was. Later entries are
            younger.
    """

    stamp: int
    first_known: int
    last_head: int | None


_stamp_of = attrgetter("stamp")


class _KnownHeads:
    """The entries of a chain that this process knew as the newest ones, by ascending stamps."""

    __slots__ = ("_known_heads",)

    def __init__(self) -> None:
        self._known_heads: list[_KnownHead] = []

    def add(self, stamp: int, known_at: int, read_at: int | None) -> None:
        """Add the newest known entry by its time; ``read_at``: when the head was read, None if it was not."""
        heads = self._known_heads
        if heads and stamp <= heads[-1].stamp:
            heads[-1].last_head = read_at if read_at is not None else heads[-1].last_head
            return
        if len(heads) >= _MAX_KNOWN_HEADS:
            del heads[1::2]  # A forgotten entry seems to be as young as the next known one: never too old.
        heads.append(_KnownHead(stamp, known_at, read_at))

    def bounds(self, stamp: int, now: int) -> tuple[int, int | None]:
        """Return the least and the greatest possible age (None: no limit) of the entry with this time, in ms."""
        place = bisect_left(self._known_heads, stamp, key=_stamp_of)
        # It is older than the first known entry that is not earlier, or is that entry.
        min_age = now - self._known_heads[place].first_known if place < len(self._known_heads) else 0
        # When the known entry before it was the head, it did not exist.
        absent_at = self._known_heads[place - 1].last_head if place else None
        max_age = now - absent_at if absent_at is not None else None
        return min_age, max_age


class _AgeAnswer(NamedTuple):
    """The answer of the storage about the age of an entry.

    Attributes:
        asked_at: When it was asked, in monotonic ms.
        min_age: The least age that the entry had then, in ms, as far as is known.
    """

    asked_at: int
    min_age: int


class Ages:
    """The ages of the entries of all chains, as this process measures them. Thread-safe.

    Args:
        context: The clock of its storage tells the age of entries that are older than this process, the monotonic clock
            that of others; the wall clock only decides when the storage is asked.
        boundaries: Those of each chain: they tell the age of entries that were deleted.
    """

    def __init__(self, context: ChainContext, boundaries: Sequence[Boundaries]) -> None:
        self._objects, self._keys, self._runtime = context.objects, context.keys, context.runtime
        self._boundaries = boundaries
        #: Guards `_known_heads` and `_answers`, and no request. A thread that holds it takes no other lock. Re-entrant:
        #: a signal handler that reads must not block its own thread.
        self._lock = threading.RLock()
        #: By chain, from the first state that was recorded.
        self._known_heads: dict[int, _KnownHeads] = {}
        #: The modification times of entries by the storage's clock in ms, by chain and number. An entry is never
        #: written again, so threads add to it without a lock; it is cleared when it is full.
        self._modified: dict[tuple[int, int], int] = {}
        #: When the storage was last asked for the age of an entry, by chain and time of the entry, and its answer.
        self._answers: dict[tuple[int, int], _AgeAnswer] = {}

    def record(self, states: Iterable[State], read_at: int | None = None) -> None:
        """Record that this process knows these states now. Makes no request.

        Args:
            read_at: If they are the heads of their chains: the monotonic time before these were read.
        """
        now = self._runtime.monotonic()
        with self._lock:
            for state in states:
                self._known_heads.setdefault(state.chain, _KnownHeads()).add(state.timestamp, now, read_at)

    def is_over(self, state: State, stamp: int, length_ms: int) -> bool:
        """Whether more than ``length_ms`` has passed since the entry with the time ``stamp`` was written.

        True once this process has known the entry for longer, and False if it has read the chain without it since. In
        between, the clock of the storage decides. The storage is asked only if the entry seems to be old enough by the
        wall clock or the newest entry, or if its time is in the future and so tells nothing.

        Args:
            state: A state of the chain at or after that entry.
            stamp: The time of the entry in ms.
            length_ms: The length of the lease or timeout in ms.
        """
        self.record((state,))
        now = self._runtime.monotonic()
        with self._lock:
            min_age, max_age = self._known_heads[state.chain].bounds(stamp, now)
            if min_age > length_ms:
                return True
            if max_age is not None and max_age <= length_ms:
                return False
            if not self._may_be_over(state, stamp, length_ms):
                return False
            answer = self._answers.get((state.chain, stamp))
            min_age = answer.min_age + now - answer.asked_at if answer is not None else 0
            if min_age > length_ms:
                return True
            if answer is not None and now - answer.asked_at < length_ms / _REQUESTS_PER_LENGTH:
                return False
            # Before the request: until the next one is due, other threads do not ask, nor does this one if it fails.
            self._keep_answer(state.chain, stamp, _AgeAnswer(now, min_age))
        try:
            is_over = stamp <= self.newest_older_than(state, length_ms + 1)
        except TxnStoreError as error:
            extra = {"chain": state.chain, "stamp": stamp, "error": str(error)}
            _LOG.warning("the age of an entry is unknown: %s", error, extra=extra)
            return False
        if is_over:
            with self._lock:
                self._keep_answer(state.chain, stamp, _AgeAnswer(now, length_ms + 1))
        return is_over

    def _may_be_over(self, state: State, stamp: int, length_ms: int) -> bool:
        """Whether it is worth a request to ask the storage: by the wall clock, the newest entry, or a future time."""
        wall_clock = self._runtime.clock()
        return stamp > wall_clock or max(wall_clock, state.timestamp) - stamp > length_ms

    def _keep_answer(self, chain: int, stamp: int, answer: _AgeAnswer) -> None:
        """Keep the storage's answer about an entry. The caller holds the lock."""
        if len(self._answers) >= _MAX_TIMES:
            self._answers.clear()
        self._answers[chain, stamp] = answer

    def newest_older_than(self, state: State, age_ms: int) -> int:
        """Return the time up to which all entries of the chain are at least ``age_ms`` old; -1 without such an entry.

        Costs a number of requests that grows with the logarithm of the number of entries. Of entries that may be
        deleted, only the age of those at a boundary is known: the answer is an earlier time.

        Raises:
            StorageError: The storage failed, or an entry is missing.
            CorruptionError: An entry is damaged.
        """
        limit = self._objects.now_ms() - age_ms
        boundaries = self._boundaries[state.chain]
        first = min(boundaries.last().sequence, state.sequence)
        # Find neighbours: `old` was written by the limit (or is `first`), `young` after it (or is past the head).
        # Doubling steps back from the head first: what is asked for is usually recent.
        old, young, step = state.sequence, state.sequence + 1, 1
        while old > first and self._modified_ms(state.chain, old) > limit:
            old, young, step = max(old - step, first), old, step * 2
        while young - old > 1:
            middle = (old + young) // 2
            if self._modified_ms(state.chain, middle) <= limit:
                old = middle
            else:
                young = middle
        if old == first:
            return boundaries.timestamp_before(limit)
        if old == state.sequence:
            return state.timestamp
        key = self._keys.entry(state.chain, young)
        return decode_entry(key, self._objects.get(key)).timestamp - 1

    def _modified_ms(self, chain: int, sequence: int) -> int:
        """Return when an entry was written, by the clock of the storage; one HEAD unless it is known."""
        modified_ms = self._modified.get((chain, sequence))
        if modified_ms is None:
            modified_ms = self._objects.stat(self._keys.entry(chain, sequence)).modified_ms
            if len(self._modified) >= _MAX_TIMES:
                self._modified.clear()
            self._modified[chain, sequence] = modified_ms
        return modified_ms

    # Leases and timeouts ----------------------------------------------------------------------------------------------

    def expired_members(self, states: Sequence[State], name: str) -> ExpiredMembers:
        """Return the members of a group whose leases have expired, each with the time of its last known renewal.

        Args:
            states: One state per chain.
            name: The group.
        """
        state = states[chain_of_group(name, len(states))]
        group = state.groups.get(name)
        if group is not None and group.has_members_at_gateway:
            return ()
        return tuple(
            (member_id, member.seen_at)
            for member_id, member in (sorted(group.members.items()) if group is not None else ())
            if self.is_over(state, member.seen_at, member.session_timeout_ms)
        )

    def has_expired(self, state: State, txn: Transaction) -> bool:
        """Whether a transaction is open past its timeout, so that any process may abort it (TMO-01)."""
        started = txn.timed_from
        return started is not None and self.is_over(state, started, txn.timeout_ms)
