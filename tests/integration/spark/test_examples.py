"""The examples that need Spark and are no part of another subject's tests."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_the_stateful_example(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """State is kept over restarts, a late reading is dropped, and each alarm is in the topic once."""
    script = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "spark_stateful.py"))
    script["run"](spark, str(tmp_path / "store"), str(tmp_path / "checkpoint"))
    assert capsys.readouterr().out.splitlines() == [
        "run 1: 0 late; silent, with readings and last minute: []",
        "run 2: 0 late; silent, with readings and last minute: [('b', 2, 3)]",
        "run 3: 1 late; silent, with readings and last minute: [('a', 3, 5), ('b', 2, 3), ('c', 2, 11)]",
    ]
