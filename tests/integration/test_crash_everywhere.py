"""A crash, or a fault, at every single storage request of every operation (END-01, OBJ-02, OBJ-06, API-08)."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from tests.harness.executors import InlineExecutor, never
from tests.helpers.job import Ledger, check_result, run_job
from tests.helpers.keys import FixedRuntime
from txnstore.runtime import Runtime
from txnstore.storage.memory import MemoryStore
from txnstore.storage.retry import RetryingStore
from txnstore.testing import Fault, FaultStore, ManualClock, SimulatedCrash, crash_at, script, seeded
from txnstore.testing.faults import Request

READS, CREATES = {"get", "list", "stat", "now_ms"}, {"put_if_absent"}


def _runtime(clock: ManualClock, seed: int = 0) -> Runtime:
    return FixedRuntime(clock, lambda _: None, random.Random(seed), InlineExecutor, InlineExecutor, spawn=never)


def _retrying(objects: FaultStore) -> RetryingStore:
    return RetryingStore(objects, sleep=lambda _: None, rng=random.Random(0))


def _requests_of_the_job(chains: int) -> Sequence[Request]:
    """The requests that the job makes when nothing goes wrong; the ids of its objects differ from run to run."""
    clock = ManualClock()
    faults = FaultStore(MemoryStore(clock=clock))
    ledger = Ledger()
    run_job(_retrying(faults), _runtime(clock), ledger, chains)
    check_result(faults.inner, _runtime(clock), ledger, finished=True)
    return faults.requests


@pytest.mark.parametrize("chains", [1, 3])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_any_request_loses_nothing_and_doubles_nothing(*, after: bool, chains: int) -> None:
    """REC-12: kill the job at each of its requests in turn; verify and read the store, start the job again, and verify.

    A crash after a read leaves what one before it leaves: that is shown once.
    """
    crashes: Counter[str] = Counter()
    for request in _requests_of_the_job(chains):
        if after and request.operation in READS:
            continue
        n, clock = request.n, ManualClock()
        inner, ledger = MemoryStore(clock=clock), Ledger()
        faults = FaultStore(inner, crash_at(n, after=after))
        try:
            run_job(_retrying(faults), _runtime(clock, n), ledger, chains)
        except SimulatedCrash:
            crashes[request.operation] += 1
        assert faults.requests[n - 1].operation == request.operation
        if _exists(inner):
            check_result(inner, _runtime(clock, -n), ledger, finished=False)
        run_job(inner, _runtime(clock, 1000 + n), ledger, chains)
        check_result(inner, _runtime(clock, -n), ledger, finished=True)
    assert crashes["put_if_absent"] > 20
    assert crashes["put"] > 5
    assert (crashes["get"] == 0) is after


_FAULTS = (
    Fault.LOST_RESPONSE, Fault.LATE, Fault.CONFLICT_409, Fault.EXISTS_412, Fault.UNAVAILABLE_503, Fault.ERROR_BEFORE,
    Fault.UNSYNCED,
)  # fmt: skip


@pytest.mark.parametrize(
    ("fault", "chains"),
    [*((fault, 1) for fault in _FAULTS), (Fault.LOST_RESPONSE, 3), (Fault.LATE, 3)],
    ids=lambda value: getattr(value, "value", value),
)
def test_a_fault_at_any_request_is_survived_without_a_restart(fault: Fault, chains: int) -> None:
    """OBJ-15: each request fails once; a late duplicate arrives when everything has ended, and then the power fails.

    A read fails alike with all faults but one, which does nothing to it: it has the first only.
    """
    for request in _requests_of_the_job(chains):
        if not _applies(fault, request):
            continue
        n, clock = request.n, ManualClock()
        inner, ledger = MemoryStore(clock=clock), Ledger()
        faults = FaultStore(inner, script({n: fault}), sleep=lambda _: None)
        run_job(_retrying(faults), _runtime(clock, n), ledger, chains)
        assert faults.requests[n - 1].operation == request.operation
        faults.release()
        faults.power_loss()
        check_result(inner, _runtime(clock, -n), ledger, finished=True)


def _applies(fault: Fault, request: Request) -> bool:
    if fault is Fault.EXISTS_412:
        return request.operation in CREATES
    return request.operation not in READS or fault is _FAULTS[0]


@pytest.mark.parametrize("chains", [1, 3])
@pytest.mark.parametrize("seed", range(20))
def test_many_faults_at_once_are_survived(seed: int, chains: int) -> None:
    """A quarter of all writes fails one way or another; the job may have to be started again."""
    clock = ManualClock()
    inner, ledger = MemoryStore(clock=clock), Ledger()
    faults = FaultStore(inner, seeded(seed, 0.25, operations={"put_if_absent", "put"}), sleep=lambda _: None)
    run_job(_retrying(faults), _runtime(clock, seed), ledger, chains)
    faults.release()
    check_result(inner, _runtime(clock, -seed), ledger, finished=True)


def _exists(objects: MemoryStore) -> bool:
    return any(item.key == "store.json" for item in objects.list(""))
