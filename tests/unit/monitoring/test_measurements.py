"""Durations in buckets, counts of requests, failures and retries: with a manual clock, so every number is exact."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tests.helpers.shell import runtime
from txnstore.errors import ObjectNotFoundError, StorageError
from txnstore.metrics import BOUNDS_MS, Histogram
from txnstore.runtime import Measurements
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.storage.retry import RetryingStore
from txnstore.store import create_on
from txnstore.testing import Fault, FaultStore, ManualClock, on


@dataclass
class SlowStore(MemoryStore):
    """A store in memory whose requests take ``duration_ms`` ms of a manual clock."""

    clock: ManualClock
    duration_ms: int = 30

    def __post_init__(self) -> None:
        super().__init__()

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        self.clock.advance(self.duration_ms)
        return super().get(key, start, end)

    def put(self, key: str, data: bytes) -> None:
        self.clock.advance(self.duration_ms)
        super().put(key, data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        self.clock.advance(self.duration_ms)
        return super().put_if_absent(key, data)


def buckets(histogram: Histogram) -> dict[float, int]:
    """The buckets that are not empty, by upper bound."""
    bounds = (*map(float, histogram.bounds_ms), float("inf"))
    return {bound: count for bound, count in zip(bounds, histogram.counts, strict=True) if count}


def test_durations_fall_into_buckets_with_inclusive_bounds() -> None:
    clock = ManualClock(0)
    measured = Measurements(clock)
    for duration_ms in (0, 1, 2, 3, 60_000, 60_001):
        began = clock()
        clock.advance(duration_ms)
        measured.add("get", began)
    (histogram,) = measured.durations().values()
    assert buckets(histogram) == {1.0: 2, 2.0: 1, 5.0: 1, 60_000.0: 1, float("inf"): 1}
    assert (histogram.count, histogram.total_ms) == (6, 120_007)


def test_pauses_do_not_count_and_a_clock_that_is_set_back_counts_as_zero() -> None:
    clock = ManualClock(1_000)
    measured = Measurements(clock)
    clock.advance(700)
    measured.add("poll", 1_000, paused_s=0.5)
    measured.add("poll", 5_000)
    assert measured.durations()["poll"].total_ms == 200


def test_quantile_is_the_bound_of_a_bucket() -> None:
    counts = [0] * (len(BOUNDS_MS) + 1)
    counts[0], counts[4], counts[-1] = 98, 1, 1
    histogram = Histogram(counts=tuple(counts))
    assert [histogram.quantile_ms(part) for part in (0, 0.5, 0.98, 0.99, 1)] == [1, 1, 1, 20, float("inf")]
    assert Histogram().quantile_ms(0.5) == 0


def test_measurements_of_many_threads_are_all_counted() -> None:
    measured = Measurements(ManualClock())

    def work(_: int) -> None:
        for _ in range(1_000):
            measured.add("get", measured.clock())

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert measured.durations()["get"].count == 8_000


def test_measuring_while_the_lock_is_held_neither_waits_nor_fails() -> None:
    """A signal handler may interrupt the call that sorts."""
    measured = Measurements(ManualClock())
    with measured._lock.own:
        for _ in range(1_000):
            measured.add("get", measured.clock())
        assert measured.durations() == {}
    assert measured.durations()["get"].count == 1_000


def test_the_listener_gets_each_duration() -> None:
    clock = ManualClock(0)
    measured = Measurements(clock)
    durations: list[tuple[str, int]] = []
    measured.listener = lambda kind, duration_ms: durations.append((kind, duration_ms))
    measured.add("get", clock.advance(-7))
    measured.add("put", clock.advance(-3) - 3)
    assert durations == [("get", 0), ("put", 3)]


def test_requests_are_measured_by_kind_also_failed_ones() -> None:
    clock = ManualClock()
    faults = FaultStore(SlowStore(clock), on(Fault.ERROR_BEFORE, "put"))
    objects = CountingStore(faults, measurements=Measurements(clock))
    with pytest.raises(StorageError):
        objects.put("a", b"1")
    objects.put("a", b"1")
    objects.put_if_absent("b", b"1")
    with pytest.raises(ObjectNotFoundError):
        objects.get("missing")
    assert objects.snapshot().failed == 1
    totals = {
        kind: (histogram.count, histogram.total_ms) for kind, histogram in objects.measurements.durations().items()
    }
    assert totals == {"get": (1, 30), "put": (2, 30), "put_if_absent": (1, 30)}


@pytest.mark.usefixtures("own_objects")
def test_commits_and_polls_are_measured() -> None:
    clock = ManualClock()
    with create_on(SlowStore(clock), runtime=runtime(clock)) as store:
        before = store.metrics().durations["commit"].count if "commit" in store.metrics().durations else 0
        store.create_topic("t")
        commits = store.metrics().durations["commit"]
        assert (commits.count - before, commits.total_ms) == (1, 30)
        with store.producer() as producer:
            producer.send("t", b"v")
            producer.flush()
        with store.consumer(["t"]) as consumer:
            assert len(consumer.poll()) == 1
            assert consumer.poll() == []
        polls = store.metrics().durations["poll"]
        assert (polls.count, polls.total_ms) == (2, 90)  # Head and segment; head.


@pytest.mark.usefixtures("own_objects")
def test_retries_inside_the_storage_of_uploads_and_of_creates_are_counted() -> None:
    clock = ManualClock()
    faults = FaultStore(MemoryStore())
    objects = RetryingStore(faults, sleep=clock.sleep)
    with create_on(objects, runtime=runtime(clock)) as store:
        store.create_topic("t")
        producer = store.producer("p")
        assert store.metrics().retries == 0
        for operation, failures in (("put", 0), ("put_if_absent", 1)):
            before = store.metrics()
            faults.plan = on(Fault.ERROR_BEFORE, operation)
            with producer.transaction() as txn:
                txn.send("t", b"v")
            after = store.metrics()
            assert (after.retries - before.retries, after.failures - before.failures) == (1, failures)


@pytest.mark.usefixtures("own_objects")
def test_repeated_uploads_are_counted() -> None:
    clock = ManualClock()
    faults = FaultStore(MemoryStore())
    with create_on(faults, runtime=runtime(clock)) as store:
        store.create_topic("t")
        with store.producer() as producer:
            faults.plan = on(Fault.UNAVAILABLE_503, "put", times=3)
            producer.send("t", b"v")
            producer.flush()
        assert (store.metrics().retries, store.metrics().failures) == (3, 3)


def test_counting_from_several_threads_leaves_no_measurement_behind() -> None:
    objects = CountingStore(MemoryStore())
    threads = [threading.Thread(target=lambda: [objects.now_ms() for _ in range(300)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert objects.measurements.durations()["now_ms"].count == objects.snapshot().now_ms == 1_200
