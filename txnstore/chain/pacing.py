"""Waits for the turn of this process: the pauses and reads that :class:`~txnstore.chain.turns.Turns` asks for."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

from txnstore.chain.tail import Tail
from txnstore.chain.turns import Turns
from txnstore.core.state import State
from txnstore.errors import StorageError
from txnstore.runtime import Runtime

#: After this many waits a writer PUTs in any case. Needed only if its clock is set again and again.
_MOST_WAITS = 256


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
        for _ in range(_MOST_WAITS):
            wait = self._turns.next(self._now(), losses)
            if wait is None:
                return
            if wait.pause:
                self._runtime.sleep(wait.pause / 1000)
            if wait.ahead and self._look(newest(), wait.ahead, to_the_head=not wait.polls):
                continue
            if not wait.polls or not self._poll(newest, wait.polls, wait.overlap):
                return

    def _now(self) -> float:
        return self._runtime.monotonic()

    def _look(self, state: State, ahead: int, *, to_the_head: bool) -> bool:
        """Read what is new; returns whether there was an entry. Up to the head, or ``ahead`` entries."""
        until = None if to_the_head else state.sequence + ahead
        newest = self._tail.follow(state, self._publish, ahead, until=until)
        self._turns.record_read(self._now(), head=newest.sequence != until)
        return newest.sequence > state.sequence

    def _poll(self, newest: Callable[[], State], milliseconds: float, overlap: int) -> bool:
        """Poll the next entry with overlapping GETs; returns whether it was written meanwhile.

        The first ones are spread over a latency; from then on, each answer is followed by the next GET. They are
        counted, so that the end does not depend on a clock.
        """
        state, apart = newest(), self._turns.latency / overlap
        unsent = max(1, round(milliseconds / apart) - overlap + 1)  # The last one is answered when the time is over.
        flying: deque[Future[bytes | None]] = deque()
        answers = 0
        while unsent or flying:
            if len(flying) == overlap or not unsent:
                if self._arrived(flying.popleft(), state, fresh=answers > 0):
                    return True
                answers += 1
            if newest().sequence > state.sequence:
                return True  # A reader of this process has read it.
            if unsent:
                flying.append(self._tail.request(state.sequence + 1))
                unsent -= 1
                if unsent and not answers and len(flying) < overlap:
                    self._runtime.sleep(apart / 1000)
        return False

    def _arrived(self, answer: Future[bytes | None], state: State, *, fresh: bool) -> bool:
        """Whether a GET has returned the entry after ``state``, which is then published."""
        data = None
        with suppress(StorageError):  # A GET that failed is as good as none; CorruptionError is no StorageError.
            data = answer.result()
        if data is not None:
            self._publish(self._tail.fold(state, data))
        self._turns.record_read(self._now(), head=data is None, fresh=fresh and data is not None)
        return data is not None
