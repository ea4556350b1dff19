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

#: The most marks of a chain, and the most modification times in memory.
_MAX_MARKS, _MAX_TIMES = 512, 4_096
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
        marks = self._known_heads
        if marks and stamp <= marks[-1].stamp:
            marks[-1].last_head = read_at if read_at is not None else marks[-1].last_head
            return
        if len(marks) >= _MAX_MARKS:
            del marks[1::2]  # Without a mark, an entry seems to be as young as the next one: never too old.
        marks.append(_KnownHead(stamp, known_at, read_at))

    def bounds(self, stamp: int, now: int) -> tuple[int, int | None]:
        """Return the least and the greatest possible age (None: no limit) of the entry with this time, in ms."""
        place = bisect_left(self._known_heads, stamp, key=_stamp_of)
        min_age = now - self._known_heads[place].first_known if place < len(self._known_heads) else 0
        # An earlier entry was the head then, so this one did not exist.
        absent_at = self._known_heads[place - 1].last_head if place else None
        max_age = now - absent_at if absent_at is not None else None
        return min_age, max_age


class _AgeAnswer(NamedTuple):
    """The answer of the storage about the age of an entry.

    Attributes:
        at: When it was asked, in monotonic ms.
        least_ms: The least age that the entry had then, in ms, as far as is known.
    """

    at: int
    least_ms: int


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
            wall_clock = self._runtime.clock()
            is_future = stamp > wall_clock
            if not is_future and max(wall_clock, state.timestamp) - stamp <= length_ms:
                return False
            answer = self._answers.get((state.chain, stamp))
            least_ms = answer.least_ms + now - answer.at if answer is not None else 0
            if least_ms > length_ms:
                return True
            if answer is not None and now - answer.at < length_ms / _REQUESTS_PER_LENGTH:
                return False
            self._keep_answer(state.chain, stamp, _AgeAnswer(now, least_ms))
        try:
            if stamp > self.newest_older_than(state, length_ms + 1):
                return False
            with self._lock:
                self._keep_answer(state.chain, stamp, _AgeAnswer(now, length_ms + 1))
            return True
        except TxnStoreError as error:
            _LOG.warning(
                "the age of an entry is unknown: %s",
                error,
                extra={"chain": state.chain, "stamp": stamp, "error": str(error)},
            )
            return False

    def _keep_answer(self, chain: int, stamp: int, answer: _AgeAnswer) -> None:
        """Keep the storage's answer about an entry, so that the next request can wait. With the lock held."""
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
        # Doubling steps back from the head first: what is asked for is usually recent.
        low, high, step = state.sequence, state.sequence + 1, 1
        while low > first and self._modified_ms(state.chain, low) > limit:
            low, high, step = max(low - step, first), low, step * 2
        while high - low > 1:
            middle = (low + high) // 2
            if self._modified_ms(state.chain, middle) <= limit:
                low = middle
            else:
                high = middle
        if low == first:
            return boundaries.timestamp_before(limit)
        if low == state.sequence:
            return state.timestamp
        key = self._keys.entry(state.chain, high)
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
