"""Objects of a store are damaged; no reader answers wrongly in silence, and `recover` keeps its word.

See ``tests.harness.corruption``.
"""

from __future__ import annotations

import pytest

from tests.harness.corruption import Case, cases, run_case

SHORT = 26  # Each effect twice; the rest takes minutes.
CASES = [
    case if number < SHORT else pytest.param(case, marks=pytest.mark.slow) for number, case in enumerate(cases(182, 0))
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.seed}-{case.name}")
def test_damage_is_named_or_changes_no_answer_and_is_repaired_or_named(case: Case) -> None:
    assert list(map(str, run_case(case))) == []
