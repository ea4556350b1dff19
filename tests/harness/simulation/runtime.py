"""The runtime of a simulated process: a wrong clock, virtual pauses, seeded ids, scheduled workers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

from tests.harness.executors import never
from tests.harness.simulation.meeting import Meeting
from tests.harness.simulation.scheduler import Scheduler, Task
from tests.helpers.keys import FixedRuntime
from txnstore.runtime import Runtime

#: The virtual clock begins here, in milliseconds since the epoch.
EPOCH_MS = 1_700_000_000_000


#: How far a clock may be off in milliseconds: a year and eight days ahead, 26 hours behind.
FAR_MS = (365 * 86_400_000, 8 * 86_400_000, -26 * 3_600_000)


class WrongClock:
    """A clock with an offset, which sometimes jumps forwards or back.

    ``far``: the share of processes whose clock is far off, all the time or only now and then for one look at it.
    """

    def __init__(
        self, scheduler: Scheduler, rng: random.Random, *, skew_ms: int, jumps: float, far: float = 0.0
    ) -> None:
        self._scheduler = scheduler
        self._rng = rng
        self._off = rng.randint(-skew_ms, skew_ms) if skew_ms else 0
        self._jumps = jumps
        self._far = rng.choice(FAR_MS) if far and rng.random() < far else 0
        self._always = bool(self._far) and rng.random() < 0.5

    def __call__(self) -> int:
        if self._far and (self._always or self._rng.random() < 0.1):
            return EPOCH_MS + self._scheduler.now + self._far
        if self._jumps and self._rng.random() < self._jumps:
            self._off = self._rng.choice((-1, 1)) * self._rng.choice((10, 2_000, 90_000, 4_000_000))
        return EPOCH_MS + self._scheduler.now + self._off


class InlineExecutor(Executor):
    """Runs each task in the thread that submits it; the items of a map in a seeded order."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Run the task immediately; its future holds the result or the error, also a crash."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - Future.result() raises it
            future.set_exception(error)
        return future

    def map(
        self, fn: Callable[..., Any], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[Any]:
        """The results in the order of the items, which may run in another order."""
        calls = list(zip(*iterables, strict=False))
        results: list[Any] = [None] * len(calls)
        errors: dict[int, BaseException] = {}
        for number in self._rng.sample(range(len(calls)), len(calls)):
            try:
                results[number] = fn(*calls[number])
            except BaseException as error:  # noqa: BLE001 - raised below, the first in the order of the items
                errors[number] = error
        if errors:
            raise errors[min(errors)]
        return iter(results)


class _Awaited(Future[Any]):
    """A future whose waiters are known to the scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__()
        self._scheduler = scheduler
        self._parked: list[Task] = []

    def result(self, timeout: float | None = None) -> Any:
        while not self.done():
            assert self._scheduler.current is not None
            self._parked.append(self._scheduler.current)
            self._scheduler.park()
        return super().result(0)

    def settle(self, work: Callable[[], Any]) -> None:
        """Do the work in the calling task, unless it was cancelled.

        ``result()`` raises its error, also a crash.
        """
        if self.set_running_or_notify_cancel():
            try:
                self.set_result(work())
            except BaseException as error:  # noqa: BLE001 - result() raises it
                self.set_exception(error)
        for task in self._parked:
            self._scheduler.wake(task)


class TaskExecutor(Executor):
    """Runs each task as one of the scheduler's, begun within ``delays_ms``: what a pool of threads may do."""

    def __init__(self, scheduler: Scheduler, rng: random.Random, delays_ms: Sequence[int]) -> None:
        self._scheduler = scheduler
        self._rng = rng
        self._delays_ms = delays_ms

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future = _Awaited(self._scheduler)
        work = partial(fn, *args, **kwargs)
        if self._scheduler.current is None:
            future.settle(work)  # Before or after a run no other task takes turns.
        else:
            delay = self._rng.randrange(self._rng.choice(self._delays_ms))
            self._scheduler.spawn(f"{self._scheduler.current.name}+", lambda: future.settle(work), delay)
        return future


def simulated_runtime(
    scheduler: Scheduler,
    rng: random.Random,
    clock: Callable[[], int],
    kind: type[Runtime] = FixedRuntime,
    meeting: Meeting | None = None,
) -> Runtime:
    """A runtime of a process, with its own randomness.

    ``meeting``: where it meets other processes that share entries; None: nowhere.

    Single requests run in the caller. Work on several chains runs in parallel, and background work runs with a random
    delay.
    """
    made: list[Executor] = []

    def executor() -> Executor:
        # The first one is for single requests (Store.load).
        made.append(TaskExecutor(scheduler, rng, (5,)) if made else InlineExecutor(rng))
        return made[-1]

    return kind(
        clock=clock,
        sleep=lambda seconds: scheduler.sleep(max(1, round(seconds * 1000))),
        rng=rng,
        executor=executor,
        background=lambda: TaskExecutor(scheduler, rng, (5, 100, 5_000, 200_000)),
        monotonic=lambda: scheduler.now,
        spawn=never,
        process=lambda: "simulated",
        rendezvous=lambda: meeting,
    )
