"""Streaming pipelines that are killed: ``python -m tests.harness torture-streaming`` does the same for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.streaming.run import Settings, torture

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]


def test_a_killed_pipeline_loses_and_repeats_nothing(tmp_path: Path) -> None:
    """OFF-04: SIGKILL of the driver with its JVM and Python processes; then each record is in each output once."""
    report = torture(Settings(tmp_path, "foreach", kills=1, records=400, targets=("everything",)))
    assert report.ok, report.lines()
    assert report.kills == {"everything": 1}
