"""Streaming pipelines that are killed: ``make streaming-torture`` does the same for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.streaming.driver import Kind
from tests.harness.streaming.run import Settings, torture

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.mark.parametrize(("kind", "target"), [("sink", "JVM"), ("foreach", "everything"), ("queries", "Python")])
def test_a_killed_pipeline_loses_and_repeats_nothing(tmp_path: Path, kind: Kind, target: str) -> None:
    """OFF-04: SIGKILL of the driver, its JVM or Python processes; then each record is in each output once."""
    report = torture(Settings(tmp_path, kind, kills=1, records=400, targets=(target,)))
    assert report.ok, report.lines()
    assert report.kills == {target: 1}
