"""The environment of a store: clock, randomness, pauses, ids and threads. Injectable, so that tests control it.

Also :class:`Measurements`, which records with this clock what :meth:`txnstore.Store.metrics` reports.
"""

from __future__ import annotations

import _thread
import inspect
import os
import random
import socket
import time
import uuid
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from txnstore.errors import ReentrantCallError
from txnstore.metrics import BOUNDS_MS, Histogram
from txnstore.threads import ForkLock, NoTimer, ThreadTimer, Workers

#: The first and the largest upper bound of a backoff, in seconds.
_BACKOFF, _MAX_BACKOFF = 0.01, 2.0
_WORKERS = 16
#: How many durations are collected before they are sorted into buckets.
_COLLECTED = 256


#: The last millisecond of the year 9999: no database and no language that reads a store shows a later time.
LATEST_MS = 253_402_300_799_999


#: The clock that counts suspension: of Linux, or of other Unixes; Windows has none.
_UPTIME: int | None = getattr(time, "CLOCK_BOOTTIME", getattr(time, "CLOCK_MONOTONIC", None))


def wall_clock_ms() -> int:
    """Return the wall clock of this machine, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return a clock that is never set, in milliseconds since some time in the past."""
    return time.monotonic_ns() // 1_000_000


def uptime_ms() -> int:
    """Return a clock that is never set and, where the system has one, also runs while the machine is suspended.

    In milliseconds since some time in the past.
    """
    return monotonic_ms() if _UPTIME is None else time.clock_gettime_ns(_UPTIME) // 1_000_000


def level_of_caller() -> int:
    """Return the ``stacklevel`` of a warning for the code that called txnstore, from the caller of this function."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "txnstore":
        frame, level = frame.f_back, level + 1
    return level


def uuid7(now_ms: int, rng: random.Random) -> str:
    """Return a UUID of version 7 (RFC 9562): ordered by ``now_ms``, unique through 74 random bits."""
    bits = (now_ms & (1 << 48) - 1) << 80 | 0x7 << 76 | rng.getrandbits(12) << 64 | 0b10 << 62 | rng.getrandbits(62)
    return str(uuid.UUID(int=bits))


def threads() -> Executor:
    """Make a thread pool for the concurrent requests of an open store."""
    return Workers(_WORKERS)


def start_thread(task: Callable[[], object]) -> None:
    """Run a task in its own thread without taking a lock: a garbage collection may call this at any moment.

    ``threading.Thread.start`` takes locks, which the collecting thread may hold.
    """
    _thread.start_new_thread(task, ())


def thread_timer(task: Callable[[], object]) -> Any:
    """Make a timer with its own daemon thread."""
    return ThreadTimer(task)


def process_name() -> str:
    """Return the host name and the id of this process."""
    host = "".join(letter for letter in socket.gethostname() if letter.isprintable())
    return f"{host[:64] or 'localhost'}-{os.getpid()}"


def no_rendezvous() -> None:
    """Meet no other process."""


@dataclass(frozen=True)
class Runtime:
    """The clock, pauses, randomness and executors of a store.

    Attributes:
        clock: Returns the time in milliseconds since the epoch; it may be wrong, or be set.
        sleep: Pauses for a number of seconds.
        rng: The source of randomness.
        executor: Creates the executor for concurrent requests, which the store shuts down when it is closed. A store
            with several chains creates further ones for concurrent work on its chains.
        background: Creates the executor that completes transactions after their commit has returned.
        monotonic: Returns the time in milliseconds since some time in the past, for everything that is measured. By
            default that of the machine; if ``clock`` is given and this is not: ``clock``.
        spawn: Starts a task that no caller waits for, such as leaving the group of a collected consumer. A garbage
            collection calls it, so it must not take a lock.
        timer: Makes a timer for a task, the heartbeat of a group member: an object with ``set(seconds)``, after which
            the task is called once, in another thread, and ``stop()``. By default a thread; if ``clock`` is given and
            this is not: a timer that never calls, since the machine's time says nothing about that of the clock.
        process: Returns the name of this process, which is part of the ids of group members: host and process id.
        uptime: Returns the time in milliseconds since some time in the past, with that in which the machine was
            suspended. By default that of the machine; if ``monotonic`` is not the default: ``monotonic``.
        rendezvous: Returns where this process meets others that share its entries, a
            ``Rendezvous``; None: nowhere.
    """

    clock: Callable[[], int] = wall_clock_ms
    sleep: Callable[[float], None] = time.sleep
    rng: random.Random = field(default_factory=random.SystemRandom, repr=False)
    executor: Callable[[], Executor] = threads
    background: Callable[[], Executor] = threads
    monotonic: Callable[[], int] = monotonic_ms
    spawn: Callable[[Callable[[], object]], None] = start_thread
    timer: Callable[[Callable[[], object]], Any] = thread_timer
    process: Callable[[], str] = process_name
    uptime: Callable[[], int] = uptime_ms
    rendezvous: Callable[[], Any] = no_rendezvous

    def __post_init__(self) -> None:
        """Derive the clocks and the timer that were not given from the given clock."""
        is_own_clock = self.clock is not wall_clock_ms
        if is_own_clock and self.monotonic is monotonic_ms:
            object.__setattr__(self, "monotonic", self.clock)
        if is_own_clock and self.timer is thread_timer:
            object.__setattr__(self, "timer", NoTimer)
        if self.monotonic is not monotonic_ms and self.uptime is uptime_ms:
            object.__setattr__(self, "uptime", self.monotonic)

    def new_id(self) -> str:
        """Return a globally unique id."""
        return uuid7(self.clock(), self.rng)

    def new_store_id(self) -> str:
        """Return an id for a new store, a part of the keys of its chains."""
        return self.new_id()

    def backoff(self, times: int) -> None:
        """Pause before the next attempt after ``times`` failed ones: full jitter under a doubling bound."""
        self.sleep(self.rng.uniform(0, min(_MAX_BACKOFF, _BACKOFF * 2**times)))


class Measurements:
    """Durations and counts of the calls on a store. Thread-safe, also in signal handlers.

    A measurement takes no lock: it is collected, and sorted into the buckets with many others.

    Args:
        clock: Returns the time in milliseconds since some time in the past.
    """

    def __init__(self, clock: Callable[[], int] = monotonic_ms) -> None:
        self.clock = clock
        #: Called with each duration, its kind and milliseconds: an exporter with histograms of its own.
        self.listener: Callable[[str, int], None] | None = None
        #: Repeated requests. Counted without a lock: two threads may count one.
        self.retries = 0
        #: Durations that are not in the buckets yet: kind and milliseconds.
        self._new: deque[tuple[str, int]] = deque()
        #: Guards the two below.
        self._lock = ForkLock()
        #: The number of durations in each bucket, the last one above all bounds, and their sum in ms, by kind.
        self._counts: dict[str, list[int]] = {}
        self._totals: dict[str, int] = {}

    def add(self, kind: str, began: int, paused_s: float = 0.0) -> None:
        """Record a call of this kind that began at ``began`` by :attr:`clock` and ends now.

        ``paused_s``: seconds in which it paused, which do not count.
        """
        duration_ms = max(0, self.clock() - began - round(paused_s * 1000))
        self._new.append((kind, duration_ms))
        if self.listener is not None:
            self.listener(kind, duration_ms)
        if len(self._new) >= _COLLECTED:
            self._fill_buckets()

    def count_retry(self) -> None:
        """Count a repeated request."""
        self.retries += 1

    def durations(self) -> dict[str, Histogram]:
        """Return the durations so far, by kind."""
        self._fill_buckets()
        kinds = sorted(self._counts)
        return {kind: Histogram(BOUNDS_MS, tuple(self._counts[kind]), self._totals[kind]) for kind in kinds}

    def _fill_buckets(self) -> None:
        """Sort what is collected into the buckets; a signal handler leaves that to the call that it interrupts."""
        with suppress(ReentrantCallError), self._lock.own:
            while self._new:
                kind, duration_ms = self._new.popleft()
                counts = self._counts.setdefault(kind, [0] * (len(BOUNDS_MS) + 1))
                counts[bisect_left(BOUNDS_MS, duration_ms)] += 1
                self._totals[kind] = self._totals.get(kind, 0) + duration_ms


def instant(moment: int) -> str:
    """Format a time in milliseconds since the epoch as ISO 8601 in UTC."""
    try:
        return datetime.fromtimestamp(moment / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    except (OverflowError, ValueError, OSError):
        return f"{moment} ms"
