"""Starts a pipeline, kills it, starts it again, and compares what came out with what went in."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import txnstore
from tests.harness.places import Place, check_server_kills, place
from tests.harness.streaming.driver import Kind, Pipeline
from tests.helpers.connections import connection_of
from tests.helpers.spark_home import link_spark_home
from txnstore.store import Store

_ROOT = Path(__file__).parents[3]
#: Seconds: a guard against a pipeline that does not end.
_LONGEST = 1_800
#: The share of kills that wait until the pipeline works, and of those after which it has lost its checkpoint.
_WHILE_IT_WORKS, _LOSES_ITS_CHECKPOINT = 0.8, 0.15
TARGETS = ("everything", "JVM", "Python")
#: Seconds for which the server is away.
_SERVER_AWAY = (0.5, 6.0)


@dataclass(frozen=True)
class Settings:
    """A run.

    Attributes:
        folder: An empty folder for the store, the checkpoints and the logs.
        kind: Which queries the pipeline has.
        kills: The number of kills.
        records: The records that go in; some before each start of the pipeline.
        seed: Of the moments and targets of the kills.
        longest_s: The longest time between the first commit of a run and its kill, in seconds.
        store: ``local``, or a kind of S3 server.
        targets: What may be killed; the server is restarted.
    """

    folder: Path
    kind: Kind = "sink"
    kills: int = 10
    records: int = 4_000
    seed: int = 0
    longest_s: float = 5.0
    store: str = "local"
    targets: tuple[str, ...] = TARGETS

    def __post_init__(self) -> None:
        if "server" in self.targets:
            check_server_kills(self.store)


@dataclass
class Report:
    """What a run did, and what is wrong."""

    starts: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    checkpoints: int = 1
    lost: int = 0
    repeated: int = 0
    violations: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every record arrived exactly once, and the store is sound."""
        return not (self.lost or self.repeated or self.violations)

    def lines(self) -> list[str]:
        """The report, for people."""
        kills = ", ".join(f"{count} of {target}" for target, count in sorted(self.kills.items()))
        return [
            f"{self.starts} starts, {self.kills.total()} kills ({kills}), {self.checkpoints - 1} lost checkpoints",
            f"{self.lost} records lost, {self.repeated} repeated",
            *self.violations,
        ]


def torture(settings: Settings) -> Report:
    """Run the pipeline until all records are out, with so many kills in between."""
    home = settings.folder / "spark"
    home.mkdir()
    link_spark_home(home)
    with ExitStack() as stack:
        chosen = place(settings.store, settings.folder / "store", stack)
        store = stack.enter_context(txnstore.create(chosen.url, storage_options=chosen.options or None))
        for name in ("in", "out", "odd"):
            store.create_topic(name, partitions=2)
        return _Torture(settings, chosen, store, home).run()


class _Torture:
    """The lives of one pipeline."""

    def __init__(self, settings: Settings, chosen: Place, store: Store, home: Path) -> None:
        self._settings, self._place, self._store, self._home = settings, chosen, store, home
        self._rng, self._report = random.Random(settings.seed), Report()

    def run(self) -> Report:
        """Kill it as often as asked, let it end, and compare."""
        settings, report = self._settings, self._report
        share, sent = settings.records // (settings.kills + 1), 0
        while report.kills.total() < settings.kills:
            sent = _send(self._store, sent, share)
            self._live(self._rng.choice(settings.targets))
        _send(self._store, sent, settings.records - sent)
        while self._live() != 0:
            if report.starts > 5 * settings.kills + 10:
                report.violations.append("the pipeline does not end; see its log")
                break
        _compare(settings, self._store, report)
        return report

    def _start(self) -> subprocess.Popen[bytes]:
        """Start the pipeline."""
        self._report.starts += 1
        settings, chosen = self._settings, self._place
        checkpoint = settings.folder / f"checkpoint-{self._report.checkpoints}"
        pipeline = Pipeline(settings.kind, chosen.url, chosen.options, str(checkpoint), str(self._home))
        command = [sys.executable, "-m", "tests.harness.streaming.driver", pipeline.to_json()]
        with (settings.folder / "log").open("ab") as log:
            return subprocess.Popen(command, cwd=_ROOT, stdout=log, stderr=log, start_new_session=True)

    def _live(self, target: str | None = None) -> int:
        """One life of the pipeline; its target is killed once it has begun to work or after a while."""
        process = self._start()
        try:
            if target is not None:
                _wait(process, self._store, self._rng, self._settings.longest_s)
                if process.poll() is None and self._kill(process, target):
                    self._report.kills[target] += 1
                    self._report.checkpoints += self._rng.random() < _LOSES_ITS_CHECKPOINT
            return process.wait(_LONGEST)
        finally:
            kill_session(process.pid, "everything")
            process.wait()

    def _kill(self, process: subprocess.Popen[bytes], target: str) -> bool:
        """Kill the target; whether there was one. The server comes back."""
        server = self._place.server
        if target != "server" or server is None:
            return kill_session(process.pid, target)
        server.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(self._rng.uniform(*_SERVER_AWAY))
        server.start()
        return True


def _send(store: Store, first: int, count: int) -> int:
    with store.producer() as producer:
        for number in range(first, first + count):
            producer.send("in", b"%d" % number, key=b"k%d" % (number % 10))
    return first + count


def _wait(process: subprocess.Popen[bytes], store: Store, rng: random.Random, longest_s: float) -> None:
    """Until a random moment, mostly one after the pipeline has committed something; Spark takes seconds to start."""
    before = connection_of(store).view().sequence
    works = rng.random() < _WHILE_IT_WORKS
    while works and process.poll() is None and connection_of(store).view().sequence == before:
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
    with suppress(subprocess.TimeoutExpired):
        process.wait(rng.uniform(0, longest_s))


def kill_session(session: int, target: str) -> bool:
    """Kill processes of a session; whether there was one."""
    return signal_session(session, target, signal.SIGKILL)


def signal_session(session: int, target: str, number: int) -> bool:
    """Send a signal to processes of a session, of one of :data:`TARGETS`; whether there was one."""
    processes = dict(_processes(session))
    chosen = {
        "everything": list(processes),
        "JVM": [pid for pid, name in processes.items() if name.startswith("java")],
        "Python": [pid for pid, name in processes.items() if name.startswith("python") and pid != session],
    }[target]
    for pid in chosen:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    return bool(chosen)


def _processes(session: int) -> Iterator[tuple[int, str]]:
    """The ids and names of the processes of a session; Spark's Python processes have groups of their own."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError):
                name, _, rest = (entry / "stat").read_text().partition(" (")[2].rpartition(")")
                if int(rest.split()[3]) == session and rest.split()[0] != "Z":
                    yield int(entry.name), name


def _compare(settings: Settings, store: Store, report: Report) -> None:
    """By SQL: each number that went in is in the output once."""
    topics = {"out": "true", **({"odd": "cast(decode(value) as int) % 2 = 1"} if settings.kind != "sink" else {})}
    for topic, condition in topics.items():
        query = f"""
            with went_in as (select decode(value) as number from "in" where {condition}),
                came_out as (select decode(value) as number, count(*) as times from "{topic}" group by 1)
            select count(*) filter (times is null), coalesce(sum(times - 1), 0)
            from went_in full join came_out using (number)
        """
        lost, repeated = store.sql(query).fetchall()[0]
        report.lost += int(lost)
        report.repeated += int(repeated)
    report.violations += [str(each) for each in store.verify(deep=True).violations]
