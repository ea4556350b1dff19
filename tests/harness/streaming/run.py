"""Starts a pipeline, kills it, starts it again, and compares what came out with what went in."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import txnstore
from tests.helpers.connections import connection_of
from tests.helpers.spark_home import link_spark_home
from txnstore.store import Store

_ROOT = Path(__file__).parents[3]
#: Seconds: a guard against a pipeline that does not end.
_LONGEST = 1_800
#: The share of kills that wait until the pipeline works.
_WHILE_IT_WORKS = 0.8


@dataclass(frozen=True)
class Settings:
    """A run.

    Attributes:
        folder: An empty folder for the store, the checkpoint and the logs.
        kind: ``sink`` or ``foreach``.
        kills: The number of kills.
        records: The records that go in; some before each start of the pipeline.
        seed: Of the moments and targets of the kills.
        longest_s: The longest time between the first commit of a run and its kill, in seconds.
    """

    folder: Path
    kind: str = "sink"
    kills: int = 10
    records: int = 4_000
    seed: int = 0
    longest_s: float = 5.0


@dataclass
class Report:
    """What a run did, and what is wrong."""

    starts: int = 0
    kills: Counter[str] = field(default_factory=Counter)
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
            f"{self.starts} starts, {self.kills.total()} kills ({kills})",
            f"{self.lost} records lost, {self.repeated} repeated",
            *self.violations,
        ]


def torture(settings: Settings) -> Report:
    """Run the pipeline until all records are out, with so many kills in between."""
    rng, report = random.Random(settings.seed), Report()
    home = settings.folder / "spark"
    home.mkdir()
    link_spark_home(home)
    with txnstore.create(str(settings.folder / "store")) as store:
        for name in ("in", "out", "odd"):
            store.create_topic(name, partitions=2)
        share, sent = settings.records // (settings.kills + 1), 0
        while report.kills.total() < settings.kills:
            sent = _send(store, sent, share)
            _run(settings, store, home, report, rng)
        _send(store, sent, settings.records - sent)
        while _run(settings, store, home, report, None) != 0:
            if report.starts > 5 * settings.kills + 10:
                report.violations.append("the pipeline does not end; see its log")
                break
        _compare(settings, store, report)
    return report


def _send(store: Store, first: int, count: int) -> int:
    with store.producer() as producer:
        for number in range(first, first + count):
            producer.send("in", b"%d" % number, key=b"k%d" % (number % 10))
    return first + count


def _run(settings: Settings, store: Store, home: Path, report: Report, rng: random.Random | None) -> int | None:
    """One life of the pipeline; killed with ``rng``, once it has begun to work or after a while."""
    report.starts += 1
    command = [sys.executable, "-m", "tests.harness.streaming.driver"]
    arguments = [settings.kind, store.url, str(settings.folder / "checkpoint"), str(home)]
    with (settings.folder / "log").open("ab") as log:
        process = subprocess.Popen([*command, *arguments], cwd=_ROOT, stdout=log, stderr=log, start_new_session=True)
    try:
        if rng is not None:
            target = rng.choice(["everything", "JVM", "Python"])
            _wait(process, store, rng, settings.longest_s)
            if process.poll() is None and _kill(process.pid, target):
                report.kills[target] += 1
        return process.wait(_LONGEST)
    finally:
        _kill(process.pid, "everything")
        process.wait()


def _wait(process: subprocess.Popen[bytes], store: Store, rng: random.Random, longest_s: float) -> None:
    """Until a random moment, mostly one after the pipeline has committed something; Spark takes seconds to start."""
    before = connection_of(store).view().sequence
    works = rng.random() < _WHILE_IT_WORKS
    while works and process.poll() is None and connection_of(store).view().sequence == before:
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
    with suppress(subprocess.TimeoutExpired):
        process.wait(rng.uniform(0, longest_s))


def _kill(session: int, target: str) -> bool:
    """Kill processes of a session; whether there was one."""
    found = dict(_processes(session))
    chosen = {
        "everything": list(found),
        "JVM": [pid for pid, name in found.items() if name.startswith("java")],
        "Python": [pid for pid, name in found.items() if name.startswith("python") and pid != session],
    }[target]
    for pid in chosen:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
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
    topics = {"out": "true", **({"odd": "cast(decode(value) as int) % 2 = 1"} if settings.kind == "foreach" else {})}
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
