"""A simulation of many writers on one chain in virtual time, with the turns that real ones take.

Each request takes a random latency around 1000 ms (log-normal), and acts in the middle of it. A writer uploads, waits
for its turn, and PUTs an entry until it is the next one of the chain, as :class:`txnstore.chain.chain.Chain` does.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any

from txnstore.chain.turns import Turns, Wait

LATENCY = 1000.0

#: A request or a pause of a writer, and what comes back.
Steps = Generator[tuple[str, float], Any, Any]


@dataclass
class Writer:
    """One writer, and what it has done.

    Attributes:
        think: Returns how long it pauses before its next commit.
        begins: When it opens the store.
        dies: When it stops, whatever it does; a request that is under way still acts.
        suspended: From when to when it does nothing, as a process that is stopped or swapped out.
        distance: How many times the latency of the others its requests take.
        waits: How long each of its commits took.
    """

    name: str
    think: Callable[[random.Random], float] = lambda _: 0.0
    begins: float = 0.0
    dies: float = float("inf")
    suspended: tuple[float, float] = (float("inf"), float("inf"))
    distance: float = 1.0
    folded: int = 0
    waits: list[float] = field(default_factory=list)


class Contention:
    """Runs the writers for a time.

    Args:
        writers: The writers.
        seed: The seed of all latencies and pauses.
        spread: The deviation of the logarithm of a latency.
        upload: Whether each commit begins with another request.
    """

    def __init__(self, writers: list[Writer], seed: int, *, spread: float = 0.3, upload: bool = True) -> None:
        self.writers, self._upload, self._spread = writers, upload, spread
        self._rng = random.Random(seed)
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.entries: list[str] = []
        self.puts = self.gets = self._begun = 0

    # The figures ------------------------------------------------------------------------------------------------------

    def run(self, latencies: float) -> Contention:
        """Run until so many latencies after the beginning."""
        for writer in self.writers[self._begun :]:
            self._begun += 1
            self._resume(writer, self._work(writer), None)
        while self._events and self._events[0][0] < latencies * LATENCY:
            self.now, _, event = heapq.heappop(self._events)
            event()
        return self

    def share(self) -> float:
        """The commits of the slowest writer over those of the fastest."""
        counts = [len(writer.waits) for writer in self.writers]
        return min(counts) / max(counts)

    def wait(self, part: float) -> float:
        """How many latencies a commit takes: a quantile; 1: the longest."""
        waits = sorted(wait for writer in self.writers for wait in writer.waits)
        return waits[min(int(part * len(waits)), len(waits) - 1)] / LATENCY

    def line(self) -> str:
        """All figures."""
        waits = [wait / LATENCY for writer in self.writers for wait in writer.waits]
        count = max(1, len(self.entries))
        return (
            f"{len(self.entries)} entries, {self.puts / count:.2f} PUTs and {self.gets / count:.1f} GETs each; "
            f"median {median(waits):.1f}, p99 {self.wait(0.99):.1f}, max {max(waits):.1f}; share {self.share():.2f}"
        )

    # A writer ---------------------------------------------------------------------------------------------------------

    def _work(self, writer: Writer) -> Steps:
        turns = Turns(writer.name)
        yield ("sleep", writer.begins + self._rng.random() * 2 * LATENCY)
        yield from self._look(writer, turns, 4, head=True)
        while True:
            yield ("sleep", writer.think(self._rng))
            began = self.now
            if self._upload:
                yield ("upload", 0)
                yield ("answer", 0)
            yield from self._commit(writer, turns)
            writer.waits.append(self.now - began)

    def _commit(self, writer: Writer, turns: Turns) -> Steps:
        losses = 0
        while True:
            yield from self._wait(writer, turns, losses)
            began, number = self.now, writer.folded
            if (yield ("put", number)):
                yield ("answer", 0)
                writer.folded += 1
                turns.won(number + 1, began, self.now)
                return
            yield ("answer", 0)
            losses += 1
            yield ("get", number)
            self._fold(writer, turns, number + 1)
            yield ("answer", 0)
            turns.lost(began, self.now)

    def _wait(self, writer: Writer, turns: Turns, losses: int) -> Steps:
        """As :meth:`txnstore.chain.pacing.Pacing.wait` does."""
        while True:
            wait = turns.next(self.now, losses)
            if wait is None:
                return
            yield ("sleep", wait.pause)
            if wait.ahead and (yield from self._look(writer, turns, wait.ahead, head=not wait.polls)):
                continue
            if not wait.polls or not (yield from self._poll(writer, turns, wait)):
                return

    def _look(self, writer: Writer, turns: Turns, ahead: int, *, head: bool) -> Steps:
        before = writer.folded
        while True:
            yield ("get", ahead)
            self.gets += ahead - 1
            count = len(self.entries[writer.folded : writer.folded + ahead])
            self._fold(writer, turns, writer.folded + count)
            yield ("answer", 0)
            if not head or count < ahead:
                turns.record_read(self.now, head=count < ahead)
                return writer.folded > before

    def _poll(self, writer: Writer, turns: Turns, wait: Wait) -> Steps:
        apart = turns.latency / wait.overlap
        count = max(1, round(wait.polls / apart) - wait.overlap + 1)
        before, newest, target = writer.folded, writer.folded, writer.folded + wait.target
        for number in range(count):  # Each acts a part of a latency after the one before it.
            yield ("get", 0) if number == 0 else ("later", apart)
            self.gets += (number > 0) + (number < wait.target - 1)
            if newest == before + number < target - 1 and len(self.entries) > newest:
                newest += 1
            flying = min(wait.overlap - 1, count - number - 1)
            if len(self.entries) >= target:
                self.gets += flying
                yield ("answer", 0)
                if newest < target - 1:  # One before it was written too late for its request.
                    self._fold(writer, turns, newest)
                    yield from self._look(writer, turns, target - newest, head=False)
                    return True
                self._fold(writer, turns, target)
                turns.record_read(self.now, fresh=number > 0)
                return True
            if newest == before + number < target - 1:  # One before it does not exist.
                self.gets += flying
                self._fold(writer, turns, newest)
                yield ("answer", 0)
                turns.record_read(self.now)
                return writer.folded > before
            if wait.target == 1:
                turns.record_read(self.now, head=True)
        self._fold(writer, turns, newest)
        yield ("answer", 0)
        turns.record_read(self.now)
        return writer.folded > before

    def _fold(self, writer: Writer, turns: Turns, limit: int) -> None:
        for number in range(writer.folded, limit):
            turns.record(number + 1, self.entries[number])
        writer.folded = max(writer.folded, limit)

    # Time -------------------------------------------------------------------------------------------------------------

    def _half(self, writer: Writer) -> float:
        return writer.distance * LATENCY * self._rng.lognormvariate(0, self._spread) / 2

    def _at(self, time: float, event: Callable[[], None]) -> None:
        heapq.heappush(self._events, (time, next(self._order), event))

    def _resume(self, writer: Writer, steps: Steps, value: object) -> None:
        """Take the next step of a writer, and come back when the storage acts, or the answer has arrived."""
        if self.now >= writer.dies:
            return
        stops, goes_on = writer.suspended
        if stops <= self.now < goes_on:
            self._at(goes_on, lambda: self._resume(writer, steps, value))
            return
        kind, arg = steps.send(value)
        delay = arg if kind in ("sleep", "later") else self._half(writer)
        self.puts += kind == "put"
        self.gets += kind == "get"
        act = (
            partial(self._put, writer, steps, int(arg)) if kind == "put" else partial(self._resume, writer, steps, None)
        )
        self._at(self.now + delay, act)

    def _put(self, writer: Writer, steps: Steps, number: int) -> None:
        """The storage creates an entry, or not: also that of a writer which is dead or suspended by now."""
        won = number == len(self.entries)
        if won:
            self.entries.append(writer.name)
        self._resume(writer, steps, won)
