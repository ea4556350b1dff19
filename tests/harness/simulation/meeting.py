"""Where simulated processes of a machine meet: sockets that are cut, half-open or slow, processes that stand still.

Frames of a direction arrive in order, as over a real socket. What a process has sent before it died still arrives.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from tests.harness.simulation.scheduler import Scheduler, Task
from txnstore.chain.committer.channel import ChannelClosedError
from txnstore.chain.committer.rendezvous import Met
from txnstore.testing.faults import SimulatedCrash

#: How long a frame takes in ms, and one in a slow moment; how long a process stands still between two frames.
_USUAL_MS, _SLOW_MS, _STILL_MS = 2, 3_000, 400_000


class _Waiting:
    """Lets one task wait for an event or a time."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._task: Task | None = None
        self._waits = 0

    def wait(self, ms: int | None) -> None:
        """Wait for :meth:`wake`, at most ``ms``."""
        assert self._scheduler.current is not None
        assert self._task is None
        self._task = self._scheduler.current
        self._waits += 1
        if ms is not None:
            self._scheduler.later(max(1, ms), partial(self._wake_wait, self._waits))
        self._scheduler.park()

    def _wake_wait(self, number: int) -> None:
        if number == self._waits:
            self.wake()

    def wake(self) -> None:
        """Wake the task that waits, if one does."""
        if self._task is not None:
            task, self._task = self._task, None
            self._scheduler.wake(task)


@dataclass(eq=False)
class _End:
    """One end of a channel: what has arrived, and whether the channel ended."""

    machine: Machine
    waiting: _Waiting
    other: _End | None = None
    frames: deque[bytes] = field(default_factory=deque)
    #: The other side, or this one, has closed it: nothing more arrives.
    ended: bool = False
    closed: bool = False
    #: When the newest frame to this end arrives.
    newest_at: int = 0

    def send(self, frame: bytes) -> None:
        if self.closed or self.other is None:
            return
        if self.machine.happens():  # The connection breaks: one side may notice it long before the other.
            for end in (self, self.other):
                self.machine.arrive(end, None, self.machine.rng.choice((0, 10, 100_000)))
            return
        self.machine.arrive(self.other, frame, self.machine.delay())

    def receive(self, timeout: float | None) -> bytes | None:
        scheduler = self.machine.scheduler
        until = None if timeout is None else scheduler.now + round(timeout * 1000)
        while not self.closed:
            if self.frames:
                if self.machine.happens():
                    scheduler.sleep(self.machine.rng.randrange(1, _STILL_MS))  # The process stands still.
                return self.frames.popleft() if self.frames else None
            if self.ended:
                break
            if until is not None and scheduler.now >= until:
                return None
            self.waiting.wait(None if until is None else until - scheduler.now)
        self.close()
        raise ChannelClosedError

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.waiting.wake()
            if self.other is not None:
                self.machine.arrive(self.other, None, self.machine.delay())


@dataclass(eq=False)
class _Listening:
    machine: Machine
    name: str
    serve: Callable[[_End], None]
    start: Callable[[Callable[[], object]], None]

    def is_current(self, *, look: bool) -> bool:
        return self.machine.listeners.get(self.name) is self

    def close(self) -> None:
        if self.is_current(look=True):
            del self.machine.listeners[self.name]


class Machine:
    """A machine on which processes meet.

    Args:
        mishaps: The share of frames with which something happens.
    """

    def __init__(self, scheduler: Scheduler, rng: random.Random, mishaps: float) -> None:
        self.scheduler, self.rng, self._mishaps = scheduler, rng, mishaps
        self.listeners: dict[str, _Listening] = {}
        #: How many connections were made.
        self.met = 0

    def happens(self) -> bool:
        """Whether something happens to a frame."""
        return bool(self._mishaps) and self.rng.random() < self._mishaps

    def delay(self) -> int:
        """The time in ms that a frame takes."""
        return self.rng.randrange(_SLOW_MS if self.happens() else _USUAL_MS)

    def arrive(self, end: _End, frame: bytes | None, delay: int) -> None:
        """Let a frame arrive at an end, after those before it; None: the end of the channel."""
        at = end.newest_at = max(end.newest_at, self.scheduler.now + delay)
        self.scheduler.later(at - self.scheduler.now, partial(_arrived, end, frame))


def _arrived(end: _End, frame: bytes | None) -> None:
    if frame is None:
        end.ended = True
    elif not end.ended:
        end.frames.append(frame)
    end.waiting.wake()


class _Mailbox:
    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler, self._waiting = scheduler, _Waiting(scheduler)
        self._messages: deque[object] = deque()
        self._is_dead = False

    def put(self, message: object) -> None:
        self._messages.append(message)
        self._waiting.wake()

    def get(self, timeout: float | None) -> object:
        until = None if timeout is None else self._scheduler.now + round(timeout * 1000)
        while not (self._messages or self._is_dead) and (until is None or self._scheduler.now < until):
            self._waiting.wait(None if until is None else until - self._scheduler.now)
        return self._messages.popleft() if self._messages else None

    def die(self) -> None:
        """Its process has ended: no thread waits any more."""
        self._is_dead = True
        self._messages.clear()
        self._waiting.wake()


class Meeting:
    """The rendezvous of one process on a machine."""

    def __init__(self, machine: Machine, process: str) -> None:
        self._machine, self._process = machine, process
        self._ends: list[_End] = []
        self._listening: list[_Listening] = []
        self._mailboxes: list[_Mailbox] = []
        self._dead = False

    def meet(
        self, name: str, serve: Callable[[_End], None], silent: object = None, *, listen: bool = True
    ) -> Met | None:
        """Connect, or listen; see :class:`txnstore.chain.committer.rendezvous.Rendezvous`."""
        machine = self._machine
        if self._dead or machine.happens():
            return None
        found = machine.listeners.get(name)
        if found is not None and found is not silent:
            return Met(found, channel=self.connect(machine, found))
        if not listen:
            return None
        listening = self.listen(machine, name, serve)
        return Met(listening, listener=listening)

    def connect(self, machine: Machine, found: _Listening) -> _End:
        """Connect to a process that listens; returns the channel."""
        machine.met += 1
        mine, theirs = (_End(machine, _Waiting(machine.scheduler)) for _ in range(2))
        mine.other, theirs.other = theirs, mine
        self._ends.append(mine)
        found.start(lambda: found.serve(theirs))
        return mine

    def listen(self, machine: Machine, name: str, serve: Callable[[_End], None]) -> _Listening:
        """Listen under a name."""
        listening = machine.listeners[name] = _Listening(machine, name, partial(self._served, serve), self.start)
        self._listening.append(listening)
        return listening

    def _served(self, serve: Callable[[_End], None], end: _End) -> None:
        self._ends.append(end)
        if self._dead:
            end.close()
        serve(end)

    def mailbox(self) -> _Mailbox:
        """Make a mailbox."""
        self._mailboxes.append(_Mailbox(self._machine.scheduler))
        return self._mailboxes[-1]

    def start(self, run: Callable[[], object]) -> None:
        """Run something in a task of its own, which ends with its process."""

        def work() -> None:
            try:
                run()
            except SimulatedCrash:
                self.die()

        self._machine.scheduler.spawn(f"{self._process}~+", work)

    def die(self) -> None:
        """The process has ended: the system closes what it had open."""
        self._dead = True
        for listening in self._listening:
            listening.close()
        for end in self._ends:
            end.close()
        for mailbox in self._mailboxes:
            mailbox.die()
