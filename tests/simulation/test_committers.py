"""Seeds of processes that share entries: through committers that die, stand still and cannot be reached."""

from __future__ import annotations

import pytest

from tests.harness.simulation import simulate
from tests.harness.simulation.ranges import Result, one
from tests.harness.simulation.settings import drawn

#: The first seeds are part of ``make check``.
CHECKED, MANY = 3, 24


def _run(first: int, limit: int) -> list[Result]:
    return [one(seed, None, committers=True) for seed in range(first, limit)]


def _anomalies(results: list[Result]) -> list[str]:
    return [f"seed {result.seed}: {anomaly}" for result in results for anomaly in result.anomalies]


@pytest.mark.slow
def test_a_few_seeds_show_no_anomaly() -> None:
    results = _run(0, CHECKED)
    assert _anomalies(results) == []
    assert sum(result.carried for result in results) > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_seeds_show_no_anomaly() -> None:
    """The same, and entries carried commands on the way, while processes died and requests failed."""
    results = _run(CHECKED, CHECKED + MANY)
    assert _anomalies(results) == []
    assert sum(result.carried for result in results) > MANY
    for mishap in ("error", "lost", "late", "pause", "crash"):
        assert sum(result.mishaps.get(mishap, 0) for result in results) > MANY / 10, mishap


@pytest.mark.slow
def test_a_seed_is_one_run() -> None:
    """CFG-03: messages arrive at the same virtual times, too."""
    settings = drawn(5, committers=True)
    assert simulate(settings).digest == simulate(settings).digest
