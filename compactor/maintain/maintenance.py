"""Maintains a store round after round: what is due is done, in one process of any number."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Self

from txnstore.chain.maintained import read_maintained, write_maintained
from txnstore.compactor.compact.rounds import Rounds
from txnstore.compactor.maintain.schedule import EVERY_MS, Schedule
from txnstore.compactor.maintain.tasks import Done, Task, tasks_of, vacuum_wait
from txnstore.connection import Connection
from txnstore.core.authorization.rights import CLUSTER_ACTION
from txnstore.core.view import View
from txnstore.errors import (
    AuthorizationError,
    InvalidConfigError,
    StorageError,
    StorageReplacedError,
    StoreNotFoundError,
    TxnStoreError,
)
from txnstore.metrics import MAINTENANCE_KINDS as KINDS
from txnstore.validation import check_integer, check_names, check_seconds

_LOG = logging.getLogger(__name__)

#: The shortest and the longest interval of a kind, in seconds.
_LEAST_SECONDS, _MOST_SECONDS = 1, 30 * 86_400
#: So often each process writes that a kind was done, if no other one does, in ms: half of what counts as neglect. A
#: vacuum is written each time.
RECORD_MS = 1_800_000
#: How long what was measured of the storage's clock is good for, in ms.
_CLOCK_MS = 3_600_000
#: The pause after a failure to read the state; after one to write when the store was maintained; and before a kind is
#: tried again that the principal has no right to; in ms.
_BLIND_MS, _RECORD_RETRY_MS, _REFUSED_MS = 30_000, 300_000, 3_600_000
#: What a compaction takes on in a round, while other kinds wait, in bytes.
_ROUND_BYTES = 1 << 30
#: The kinds that need no right.
_FOR_EVERYBODY = frozenset({"recover"})
#: A round that has not ended so many minutes after it was due is a problem.
_STUCK_MINUTES = 25 * 60
#: Seconds that the end of the block waits for what is under way.
STOP_SECONDS = 0.8


@dataclass(frozen=True, slots=True)
class TaskResult:
    """What became of one kind of maintenance in a round.

    Attributes:
        kind: The kind; ``state``: reading the state of the store.
        counts: Numbers of what was done, by what they count; empty if there was nothing to do.
        took: The duration in seconds.
        error: Why it was not done, or not all of it; None if it was.
    """

    kind: str
    counts: Mapping[str, int]
    took: float
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class MaintenanceRound:
    """A round of :class:`Maintenance`.

    Attributes:
        number: The number of the round, from 1.
        results: The kinds that did something, or failed.
        requests: The requests of the store object during the round.
        took: The duration in seconds.
        wait: The pause until the next round, in seconds.
    """

    number: int
    results: tuple[TaskResult, ...]
    requests: int
    took: float
    wait: float

    @property
    def idle(self) -> bool:
        """Whether there was nothing to do."""
        return not self.results

    @property
    def errors(self) -> tuple[TaskResult, ...]:
        """The kinds that failed."""
        return tuple(result for result in self.results if result.error is not None)


@dataclass(slots=True)
class MaintenanceCounts:
    """Counts since the start of a maintenance.

    Attributes:
        rounds: The rounds that have ended.
        done: How often each kind was done, by kind; not if there was nothing to do.
        failures: How often each kind failed, by kind.
        requests: The requests of all rounds.
    """

    rounds: int = 0
    done: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    requests: int = 0


class Maintenance:
    """Maintains a store: iterate it for the rounds, or use it as a context manager, which does them in the background.

    A round does the kinds of maintenance that are due, and of which the state of the store shows that there may be
    something to do. An error of one is a result of the round, stops no other one, and is tried again after a pause that
    grows. Any number of processes may maintain one store.

    Args:
        connection: The connection to the store.
        only: The kinds; None: all.
        every: How often a kind is looked at, in seconds, by kind, instead of its default.
        budget: The requests of an hour; None: no limit. All of the store object count.
        max_bytes: The bytes of segments that a compaction takes on in a round, but at least one partition; the next
            round follows at once while it leaves some. By default 1 GiB, of which other kinds wait for the end; no
            limit with ``rounds=1``.
        memory_limit: The memory of a clean or a merge in bytes; by default 1 GiB.
        past_hw: Clean also above the last stable offset.
        rounds: The number of rounds; None: until the caller stops.

    Raises:
        InvalidConfigError: An argument is not valid, or is for a kind that is not done.
        ReadOnlyError: The store was opened read-only.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        only: Collection[str] | None = None,
        every: Mapping[str, float] | None = None,
        budget: int | None = None,
        max_bytes: int | None = None,
        memory_limit: int | None = None,
        past_hw: bool = False,
        rounds: int | None = None,
    ) -> None:
        kinds = [*KINDS] if only is None else _check_kinds("only", check_names("only", only))
        intervals = _check_intervals(every or {})
        if budget is not None:
            check_integer("budget", budget, 1)
        if rounds is not None:
            check_integer("rounds", rounds, 1)
        of_compact = {"max_bytes": max_bytes, "memory_limit": memory_limit, "past_hw": past_hw or None}
        given = {name: "compact" for name, value in of_compact.items() if value is not None}
        _check_used({f"every {kind}": kind for kind in intervals} | given, kinds)
        every_ms = {kind: intervals.get(kind, EVERY_MS[kind]) for kind in KINDS if kind in kinds}
        if max_bytes is None and rounds != 1:
            max_bytes = _ROUND_BYTES
        compaction = Rounds(connection, max_bytes=max_bytes, memory_limit=memory_limit, past_hw=past_hw)
        connection.check_writable("it cannot be maintained")
        self._connection, self._rounds = connection, rounds
        self._activity: Callable[[str], AbstractContextManager[object]] = nullcontext
        self._on_round: Callable[[MaintenanceRound], object] = bool
        self._on_end: Callable[[], object] = bool
        self._every_ms, self._budget = every_ms, budget
        self._tasks = tasks_of(connection, compaction, every_ms.get("vacuum", EVERY_MS["vacuum"]))
        self._memory = _Memory(connection)
        self.counts = MaintenanceCounts()
        #: When the next round is due, in ms of the monotonic clock.
        self._round_due_at = connection.runtime.monotonic()
        #: What has ended the rounds in the background; None while they run, or if they were stopped.
        self.error: Exception | None = None
        self._is_stopped = False
        #: Ends the pause between two rounds in the background; and gets an item when these have ended.
        self._wake, self._ended = SimpleQueue[None](), SimpleQueue[None]()

    def observe(
        self,
        activity: Callable[[str], AbstractContextManager[object]] = nullcontext,
        on_round: Callable[[MaintenanceRound], object] = bool,
        on_end: Callable[[], object] = bool,
    ) -> None:
        """Register functions that the thread of the rounds in the background calls.

        Args:
            activity: Made with the name of a kind, and entered while that is done.
            on_round: Called after each round; an error that it raises ends the rounds.
            on_end: Called when the rounds have ended.
        """
        self._activity, self._on_round, self._on_end = activity, on_round, on_end

    def problem(self) -> str:
        """Why no rounds are done in the background any more, as it seems; an empty text if they are."""
        if self.error is not None:
            return f"maintenance has ended: {self.error}"
        minutes = (self._connection.runtime.monotonic() - self._round_due_at) // 60_000
        return f"a round was due {minutes} minutes ago, and has not ended" if minutes >= _STUCK_MINUTES else ""

    # In the thread of the caller --------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[MaintenanceRound]:
        """Do the rounds; yields each when it ends, then pauses.

        Raises:
            StoreNotFoundError: The store was deleted, and maybe created again.
            StorageReplacedError: The folder of a local store was.
        """
        return self._run(self._connection.runtime.sleep)

    def _run(self, pause: Callable[[float], object]) -> Iterator[MaintenanceRound]:
        runtime = self._connection.runtime
        schedule = Schedule(self._every_ms, self._budget, runtime.uptime())
        number = 0
        while not self._is_stopped:
            number += 1
            yield self._round(number, schedule)
            if number == self._rounds or self._is_stopped:
                return
            pause(schedule.wait(runtime.uptime()) / 1000)

    def _round(self, number: int, schedule: Schedule) -> MaintenanceRound:
        """Do what is due, and log it."""
        runtime, requests_before = self._connection.runtime, self._connection.counts.snapshot()
        began, spent = runtime.monotonic(), 0

        def spend() -> int:
            requests = (self._connection.counts.snapshot() - requests_before).requests
            schedule.spend(requests - spent, runtime.uptime())
            return requests

        results: list[TaskResult] = []
        now = runtime.uptime()  # Of all kinds: those of one round come together the next time, too, for one look.
        kinds = schedule.due(now)
        view = self._look(schedule, now, results) if kinds else None
        spent = spend()
        for kind in kinds if view is not None else ():
            if self._is_stopped:
                break
            result, spent_before = self._attempt(kind, view, schedule, now), spent
            spent = spend()
            if result is not None:
                results.append(result)
            if spent > spent_before and not schedule.may_request(runtime.uptime()):
                break  # Not before one kind has made a request: a budget would be spent on looks alone.
        self._memory.write()
        spent = spend()
        took, wait = (runtime.monotonic() - began) / 1000, schedule.wait(runtime.uptime()) / 1000
        round_ = MaintenanceRound(number, tuple(results), spent, took, wait)
        self._count(round_)
        _log_round(round_)
        return round_

    def _look(self, schedule: Schedule, now: int, results: list[TaskResult]) -> View | None:
        """Read the state, and at first what other processes have done; None, and a result, if that fails."""
        connection, runtime = self._connection, self._connection.runtime
        began = runtime.monotonic()
        try:
            view = connection.view()
            self._memory.measure_clock()
            if self._memory.begin() and "vacuum" in self._every_ms:
                wait_ms = vacuum_wait(self._memory.written, self._memory.now_ms(), self._every_ms["vacuum"])
                if wait_ms > 0:
                    schedule.done("vacuum", now, again_ms=wait_ms)
        except (StoreNotFoundError, StorageReplacedError):
            raise
        except TxnStoreError as error:
            results.append(TaskResult("state", {}, (runtime.monotonic() - began) / 1000, error))
            for kind in self._every_ms:
                schedule.done(kind, now, again_ms=_BLIND_MS)
            return None
        return view

    def _attempt(self, kind: str, view: View | None, schedule: Schedule, now: int) -> TaskResult | None:
        """Do one kind, if it is needed; None if there was nothing to do."""
        runtime, task = self._connection.runtime, self._tasks[kind]
        began = runtime.monotonic()
        try:
            done = self._do(kind, task, view)
        except (StoreNotFoundError, StorageReplacedError):
            raise
        except Exception as error:  # noqa: BLE001 - an error of one kind stops no other one
            if not isinstance(error, TxnStoreError):
                _LOG.exception("maintenance failed unexpectedly", extra={"kind": kind, "error": repr(error)})
            done = Done({}, error, again_ms=_REFUSED_MS if isinstance(error, AuthorizationError) else None)
        schedule.done(kind, now, failed=done.error is not None, again_ms=done.again_ms)
        if done.error is None and not done.is_elsewhere:
            self._memory.note(kind)
        if not done.counts and done.error is None:
            return None
        return TaskResult(kind, done.counts, (runtime.monotonic() - began) / 1000, done.error)

    def _do(self, kind: str, task: Task, view: View | None) -> Done:
        if kind not in _FOR_EVERYBODY:
            self._connection.check_rights(CLUSTER_ACTION)
        if view is None or not task.is_needed(view, self._memory.now_ms()):
            return Done({})
        with self._activity(kind):
            return task.run()

    def _count(self, round_: MaintenanceRound) -> None:
        self._round_due_at = self._connection.runtime.monotonic() + round(1000 * round_.wait)
        self.counts.rounds += 1
        self.counts.requests += round_.requests
        self.counts.done.update(result.kind for result in round_.results if result.counts)
        self.counts.failures.update(result.kind for result in round_.errors)

    # In the background ------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Begin to do the rounds in the background."""
        self.start()
        return self

    def start(self) -> None:
        """Begin to do the rounds in the background."""
        self._is_stopped, self._ended = False, SimpleQueue()
        self._connection.runtime.spawn(self._work)

    def _work(self) -> None:
        """Do the rounds until :meth:`stop`; an error that ends them is logged and kept."""
        try:
            for round_ in self._run(self._pause):
                self._on_round(round_)
        except Exception as error:  # noqa: BLE001 - no caller waits
            self.error = error
            _LOG.error("maintenance has ended: %s", error, extra={"error": str(error)})
        finally:
            self._ended.put(None)
            self._on_end()

    def _pause(self, seconds: float) -> None:
        with suppress(Empty):
            self._wake.get(timeout=seconds)

    def stop(self, timeout: float = STOP_SECONDS) -> bool:
        """End the rounds in the background: none is begun after this.

        What is under way may be ended at any time, and another round does it again.

        Args:
            timeout: Seconds to wait for the end of what is under way.

        Returns:
            Whether all has ended.
        """
        self._is_stopped = True
        self._wake.put(None)
        return self.wait(timeout)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the rounds in the background have ended, or some seconds have passed; return whether they have."""
        try:
            self._ended.get(timeout=timeout)
        except Empty:
            return False
        self._ended.put(None)
        return True

    def __exit__(self, *_error: object) -> None:
        self.stop()


class _Memory:
    """When each kind was done, by this process and as the storage has it, and the time of the storage."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        #: What is stored, as far as it is known; None: it was not read yet.
        self._written: dict[str, int] | None = None
        #: What this process has done, in ms by the storage's clock.
        self._done: dict[str, int] = {}
        #: How much the storage's clock is ahead of the uptime of this process, and at which uptime that was measured.
        self._ahead_ms = self._measured_at = 0
        #: The time of the storage before which nothing is written, after a failure.
        self._retry_at = 0

    @property
    def written(self) -> Mapping[str, int]:
        """What is stored, as far as it is known."""
        return self._written or {}

    def begin(self) -> bool:
        """Read what is stored, the first time; return whether this is the first time."""
        if self._written is not None:
            return False
        now, stored = self.now_ms(), read_maintained(self._connection.objects, self._connection.keys)
        # A time of the future was measured before the clock of the storage was set back.
        self._written = {kind: at for kind, at in stored.items() if at <= now}
        return True

    def measure_clock(self) -> None:
        """Measure the clock of the storage; a request an hour."""
        uptime = self._connection.runtime.uptime()
        if not self._measured_at or uptime - self._measured_at > _CLOCK_MS:
            self._ahead_ms, self._measured_at = self._connection.objects.now_ms() - uptime, uptime

    def now_ms(self) -> int:
        """The time of the storage, as far as it was measured."""
        return self._ahead_ms + self._connection.runtime.uptime()

    def note(self, kind: str) -> None:
        """Note that a kind was done now, or that there was nothing to do."""
        self._done[kind] = self.now_ms()

    def write(self) -> None:
        """Write what was done, if what is stored is old. A failure changes nothing: the next round tries again."""
        is_old = any(
            at - self.written.get(kind, 0) >= (1 if kind == "vacuum" else RECORD_MS) for kind, at in self._done.items()
        )
        if not is_old or (now := self.now_ms()) < self._retry_at:
            return
        connection = self._connection
        try:
            self._written = write_maintained(connection.objects, connection.keys, self._done, now)
        except StorageError as error:
            self._retry_at = now + _RECORD_RETRY_MS
            _LOG.info("it is not stored that the store was maintained", extra={"error": str(error)})


def _log_round(round_: MaintenanceRound) -> None:
    """Log a round: what it has done, and its errors."""
    for result in round_.errors:
        failure = {"kind": result.kind, "error": str(result.error)}
        _LOG.warning("maintenance failed: %s", result.error, extra=failure)
    extra = {
        "round": round_.number,
        "kinds": [result.kind for result in round_.results],
        "failed": len(round_.errors),
        "requests": round_.requests,
        "ms": round(round_.took * 1000),
    }
    _LOG.log(logging.DEBUG if round_.idle else logging.INFO, "round of maintenance", extra=extra)


def _check_kinds(name: str, kinds: Collection[str]) -> list[str]:
    """Check kinds of maintenance.

    Raises:
        InvalidConfigError: One does not exist, or there is none.
    """
    for kind in kinds:
        if kind not in KINDS:
            msg = f"{name}: there is no kind of maintenance {kind!r}: they are {', '.join(KINDS)}"
            raise InvalidConfigError(msg)
    if not kinds:
        msg = f"{name} names no kind of maintenance: they are {', '.join(KINDS)}"
        raise InvalidConfigError(msg)
    return [*kinds]


def _check_used(given: Mapping[str, str], kinds: Collection[str]) -> None:
    """Refuse arguments, each of which is for a kind, if that is not done.

    Raises:
        InvalidConfigError: One is.
    """
    for name, kind in given.items():
        if kind not in kinds:
            msg = f"{name} has no effect without {kind}, which is not among the kinds to do: {', '.join(kinds)}"
            raise InvalidConfigError(msg)


def _check_intervals(every: object) -> dict[str, int]:
    """Check intervals in seconds, and return them in ms."""
    if not isinstance(every, Mapping):
        msg = f"every must be a mapping of kinds to seconds, not {every!r}"
        raise InvalidConfigError(msg)
    if every:
        _check_kinds("every", every)
    return {
        kind: round(1000 * check_seconds(f"every {kind}", seconds, least=_LEAST_SECONDS, most=_MOST_SECONDS))
        for kind, seconds in every.items()
    }
