"""What other processes do to the store of a replayed day: compactions and vacuums, each by a fresh open, as by a timer.

Each function runs in a process of its own, at one moment of the virtual time.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any

from benchmarks.day_storage import VirtualFolder, kind_of, memory_mb
from txnstore.runtime import Runtime
from txnstore.store import Store, open_on
from txnstore.testing import ManualClock


@dataclass(frozen=True, slots=True)
class Work:
    """What a process has done.

    Attributes:
        requests: Its requests, with those of the open.
        cpu: Processor seconds, without the start of the process.
        memory: Its largest memory so far, in MB.
        written: The bytes that it has written, by the kind of their objects.
        now_ms: The virtual time at its end.
    """

    requests: Counter[str]
    cpu: float
    memory: float
    written: Counter[str]
    now_ms: int


def together(works: Sequence[Work]) -> Work:
    """All of the work as one."""
    requests, written = Counter[str](), Counter[str]()
    for work in works:
        requests += work.requests
        written += work.written
    cpu, memory = sum(work.cpu for work in works), max(work.memory for work in works)
    return Work(requests, cpu, memory, written, works[-1].now_ms)


@dataclass(frozen=True, slots=True)
class Objects:
    """The objects of one kind."""

    count: int = 0
    bytes: int = 0


@contextmanager
def other_process() -> Iterator[Callable[..., Any]]:
    """Calls a function of this module in a process that lives as long as the block."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result()


def compaction(root: str, now_ms: int) -> Work:
    """Open the store and compact it."""
    return _work(root, now_ms, lambda store: store.compact())


def vacuum(root: str, now_ms: int) -> Work:
    """Open the store and vacuum it."""
    return _work(root, now_ms, lambda store: store.vacuum())


def opening(root: str, now_ms: int) -> Work:
    """Open the store; all that an open imports is imported before."""
    _work(root, now_ms, lambda store: None)
    return _work(root, now_ms, lambda store: None)


def survey(root: str, now_ms: int) -> dict[str, Objects]:
    """The objects that are stored, by kind."""
    by_kind: dict[str, Objects] = {}
    for item in VirtualFolder(root, lambda: now_ms).list(""):
        counted = by_kind.get(kind_of(item.key), Objects())
        by_kind[kind_of(item.key)] = Objects(counted.count + 1, counted.bytes + item.size)
    return by_kind


def _work(root: str, now_ms: int, task: Callable[[Store], object]) -> Work:
    clock = ManualClock(now_ms)
    folder = VirtualFolder(root, clock)
    began = time.process_time()
    store = open_on(folder, runtime=Runtime(clock, clock.sleep))
    try:
        task(store)
    finally:
        store.close()
    cpu = time.process_time() - began
    return Work(folder.requests, cpu, memory_mb("VmHWM"), folder.written, clock())
