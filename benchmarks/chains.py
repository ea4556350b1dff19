"""Many writers on a slow store: one chain for all of them, against a chain each.

Eight processes commit to partitions of their own. The objects are in the memory of a ninth one, and every request takes
30 ms on its way there, as one to an object store does; so what is measured is how often they stand in each other's way.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.managers import BaseManager
from typing import Any

from benchmarks.measure import Result
from txnstore.core.model import TopicPartition
from txnstore.core.routing import chain_of_partition, chain_of_transactional_id
from txnstore.storage.base import ObjectInfo
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on, open_on

WRITERS = 8
LATENCY = 0.03
SECONDS = 8.0


class Bucket(BaseManager):
    """The process that holds the objects."""


_BUCKETS: list[MemoryStore] = []


def _bucket() -> MemoryStore:
    """The one store of the process that holds the objects."""
    if not _BUCKETS:
        _BUCKETS.append(MemoryStore())
    return _BUCKETS[0]


Bucket.register("bucket", callable=_bucket)


class FarStore:
    """The objects of another process, a while away."""

    url = "memory://far"

    def __init__(self, address: Any) -> None:
        manager = Bucket(address, authkey=b"benchmark")
        manager.connect()
        self._bucket: Any = manager.bucket()  # type: ignore[attr-defined]

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        return self._far().get(key, start, end)  # type: ignore[no-any-return]

    def put(self, key: str, data: bytes) -> None:
        self._far().put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        return self._far().put_if_absent(key, data)  # type: ignore[no-any-return]

    def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> Sequence[ObjectInfo]:
        return self._far().list(prefix, start_after, limit)  # type: ignore[no-any-return]

    def delete(self, keys: Sequence[str]) -> None:
        self._far().delete(keys)

    def stat(self, key: str) -> ObjectInfo:
        return self._far().stat(key)  # type: ignore[no-any-return]

    def now_ms(self) -> int:
        return self._far().now_ms()  # type: ignore[no-any-return]

    def close(self) -> None:
        """Nothing to release."""

    def _far(self) -> Any:
        time.sleep(LATENCY)
        return self._bucket


def run() -> Iterator[Result]:
    """The commits a second of eight writers with eight chains, over those with one."""
    rates, conflicts = {}, {}
    for chains in (1, WRITERS):
        commits, conflicts[chains] = _measure(chains)
        rates[chains] = commits / SECONDS
    detail = (
        f"one chain {rates[1]:.0f}/s ({conflicts[1]} lost races), {WRITERS} chains {rates[WRITERS]:.0f}/s "
        f"({conflicts[WRITERS]}), {LATENCY * 1000:.0f} ms a request"
    )
    name = f"{WRITERS} processes: commits/s with {WRITERS} chains / one"
    yield Result(name, rates[WRITERS] / rates[1], 6.0, at_most=False, detail=detail)


def _measure(chains: int) -> tuple[int, int]:
    """The commits of all writers, and the races that they lost."""
    context = get_context("spawn")
    # Over a Unix socket: a TCP one drops connections while many threads connect concurrently, and they would hang.
    with Bucket(authkey=b"benchmark", ctx=context) as manager:
        create_on(FarStore(manager.address), chains).create_topic("t", partitions=WRITERS)
        ends = [context.Pipe() for _ in range(WRITERS)]
        writers = [
            context.Process(target=write, args=(manager.address, number, theirs))
            for number, (_, theirs) in enumerate(ends)
        ]
        for writer in writers:
            writer.start()
        for ours, _ in ends:
            ours.recv()
        for ours, _ in ends:
            ours.send("go")
        found = [ours.recv() for ours, _ in ends]
        for writer in writers:
            writer.join()
    return sum(commits for commits, _ in found), sum(lost for _, lost in found)


def write(address: Any, number: int, pipe: Connection) -> None:
    """One writer: a transaction a commit, in a partition whose chain coordinates it, until the time is over."""
    store = open_on(FarStore(address))
    count = store.snapshot().view.chains
    chain = chain_of_partition(TopicPartition("t", number), count)
    names = (f"writer-{number}-{place}" for place in range(sys.maxsize))
    producer = store.producer(next(name for name in names if chain_of_transactional_id(name, count) == chain))
    pipe.send("ready")
    pipe.recv()
    end, commits = time.monotonic() + SECONDS, 0
    while time.monotonic() < end:
        with producer.transaction() as txn:
            txn.send("t", b"value", partition=number)
        commits += 1
    pipe.send((commits, store.metrics().conflicts))
