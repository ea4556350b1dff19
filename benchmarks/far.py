"""A store that many processes share, a while away: the objects are in the memory of one more process.

Every request takes a fixed time on its way there, as one to an object store does.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.managers import BaseManager
from typing import Any

from txnstore.chain.committer.sharing import VARIABLE
from txnstore.storage.base import ObjectInfo, ObjectStore
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import create_on

LATENCY = 0.03


class Bucket(BaseManager):
    """The process that holds the objects."""


_BUCKETS: list[MemoryStore] = []


def _bucket() -> MemoryStore:
    """The one store of the process that holds the objects."""
    if not _BUCKETS:
        _BUCKETS.append(MemoryStore())
    return _BUCKETS[0]


Bucket.register("bucket", callable=_bucket)


class SlowWrites(CountingStore):
    """Adds latency to the requests of a commit of a process that is alone on its chain, which sends no GET."""

    def __init__(self, inner: ObjectStore, latency: float) -> None:
        super().__init__(inner)
        self._latency = latency

    def put(self, key: str, data: bytes) -> None:
        time.sleep(self._latency)
        super().put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        time.sleep(self._latency)
        return super().put_if_absent(key, data)


class FarStore:
    """The objects of another process, a while away.

    Args:
        address: The address of the process.
        latency: The seconds that each request takes on its way there.
    """

    url = "memory://far"

    def __init__(self, address: Any, latency: float = LATENCY) -> None:
        self._latency = latency
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
        time.sleep(self._latency)
        return self._bucket


def beside_each_other(count: int, write: Callable[[Any, int, Connection], None], chains: int = 1) -> list[Any]:
    """The reports of ``count`` processes that write to one store with the topic ``t`` and as many partitions.

    Args:
        count: The number of processes.
        write: What each of them does, with the address of the bucket, its number and a pipe. It sends anything when it
            is ready, waits for an answer, writes, and sends its report.
        chains: The number of chains of the store.
    """
    with far_bucket() as address:
        create_on(FarStore(address), chains).create_topic("t", partitions=count)
        return processes(count, partial(write, address))


@contextmanager
def far_bucket() -> Iterator[Any]:
    """An empty bucket in a process of its own; the value is its address."""
    # Over a Unix socket: a TCP one drops connections while many threads connect concurrently, and they would hang.
    with Bucket(authkey=b"benchmark", ctx=get_context("spawn")) as manager:
        yield manager.address


@contextmanager
def sharing(is_on: bool, *, network: bool = False) -> Iterator[None]:
    """Whether the processes that are started inside the block share entries; else they take turns, as strangers do.

    ``network``: as processes that are each on a machine of its own.
    """
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = ("tcp://127.0.0.1" if network else "on") if is_on else "off"
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


def processes(count: int, write: Callable[[int, Connection], None], imports: str = "") -> list[Any]:
    """The reports of ``count`` processes that do the same at a time.

    Args:
        count: The number of processes.
        write: What each of them does, with its number and a pipe.
        imports: A module that imports what they need: they are forks of a process that has imported it.
    """
    context: ForkServerContext | SpawnContext = get_context("forkserver") if imports else get_context("spawn")
    if imports:
        context.set_forkserver_preload([imports])
    ends = [context.Pipe() for _ in range(count)]
    target = partial(_apart, write) if os.environ.get(VARIABLE, "").startswith("tcp:") else write
    writers = [context.Process(target=target, args=(number, theirs)) for number, (_, theirs) in enumerate(ends)]
    for writer in writers:
        writer.start()
    for ours, _ in ends:
        ours.recv()
    for ours, _ in ends:
        ours.send("go")
    reports = [ours.recv() for ours, _ in ends]
    for writer in writers:
        writer.join()
    return reports


def _apart(write: Callable[[int, Connection], None], number: int, pipe: Connection) -> None:
    """Write where no other process can be met, as on another machine."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder
        write(number, pipe)
