"""Waits for the turn of this process: the pauses and reads that :class:`~txnstore.chain.turns.Turns` asks for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

from txnstore.chain.tail import Tail
from txnstore.chain.turns import Turns, Wait
from txnstore.core.state import State
from txnstore.errors import StorageError
from txnstore.runtime import Runtime

#: After this many waits a writer PUTs in any case. Needed only if its clock is set again and again.
_MAX_WAITS = 256


class Pacing:
    """Lets this process write to a chain when it is its turn.

    Args:
        turns: What this process knows of the writers of the chain.
        tail: Reads the entries of the chain.
        runtime: The clock, the pauses, and the executor of overlapping requests.
        publish: Called with each new state.
    """

    def __init__(self, turns: Turns, tail: Tail, runtime: Runtime, publish: Callable[[State], None]) -> None:
        self._turns, self._tail, self._runtime, self._publish = turns, tail, runtime, publish

    def wait(self, newest: Callable[[], State], losses: int) -> None:
        """Return when it is the turn of this process. Makes no request and no pause if no other process writes.

        Args:
            newest: Returns the newest state that this process knows.
            losses: The number of slots that this commit has lost.

        Raises:
            CorruptionError: An entry is missing or damaged.
            StorageError: The head cannot be read.
        """
        if losses > 1 and not self._turns.latency:
            self._runtime.backoff(losses)  # The latency is not known, or too short: there are no turns.
        for _ in range(_MAX_WAITS):
            wait = self._turns.next(self._now(), losses)
            if wait is None:
                return
            if wait.pause:
                self._runtime.sleep(wait.pause / 1000)
            if wait.ahead and self._read_ahead(newest(), wait.ahead, to_the_head=not wait.polls):
                continue
            if not wait.polls or not self._poll_entry(newest, wait):
                return

    def _now(self) -> float:
        return self._runtime.monotonic()

    def _read_ahead(self, state: State, ahead: int, *, to_the_head: bool) -> bool:
        """Read new entries up to the head, or ``ahead`` of them; return whether there was one."""
        until = None if to_the_head else state.sequence + ahead
        newest = self._tail.follow(state, self._publish, ahead, until=until)
        self._turns.record_read(self._now(), head=newest.sequence != until)
        return newest.sequence > state.sequence

    def _poll_entry(self, newest: Callable[[], State], wait: Wait) -> bool:
        """Poll an entry with overlapping GETs; return whether this entry or one before it was found.

        The first ones are spread over a latency; from then on, each answer is followed by the next GET. They are
        counted, so that the end does not depend on a clock. With each of the first ones goes a GET of an entry before.
        """
        state = newest()
        target = state.sequence + wait.target
        apart = self._turns.latency / wait.overlap
        # So many that the last one is answered when the time has passed.
        unsent = max(1, round(wait.polls / apart) - wait.overlap + 1)
        pending = deque[Future[bytes | None]]()
        earlier = list[Future[bytes | None]]()
        answers = 0
        while unsent or pending:
            if len(pending) == wait.overlap or not unsent:
                data = _entry_or_none(pending.popleft())
                if data is not None:
                    # The polls may be over before all entries on the way to this one were requested.
                    unread = [None] * (wait.target - 1 - len(earlier))
                    self._publish_entries(state, [*map(_entry_or_none, earlier), *unread, data], fresh=answers > 0)
                    return True
                answers += 1
                if wait.target == 1:
                    self._turns.record_read(self._now(), head=True)
                elif answers < wait.target and _entry_or_none(earlier[answers - 1]) is None:
                    break  # The chain is not as far as it seemed.
            if newest().sequence >= target:
                return True  # A reader of this process has read it.
            if unsent:
                if len(earlier) < wait.target - 1:
                    earlier.append(self._tail.request(state.sequence + len(earlier) + 1))
                pending.append(self._tail.request(target))
                unsent -= 1
                if unsent and not answers and len(pending) < wait.overlap:
                    self._runtime.sleep(apart / 1000)
        return bool(earlier) and self._publish_entries(state, [*map(_entry_or_none, earlier)])

    def _publish_entries(self, state: State, entries: list[bytes | None], *, fresh: bool = False) -> bool:
        """Publish the entries after ``state`` that GETs have returned; return whether there was one.

        Args:
            state: The state before them.
            entries: The entries that follow it, in order; None for one that was not read, or did not exist then.
            fresh: Whether the last one did not exist shortly before.
        """
        known, last = state.sequence, state.sequence + len(entries)
        for data in entries:
            if data is None:
                break
            state = self._tail.fold(state, data)
            self._publish(state)
        if state.sequence < last and entries[-1] is not None:  # The last one exists, and so do those before it by now.
            state = self._tail.follow(state, self._publish, last - state.sequence, until=last)
            fresh = False
        self._turns.record_read(self._now(), fresh=fresh)
        return state.sequence > known


def _entry_or_none(request: Future[bytes | None]) -> bytes | None:
    """Return the bytes that a GET has returned; None if it failed, as without an entry."""
    with suppress(StorageError):  # CorruptionError is no StorageError.
        return request.result()
    return None
