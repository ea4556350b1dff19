"""What the world gives a simulated process: a clock that is wrong, virtual pauses, seeded ids, inline workers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from typing import Any

from txnstore.ids import Runtime
from txnstore.testing.simulation.scheduler import Scheduler

#: The virtual clock begins here, in milliseconds since the epoch.
EPOCH_MS = 1_700_000_000_000


class WrongClock:
    """A clock that is off by some time, and jumps now and then, forwards or back."""

    def __init__(self, scheduler: Scheduler, rng: random.Random, *, skew_ms: int, jumps: float) -> None:
        self._scheduler = scheduler
        self._rng = rng
        self._off = rng.randint(-skew_ms, skew_ms) if skew_ms else 0
        self._jumps = jumps

    def __call__(self) -> int:
        if self._jumps and self._rng.random() < self._jumps:
            self._off = self._rng.choice((-1, 1)) * self._rng.choice((10, 2_000, 90_000, 4_000_000))
        return EPOCH_MS + self._scheduler.now + self._off


class InlineExecutor(Executor):
    """Runs each task in the thread that submits it; the items of a map in an order of its own."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """The result is there at once; so is an error, also a crash."""
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - whoever asks the future gets it
            future.set_exception(error)
        return future

    def map(
        self, fn: Callable[..., Any], *iterables: Iterable[Any], timeout: float | None = None, chunksize: int = 1
    ) -> Iterator[Any]:
        """The results in the order of the items, whatever the order in which they were made."""
        calls = list(zip(*iterables, strict=False))
        futures: dict[int, Future[Any]] = {}
        for number in self._rng.sample(range(len(calls)), len(calls)):
            futures[number] = self.submit(fn, *calls[number])
        return iter([futures[number].result() for number in range(len(calls))])


def simulated_runtime(scheduler: Scheduler, rng: random.Random, clock: Callable[[], int]) -> Runtime:
    """A runtime of a process; each one has randomness of its own."""
    return Runtime(
        clock=clock,
        sleep=lambda seconds: scheduler.sleep(max(1, round(seconds * 1000))),
        rng=rng,
        executor=lambda: InlineExecutor(rng),
    )
