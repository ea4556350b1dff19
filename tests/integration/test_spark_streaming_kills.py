"""Streaming pipelines that are killed: ``make streaming-torture`` does the same for longer."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from tests.harness.streaming.driver import Kind
from tests.harness.streaming.run import Settings, torture

pytestmark = [pytest.mark.spark, pytest.mark.slow]


@pytest.mark.parametrize("kind", get_args(Kind))
def test_a_killed_pipeline_loses_and_repeats_nothing(tmp_path: Path, kind: Kind) -> None:
    """OFF-04: SIGKILL of the driver, its JVM or Python processes; then each record is in each output once."""
    report = torture(Settings(tmp_path, kind, kills=2, records=600, seed=1))
    assert report.ok, report.lines()
    assert report.kills.total() == 2
