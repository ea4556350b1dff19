"""Seeds of the world of gateways: their groups and transactions, with clients that go from one to the other."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.harness.simulation.ranges import Result, one
from tests.harness.simulation.settings import CLIENTS, NODES, Settings, of_gateways
from tests.harness.simulation.shrink import shrink
from tests.harness.simulation.simulation import simulate
from tests.mutants.gateways import GATEWAYS

#: The first seeds are part of ``make check``.
CHECKED, MANY = 6, 30


def _run(first: int, limit: int) -> list[Result]:
    return [one(seed, None, gateways=True) for seed in range(first, limit)]


def _anomalies(results: list[Result]) -> list[str]:
    return [f"seed {result.seed}: {anomaly}" for result in results for anomaly in result.anomalies]


@pytest.mark.slow
def test_a_few_seeds_show_no_anomaly() -> None:
    """OFF-06, OFF-07, FEN-01: what gateways tell their clients is in the chain."""
    assert _anomalies(_run(0, CHECKED)) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_seeds_show_no_anomaly() -> None:
    """The same, and requests were lost, given up and late on the way, and gateways stood still and died."""
    results = _run(CHECKED, CHECKED + MANY)
    assert _anomalies(results) == []
    for mishap in ("LOST", "UNANSWERED", "GIVEN_UP", "LATE", "pause", "crash"):
        assert sum(result.mishaps.get(mishap, 0) for result in results) > MANY / 5, mishap
    for outcome in ("ok", "fail", "info"):
        assert sum(result.operations.get(f"txn {outcome}", 0) for result in results) > 0, outcome


def test_each_client_is_in_some_seeds() -> None:
    seeds = [of_gateways(seed) for seed in range(100)]
    assert all(settings.actors[: len(NODES)] == NODES for settings in seeds)
    assert {actor for settings in seeds for actor in settings.actors} == {*NODES, *CLIENTS}


@pytest.mark.slow
def test_a_seed_is_the_same_run_in_another_process() -> None:
    """CFG-03: neither hashes nor the order in which an event loop has made its tasks make a difference."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        elsewhere = pool.submit(_digests).result()
    assert _digests() == elsewhere == _digests()


@pytest.mark.slow
def test_a_failure_shrinks() -> None:
    """A fault that two gateways and a member show needs no other actors."""
    mutant = next(each for each in GATEWAYS if each.name.startswith("an assignment is answered before"))
    with mutant.alive():
        run = shrink(_with_anomalies())
    assert run.anomalies
    assert len(run.settings.actors) <= len(NODES) + 1


def _with_anomalies() -> Settings:
    """The first of the seeds with faults, and with groups of several members, whose run has anomalies."""
    with_groups = (
        settings
        for settings in map(of_gateways, range(50))
        if settings.mishaps and sum(actor.startswith("classic:") for actor in settings.actors) > 1
    )
    return next(settings for settings in with_groups if simulate(settings).anomalies)


def _digests() -> list[str]:
    return [simulate(of_gateways(seed)).digest for seed in (3, 11, 15)]
