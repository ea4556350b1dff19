"""Two hundred processes on one chain of a folder, which begin together and share its entries.

None starves, none is left with a command, and a caller's memory does not grow with their number. Each folds the
commands of all, so their processor time grows with the square of their number: the benchmark takes minutes of two
processors.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection

import txnstore
from benchmarks.far import processes, sharing
from benchmarks.measure import Result

PROCESSES, EACH = 200, 50
#: The most memory of a process, in MiB: about 90 are what it imports, and each caller costs its committer about one.
MEMORY = 320
#: The most entries, which they write instead of 10,000.
ENTRIES = 2_500


@dataclass(frozen=True, slots=True)
class Report:
    """What a process did: when its commits were acknowledged, its entries, its memory in MiB, its processor seconds."""

    times: list[float]
    entries: int
    memory: float
    seconds: float


def run() -> Iterator[Result]:
    """Their shares over the time in which all run, their entries and their memory; all records are there once."""
    with tempfile.TemporaryDirectory(dir="/tmp") as url, sharing(True):
        with txnstore.create(url) as store:
            store.create_topic("t")
        began = time.monotonic()
        reports: list[Report] = processes(PROCESSES, partial(_write, url), imports="benchmarks.crowd_imports")
        with txnstore.open(url, read_only=True) as store:
            found = Counter(value.decode() for value in store.scan("t").to_table()["value"].to_pylist())
    assert found == {f"{number}-{at}": 1 for number in range(PROCESSES) for at in range(EACH)}
    first_end, end = min(report.times[-1] for report in reports), max(report.times[-1] for report in reports)
    served = sorted(bisect_right(report.times, first_end) for report in reports)
    seconds = sum(report.seconds for report in reports)
    detail = f"{served[0]} and {served[-1]} of {EACH}; {end - began:.0f} s, {seconds:.0f} processor seconds"
    name = f"{PROCESSES} processes, {EACH} commits each"
    yield Result(f"{name}: least / most served", served[0] / served[-1], 0.5, False, detail)
    yield Result(f"{name}: entries", sum(report.entries for report in reports), ENTRIES, True, "")
    yield Result(f"{name}: MiB of the largest", max(report.memory for report in reports), MEMORY, True, "")


def _write(url: str, number: int, pipe: Connection) -> None:
    with txnstore.open(url) as store:
        pipe.send("ready")
        pipe.recv()
        began, times = time.process_time(), list[float]()
        with store.producer(f"writer-{number}") as producer:
            for at in range(EACH):
                with producer.transaction() as txn:
                    txn.send("t", f"{number}-{at}".encode())
                times.append(time.monotonic())
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 * 1024 if sys.platform == "darwin" else 1024)
        pipe.send(Report(times, store.metrics().commits, used, time.process_time() - began))
