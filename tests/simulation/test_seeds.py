"""Seeds without an anomaly: all their interleavings and faults (conformance, chapter 26; OBJ-15)."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import pytest

from txnstore.testing.simulation import settings_of, simulate
from txnstore.testing.simulation.ranges import Result, one

FEW, MANY = 24, 1000


def _anomalies(results: list[Result]) -> list[str]:
    return [f"seed {result.seed}: {anomaly}" for result in results for anomaly in result.anomalies]


def test_a_few_seeds_show_no_anomaly() -> None:
    """BUG-17, JEP-01…23: what clients saw is what happened."""
    assert _anomalies([one(seed, None) for seed in range(FEW)]) == []


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_thousand_seeds_show_no_anomaly() -> None:
    """The same, and all that can go wrong has gone wrong on the way."""
    with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("spawn")) as pool:
        results = list(pool.map(partial(one, chains=None), range(FEW, FEW + MANY), chunksize=20))
    assert _anomalies(results) == []
    assert sum(result.operations.get("txn ok", 0) for result in results) > MANY
    assert sum(result.operations.get("txn info", 0) for result in results) > MANY / 20
    for mishap in ("error", "lost", "late", "twice", "409", "412", "503", "slow", "outage", "pause", "crash"):
        assert sum(result.mishaps.get(mishap, 0) for result in results) > MANY / 5, mishap


@pytest.mark.parametrize("seed", [3, 12])
def test_a_seed_is_one_run(seed: int) -> None:
    """CFG-03: every duration is virtual: the same requests at the same times, with the same answers, each time."""
    first, second = simulate(settings_of(seed)), simulate(settings_of(seed))
    assert first.trace == second.trace
    assert first.history == second.history
    assert first.digest == second.digest


def test_a_seed_is_the_same_run_in_another_process() -> None:
    """Nothing depends on the hashes of strings, which differ from process to process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        elsewhere = pool.submit(_digest, 7).result()
    assert _digest(7) == elsewhere


def _digest(seed: int) -> str:
    return simulate(settings_of(seed)).digest
