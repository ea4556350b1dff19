"""One object of a store is damaged; no reader answers wrongly in silence; see ``tests.harness.corruption``."""

from __future__ import annotations

import pytest

from tests.harness.corruption import Case, cases, run_case

SHORT = 12  # The rest takes minutes.
CASES = [
    case if number < SHORT or (case.parts and case.kind == "segment") else pytest.param(case, marks=pytest.mark.slow)
    for number, case in enumerate(cases(72, 0))
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.seed}-{case.effect}-{case.kind}")
def test_damage_is_an_error_that_names_the_object_or_changes_no_answer(case: Case) -> None:
    assert list(map(str, run_case(case))) == []
