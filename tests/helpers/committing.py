"""Processes of one machine that share entries, in virtual time: each can stand still, or die, at any of its steps."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from tests.harness.simulation.locks import simulated_locks
from tests.harness.simulation.meeting import Machine, Meeting
from tests.harness.simulation.runtime import EPOCH_MS, simulated_runtime
from tests.harness.simulation.scheduler import Scheduler
from tests.helpers.connections import connection_of
from txnstore.chain.chain import Chain
from txnstore.chain.committer.committer import Committer
from txnstore.chain.committer.rendezvous import Met
from txnstore.connection import Connection
from txnstore.errors import TxnStoreError
from txnstore.storage.base import ObjectStore
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on, open_on
from txnstore.testing import FaultStore
from txnstore.testing.faults import SimulatedCrash

#: What happens at a step of a process.
Action = Callable[["Process"], object]
#: How long the PUT takes during which others hand over their commands: less than they wait for an answer.
_LONG_PUT_MS = 900


class Slow(CountingStore):
    """A storage client of one process; each request takes 20 ms of the scheduler, a create ``put_ms``."""

    def __init__(self, inner: ObjectStore, scheduler: Scheduler, step: Callable[[], None]) -> None:
        super().__init__(inner, log=True)
        self._scheduler, self._step = scheduler, step
        self.put_ms = 20

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        self._step()
        self._scheduler.sleep(20)
        return super().get(key, start, end)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._step()
        put_ms = self.put_ms
        self._scheduler.sleep(put_ms // 2)
        created = super().put_if_absent(key, data)
        self._step()
        self._scheduler.sleep(put_ms // 2)
        return created


class _Steps:
    """A channel or a mailbox of which each use is a step of its process."""

    def __init__(self, inner: Any, step: Callable[[], None]) -> None:
        self._inner, self._step = inner, step

    def send(self, frame: bytes) -> None:
        self._step()
        self._inner.send(frame)

    def receive(self, timeout: float | None) -> bytes | None:
        frame: bytes | None = self._inner.receive(timeout)
        self._step()
        return frame

    def put(self, message: object) -> None:
        self._inner.put(message)

    def get(self, timeout: float | None) -> object:
        message = self._inner.get(timeout)
        self._step()
        return message

    def close(self) -> None:
        self._inner.close()


class _Meeting(Meeting):
    """The rendezvous of a process, whose messages are steps."""

    def __init__(self, machine: Machine, process: str, step: Callable[[], None]) -> None:
        super().__init__(machine, process)
        self._step = step

    def meet(
        self, name: str, serve: Callable[[Any], None], silent: object = None, *, listen: bool = True
    ) -> Met | None:
        self._step()
        met = super().meet(name, lambda end: serve(_Steps(end, self._step)), silent, listen=listen)
        if met is None or met.channel is None:
            return met
        return replace(met, channel=_Steps(met.channel, self._step))

    def mailbox(self) -> Any:
        return _Steps(super().mailbox(), self._step)


class Process:
    """A store in a process of its own on a machine.

    Attributes:
        steps: How many requests and messages it has made or got.
        at_step: What happens at a step, by its number.
        dead: Whether it was killed: none of its threads takes another step.
    """

    def __init__(
        self, place: Place, name: str, bucket: ObjectStore, principal: str, *, read_only: bool, ahead_ms: int
    ) -> None:
        self.name, self.place = name, place
        self.steps = 0
        self.at_step: dict[int, Action] = {}
        self.dead = False
        self._stands_until = 0
        self.faults = FaultStore(bucket)
        self.objects = Slow(self.faults, place.scheduler, self._step)
        self.meeting = _Meeting(place.machine, name, self._step)
        runtime = simulated_runtime(
            place.scheduler, random.Random(name), lambda: place.clock() + ahead_ms, meeting=self.meeting
        )
        self.store = open_on(self.objects, read_only=read_only, principal=principal, runtime=runtime)
        self.topics = 0

    @property
    def connection(self) -> Connection:
        return connection_of(self.store)

    @property
    def chain(self) -> Chain:
        return self.connection.chains[0]

    @property
    def is_shared(self) -> bool:
        committer = self.chain._committer
        return committer is not None and hands_over(committer)

    def create(self, count: int = 1) -> None:
        """Create topics of its own, one after the other."""
        for _ in range(count):
            self.topics += 1
            self.store.create_topic(f"{self.name}{self.topics}")

    def requests(self, work: Callable[[], object]) -> list[str]:
        """The kinds of requests that it makes in the course of some work."""
        self.objects.reset()
        work()
        return [kind for kind, _ in self.objects.log]

    # Faults -----------------------------------------------------------------------------------------------------------

    def stand_still(self, ms: int) -> None:
        """Suspend all its threads: each at its next step, until so many ms from now."""
        self._stands_until = self.place.scheduler.now + ms

    def kill(self) -> None:
        """End it as SIGKILL does; the system closes its connections."""
        self.dead = True
        self.meeting.die()

    def cut(self) -> None:
        """Break all its connections."""
        for end in self.meeting._ends:
            end.close()

    def _step(self) -> None:
        self.steps += 1
        action = self.at_step.get(self.steps)
        if action is not None and not self.dead:
            action(self)
        scheduler = self.place.scheduler
        if scheduler.now < self._stands_until and not self.dead:
            scheduler.sleep(self._stands_until - scheduler.now)
        if self.dead:
            raise SimulatedCrash


class Place:
    """A machine with processes, and the bucket that they use."""

    def __init__(self, scheduler: Scheduler, chains: int = 1) -> None:
        self.scheduler = scheduler
        self.machine = Machine(self.scheduler, random.Random(2), 0.0)
        self.bucket = MemoryStore(clock=self.clock)
        create_on(self.bucket, chains, runtime=simulated_runtime(self.scheduler, random.Random(3), self.clock)).close()
        self.processes: list[Process] = []

    def clock(self) -> int:
        return EPOCH_MS + self.scheduler.now

    def process(
        self,
        name: str,
        bucket: ObjectStore | None = None,
        principal: str = "User:x",
        *,
        read_only: bool = False,
        ahead_ms: int = 0,
    ) -> Process:
        process = Process(self, name, bucket or self.bucket, principal, read_only=read_only, ahead_ms=ahead_ms)
        self.processes.append(process)
        return process

    def run(self, script: Callable[[], object]) -> None:
        """Run what a test does, in virtual time."""

        def run_all() -> None:
            try:
                script()
            finally:
                for process in self.processes:
                    if not process.dead:
                        process.store.close()

        self.scheduler.spawn("script", run_all)
        self.scheduler.run()

    def together(self, *works: Callable[[], object]) -> None:
        """Do several things at once; returns when all are done."""
        script, left = self.scheduler.current, list(works)
        assert script is not None

        def run(work: Callable[[], object]) -> None:
            try:
                work()
            except SimulatedCrash:
                pass  # Its process was killed.
            finally:
                left.remove(work)
                if not left:
                    self.scheduler.wake(script)

        for number, work in enumerate(works):
            self.scheduler.spawn(f"work{number}", partial(run, work))
        self.scheduler.park()

    def roles(self, one: Process, other: Process) -> tuple[Process, Process]:
        """Let two processes contend; the one that commits for both, and the one that hands over."""
        for _ in range(20):
            if not (one.is_shared or other.is_shared):
                self.together(one.create, other.create)
        assert one.is_shared is not other.is_shared
        return (other, one) if one.is_shared else (one, other)

    def committer_and_callers(self, *names: str) -> tuple[Process, ...]:
        """Processes of these names: the one that commits for all, then the others."""
        committer, caller = self.roles(self.process(names[0]), self.process(names[1]))
        others = [self.process(name) for name in names[2:]]
        for other in others:
            other.create()
            assert other.is_shared
        return (committer, caller, *others)

    def in_one_entry(self, committer: Process, *works: Callable[[], object]) -> list[object]:
        """What works of several processes give or raise, whose commands the committer takes into one entry, in order.

        It is busy with a PUT meanwhile.
        """
        answers: list[object] = [None] * len(works)

        def block() -> None:
            committer.objects.put_ms = _LONG_PUT_MS
            try:
                committer.create()
            finally:
                committer.objects.put_ms = 20

        def ask(number: int) -> None:
            self.scheduler.sleep((number + 1) * _LONG_PUT_MS // (len(works) + 1))
            committer.objects.put_ms = 20  # That of the PUT under way is fixed.
            answers[number] = answer_of(works[number])

        self.together(block, *(partial(ask, number) for number in range(len(works))))
        return answers

    def archive(self) -> dict[str, bytes]:
        """All objects."""
        return {item.key: self.bucket.get(item.key) for item in self.bucket.list("")}


def hands_over(committer: Committer) -> bool:
    """Whether it hands its commands to another process."""
    return committer._channel is not None


def answer_of(work: Callable[[], object]) -> object:
    """What some work returns, or the error of the store that it raises."""
    try:
        return work()
    except TxnStoreError as error:
        return error


@contextmanager
def a_place(chains: int = 1) -> Iterator[Place]:
    """A machine with a new store."""
    scheduler = Scheduler(random.Random(1))
    with simulated_locks(scheduler):
        yield Place(scheduler, chains)
