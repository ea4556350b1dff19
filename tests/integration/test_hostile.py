"""Hostile entries, checkpoints, names and schemas; every reader answers, or says what is wrong. See the harness."""

from __future__ import annotations

import pytest

from tests.harness.hostile import KINDS, Case, cases, run_case

SHORT = 6  # The rest takes minutes.
CASES = [
    pytest.param(case, marks=pytest.mark.slow) if number >= SHORT else case for number, case in enumerate(cases(36, 0))
]
#: What failed once: readers that did not agree, and raw errors of a checkpoint without the log of a partition.
FOUND = [Case(27, "entry"), Case(36, "checkpoint")]


@pytest.mark.parametrize("case", [*CASES, *FOUND], ids=lambda case: f"{case.seed}-{case.kind}")
def test_hostile_input_is_refused_by_name_or_read_by_all_alike(case: Case) -> None:
    assert list(map(str, run_case(case))) == []


def test_short_run_has_all_kinds() -> None:
    assert {case.kind for case in cases(SHORT, 0)} == set(KINDS)
