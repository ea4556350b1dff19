"""Seeds without an anomaly: all their interleavings and faults (OBJ-15)."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

from tests.harness.simulation import settings_of, simulate
from tests.harness.simulation.ranges import Result, one
from txnstore.consumer import leases

#: The first seeds are part of ``make check``.
CHECKED, FEW, MANY, AT_ONCE = 6, 24, 25, 25


def _anomalies(results: list[Result]) -> list[str]:
    return [f"seed {result.seed}: {anomaly}" for result in results for anomaly in result.anomalies]


@pytest.mark.slow
@pytest.mark.parametrize(
    "first",
    [first if first < CHECKED else pytest.param(first, marks=pytest.mark.slow) for first in range(0, FEW, 6)],
)
def test_a_few_seeds_show_no_anomaly(first: int) -> None:
    """BUG-17, JEP-01…23: what clients saw is what happened."""
    assert _anomalies([one(seed, None) for seed in range(first, first + 6)]) == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("first", range(FEW, FEW + MANY, AT_ONCE))
def test_many_seeds_show_no_anomaly(first: int) -> None:
    """The same, and every fault has occurred on the way; in several tests, for many processes."""
    results = [one(seed, None) for seed in range(first, first + AT_ONCE)]
    assert _anomalies(results) == []
    assert sum(result.operations.get("txn ok", 0) for result in results) > AT_ONCE
    assert sum(result.operations.get("txn info", 0) for result in results) > AT_ONCE / 20
    for mishap in ("error", "lost", "late", "twice", "409", "412", "503", "slow", "outage", "pause", "crash"):
        assert sum(result.mishaps.get(mishap, 0) for result in results) > AT_ONCE / 5, mishap
    for mishap in ("hidden", "interrupted", "sync", "old", "elsewhere", "object lost", "operated"):
        assert sum(result.mishaps.get(mishap, 0) for result in results) > AT_ONCE / 20, mishap


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 12])
def test_a_seed_is_one_run(seed: int) -> None:
    """CFG-03: every duration is virtual: the same requests at the same times, with the same answers, each time."""
    first, second = simulate(settings_of(seed)), simulate(settings_of(seed))
    assert first.trace == second.trace
    assert first.history == second.history
    assert first.digest == second.digest


@pytest.mark.slow
@pytest.mark.parametrize("seed", [7, 20])
def test_a_seed_is_the_same_run_in_another_process(seed: int) -> None:
    """Nothing depends on the hashes of strings, which differ from process to process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        elsewhere = pool.submit(_digest, seed).result()
    assert _digest(seed) == elsewhere


@pytest.mark.slow
def test_no_process_of_a_run_acts_after_it() -> None:
    """The exit of the interpreter leaves the groups of all consumers, which here exist only in a run."""
    before = set(leases._OPEN)
    simulate(settings_of(307))
    assert set(leases._OPEN) == before


def _digest(seed: int) -> str:
    return simulate(settings_of(seed)).digest
