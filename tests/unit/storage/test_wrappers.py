"""Counting, retries, the store in memory, the lock that survives a fork."""

# ruff: noqa: S301 - the pickles are our own.

from __future__ import annotations

import os
import pickle
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import cast

import pytest

from txnstore.errors import ObjectNotFoundError, StorageError, StorageRefusedError, UnknownOutcomeError
from txnstore.storage.base import ObjectStore, place_of, unwrapped
from txnstore.storage.counting import CountingStore, StoreCounts
from txnstore.storage.local import LocalStore
from txnstore.storage.memory import MemoryStore
from txnstore.storage.retry import RetryingStore
from txnstore.storage.s3.store import S3Store
from txnstore.testing import Fault, FaultStore, ManualClock, on
from txnstore.threads import ForkLock

# --- counting ---------------------------------------------------------------------------------------------------------


def test_every_kind_of_call_is_counted() -> None:
    """ADM-06."""
    store = CountingStore(MemoryStore(), log=True)
    store.put("a", b"123")
    store.put_if_absent("b", b"45")
    store.put_if_absent("b", b"67")
    store.get("a")
    store.get("a", 1, 2)
    store.list("")
    store.stat("a")
    store.now_ms()
    with pytest.raises(ObjectNotFoundError):
        store.get("missing")
    store.delete(["a", "b"])
    assert store.snapshot() == StoreCounts(
        get=3, put=1, put_if_absent=2, list=1, delete=1, stat=1, now_ms=1, bytes_in=4, bytes_out=7
    )
    assert store.snapshot().requests == 10
    assert store.snapshot().puts == 3
    assert store.log[:3] == [("put", "a"), ("put_if_absent", "b"), ("put_if_absent", "b")]
    assert store.log[-2:] == [("get", "missing"), ("delete", "a b")]


def test_counts_can_be_subtracted_and_reset() -> None:
    store = CountingStore(MemoryStore(), log=True)
    store.put("a", b"123")
    before = store.snapshot()
    store.get("a")
    assert store.snapshot() - before == StoreCounts(get=1, bytes_in=3)
    assert store.reset() == StoreCounts(get=1, put=1, bytes_in=3, bytes_out=3)
    assert store.snapshot() == StoreCounts()
    assert store.log == []


def test_counts_are_thread_safe() -> None:
    store = CountingStore(MemoryStore())

    def work(worker: int) -> None:
        for number in range(200):
            store.put(f"{worker}/{number}", b"12")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert store.snapshot() == StoreCounts(put=1600, bytes_out=3200)


def test_a_pickled_counter_starts_at_zero(tmp_path: Path) -> None:
    store = CountingStore(RetryingStore(LocalStore(tmp_path)), log=True)
    store.put("a", b"1")
    copy = pickle.loads(pickle.dumps(store))
    assert copy.get("a") == b"1"
    assert copy.snapshot() == StoreCounts(get=1, bytes_in=1)
    assert copy.log == [("get", "a")]


# --- retries ----------------------------------------------------------------------------------------------------------


def retrying(store: FaultStore, waits: list[float], attempts: int = 5) -> RetryingStore:
    return RetryingStore(store, attempts=attempts, base_s=1.0, cap_s=3.0, sleep=waits.append, rng=random.Random(7))


@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.LOST_RESPONSE, Fault.CONFLICT_409, Fault.UNAVAILABLE_503])
@pytest.mark.parametrize("operation", ["get", "put", "list", "delete", "stat", "now_ms"])
def test_idempotent_requests_are_retried(operation: str, fault: Fault) -> None:
    """OBJ-04: 409, 503 and lost answers are passing troubles."""
    faulty = FaultStore(MemoryStore())
    faulty.put("a", b"1")
    faulty.plan = on(fault, operation, times=4)
    waits: list[float] = []
    store = retrying(faulty, waits)
    {
        "get": lambda: store.get("a"),
        "put": lambda: store.put("a", b"2"),
        "list": lambda: store.list(""),
        "delete": lambda: store.delete(["a"]),
        "stat": lambda: store.stat("a"),
        "now_ms": store.now_ms,
    }[operation]()
    assert len(waits) == 4
    assert [request.operation for request in faulty.requests[1:]] == [operation] * 5


def test_retries_are_bounded_and_raise_the_last_error() -> None:
    faulty = FaultStore(MemoryStore(), on(Fault.UNAVAILABLE_503, "get", times=None))
    waits: list[float] = []
    with pytest.raises(StorageError, match="503"):
        retrying(faulty, waits, attempts=3).get("a")
    assert len(faulty.requests) == 3
    assert len(waits) == 2


def test_backoff_grows_is_capped_and_jittered() -> None:
    runs: list[list[float]] = []
    for seed in range(50):
        waits: list[float] = []
        faulty = FaultStore(MemoryStore(), on(Fault.UNAVAILABLE_503, times=None))
        store = RetryingStore(faulty, attempts=5, base_s=1.0, cap_s=3.0, sleep=waits.append, rng=random.Random(seed))
        with pytest.raises(StorageError):
            store.get("a")
        runs.append(waits)
    for position, limit in enumerate([1.0, 2.0, 3.0, 3.0]):
        drawn = [waits[position] for waits in runs]
        assert all(0.0 <= wait <= limit for wait in drawn)
        assert max(drawn) > 0.9 * limit
        assert min(drawn) < 0.1 * limit


def test_a_create_is_never_repeated() -> None:
    """OBJ-02: only the commit loop may find out what became of it."""
    faulty = FaultStore(MemoryStore(), on(Fault.LOST_RESPONSE, "put_if_absent"))
    waits: list[float] = []
    with pytest.raises(UnknownOutcomeError):
        retrying(faulty, waits).put_if_absent("a", b"1")
    assert waits == []
    assert len(faulty.requests) == 1


def test_non_retriable_errors_are_not_retried() -> None:
    faulty = FaultStore(MemoryStore())
    waits: list[float] = []
    store = retrying(faulty, waits)
    with pytest.raises(ObjectNotFoundError):
        store.get("missing")
    with pytest.raises(StorageRefusedError):
        store.put("../up", b"1")
    assert waits == []


# --- memory -----------------------------------------------------------------------------------------------------------


def test_a_named_store_is_shared_and_can_be_forgotten() -> None:
    name = "test-named-store"
    MemoryStore.named(name).put("a", b"1")
    assert MemoryStore.named(name).get("a") == b"1"
    assert pickle.loads(pickle.dumps(MemoryStore.named(name))) is MemoryStore.named(name)
    MemoryStore.forget(name)
    assert MemoryStore.named(name).list("") == []
    MemoryStore.forget(name)


def test_a_store_without_a_name_does_not_pickle() -> None:
    with pytest.raises(StorageRefusedError, match="memory://name"):
        pickle.dumps(MemoryStore())


def test_memory_takes_its_time_from_the_clock() -> None:
    clock = ManualClock(1000)
    store = MemoryStore(clock=clock)
    store.put("a", b"1")
    clock.advance(500)
    assert store.now_ms() == 1500
    assert store.stat("a").modified_ms == 1000


def in_a_fork(call: object) -> int:
    """The exit code of a forked child that runs the call: 0 if it returns, 3 if it was refused, 1 otherwise."""
    assert callable(call)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            call()
            code = 0
        except StorageRefusedError:
            code = 3
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_memory_is_refused_in_a_forked_child() -> None:
    """OBJ-18: the child would write to a copy that no other process sees."""
    store = MemoryStore("forked")
    store.put("a", b"1")
    pickled = pickle.dumps(store)
    assert in_a_fork(lambda: store.put("b", b"1")) == 3
    assert in_a_fork(lambda: store.get("a")) == 3
    assert in_a_fork(lambda: store.list("")) == 3
    assert in_a_fork(lambda: pickle.loads(pickled)) == 3
    MemoryStore.forget("forked")


def test_a_local_store_works_in_a_forked_child(tmp_path: Path) -> None:
    """OBJ-18."""
    store = CountingStore(LocalStore(tmp_path))
    store.put("a", b"1")
    assert in_a_fork(lambda: store.put("b", store.get("a"))) == 0
    assert store.get("b") == b"1"


def test_lock_held_at_a_fork_is_unlocked_in_the_child() -> None:
    """OBJ-18."""
    lock = ForkLock()
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with lock.own:
            held.set()
            release.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()

    def take() -> None:
        with lock.own:
            pass

    assert in_a_fork(take) == 0
    release.set()
    holder.join()
    with pickle.loads(pickle.dumps(lock)).own:
        pass


def test_wrapper_that_passes_on_all_attributes_is_not_looked_through() -> None:
    """It may do anything with a request, such as inject a fault, whatever it says of the store that it wraps."""

    class Forwards:
        def __init__(self, inner: object) -> None:
            self.inner = inner

        def __getattr__(self, name: str) -> object:
            return getattr(self.inner, name)

    memory = MemoryStore()
    wrapped = cast("ObjectStore", Forwards(CountingStore(memory)))
    assert unwrapped(CountingStore(memory)) is memory
    assert unwrapped(wrapped) is wrapped


def test_copies_of_a_store_under_one_url_are_in_different_places(tmp_path: Path) -> None:
    """Processes that share entries of a chain must use the same storage."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    places = {name: place_of(CountingStore(LocalStore(tmp_path / name))) for name in ("a", "b", "link")}
    assert places["a"] == places["link"] != places["b"]
    options = [{"endpoint_url": f"http://127.0.0.1:{port}", "key": "k", "secret": "s"} for port in (1, 2)]
    one, other = (S3Store("bucket", "store", storage_options=each) for each in options)
    assert one.url == other.url
    assert place_of(one) != place_of(other)
    assert place_of(MemoryStore()) == "memory"
