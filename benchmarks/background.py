"""20,000 small commits without a compaction: what the last thousand cost beside the first, and what their merges take.

A process commits 100 records of 220 bytes at a time, over one partition and over 24, and merges them in its
background. The objects are in memory, so that what counts is the processor time of this process: the thread of the
merges measures its own.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa

from benchmarks.measure import Result
from txnstore.compactor.compact import background
from txnstore.compactor.compact.background import BackgroundReport
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on, open_on

COMMITS, RECORDS, PART = 20_000, 100, 1_000
SCHEMA = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), ("amount", pa.float64()), ("at", pa.timestamp("us", "UTC"))]
)
_DIFFERENT = 50


@dataclass
class _Taken:
    """What merges took, in processor seconds of their thread, and how many commits they had."""

    seconds: float = 0.0
    runs: int = 0
    slowest: float = 0.0
    batches: list[int] = field(default_factory=list)


def run() -> Iterator[Result]:
    """Each number of partitions."""
    for partitions in (1, 24):
        yield from _measure(partitions)


def _measure(partitions: int) -> Iterator[Result]:
    objects = CountingStore(MemoryStore())
    tables = [_table(number) for number in range(_DIFFERENT)]
    parts: list[float] = []
    sizes = [0]
    with _measured() as taken, create_on(objects) as store:
        store.create_topic("t", schema=SCHEMA, partitions=partitions, key="id")
        first: dict[str, float] = {}
        with store.producer() as producer:
            for number in range(COMMITS):
                start = time.perf_counter()
                producer.send_table("t", tables[number % _DIFFERENT])
                producer.flush()
                parts.append(time.perf_counter() - start)
                if number + 1 == PART:
                    first = _reads(objects)
                if (number + 1) % PART == 0:
                    sizes.append(objects.snapshot().bytes_out)
        last = _reads(objects)
        log = store.snapshot().view.partitions
        segments = {batch.segment.object for each in log.values() for batch in each.batches}
        entries = sum(key.startswith("chains/") for key in segments)
    name = f"{partitions} partition{'s' if partitions > 1 else ''}"
    median = [sorted(slice_)[PART // 2] * 1000 for slice_ in (parts[:PART], parts[-PART:])]
    yield Result(
        f"background, {name}: median commit, last thousand / first", median[1] / median[0], 1.2, at_most=True,
        detail=f"{median[1]:.2f} ms / {median[0]:.2f} ms",
    )  # fmt: skip
    written = [(sizes[1] - sizes[0]) / PART, (sizes[-1] - sizes[-2]) / PART]
    yield Result(
        f"background, {name}: bytes of a commit, last thousand / first", written[1] / written[0], 2.0, at_most=True,
        detail=f"{written[1]:,.0f} / {written[0]:,.0f}",
    )  # fmt: skip
    for what, seconds in last.items():
        yield Result(
            f"background, {name}: {what} of {COMMITS:,} commits / {PART:,}", seconds / first[what],
            COMMITS / PART if what != "open" else 2.0, at_most=True,
            detail=f"{seconds * 1000:.0f} ms / {first[what] * 1000:.0f} ms",
        )  # fmt: skip
    yield Result(
        f"background, {name}: merged segments", len(segments) - entries, 64, at_most=True,
        detail=f"and {entries} entries",
    )  # fmt: skip
    yield Result(
        f"background, {name}: processor time of merges for each commit, ms", taken.seconds * 1000 / COMMITS, 0.4,
        at_most=True, detail=f"{taken.runs} merges, the slowest {taken.slowest * 1000:.0f} ms",
    )  # fmt: skip


def _table(number: int) -> pa.Table:
    draw = random.Random(number)
    columns = {
        "id": [draw.getrandbits(40) for _ in range(RECORDS)],
        "name": [draw.randbytes(100).hex() for _ in range(RECORDS)],
        "amount": [draw.random() for _ in range(RECORDS)],
        "at": [1_700_000_000_000_000 + number] * RECORDS,
    }
    return pa.table(columns, schema=SCHEMA)


def _reads(objects: CountingStore) -> dict[str, float]:
    """The processor time of an open, and of a query and a scan of all records in the process that opened it."""
    taken: dict[str, float] = {}
    begun = time.process_time()
    with open_on(objects) as other:
        taken["open"] = time.process_time() - begun
        other.sql("SELECT 1").fetchall()
        ask = partial(other.sql, "SELECT count(*), sum(id), max(name) FROM t")
        calls: dict[str, Callable[[], object]] = {
            "SQL": lambda: ask().fetchall(),
            "scan": lambda: other.scan("t").to_table(),
        }
        for name, call in calls.items():
            begun = time.process_time()
            call()
            taken[name] = time.process_time() - begun
    return taken


@contextmanager
def _measured() -> Iterator[_Taken]:
    taken, merge = _Taken(), background.merge_small_commits

    def measured(*arguments: Any) -> BackgroundReport:
        begun = time.thread_time()
        try:
            return merge(*arguments)
        finally:
            took = time.thread_time() - begun
            taken.seconds, taken.runs, taken.slowest = taken.seconds + took, taken.runs + 1, max(taken.slowest, took)

    background.merge_small_commits = measured  # type: ignore[assignment]
    try:
        yield taken
    finally:
        background.merge_small_commits = merge
