"""Runs gateways and clients, and harms them, the committers most often: kills, pauses, and cut connections."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import txnstore.errors
from tests.harness.gateway.plan import ENDED, HEARTBEAT_INTERVAL_MS, SESSION_TIMEOUT_MS, ClientTask
from tests.harness.gateway.proxy import Proxy
from tests.harness.gateway.watch import last_call
from tests.harness.streaming.run import TARGETS, kill_session, signal_session
from tests.harness.torture.plan import STOP, Task

_START_TIMEOUT = 600.0
#: Clients that start together only delay each other.
_BETWEEN_STARTS = 1.0
#: Guards against hangs: jobs of a busy machine need minutes to read their input to the end.
_END_TIMEOUT = 1_800.0
_LONGEST_WAIT = 600.0
#: Seconds between two faults; for which a killed gateway is away; of pauses, most of which are longer than what its
#: peers and the timeouts of clients allow.
_BETWEEN = (0.5, 5.0)
_AWAY = (0.1, 5.0)
_SHORT, _LONG = (0.05, 1.0), (2.0, 10.0)
#: Seconds that a client runs before its first fault, if it has begun to work by then.
_SHORTEST_LIFE = 4.0
#: Seconds without progress after which a client hangs: more than a client repeats any call.
_HANGING = 180.0
#: The share of faults that befall a process that commits for others, if there is one.
_COMMITTERS = 1 / 3


@dataclass(eq=False)
class _Process:
    """A process: how to start it again, and until when it is away or paused (seconds of the monotonic clock).

    ``progress``: what its files showed last, and when that was seen first.
    """

    name: str
    start: Callable[[], subprocess.Popen[bytes]]
    process: subprocess.Popen[bytes]
    started: float
    task: Task | None = None
    has_workers: bool = False
    away_until: float | None = None
    paused_until: float | None = None
    progress: tuple[object, float] | None = None

    @property
    def is_spark(self) -> bool:
        return isinstance(self.task, ClientTask) and self.task.library == "spark"

    @property
    def is_session(self) -> bool:
        """It is a session of several processes."""
        return self.is_spark or self.has_workers

    def signal(self, number: int) -> None:
        """Send a signal to it, and to its whole session if it has one."""
        if self.is_session:
            signal_session(self.process.pid, "everything", number)
        else:
            self.process.send_signal(number)

    @property
    def is_up(self) -> bool:
        return self.paused_until is None and self.away_until is None and self.process.poll() is None


class Nemesis:
    """Starts the gateways, then the clients, and injects faults by its seed; ends what it started, by process id.

    Args:
        folder: For logs and histories.
        url: The store.
        options: The storage options.
        places: The proxies of each gateway: before its address, and before that of each worker.
        tasks: The clients.
        seed: Of the faults.
        committers: Returns the ids of the processes that commit for others.
    """

    def __init__(
        self,
        folder: Path,
        url: str,
        options: Mapping[str, Any],
        places: Sequence[Sequence[Proxy]],
        tasks: Sequence[Task],
        seed: int,
        committers: Callable[[], set[int]] = set,
    ) -> None:
        self.faults: Counter[str] = Counter()
        self.surprises: list[str] = []
        self.hangs: list[str] = []
        self._folder, self._url, self._options = folder, url, options
        self._places, self._proxies = places, [proxies[0] for proxies in places]
        self._tasks, self._workers = tasks, max(map(len, places), default=1) - 1
        self._rng = random.Random(seed)
        self._committers = committers
        self._lives: Counter[str] = Counter()
        self._gateways: list[_Process] = []
        self._clients: list[_Process] = []

    # Runs -------------------------------------------------------------------------------------------------------------

    def run(self, duration: float, least: Mapping[str, int], least_faults: int) -> None:
        """Inject faults for so many seconds once all clients work, and request their end.

        A busy machine gets more time: for ``least_faults`` faults, and then, without faults, until so many operations
        of each kind in ``least`` have succeeded.
        """
        for number in range(len(self._proxies)):
            gateway = self._started(f"gateway-{number}", partial(self._gateway, number))
            gateway.has_workers = self._workers > 0
            self._gateways.append(gateway)
        self._wait("the gateways listen", lambda: all(self._is_listening(proxy) for proxy in self._proxies))
        for task in self._tasks:
            self._start_client(task)
            time.sleep(_BETWEEN_STARTS)
        self._wait("all clients work", lambda: all(_history_of(each) for each in self._clients))
        until = time.monotonic() + duration
        latest = until + _LONGEST_WAIT
        next_fault = time.monotonic()
        while time.monotonic() < (latest if self.faults.total() < least_faults else until):
            time.sleep(0.02)
            self._look_after()
            if time.monotonic() > next_fault:
                self._harm()
                next_fault = time.monotonic() + self._rng.uniform(*_BETWEEN)
        self.calm()
        while time.monotonic() < latest and not self._has_succeeded(least):
            time.sleep(0.1)
            self._look_after()
        self._say("the end is requested")
        (self._folder / STOP).touch()
        self._finish()

    def drain(self, tasks: Sequence[Task], look: Callable[[], None]) -> None:
        """Run these to their end without faults; ``look`` is called now and then, and tells them when it is."""
        self._say("the jobs read to the end")
        for task in tasks:
            self._start_client(task)
        self._finish(look)

    def calm(self) -> None:
        """End all faults: every gateway and every client runs."""
        for proxy in chain.from_iterable(self._places):
            proxy.quiet = True
        for each in [*self._gateways, *self._clients]:
            each.paused_until = each.paused_until and 0.0
            each.away_until = each.away_until and 0.0
        self._look_after()

    def kill_all(self) -> None:
        """End every remaining process."""
        for each in [*self._gateways, *self._clients]:
            _kill(each)
        self._gateways, self._clients = [], []

    def stop_gateways(self) -> None:
        """End the gateways as an operator does: they must end by themselves, with status 0."""
        for each in self._gateways:
            each.process.send_signal(signal.SIGTERM)
        for each in self._gateways:
            try:
                each.process.wait(60)
            except subprocess.TimeoutExpired:
                self.surprises.append(f"{each.name} did not end after SIGTERM")
            self._check_end(each)
        self.kill_all()

    def _say(self, text: str) -> None:
        with (self._folder / "nemesis.log").open("a") as log:
            log.write(f"{time.time():.1f} {text}\n")

    # Processes --------------------------------------------------------------------------------------------------------

    def _started(self, name: str, start: Callable[[], subprocess.Popen[bytes]], task: Task | None = None) -> _Process:
        return _Process(name, start, start(), time.monotonic(), task)

    def _gateway(self, number: int) -> subprocess.Popen[bytes]:
        proxy = self._proxies[number]
        peers = ",".join(f"{host}:{port}" for host, port in (each.address for each in self._proxies))
        options = [
            f"--storage-option={key}={value if isinstance(value, str) else json.dumps(value)}"
            for key, value in self._options.items()
        ]
        arguments = [
            "-m", "txnstore.cli", "--store", self._url, *options, "gateway",
            "--listen", f"127.0.0.1:{proxy.target[1]}", "--advertise", f"127.0.0.1:{proxy.address[1]}",
            "--peers", peers, "--property", "group.initial.rebalance.delay.ms=500",
            "--property", f"group.consumer.session.timeout.ms={SESSION_TIMEOUT_MS}",
            "--property", f"group.consumer.heartbeat.interval.ms={HEARTBEAT_INTERVAL_MS}",
        ]  # fmt: skip
        workers = ["--workers", str(self._workers)] if self._workers else []
        return _popen([*arguments, *workers], self._folder / f"gateway-{number}.log", "ab", session=bool(workers))

    def _start_client(self, task: Task) -> None:
        place = f"{task.role}-{task.number}"
        self._lives[place] += 1
        task = replace(task, name=f"{place}-{self._lives[place]}")
        is_client = isinstance(task, ClientTask)
        is_spark = isinstance(task, ClientTask) and task.library == "spark"
        module = "gateway.spark" if is_spark else "gateway.worker" if is_client else "torture.worker"
        arguments = ["-m", f"tests.harness.{module}", task.to_json()]
        log = self._folder / f"{task.name}.log"
        self._clients.append(self._started(task.name, lambda: _popen(arguments, log, "wb", session=is_spark), task))

    def _look_after(self) -> None:
        """Wake what has been paused for long enough, and start again what has ended."""
        now = time.monotonic()
        for each in [*self._gateways, *self._clients]:
            if each.paused_until is not None and now > each.paused_until:
                each.paused_until = None
                each.signal(signal.SIGCONT)
        for each in self._gateways:
            if each.process.poll() is None:
                continue
            if each.away_until is None:
                self._check_end(each)
                each.away_until = now
            if now > each.away_until:
                if each.has_workers:  # As a service manager does, when the parent has ended.
                    kill_session(each.process.pid, "everything")
                each.away_until, each.process, each.started = None, each.start(), now
        self._end_hanging()
        for each in list(self._clients):
            if each.process.poll() is not None:
                self._clients.remove(each)
                self._check_end(each)
                assert each.task is not None
                if not each.task.over:
                    self._start_client(each.task)

    def _end_hanging(self) -> None:
        """Kill clients that make no progress; what they were doing is reported."""
        now = time.monotonic()
        for each in self._clients:
            state, begun = _state_of(each), _has_called(each)
            if each.progress is None or each.progress[0] != state or each.paused_until is not None:
                each.progress = state, now
            elif now - each.progress[1] > (_HANGING if begun else _START_TIMEOUT) and each.process.poll() is None:
                assert each.task is not None
                call = last_call(each.task.calls) if isinstance(each.task, ClientTask) else "a call"
                self._say(f"{each.name} hangs: {call}")
                self.hangs.append(f"{each.name}, for {_HANGING:.0f} s: {call}")
                each.process.send_signal(signal.SIGUSR1)  # Its log gets the stack of each thread.
                time.sleep(0.5)
                _kill(each)

    def _check_end(self, each: _Process) -> None:
        code = each.process.poll()
        if code == ENDED and each.task is not None:
            self.faults[f"{each.task.role} ended by an error"] += 1
        elif code not in (0, -signal.SIGKILL, None):
            log = (self._folder / f"{each.name}.log").read_text()
            self.surprises.append(f"{each.name} ended with {code}: {log[-2000:]}")
        if each.process.stdin is not None:
            each.process.stdin.close()

    def _finish(self, look: Callable[[], None] = lambda: None) -> None:
        """Wait until all clients end by themselves; start none again but those that drain."""
        deadline = time.monotonic() + _END_TIMEOUT
        while self._clients and time.monotonic() < deadline:
            time.sleep(1)
            look()
            self._end_hanging()
            for each in list(self._clients):
                code = each.process.poll()
                if code is not None:
                    self._clients.remove(each)
                    self._check_end(each)
                    if code in (ENDED, -signal.SIGKILL) and each.task is not None and each.task.drain:
                        self._start_client(each.task)
        for each in self._clients:
            each.process.send_signal(signal.SIGUSR1)
            time.sleep(0.2)
            log = (self._folder / f"{each.name}.log").read_text()
            self.surprises.append(f"{each.name} did not end by itself: {log[-1500:]}")
            _kill(each)
        self._clients = []

    # Faults -----------------------------------------------------------------------------------------------------------

    def _harm(self) -> None:
        rng, now = self._rng, time.monotonic()
        kind = rng.choices(
            ["gateway kill", "gateway pause", "gateway long pause", "cut", "client kill", "client pause"],
            [3, 3, 2, 2, 2, 1],
        )[0]
        if kind == "cut":
            rng.choice(rng.choice(self._places)).sever()
            return
        processes = self._gateways if kind.startswith("gateway") else self._clients
        up = [each for each in processes if each.is_up and (each.task is not None or self._serves(each))]
        if kind.startswith("gateway") and len(up) < len(self._gateways) and rng.random() < 0.9:
            return  # Mostly one of them works.
        if kind.startswith("client"):
            up = [each for each in up if now - each.started > _SHORTEST_LIFE and _history_of(each)]
        committing = self._committing() if rng.random() < _COMMITTERS else {}
        if committing:
            victim = rng.choice([*committing])
            kind = rng.choice(["gateway kill", "gateway pause", "gateway long pause"])
            kind = kind if victim.task is None else kind.replace("gateway", "client").replace("long ", "")
            self.faults[f"committer {'gateway' if victim.task is None else victim.task.role}"] += 1
        elif up:
            victim = rng.choice(up)
        else:
            return
        self.faults[kind] += 1
        self._say(f"{kind}: {victim.name}{', the committer' if committing else ''}")
        worker = committing.get(victim) or self._drawn_worker(victim)
        if kind == "gateway kill" and worker in (None, victim.process.pid):
            victim.away_until = now + rng.uniform(*_AWAY)
        if kind.endswith("kill"):
            target = rng.choice(TARGETS) if victim.is_spark else "everything"
            if victim.is_session and worker is not None:  # One process of a session; the others continue.
                _signal(worker, signal.SIGKILL)
            elif target == "everything":
                _kill(victim)
            else:
                kill_session(victim.process.pid, target)
            return
        if victim.has_workers and worker is not None:
            _signal(worker, signal.SIGSTOP)
        else:
            victim.signal(signal.SIGSTOP)
        longest = _SHORT if kind == "gateway pause" or (rng.random() < 0.5 and kind == "client pause") else _LONG
        victim.paused_until = now + rng.uniform(*longest)
        self._say(f"{victim.name} is paused for {victim.paused_until - now:.1f} s")

    def _drawn_worker(self, victim: _Process) -> int | None:
        """A worker of a gateway, or its parent alone, most often; None: all of them, or it has none."""
        if not victim.has_workers or self._rng.random() < 1 / 3:
            return None
        return self._rng.choice([victim.process.pid, *workers_of(victim.process.pid)])

    def _committing(self) -> dict[_Process, int]:
        """The processes that commit for others, with the id of the one of a session that does."""
        found: dict[_Process, int] = {}
        for process_id in self._committers():
            with suppress(ProcessLookupError):
                ids = {process_id, os.getsid(process_id)}
                found |= {each: process_id for each in (*self._gateways, *self._clients) if each.process.pid in ids}
        return {each: process_id for each, process_id in found.items() if each.is_up}

    # Waits ------------------------------------------------------------------------------------------------------------

    def _wait(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _START_TIMEOUT
        while not condition():
            if self.surprises or time.monotonic() > deadline:
                raise TimeoutError(f"it is not so that {what}: {self.surprises or f'after {_START_TIMEOUT:.0f} s'}")
            time.sleep(0.1)
            self._look_after()

    def _serves(self, gateway: _Process) -> bool:
        """Whether it has started: on a busy machine that takes longer than the time between two faults."""
        return self._is_listening(self._proxies[self._gateways.index(gateway)])

    @staticmethod
    def _is_listening(proxy: Proxy) -> bool:
        try:
            socket.create_connection(proxy.target, 1).close()
        except OSError:
            return False
        return True

    def _has_succeeded(self, least: Mapping[str, int]) -> bool:
        written = [path.read_bytes() for path in self._folder.glob("*.jsonl")]
        return all(
            sum(text.count(f'"type":"ok","f":"{kind}"'.encode()) for text in written) >= count
            for kind, count in least.items()
        )


def _history_of(each: _Process) -> bool:
    assert each.task is not None
    path = each.task.history
    return path.exists() and path.stat().st_size > 0


def _state_of(each: _Process) -> object:
    """What changes with each step of a client: the size of its history, and the time of its last call."""
    assert each.task is not None
    paths = [each.task.history, *([each.task.calls] if isinstance(each.task, ClientTask) else [])]
    return [(path.stat().st_size, path.stat().st_mtime_ns) for path in paths if path.exists() and path.stat().st_size]


def _has_called(each: _Process) -> bool:
    """Whether it works: processes start slowly on a busy machine, Spark's first micro-batch included."""
    return bool(last_call(each.task.calls)) if isinstance(each.task, ClientTask) else _history_of(each)


def workers_of(parent: int) -> list[int]:
    """The ids of the workers of a gateway, without the process that multiprocessing has beside them."""
    children = [int(child) for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
    return [child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def _signal(process_id: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(process_id, number)


def _kill(each: _Process) -> None:
    if each.is_session:
        kill_session(each.process.pid, "everything")
    if each.process.poll() is None:
        each.process.kill()
        each.process.wait()
    if each.process.stdin is not None:
        each.process.stdin.close()


def _popen(arguments: Sequence[str], log: Path, mode: str, *, session: bool = False) -> subprocess.Popen[bytes]:
    root = str(Path(txnstore.errors.__file__).resolve().parent.parent)
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    with log.open(mode) as output:
        return subprocess.Popen(
            [sys.executable, *arguments],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=session,
        )
