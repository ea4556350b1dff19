"""The store that fails on purpose does what its faults say (OBJ-15)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from txnstore.errors import ObjectNotFoundError, StorageError, UnknownOutcomeError
from txnstore.storage.base import make_durable
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.storage.retry import RetryingStore
from txnstore.testing import (
    PASSING_FAULTS,
    Fault,
    FaultStore,
    ManualClock,
    Plan,
    SimulatedCrash,
    crash_at,
    no_faults,
    on,
    script,
    seeded,
)


def create(fault: Fault) -> tuple[FaultStore, MemoryStore, bool | type[BaseException]]:
    """The store, what is below it, and the outcome of a create under this fault."""
    inner = MemoryStore()
    store = FaultStore(inner, script({1: fault}))
    try:
        return store, inner, store.put_if_absent("a", b"1")
    except BaseException as error:  # noqa: BLE001 - a simulated crash is one
        return store, inner, type(error)


@pytest.mark.parametrize(
    ("fault", "outcome", "applied"),
    [
        (Fault.ERROR_BEFORE, UnknownOutcomeError, False),
        (Fault.LOST_RESPONSE, UnknownOutcomeError, True),
        (Fault.LATE, UnknownOutcomeError, False),
        (Fault.CONFLICT_409, UnknownOutcomeError, False),
        (Fault.UNAVAILABLE_503, UnknownOutcomeError, False),
        (Fault.EXISTS_412, False, True),
        (Fault.UNSYNCED, UnknownOutcomeError, True),
        (Fault.CRASH_BEFORE, SimulatedCrash, False),
        (Fault.CRASH_AFTER, SimulatedCrash, True),
    ],
)
def test_faults_of_a_create(fault: Fault, outcome: bool | type[BaseException], applied: bool) -> None:
    _, inner, result = create(fault)
    assert result is outcome or result == outcome
    assert [info.key for info in inner.list("")] == (["a"] if applied else [])


@pytest.mark.parametrize("fault", [Fault.ERROR_BEFORE, Fault.CONFLICT_409, Fault.UNAVAILABLE_503])
def test_failed_plain_put_is_a_definite_error(fault: Fault) -> None:
    store = FaultStore(MemoryStore(), script({1: fault}))
    with pytest.raises(StorageError) as caught:
        store.put("a", b"1")
    assert type(caught.value) is StorageError
    assert store.list("") == []


@pytest.mark.parametrize(
    "fault", [Fault.ERROR_BEFORE, Fault.LOST_RESPONSE, Fault.LATE, Fault.CONFLICT_409, Fault.UNAVAILABLE_503]
)
def test_a_read_that_fails_is_never_unknown(fault: Fault) -> None:
    store = FaultStore(MemoryStore(), on(fault, times=None))
    for read in (lambda: store.get("a"), lambda: store.list(""), store.now_ms):
        with pytest.raises((StorageError, ObjectNotFoundError)) as caught:
            read()
        assert not isinstance(caught.value, UnknownOutcomeError)
    assert store.release() == 0


def test_a_late_write_arrives_when_it_is_released() -> None:
    """OBJ-03: it may arrive after another attempt, and then it changes nothing; or after nothing, and then it wins."""
    store, inner, _ = create(Fault.LATE)
    assert store.pending == 1
    assert store.put_if_absent("a", b"again") is True
    assert store.release() == 1
    assert inner.get("a") == b"again"

    store, inner, _ = create(Fault.LATE)
    with pytest.raises(ObjectNotFoundError):
        store.get("a")
    assert store.release() == 1
    assert inner.get("a") == b"1"
    assert store.pending == 0


def test_a_late_delete_and_put() -> None:
    inner = MemoryStore()
    inner.put("a", b"1")
    store = FaultStore(inner, script({1: Fault.LATE, 2: Fault.LATE}))
    with pytest.raises(UnknownOutcomeError):
        store.delete(["a"])
    with pytest.raises(UnknownOutcomeError):
        store.put("b", b"2")
    assert [info.key for info in inner.list("")] == ["a"]
    assert store.release() == 2
    assert [info.key for info in inner.list("")] == ["b"]


def test_requests_after_a_crash_raise() -> None:
    inner = MemoryStore()
    store = FaultStore(inner, crash_at(2))
    store.put("a", b"1")
    with pytest.raises(SimulatedCrash):
        store.put("b", b"1")
    assert store.crashed
    for call in (lambda: store.get("a"), lambda: store.put("c", b"1"), lambda: store.list(""), store.now_ms):
        with pytest.raises(SimulatedCrash):
            call()
    assert [info.key for info in inner.list("")] == ["a"]


def test_a_crash_after_the_request() -> None:
    inner = MemoryStore()
    store = FaultStore(inner, crash_at(1, after=True))
    with pytest.raises(SimulatedCrash):
        store.put("a", b"1")
    assert inner.get("a") == b"1"


def test_crash_is_not_an_exception_subclass() -> None:
    assert not issubclass(SimulatedCrash, Exception)


def test_slow_requests_wait_with_the_injected_sleep() -> None:
    clock = ManualClock(0)
    store = FaultStore(MemoryStore(), on(Fault.SLOW, "get"), sleep=clock.sleep, slow_s=2.5)
    store.put("a", b"1")
    assert store.get("a") == b"1"
    assert clock() == 2500


def test_log_records_requests_and_faults() -> None:
    store = FaultStore(MemoryStore(), on(Fault.EXISTS_412, "put_if_absent"))
    store.put("x", b"")
    store.put_if_absent("a", b"")
    store.delete(["a", "x"])
    assert [(r.n, r.operation, r.key, r.fault) for r in store.requests] == [
        (1, "put", "x", None),
        (2, "put_if_absent", "a", Fault.EXISTS_412),
        (3, "delete", "a", None),
    ]


def fates(plan: Plan, requests: int = 400) -> list[Fault | None]:
    return [plan(n, "put_if_absent" if n % 2 else "get", f"key-{n}") for n in range(1, requests + 1)]


def test_a_seeded_plan_can_be_replayed() -> None:
    assert fates(seeded(1, 0.25)) == fates(seeded(1, 0.25))
    assert fates(seeded(1, 0.25)) != fates(seeded(2, 0.25))
    hit = [fault for fault in fates(seeded(1, 0.25)) if fault is not None]
    assert 60 < len(hit) < 140
    assert set(hit) == set(PASSING_FAULTS)
    assert fates(seeded(1, 0.0)) == fates(no_faults)
    only_gets = fates(seeded(1, 1.0, operations={"get"}, faults=[Fault.SLOW]))
    assert only_gets == [None, Fault.SLOW] * 200


def test_a_plan_for_matching_requests() -> None:
    plan = on(Fault.SLOW, "get", key_contains="entries", times=2, skip=1)
    calls = [("get", "entries/1"), ("put", "entries/1"), ("get", "other"), *[("get", f"entries/{n}") for n in range(4)]]
    assert [plan(n, *call) for n, call in enumerate(calls)] == [None, None, None, Fault.SLOW, Fault.SLOW, None, None]


def test_manual_clock_moves_only_through_its_methods() -> None:
    clock = ManualClock(100)
    assert (clock(), clock.advance(50), clock()) == (100, 150, 150)
    clock.set(7)
    clock.sleep(0.0015)
    assert clock() == 9


def test_power_loss_takes_back_what_was_not_flushed() -> None:
    """OBJ-02: as on a disk whose flush failed: visible, then lost; an answered write of the name flushes it."""
    inner = MemoryStore()
    inner.put("replaced", b"before")
    inner.put("deleted", b"before")
    store = FaultStore(inner, script(dict.fromkeys((1, 2, 3, 4), Fault.UNSYNCED)))
    writes: list[Callable[[], object]] = [
        lambda: store.put_if_absent("lost", b"1"),
        lambda: store.put_if_absent("kept", b"1"),
        lambda: store.put("replaced", b"after"),
        lambda: store.delete(["deleted"]),
    ]
    for write in writes:
        with pytest.raises(UnknownOutcomeError):
            write()
    assert [info.key for info in inner.list("")] == ["kept", "lost", "replaced"]
    assert store.put_if_absent("kept", b"1") is False, "an answer that it exists flushes it"
    assert store.unsynced == ["deleted", "lost", "replaced"]
    assert store.power_loss() == 3
    assert {info.key: inner.get(info.key) for info in inner.list("")} == {
        "deleted": b"before", "kept": b"1", "replaced": b"before",
    }  # fmt: skip


def test_sync_flushes_what_is_visible() -> None:
    inner = MemoryStore()
    store = FaultStore(inner, on(Fault.UNSYNCED, "put", times=None))
    for key in ("a", "b"):
        with pytest.raises(UnknownOutcomeError):
            store.put(key, b"1")
    store.plan = on(Fault.UNAVAILABLE_503, "sync")
    make_durable(CountingStore(RetryingStore(store, sleep=lambda _: None)), ["a", "missing"])
    assert [request.operation for request in store.requests] == ["put", "put", "sync", "sync"], "it is repeated"
    store.power_loss()
    assert [info.key for info in inner.list("")] == ["a"]
