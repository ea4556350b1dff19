"""A short torture run of gateways: kills, pauses and cut connections under Kafka's clients, for half a minute."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.gateway.run import Settings, torture

#: What a run must contain, so that it shows something.
LEAST = {"txn": 40, "init": 4, "assign": 4}
LEAST_FAULTS = 4


@pytest.mark.slow
@pytest.mark.parametrize("chains", [1, 3])
def test_kafka_clients_lose_and_repeat_nothing_when_gateways_die(tmp_path: Path, chains: int) -> None:
    """JEP-25 with Kafka's clients: two jobs copy in a group while gateways, connections and clients end."""
    settings = Settings(
        tmp_path / "run", 10.0, chains=chains, seed=chains, small=True, least=LEAST, least_faults=LEAST_FAULTS
    )
    report = torture(settings)
    assert report.ok, "\n".join(report.lines())
    for name, count in LEAST.items():
        succeeded = sum(found for kind, found in report.operations.items() if kind.startswith(f"{name} ok"))
        assert succeeded >= count, name
    assert sum(report.faults.values()) >= LEAST_FAULTS
