"""The nemesis: kills, pauses and replaces the processes of a run."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import txnstore.errors
from tests.harness.s3.servers import S3Server
from tests.harness.torture.machines import Machines
from tests.harness.torture.plan import STOP, TRANSACTION_TIMEOUT, VACUUM_GRACE, Task
from tests.harness.torture.worker import ENDED

#: Seconds that a process runs before its first fault.
_SHORTEST_LIFE = 2.0
#: Seconds for which a zombie works after its pause. A fenced producer ends earlier, a compactor would never end.
_ZOMBIE_LIFE = (1.0, 20.0)
_START_TIMEOUT = 180.0
#: Guards against hangs: on a busy machine, a process needs minutes to end, to read its input to the end, or to commit.
_END_TIMEOUT = 1200.0
_LONGEST_WAIT = 1200.0
#: Seconds between two kills of the server, and for how long it is away.
_SERVER_LIFE = (30.0, 80.0)
_SERVER_AWAY = (0.5, 6.0)
#: Seconds of a pause, and of one in which entries are deleted: the history, and what a vacuum waits for.
_PAUSES = {"pause": (0.05, 0.5), "sleep": (1.5 * VACUUM_GRACE, 3 * VACUUM_GRACE)}
#: The share of long pauses that are such a sleep, in runs that last longer than one.
_SLEEPS = 0.1
#: The share of faults that befall a process that commits for others, if there is one.
_COMMITTERS = 1 / 3
#: Bytes of a history: a few operations.
_SOME_WORK = 600


@dataclass
class _Running:
    """A process, until when it is paused, and when it is killed as a zombie (seconds of the monotonic clock).

    ``host``: where those of other machines reach it; empty if there are none.
    """

    task: Task
    process: subprocess.Popen[bytes]
    started: float
    host: str
    paused_until: float | None = None
    killed_at: float | None = None


def _has_begun(item: _Running, size: int = 1) -> bool:
    """Whether its history has that many bytes; a non-empty one shows that it has opened the store."""
    history = item.task.history
    return history.exists() and history.stat().st_size >= size


class Nemesis:
    """Starts the tasks, injects faults by its seed, and ends the processes that it started, by process id.

    Args:
        committers: Returns the ids, or the hosts, of the processes that commit for the others, which have faults more
            often.
        server: Kill and restart it too.
        machines: Where the processes are; None: all on this one.
    """

    def __init__(
        self,
        tasks: list[Task],
        seed: int,
        server: S3Server | None = None,
        committers: Callable[[], set[int] | set[str]] = set,
        machines: Machines | None = None,
    ) -> None:
        self.faults: Counter[str] = Counter()
        self.surprises: list[str] = []
        self._rng = random.Random(seed)
        self._lives: Counter[str] = Counter()
        self._tasks = tasks
        self._running: list[_Running] = []
        self._server, self._committers, self._machines = server, committers, machines
        self._server_is_away = False
        self._sleeps = 0.0

    def run(self, duration: float, least: Mapping[str, int], least_faults: int = 0) -> None:
        """Start all tasks, inject faults for some seconds once all of them work, and request their end.

        A busy machine gets more time: for ``least_faults`` faults, and then, without faults, until so many operations
        of each kind in ``least`` have succeeded.
        """
        for task in self._tasks:
            self._start(task)
        deadline = time.monotonic() + _START_TIMEOUT
        while not all(_has_begun(item) for item in self._running) and time.monotonic() < deadline:
            time.sleep(0.05)
        until = time.monotonic() + duration
        self._sleeps = _SLEEPS if duration > _PAUSES["sleep"][1] else 0.0
        latest = until + _LONGEST_WAIT
        next_fault = time.monotonic()
        next_turn = time.monotonic() + min(self._rng.uniform(*_SERVER_LIFE), duration / 2)
        while time.monotonic() < (latest if self.faults.total() < least_faults else until):
            time.sleep(0.05)
            self._look_after()
            if time.monotonic() > next_fault:
                self._harm()
                next_fault = time.monotonic() + self._rng.uniform(0.2, 1.0)
            if self._server is not None and time.monotonic() > next_turn:
                next_turn = time.monotonic() + self._kill_or_start(self._server)
        if self._server is not None and self._server_is_away:
            self._kill_or_start(self._server)
        while time.monotonic() < latest and not self._has_succeeded(least):
            time.sleep(0.05)
            self._look_after()
        for task in self._tasks[:1]:
            (Path(task.folder) / STOP).touch()

    def _kill_or_start(self, server: S3Server) -> float:
        """Kill the server, or start it again with its objects; returns for how many seconds it is to stay so."""
        self._server_is_away = not self._server_is_away
        if self._server_is_away:
            self.faults["server kill"] += 1
            server.kill()
            return self._rng.uniform(*_SERVER_AWAY)
        server.start()
        return self._rng.uniform(*_SERVER_LIFE)

    def _has_succeeded(self, least: Mapping[str, int]) -> bool:
        """Whether so many operations of each kind have succeeded so far, by the histories."""
        written = [path.read_bytes() for path in Path(self._tasks[0].folder).glob("*.jsonl")]
        return all(
            sum(text.count(f'"type":"ok","f":"{kind}"'.encode()) for text in written) >= count
            for kind, count in least.items()
        )

    def finish(self) -> None:
        """Wake all, wait until they end by themselves, and kill those that do not."""
        deadline = time.monotonic() + _END_TIMEOUT
        for item in self._running:
            self._resume(item)
        for item in self._running:
            try:
                item.process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self.surprises.append(f"{item.task.name} did not end by itself")
            self._note_end(item)
        self.kill_all()

    def kill_all(self) -> None:
        """End every remaining process."""
        for item in self._running:
            if item.process.poll() is None:
                item.process.kill()
                item.process.wait()
            if item.process.stdin is not None:
                item.process.stdin.close()
        self._running = []

    def drain(self, tasks: list[Task]) -> None:
        """Run these to their end without faults."""
        for task in tasks:
            self._start(task)
        self.finish()

    def _start(self, task: Task) -> None:
        place = f"{task.role}-{task.number}"
        self._lives[place] += 1
        task = replace(task, name=f"{place}-{self._lives[place]}")
        root = str(Path(txnstore.errors.__file__).resolve().parent.parent)
        host, variables = "", dict[str, str]()
        if self._machines is not None:
            host, variables = self._machines.environment([*self._lives].index(place))
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        with (Path(task.folder) / f"{task.name}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.harness.torture.worker", task.to_json()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables},
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        self._running.append(_Running(task, process, time.monotonic(), host))

    def _look_after(self) -> None:
        """Wake processes whose pause has ended, kill old zombies, and replace ended processes."""
        for item in list(self._running):
            if item.killed_at is not None and item.paused_until is None and time.monotonic() > item.killed_at:
                item.process.kill()
            if item.paused_until is not None and time.monotonic() > item.paused_until:
                self._resume(item)
            if item.process.poll() is not None:
                self._running.remove(item)
                self._note_end(item)
                self._replace(item.task)

    def _replace(self, task: Task) -> None:
        """Restart the task, unless a newer process runs it already."""
        if not task.over and all((it.task.role, it.task.number) != (task.role, task.number) for it in self._running):
            self._start(task)

    def _note_end(self, item: _Running) -> None:
        code = item.process.poll()
        if code == ENDED:
            self.faults["client ended by an error"] += 1
        elif code not in (0, -signal.SIGKILL, None):
            log = (Path(item.task.folder) / f"{item.task.name}.log").read_text()
            self.surprises.append(f"{item.task.name} ended with {code}: {log[-2000:]}")
        if item.process.stdin is not None:
            item.process.stdin.close()

    def _harm(self) -> None:
        """Inject a fault into a process that has worked, seldom into a new one; pause at most half of them."""
        awake = [item for item in self._running if item.paused_until is None and item.process.poll() is None]
        early = self._rng.random() < 0.2
        victims = [
            item
            for item in awake
            if time.monotonic() - item.started > _SHORTEST_LIFE and (early or _has_begun(item, _SOME_WORK))
        ]
        if not victims or 2 * len(awake) <= len(self._running):
            return
        if self._rng.random() < _COMMITTERS:
            committers = self._committers()
            found = [item for item in victims if item.process.pid in committers or item.host in committers]
            self.faults["of a committer"] += bool(found)
            victims = found or victims
        victim = self._rng.choice(victims)
        kind = self._rng.choice(["kill", "pause", "long pause", "zombie"])
        if kind == "long pause" and self._rng.random() < self._sleeps:
            kind = "sleep"
        self.faults[kind] += 1
        if kind == "kill":
            victim.process.send_signal(signal.SIGKILL)
            return
        victim.process.send_signal(signal.SIGSTOP)
        shortest, longest = _PAUSES.get(kind, (1.2 * TRANSACTION_TIMEOUT, 3 * TRANSACTION_TIMEOUT))
        victim.paused_until = time.monotonic() + self._rng.uniform(shortest, longest)
        if kind == "zombie":
            victim.killed_at = victim.paused_until + self._rng.uniform(*_ZOMBIE_LIFE)
            self._start(victim.task)

    @staticmethod
    def _resume(item: _Running) -> None:
        if item.paused_until is not None:
            item.paused_until = None
            if item.process.poll() is None:
                item.process.send_signal(signal.SIGCONT)
