"""Seeds with publishers of tables, and engines that read them."""

from __future__ import annotations

import pytest

from tests.harness.simulation import simulation
from tests.harness.simulation.ranges import quiet
from tests.harness.simulation.settings import PUBLISHERS, Settings, drawn, settings_of
from tests.harness.simulation.world import World

#: Seeds that showed offsets of aborted records and a hint that was set back, and one whose vacuums delete much.
_FOUND = (6, 8, 11)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [pytest.param(seed, marks=pytest.mark.slow) if seed > 6 else seed for seed in _FOUND])
def test_tables_show_what_the_entries_say(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    worlds: list[World] = []

    def world(settings: Settings) -> World:
        worlds.append(World(settings))
        return worlds[-1]

    monkeypatch.setattr(simulation, "World", world)
    with quiet():
        run = simulation.simulate(drawn(seed, tables=True))
    assert run.anomalies == ()
    assert worlds[0].cuts
    assert any(look.rows for look in worlds[0].looks)


def test_a_quarter_of_the_seeds_has_publishers() -> None:
    share = sum(set(PUBLISHERS) <= set(settings_of(seed).actors) for seed in range(400)) / 400
    assert 0.2 < share < 0.3
