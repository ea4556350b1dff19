"""Stores are damaged, or contain what is hostile; no reader answers wrongly, and `recover` keeps its word.

See ``tests.harness.corruption``.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.corruption import Case, cases, run_case
from tests.harness.corruption.damaged import DamagedCase
from tests.harness.corruption.hostile import KINDS, HostileCase

DAMAGED = [case for case in cases(182, 0) if isinstance(case, DamagedCase)]
HOSTILE = [case for case in cases(36, 0) if isinstance(case, HostileCase)]
#: What failed once: readers that did not agree, and raw errors of a checkpoint without the log of a partition.
FOUND = [HostileCase(27, "entry"), HostileCase(36, "checkpoint")]
SHORT = [*DAMAGED[:26], *HOSTILE[:6], *FOUND]  # Each effect twice, all that is hostile; the rest takes minutes.
LONG: list[Any] = [pytest.param(case, marks=pytest.mark.slow) for case in (*DAMAGED[26:], *HOSTILE[6:])]


@pytest.mark.parametrize("case", [*SHORT, *LONG], ids=lambda case: f"{case.seed}-{case}")
def test_case_ends_in_a_right_answer_or_an_error_that_names_an_object(case: Case) -> None:
    assert list(map(str, run_case(case))) == []


def test_short_run_has_all_hostile_kinds() -> None:
    assert {case.kind for case in SHORT if isinstance(case, HostileCase)} == set(KINDS)
