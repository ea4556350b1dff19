"""Stores for tests of the shell: a manual clock, no pauses, faults and gates where a test wants them."""

from __future__ import annotations

import itertools
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import pytest

from tests.harness.executors import InlineExecutor, never
from tests.helpers import keys
from tests.helpers.connections import connection_of
from tests.helpers.keys import FixedRuntime
from txnstore.chain.chain import Chain
from txnstore.chain.codec import Entry
from txnstore.chain.context import ChainContext
from txnstore.chain.payload import decode_entry
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.invariants.check import check_view
from txnstore.core.model import TopicPartition
from txnstore.core.view import View
from txnstore.read.plan import IsolationLevel
from txnstore.runtime import Runtime
from txnstore.storage.base import ForwardingStore, ObjectInfo, ObjectStore
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on, open_on
from txnstore.testing import ManualClock

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))

#: For tests of what only a store of one chain does, such as its number of requests.
ONE_CHAIN = pytest.mark.parametrize("chains", [1])

_SEEDS = itertools.count()
T = TypeVar("T")


def runtime(clock: Callable[[], int] | None = None) -> Runtime:
    """A runtime that never pauses; no two have the same ids, as no two processes have.

    In a store of several chains a commit returns when its markers are written, too.
    """
    rng = random.Random(f"shell/{next(_SEEDS)}")
    return FixedRuntime(clock or ManualClock(), lambda _: None, rng, background=InlineExecutor, spawn=never)


def new_store(
    objects: ObjectStore | None = None, *, partitions: int = 3, clock: ManualClock | None = None, chains: int = 1
) -> Store:
    """A new store with one topic ``t``, which keeps a log of its requests."""
    clock = clock or ManualClock()
    inner = objects if objects is not None else MemoryStore(clock=clock)
    store = create_on(CountingStore(inner, log=True), chains, runtime=runtime(clock))
    store.create_topic("t", partitions=partitions)
    return store


def another_process(store: Store, objects: ObjectStore | None = None) -> Store:
    """The same store as a process sees it that shares nothing with this one."""
    return open_on(CountingStore(objects or backend(store), log=True), runtime=runtime())


def backend(store: Store) -> ObjectStore:
    """What lies below the counting of a store."""
    return connection_of(store).counts.inner


def topic(name: str, partitions: int = 1) -> CatalogTopic:
    """A topic that no other is, to be created by a command."""
    return CatalogTopic(name=name, topic_id=f"{name}-{next(_SEEDS)}", partitions=partitions)


@contextmanager
def a_chain(
    objects: ObjectStore,
    clock: Callable[[], int] | None = None,
    checkpoint_every: int = 64,
    background: Executor | None = None,
) -> Iterator[Chain]:
    """A loaded chain of a process of its own. ``background``: writes its checkpoints; by default the thread itself."""
    later = None if background is None else lambda: background
    with ThreadPoolExecutor(4) as pool:
        context = ChainContext(
            objects, keys.KEYS, runtime(clock), pool, checkpoint_every=checkpoint_every, background=later
        )
        chain = Chain(context, 0)
        chain.load(_hint(objects))
        yield chain


def _hint(objects: ObjectStore) -> bytes | None:
    listed = {item.key for item in objects.list("chains/")}
    return objects.get(keys.latest(0)) if keys.latest(0) in listed else None


def entries(objects: ObjectStore, chain: int = 0) -> list[Entry]:
    """All entries of a chain in the bucket, decoded, in order."""
    listed = objects.list(keys.entries(chain))
    return [decode_entry(item.key, objects.get(item.key)) for item in listed]


def names_in_bucket(objects: ObjectStore) -> list[str]:
    """The topics that the entries in the bucket create, entry by entry: what a slot holds, at a glance."""
    return [
        "+".join(event.topic.name for event in entry.events if event.type == "TopicCreated")
        for entry in entries(objects)
    ]


def sound(store: Store) -> View:
    """The newest state as a new process reads it; every invariant holds in it."""
    state = connection_of(another_process(store)).view()
    assert check_view(state) == []
    return state


def rows(store: Store, name: str = "t", isolation: IsolationLevel = "read_committed") -> list[tuple[int, int, bytes]]:
    """Partition, offset and value of all that a new reader finds."""
    table = another_process(store).scan(name, isolation).to_table()
    columns = (table[column].to_pylist() for column in ("_partition", "_offset", "value"))
    return sorted(zip(*columns, strict=True))


def values(store: Store, name: str = "t", isolation: IsolationLevel = "read_committed") -> list[bytes]:
    """The values that a new reader finds, by partition and offset."""
    return [value for _, _, value in rows(store, name, isolation)]


def in_threads(count: int, work: Callable[[int], T]) -> list[T | Exception]:
    """What ``work(0)``, ``work(1)``, … give or raise, each in a thread, all begun at once."""
    start = threading.Barrier(count)

    def run(number: int) -> T | Exception:
        start.wait()
        try:
            return work(number)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            return error

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


class Gate:
    """A request that is held: ``reached`` is set when it has arrived; :meth:`open` lets it pass."""

    def __init__(self, times: int | None = None, after: int = 0) -> None:
        self.reached = threading.Semaphore(0)
        self._open = threading.Event()
        self._passing = threading.Semaphore(after)
        self._left = threading.Semaphore(times) if times is not None else None

    def wait_for(self, count: int = 1) -> None:
        """Return when so many requests stand at the gate."""
        for _ in range(count):
            assert self.reached.acquire(timeout=240)

    def open(self) -> None:
        """Let them pass, and all that come later."""
        self._open.set()

    def pass_through(self) -> None:
        """What the request does."""
        if self._passing.acquire(blocking=False):
            return
        if self._left is not None and not self._left.acquire(blocking=False):
            return
        self.reached.release()
        assert self._open.wait(240)


class GatedStore(ForwardingStore):
    """An object store around another one that holds the requests a test names, so that no test has to sleep."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._gates: list[tuple[str, str, Gate]] = []

    def hold(self, operation: str, key_contains: str = "", times: int | None = None, after: int = 0) -> Gate:
        """A gate for the requests of this kind from now on: all of them, or the first ``times``; ``after`` so many."""
        gate = Gate(times, after)
        self._gates.append((operation, key_contains, gate))
        return gate

    @property
    def identity(self) -> str | None:
        return getattr(self.inner, "identity", None)

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        self._arrive("get", key)
        return self.inner.get(key, start, end)

    def put(self, key: str, data: bytes) -> None:
        self._arrive("put", key)
        self.inner.put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self._arrive("put_if_absent", key)
        return self.inner.put_if_absent(key, data)

    def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> Sequence[ObjectInfo]:
        self._arrive("list", prefix)
        return self.inner.list(prefix, start_after, limit)

    def delete(self, keys: Sequence[str]) -> None:
        self._arrive("delete", " ".join(keys))
        self.inner.delete(keys)

    def stat(self, key: str) -> ObjectInfo:
        self._arrive("stat", key)
        return self.inner.stat(key)

    def _arrive(self, operation: str, key: str) -> None:
        for gated, contains, gate in self._gates:
            if gated == operation and contains in key:
                gate.pass_through()
