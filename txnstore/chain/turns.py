"""The order in which the writers of a chain take turns, from what one of them sees: no I/O, no clock of its own.

A writer that loses a race for a slot has spent a PUT and a GET, and tries again with a state that is as old as before:
under contention most PUTs are lost, and the winner wins again. The newest entries show which writers are active, so
they need no other communication to go one after the other, in the cyclic order of their ids. Nothing depends on this
order but time and money: a conditional create decides each slot. See docs/design/0020-turns.md.

All times are in milliseconds of one monotonic clock. If that clock jumps, a writer waits for too long or not long
enough, within bounds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

#: This many latencies after a writer has read an entry, the turn that follows is unused: the next writer in order takes
#: it; the one after that waits for another half of a latency, and so on.
PATIENCE, STAGGER = 3.0, 0.5
#: The writers of a chain contend while it has an entry at least every ``IDLE`` latencies.
IDLE = 6.0
#: A writer sleeps until this many entries before its turn, and then polls.
EARLY = 2.5
#: How many GETs of one entry overlap for the next writer in order, which sees the entry a quarter of a latency after it
#: exists at the latest, and for those after it.
NEXT, SOON = 4, 2
#: A writer outside the order looks at the head before its PUT, unless it has in the last part of a latency.
FRESH = 0.6
#: The number of entries that are kept.
KEPT = 128
#: A latency is never taken for longer than this, nor for several times the one before it: an outage is none.
_LONGEST_MS, _GROWTH = 1000.0, 4.0
#: No pause is longer.
_LONGEST_PAUSE_MS = 2000.0
#: The n-th loss of a commit leads to a look at the head even inside the order.
_LOSSES = 3


@dataclass(frozen=True, slots=True)
class Wait:
    """The steps of a writer before its PUT: pause, then read, then poll.

    Attributes:
        pause: Milliseconds.
        ahead: The number of entries to read after the pause; 0: none.
        polls: The time in ms for which to poll the next entry, unless one has been read; 0: not at all, the look is at
            the head.
        overlap: The number of these GETs in flight.
    """

    pause: float = 0.0
    ahead: int = 0
    polls: float = 0.0
    overlap: int = 1


#: Read what is new, to the head.
LOOK = Wait(ahead=3)


class Turns:
    """The active writers of a chain and the pace of its entries, as one writer knows them.

    Args:
        writer: The id of this writer.
    """

    def __init__(self, writer: str) -> None:
        self._writer = writer
        # The committing thread alone writes these fields, and any thread that reads entries appends to `_undated`.
        #: The writers of the newest entries, and the time at which each was written, as estimated; oldest first.
        self._entries: deque[tuple[str, float]] = deque(maxlen=KEPT)
        #: The number of the newest entries that follow each other and are this writer's.
        self._own = 0
        #: Entries that are not dated yet: their numbers and writers, in any order, and some twice.
        self._undated: deque[tuple[int, str]] = deque(maxlen=KEPT)
        #: The number of the newest dated entry. Invariant: it never decreases.
        self._newest = 0
        #: When the existing entries were last read; None before that.
        self._read_at: float | None = None
        #: When a new entry was last read.
        self._newest_at = float("-inf")
        #: When this process last read an entry that was the head at that time.
        self._head_at = float("-inf")
        #: The average latency of a request in ms; 0 if it is not known or too short to be measured.
        self.latency = 0.0

    # What happens -----------------------------------------------------------------------------------------------------

    def record(self, sequence: int, writer: str) -> None:
        """This process has read an entry. May be called by any thread, also twice for an entry."""
        self._undated.append((sequence, writer))

    def record_read(self, now: float, *, head: bool = False, fresh: bool = False) -> None:
        """This process has read the entries that exist.

        Args:
            now: The time.
            head: No later entry existed.
            fresh: The newest entry did not exist shortly before.
        """
        new = {number: writer for number, writer in list(self._undated) if number > self._newest}
        self._undated.clear()
        if new:
            since = now if fresh or self._read_at is None else min(self._read_at, now)
            if self._read_at is not None:  # The age of what a process finds when it opens the store is not known.
                step = (now - since) / (len(new) + 1)
                for at, number in enumerate(sorted(new), 1):
                    self._entries.append((new[number], since + step * at))
                    self._own = self._own + 1 if new[number] == self._writer else 0
            self._newest, self._newest_at = max(new), now
        if head or fresh:
            self._head_at = now
        self._read_at = now

    def won(self, sequence: int, began: float, now: float) -> None:
        """An entry of this writer was created by a PUT that began at ``began``."""
        self.record(sequence, self._writer)
        self.record_read(now, fresh=True)
        self._measure(now - began)

    def lost(self, began: float, now: float) -> None:
        """A PUT that began at ``began`` has lost its slot, and a GET has returned the entry there."""
        self.record_read(now)
        self._measure((now - began) / 2)

    def _measure(self, took: float) -> None:
        latency = self.latency
        took = max(0.0, min(took, _LONGEST_MS, latency * _GROWTH if latency >= 1 else _LONGEST_MS))
        self.latency = latency + (took - latency) / 8 if latency else took

    # What to do -------------------------------------------------------------------------------------------------------

    def next(self, now: float, losses: int) -> Wait | None:
        """The steps before the next PUT; None: none, it is the turn of this writer.

        Args:
            now: The time.
            losses: The number of PUTs of this commit that were lost.
        """
        self.record_read(now)
        alone = self._own >= len(self._entries)  # Most chains have one writer: the search for others is left out.
        members = set[str]() if alone else self._members(now)
        if not members - {self._writer}:  # No other writer is active, as far as known.
            return LOOK if losses > 1 and self._is_behind(now) else None
        place = self._place(members)
        patience = (PATIENCE + STAGGER * (place - 1)) * self.latency
        remaining = self._newest_at + patience - now
        if place == 0 or remaining <= 0:
            outside = self._writer not in members
            return LOOK if (outside or losses >= _LOSSES) and self._is_behind(now) else None
        polls = min(remaining, patience)
        if place == 1:
            return Wait(polls=polls, overlap=NEXT)
        pause = self._entries[-1][1] + (place - EARLY) * self._interval(len(members)) - now
        if pause <= 0:
            return Wait(polls=polls, overlap=SOON)
        return Wait(min(pause, _LONGEST_PAUSE_MS), place, polls, SOON)

    def _is_behind(self, now: float) -> bool:
        """Whether it is too long ago that this process saw the head."""
        return not 0 <= now - self._head_at <= FRESH * self.latency

    def _members(self, now: float) -> set[str]:
        """The writers in the order: those that have used each of their turns since their last entry."""
        if not self.latency:
            return set()
        active, later = list[str](), now
        for writer, at in reversed(self._entries):
            if later - at > IDLE * self.latency:
                break
            active.append(writer)
            later = at
        members = set[str]()
        last = ""
        for writer in reversed(active):
            # Every turn between the two was passed over, because its writer did not use it.
            members = {one for one in members if one == last or not _is_between(last, one, writer)} | {writer}
            last = writer
        return members

    def _place(self, members: set[str]) -> int:
        """How many members have their turns before this writer: those between the last writer and this one."""
        last = self._entries[-1][0]
        return sum(_is_between(last, one, self._writer) for one in members)

    def _interval(self, members: int) -> float:
        """The time between two of the last entries, in a round of turns; within bounds, because an average lags."""
        newest = list(self._entries)[-members - 1 :]
        if len(newest) < 2:
            return self.latency
        mean = (newest[-1][1] - newest[0][1]) / (len(newest) - 1)
        return min(max(mean, 0.8 * self.latency), 2 * self.latency)


def _is_between(last: str, one: str, writer: str) -> bool:
    """Whether the turn of ``one`` is after that of ``last`` and before the next one of ``writer``, in cyclic order."""
    if last < writer:
        return last < one < writer
    return one > last or one < writer
