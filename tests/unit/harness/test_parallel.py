"""Which tests share a process."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.parallel import group_of

ROOT = Path(__file__).parents[3]


def test_the_tests_of_spark_share_one_session() -> None:
    files = [path.relative_to(ROOT) for path in ROOT.glob("tests/integration/spark/test_*.py")]
    assert len(files) > 10
    assert len({group_of(f"{file}::test_{number}") for number, file in enumerate(files)}) == 1


def test_short_tests_are_grouped_by_file_and_long_ones_are_alone() -> None:
    assert group_of("tests/unit/a.py::test_1") == group_of("tests/unit/a.py::test_2[x]") == "tests/unit/a.py"
    assert group_of("tests/integration/test_a.py::test_1") == "tests/integration/test_a.py::test_1"
