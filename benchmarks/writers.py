"""Many processes on one chain of a slow store, each with one thread: how they share it, and what a commit costs.

A process commits as fast as it can: an upload and an entry for each transaction, 30 ms a request.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from benchmarks.far import FarStore, beside_each_other
from benchmarks.measure import Result
from txnstore.store import open_on

PROCESSES = (1, 4, 8)
#: The records of a commit do not fit into an entry.
VALUE = os.urandom(64 * 1024)
#: The writers find their order before the measurement begins.
WARM_UP, SECONDS = 3.0, 10.0


@dataclass(frozen=True, slots=True)
class Figures:
    """What some processes did together."""

    took: list[list[float]]
    conflicts: int
    gets: int

    @property
    def commits(self) -> int:
        """The commits of all of them."""
        return sum(map(len, self.took))

    @property
    def puts(self) -> float:
        """Conditional PUTs for each entry."""
        return 1 + self.conflicts / self.commits

    @property
    def share(self) -> float:
        """The commits of the slowest process over those of the fastest."""
        return min(map(len, self.took)) / max(map(len, self.took))

    def line(self) -> str:
        """All of it, readable."""
        waits = sorted(1000 * took for one in self.took for took in one)
        return (
            f"{self.commits / SECONDS:.1f} commits/s, {self.puts:.2f} PUTs, {self.gets / self.commits:.1f} GETs, "
            f"median {waits[len(waits) // 2]:.0f} ms, p99 {waits[int(0.99 * len(waits))]:.0f} ms"
        )


def run() -> Iterator[Result]:
    """The commits a second of several processes over those of one."""
    found = {count: _measure(count) for count in PROCESSES}
    for count in PROCESSES[1:]:
        ratio, detail = found[count].commits / found[1].commits, f"{found[count].line()}; one: {found[1].line()}"
        yield Result(f"{count} processes on a chain: commits/s over one process", ratio, 1.2, False, detail)
        yield Result(f"{count} processes on a chain: conditional PUTs per commit", found[count].puts, 1.3, True, "")
        yield Result(f"{count} processes on a chain: slowest / fastest process", found[count].share, 0.7, False, "")


def _measure(count: int) -> Figures:
    found = beside_each_other(count, write)
    took, conflicts, gets = zip(*found, strict=True)
    return Figures(list(took), sum(conflicts), sum(gets))


def write(address: Any, number: int, pipe: Connection) -> None:
    """One writer: a transaction a commit, until the time is over; sends what its commits took."""
    store = open_on(FarStore(address))
    producer = store.producer(f"writer-{number}")
    took: list[float] = []

    def commit() -> None:
        began = time.monotonic()
        with producer.transaction() as txn:
            txn.send("t", VALUE, partition=number)
        took.append(time.monotonic() - began)

    commit()  # Imports what the first commit needs.
    pipe.send("ready")
    pipe.recv()
    begin = time.monotonic() + WARM_UP
    while time.monotonic() < begin:
        commit()
    before, took = store.metrics(), []
    while time.monotonic() < begin + SECONDS:
        commit()
    after = store.metrics()
    pipe.send((took, after.conflicts - before.conflicts, after.gets - before.gets))
