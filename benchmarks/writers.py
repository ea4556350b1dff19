"""Many processes on one chain of a slow store, each with one thread or more: how they share it, what a commit costs.

A process commits as fast as it can: an upload and an entry for each transaction, 30 ms a request.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.far import LATENCY, FarStore, beside_each_other, sharing
from benchmarks.measure import Result
from txnstore.producer import Producer
from txnstore.store import open_on

#: The least number of commits over those of one process, by the number of processes.
PROCESSES = {4: 1.2, 8: 1.2, 16: 1.0}
#: Processes with several threads, and the threads of each.
CROWD, THREADS = 4, 8
#: The records of a commit do not fit into an entry.
VALUE = os.urandom(64 * 1024)
#: The median of a newcomer's first commit in latencies, at most, by the number of busy writers.
NEWCOMERS = {4: 12, 8: 24}
#: The newcomers of a measurement, one after the other.
FIRST_COMMITS = 5
#: The writers find their order before the measurement begins.
WARM_UP, SECONDS = 3.0, 10.0


@dataclass(frozen=True, slots=True)
class Figures:
    """What some processes did together."""

    durations: list[list[float]]
    entries: int
    conflicts: int
    gets: int

    @property
    def commits(self) -> int:
        """The commits of all of them."""
        return sum(map(len, self.durations))

    @property
    def puts(self) -> float:
        """Conditional PUTs per commit: below 1 if commits share entries."""
        return (self.entries + self.conflicts) / self.commits

    @property
    def share(self) -> float:
        """The commits of the slowest process over those of the fastest."""
        return min(map(len, self.durations)) / max(map(len, self.durations))

    def quantile(self, share: float) -> float:
        """The seconds within which this share of the commits was done."""
        waits = sorted(wait for durations in self.durations for wait in durations)
        return waits[int(share * len(waits))]

    def line(self) -> str:
        """All of it, readable."""
        return (
            f"{self.commits / SECONDS:.1f} commits/s, {self.puts:.2f} PUTs, {self.gets / self.commits:.1f} GETs, "
            f"median {1000 * self.quantile(0.5):.0f} ms, p99 {1000 * self.quantile(0.99):.0f} ms"
        )


def run() -> Iterator[Result]:
    """The commits a second of several processes over those of one; they take turns, as on different machines."""
    with sharing(False):
        yield from _run()


def _run() -> Iterator[Result]:
    one = _measure(1)
    for count, least in PROCESSES.items():
        crowded, name = _measure(count), f"{count} processes on a chain"
        detail = f"{crowded.line()}; one: {one.line()}"
        yield Result(f"{name}: commits/s over one process", crowded.commits / one.commits, least, False, detail)
        yield Result(f"{name}: conditional PUTs per commit", crowded.puts, 1.3, True, "")
        yield Result(f"{name}: slowest / fastest process", crowded.share, 0.7, False, "")
        yield Result(f"{name}: p99 in latencies", crowded.quantile(0.99) / LATENCY, 4 * count, True, "")
    for count, most in NEWCOMERS.items():
        waits = sorted(_newcomers(count))
        detail = f"longest {waits[-1]:.1f}; with the grant of its producer id, which is an entry, too"
        name = f"a newcomer's first commit among {count} writers, in latencies"
        yield Result(name, waits[len(waits) // 2], most, True, detail)
    alone, crowd = _measure(1, THREADS), _measure(CROWD, THREADS)
    detail = f"{crowd.line()}; one process with {THREADS} threads: {alone.line()}"
    ratio, name = crowd.commits / one.commits, f"{CROWD} processes with {THREADS} threads each"
    yield Result(f"{name}: commits/s over one thread", ratio, THREADS, False, detail)
    yield Result(f"{name}: slowest / fastest process", crowd.share, 0.7, False, "")


def _measure(count: int, threads: int = 1) -> Figures:
    reports = beside_each_other(count, partial(write, threads=threads))
    durations, entries, conflicts, gets = zip(*reports, strict=True)
    return Figures(list(durations), sum(entries), sum(conflicts), sum(gets))


def _newcomers(count: int) -> list[float]:
    """How long a newcomer waits for its first entry among busy writers, in latencies."""
    *_, waits = beside_each_other(count + 1, partial(_write_or_join, count))
    return [wait / LATENCY for wait in waits]


def _write_or_join(count: int, address: Any, number: int, pipe: Connection) -> None:
    """The process after the ``count`` writers: newcomers, each with a connection of its own; sends their waits in s."""
    if number < count:
        write(address, number, pipe)
        return
    with open_on(FarStore(address)) as store, store.producer("imports") as producer:
        producer.begin_transaction()
        producer.send("t", VALUE, partition=0)
        producer.commit_transaction()
    pipe.send("ready")
    pipe.recv()
    time.sleep(WARM_UP)
    waits = []
    for newcomer in range(FIRST_COMMITS):
        with open_on(FarStore(address)) as store:
            began = time.monotonic()
            store.producer(f"newcomer-{newcomer}").close()
            waits.append(time.monotonic() - began)
        time.sleep(0.5)
    pipe.send(waits)


def write(address: Any, number: int, pipe: Connection, *, threads: int = 1) -> None:
    """One process: each thread commits one transaction after the other, until the time is over.

    Sends what its commits took in seconds, and their numbers of entries, conflicts and GETs.
    """
    store = open_on(FarStore(address))
    producers = [store.producer(f"writer-{number}-{thread}") for thread in range(threads)]

    def commit(producer: Producer) -> float:
        began = time.monotonic()
        with producer.transaction() as txn:
            txn.send("t", VALUE, partition=number)
        return time.monotonic() - began

    def commit_until(end: float, producer: Producer) -> list[float]:
        durations = []
        while time.monotonic() < end:
            durations.append(commit(producer))
        return durations

    commit(producers[0])  # Imports what the first commit needs.
    with ThreadPoolExecutor(threads) as pool:
        pipe.send("ready")
        pipe.recv()
        begin = time.monotonic() + WARM_UP
        list(pool.map(partial(commit_until, begin), producers))
        before = store.metrics()
        durations = [wait for waits in pool.map(partial(commit_until, begin + SECONDS), producers) for wait in waits]
        after = store.metrics()
    counts = (getattr(after, name) - getattr(before, name) for name in ("commits", "conflicts", "gets"))
    pipe.send((durations, *counts))
