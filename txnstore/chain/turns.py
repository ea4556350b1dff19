"""The order in which the writers of a chain take turns, from what one of them sees: no I/O, no clock of its own.

A writer that loses a race for a slot has spent a PUT and a GET, and tries again with a state that is as old as before:
under contention most PUTs are lost, and the winner wins again. The newest entries show which writers are active, so
they need no other communication to go one after the other: the least recently served is next. A writer that is not
among them joins where it sees an entry as early as the next writer does. Nothing depends on this but time and money: a
conditional create decides each slot. See docs/internals/design/commit.md.

All times are in milliseconds of one monotonic clock. If that clock jumps, a writer waits for too long or not long
enough, within bounds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container

from txnstore.core.model import value_class

#: This many latencies after a writer has read an entry, the turn that follows is unused: the next writer in order takes
#: it; the one after that waits for another half of a latency, and so on, up to the eighth.
PATIENCE, STAGGER, _STAGGERED = 3.0, 0.5, 8
#: The writers of a chain contend while it has an entry at least every ``IDLE`` latencies.
IDLE = 6.0
#: A writer sleeps until this many entries before its turn, and then polls.
EARLY = 2.5
#: How many GETs of one entry overlap for a writer outside the order; for the next one in order, which sees the entry a
#: quarter of a latency after it exists at the latest; and for those after it.
JOIN, NEXT, SOON = 6, 4, 2
#: A writer outside the order polls no entry that is further ahead, and for no longer than so many latencies.
_MAX_TARGET, _MAX_POLL = 5, 6.0
#: Two entries are at least this part of a latency apart: a writer reads the first one before it begins the second.
_MIN_GAP = 0.9
#: A look at the head is that old at most when a writer outside the order PUTs, in latencies.
MAX_HEAD_AGE = 0.6
#: The most writers and times that are kept.
MAX_KEPT = 128
#: A latency is never taken for longer than this, nor for several times the one before it: an outage is none.
_MAX_LATENCY_MS, _MAX_LATENCY_GROWTH = 1000.0, 4.0
#: No pause is longer.
_MAX_PAUSE_MS = 2000.0
#: The n-th loss of a commit leads to a look at the head even inside the order.
_LOSSES_BEFORE_LOOK = 3


@value_class()
class Wait:
    """The steps of a writer before its PUT: pause, then read, then poll.

    Attributes:
        pause: Milliseconds.
        ahead: The number of entries to read after the pause; 0: none.
        polls: The time in ms for which to poll an entry, unless one has been read; 0: not at all, the look is at the
            head.
        overlap: The number of these GETs in flight.
        target: Which entry after the known ones to poll. Those before it, which exist most likely, are requested on the
            way; if one of them does not, the polls end.
    """

    pause: float = 0.0
    ahead: int = 0
    polls: float = 0.0
    overlap: int = 1
    target: int = 1


#: Read what is new, to the head.
LOOK = Wait(ahead=3)


class Turns:
    """The active writers of a chain and the pace of its entries, as one writer knows them.

    Args:
        writer: The id of this writer.
        callers: Those whose commands it commits: they write no entries of their own, so it waits for no turn of theirs.
            Any thread may change it.
    """

    def __init__(self, writer: str, callers: Container[str] = ()) -> None:
        self._writer, self._callers = writer, callers
        # The committing thread alone writes these fields, and any thread that reads entries appends to `_undated`.
        #: The order: the writers that have used each of their turns, the least recently served first.
        self._order: list[str] = []
        #: When the newest entries were written, as estimated; oldest first.
        self._times: deque[float] = deque(maxlen=MAX_KEPT)
        #: Entries that are not dated yet: their numbers and writers, in any order, and some twice.
        self._undated: deque[tuple[int, str]] = deque(maxlen=MAX_KEPT)
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
        """Record an entry that this process has read. May be called by any thread, also twice for an entry."""
        self._undated.append((sequence, writer))

    def record_read(self, now: float, *, head: bool = False, fresh: bool = False) -> None:
        """Record that this process has read the entries that exist.

        Args:
            now: The time.
            head: No later entry existed.
            fresh: The newest entry did not exist shortly before.
        """
        new = {number: writer for number, writer in list(self._undated) if number > self._newest}
        self._undated.clear()
        if new:
            if self._read_at is not None:  # The age of what a process finds when it opens the store is not known.
                since = max(self._read_at, self._times[-1] + _MIN_GAP * self.latency) if self._times else self._read_at
                step = max(0.0, now - since) / (len(new) if fresh else len(new) + 1)
                for position, number in enumerate(sorted(new), 1):
                    self._record_written(new[number], min(since, now) + step * position)
            self._newest, self._newest_at = max(new), now
        if head or fresh:
            self._head_at = now
        self._read_at = now

    def _record_written(self, writer: str, written_at: float) -> None:
        """Move the writer of an entry to the end of the order; the turns of those before it have passed.

        The entry of a writer outside the order leaves the others their places.
        """
        if self._times and written_at - self._times[-1] > IDLE * self.latency:
            self._order.clear()
        if writer in self._order:
            del self._order[: self._order.index(writer) + 1]
        self._order.append(writer)
        del self._order[:-MAX_KEPT]
        self._times.append(written_at)

    def won(self, sequence: int, began_at: float, now: float) -> None:
        """Record that this writer created an entry by a PUT that began at ``began_at``."""
        self._update_latency(now - began_at)
        self.record(sequence, self._writer)
        self.record_read(now, fresh=True)

    def lost(self, began_at: float, now: float) -> None:
        """Record that a PUT which began at ``began_at`` lost its slot, and a GET has returned the entry there."""
        self._update_latency((now - began_at) / 2)
        self.record_read((began_at + now) / 2)  # When the PUT acted, the entry existed.

    def _update_latency(self, duration: float) -> None:
        latency = self.latency
        duration = max(
            0.0, min(duration, _MAX_LATENCY_MS, latency * _MAX_LATENCY_GROWTH if latency >= 1 else _MAX_LATENCY_MS)
        )
        self.latency = latency + (duration - latency) / 8 if latency else duration

    # What to do -------------------------------------------------------------------------------------------------------

    def is_contended(self, now: float) -> bool:
        """Whether other writers have written entries lately."""
        busy = bool(self.latency) and now - self._newest_at <= IDLE * self.latency
        if busy:
            self._order = [writer for writer in self._order if writer not in self._callers]
        return busy and self._order not in ([], [self._writer])

    def next(self, now: float, losses: int) -> Wait | None:
        """Return the steps before the next PUT; None if it is the turn of this writer.

        Args:
            now: The time.
            losses: The number of PUTs of this commit that were lost.
        """
        if self._undated or self._read_at is None:
            self.record_read(now)
        contended = self.is_contended(now)
        if contended and self._writer not in self._order:
            return self._join_wait(now)
        place = self._order.index(self._writer) if contended else 0
        patience = (PATIENCE + STAGGER * min(place - 1, _STAGGERED)) * self.latency
        remaining = min(self._newest_at + patience - now, patience)
        if place == 0 or remaining <= 0:
            return LOOK if losses >= (_LOSSES_BEFORE_LOOK if contended else 2) and self._is_behind(now) else None
        if place == 1:
            return Wait(polls=remaining, overlap=NEXT)
        pause = self._times[-1] + (place - EARLY) * self._mean_interval() - now
        if pause <= 0:
            return Wait(polls=remaining, overlap=SOON)
        return Wait(min(pause, _MAX_PAUSE_MS), place, remaining, SOON)

    def _join_wait(self, now: float) -> Wait | None:
        """Return the steps of a writer outside the order, which PUTs when it sees an entry as early as the next writer.

        One that has lost is behind: while it reads an entry, the next one is written. So it polls the first entry that
        does not exist yet when the request arrives, and reads those before it meanwhile.
        """
        if not self._is_behind(now):
            return None
        interval = self._mean_interval()
        arrives = now + self.latency  # When the answer to the first request arrives; entries are dated by answers.
        target = min(1 + max(0, int((arrives - self._times[-1]) / interval)), _MAX_TARGET)
        polls = self._times[-1] + (target + 1) * interval + self.latency / 2 - now
        return Wait(polls=min(polls, _MAX_POLL * self.latency), overlap=JOIN, target=target) if polls > 0 else LOOK

    def _is_behind(self, now: float) -> bool:
        """Whether this process has not seen the head for too long."""
        return not 0 <= now - self._head_at <= MAX_HEAD_AGE * self.latency

    def _mean_interval(self) -> float:
        """Return the mean time between entries in the last round, within bounds, because an average lags."""
        newest = list(self._times)[-len(self._order) - 1 :]
        if len(newest) < 2:
            return self.latency
        mean = (newest[-1] - newest[0]) / (len(newest) - 1)
        return min(max(mean, 0.8 * self.latency), 2 * self.latency)
