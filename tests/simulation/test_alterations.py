"""Seeds in which topics are altered while compactors plan."""

from __future__ import annotations

import pytest

from tests.harness.simulation import simulation
from tests.harness.simulation.ranges import quiet
from tests.harness.simulation.settings import Settings, drawn
from tests.harness.simulation.world import World


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=pytest.mark.slow) if seed > 7 else seed for seed in (5, 7, 8)]
)
def test_nothing_goes_by_a_plan_of_an_earlier_version(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    worlds: list[World] = []

    def world(settings: Settings) -> World:
        worlds.append(World(settings))
        return worlds[-1]

    monkeypatch.setattr(simulation, "World", world)
    with quiet():
        run = simulation.simulate(drawn(seed, alterations=True))
    assert run.anomalies == ()
    assert worlds[0].acknowledged
    assert worlds[0].governed
