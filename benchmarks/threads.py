"""Many threads of one process on a chain of a slow store: how many of their commits share an entry.

Each thread has a producer of its own and commits one record after the other; a request takes 30 ms.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from benchmarks.far import LATENCY, SlowWrites
from benchmarks.measure import Result
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on

THREADS = 64
WARM_UP, SECONDS = 1.0, 5.0
#: Records that fit into an entry, and records that do not.
VALUES = {"records in the entry": os.urandom(100), "64 KiB that are uploaded": os.urandom(64 << 10)}


def run() -> Iterator[Result]:
    """The commits a second of many threads over those of one."""
    for name, value in VALUES.items():
        one, many = _measure(1, value), _measure(THREADS, value)
        detail = f"{sum(many) / SECONDS:.0f}/s, one thread {sum(one) / SECONDS:.0f}/s"
        yield Result(f"{THREADS} threads, {name}: commits/s over one thread", sum(many) / sum(one), 40, False, detail)
        yield Result(f"{THREADS} threads, {name}: slowest / fastest thread", min(many) / max(many), 0.7, False, "")


def _measure(threads: int, value: bytes) -> list[int]:
    """The commits of each thread."""
    counts, measuring, ended = [0] * threads, threading.Event(), threading.Event()
    with create_on(SlowWrites(MemoryStore(), LATENCY)) as store, ThreadPoolExecutor(threads) as pool:
        store.create_topic("t", partitions=threads)
        done = [pool.submit(_write, store, number, value, counts, measuring, ended) for number in range(threads)]
        time.sleep(WARM_UP)
        measuring.set()
        time.sleep(SECONDS)
        ended.set()
        for each in done:
            each.result()
    return counts


def _write(
    store: Store, number: int, value: bytes, counts: list[int], measuring: threading.Event, ended: threading.Event
) -> None:
    with store.producer(f"id-{number}") as producer:
        while not ended.is_set():
            with producer.transaction() as txn:
                txn.send("t", value, partition=number)
            counts[number] += measuring.is_set()
