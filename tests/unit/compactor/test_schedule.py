"""Which kind of maintenance is due when."""

from __future__ import annotations

import random

import pytest

from txnstore.compactor.maintain.schedule import EVERY_MS, Schedule
from txnstore.metrics import MAINTENANCE_KINDS

HOUR_MS = 3_600_000


def test_every_kind_has_an_interval_and_its_place() -> None:
    assert tuple(EVERY_MS) == MAINTENANCE_KINDS
    assert Schedule(EVERY_MS, None, 7).due(7) == [*MAINTENANCE_KINDS]


def test_a_kind_is_due_after_its_interval() -> None:
    schedule = Schedule({"retain": 30_000, "vacuum": 100_000}, None, 0)
    schedule.done("retain", 1_000)
    schedule.done("vacuum", 1_000)
    assert (schedule.due(30_999), schedule.wait(1_000)) == ([], 30_000)
    assert (schedule.due(31_000), schedule.wait(40_000)) == (["retain"], 0)
    schedule.done("retain", 31_000)
    schedule.done("vacuum", 31_000, again_ms=5_000)
    assert schedule.wait(31_000) == 5_000


def pauses(every_ms: int, failures: int) -> list[int]:
    schedule = Schedule({"kind": every_ms}, None, 0)
    waits = []
    for _ in range(failures):
        schedule.done("kind", 0, failed=True)
        waits.append(schedule.wait(0) // 1000)
    return waits


def test_the_pause_after_a_failure_doubles_up_to_the_interval() -> None:
    assert pauses(30_000, 6) == [30, 60, 120, 240, 300, 300]
    assert pauses(24 * HOUR_MS, 14) == [30 * 2**n for n in range(12)] + [86_400, 86_400]
    schedule = Schedule({"kind": 60_000}, None, 0)
    schedule.done("kind", 0, failed=True)
    schedule.done("kind", 0, failed=True)
    schedule.done("kind", 0)
    schedule.done("kind", 0, failed=True)
    assert schedule.wait(0) == 30_000


@pytest.mark.parametrize("seed", range(20))
def test_no_hour_has_more_requests_than_the_budget_and_one_task(seed: int) -> None:
    rng = random.Random(f"budget/{seed}")
    budget, most = rng.choice((1, 10, 500, 100_000)), rng.choice((1, 30, 5_000))
    schedule, now, spent = Schedule({"retain": rng.choice((1_000, 30_000))}, budget, 0), 0, list[tuple[int, int]]()
    while now < 12 * HOUR_MS and len(spent) < 20_000:
        for kind in schedule.due(now):
            requests = rng.randint(0, most)
            schedule.spend(requests, now)
            spent.append((now, requests))
            schedule.done(kind, now)
        wait = schedule.wait(now)
        assert wait > 0
        now += wait
    in_hour = first = 0
    for now, requests in spent:
        in_hour += requests
        while spent[first][0] <= now - HOUR_MS:
            in_hour -= spent[first][1]
            first += 1
        assert in_hour <= budget + most
    if most >= 30 and budget <= 500:
        assert sum(requests for _, requests in spent) >= budget * 8  # And it is used.


def test_a_budget_that_is_used_up_lets_nothing_begin() -> None:
    schedule = Schedule({"retain": 30_000}, 1_200, 0)
    schedule.spend(100, 0)  # A twelfth of the budget.
    assert schedule.due(0) == []
    assert 0 < schedule.wait(0) < 10_000
    assert schedule.due(schedule.wait(0)) == ["retain"]
    schedule.spend(1_100, 5_000)
    assert schedule.due(HOUR_MS // 2) == []
    assert schedule.due(HOUR_MS + HOUR_MS // 10) == ["retain"]
