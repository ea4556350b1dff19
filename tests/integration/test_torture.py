"""A short torture run: processes of one store, on one machine or three, are killed and paused at random."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.torture.run import Settings, torture

#: What a run must contain, so that it shows something.
LEAST = {"txn": 30} | dict.fromkeys(("delete", "recover", "vacuum", "expire", "checkpoint", "compact", "round"), 1)


@pytest.mark.slow
@pytest.mark.parametrize(("chains", "machines"), [(1, 1), (4, 1), (2, 3)])
def test_jep_25_real_processes_leave_no_anomaly(tmp_path: Path, chains: int, machines: int) -> None:
    """REC-11: a job copies while it and all others are killed; nothing is lost, doubled or out of order."""
    report = torture(
        Settings(
            tmp_path / "run",
            6.0,
            chains=chains,
            machines=machines,
            seed=chains,
            jobs=1,
            consumers=1,
            janitors=1,
            compactors=1,
            least=LEAST,
            least_faults=3,
        )
    )
    assert report.ok, "\n".join(report.lines())
    for name, count in LEAST.items():
        assert report.operations[f"{name} ok"] >= count, name
    assert sum(report.faults.values()) >= 3
