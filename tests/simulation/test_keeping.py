"""Seeds with power cuts, and actors that keep answers and copies outside of the chains."""

from __future__ import annotations

import pytest

from tests.harness.simulation.ranges import one


@pytest.mark.slow
def test_what_was_told_outlasts_power_cuts() -> None:
    results = [one(seed, None, cuts=True) for seed in range(12)]
    assert [(result.seed, result.anomalies) for result in results if result.anomalies] == []
    assert sum(result.mishaps.get("power lost", 0) for result in results) > 12
