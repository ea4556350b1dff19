"""The table of Kafka's own tests in ``docs/kafka-differences.md``: why cases do not pass."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path

from tests.compat.kafka_clients.__main__ import SHORT
from tests.compat.kafka_clients.outcomes import EVERY, read_expected

_PAGE = (Path(__file__).parents[3] / "docs" / "kafka-differences.md").read_text(encoding="utf-8")
_SECTION = _PAGE.split("\n### Kafka's own tests\n")[1].split("\n## ")[0]
_EXPECTED = read_expected()


def _rows() -> dict[str, int]:
    """How many tests each reason has."""
    rows = re.findall(r"^\| ([^|\s][^|]*) \| (\d+) \|", _SECTION, re.MULTILINE)
    return {reason: int(number) for reason, number in rows}


def test_each_case_that_does_not_pass_has_a_reason_on_the_page() -> None:
    """The reason of a case ends at a colon; what follows says what this case needs."""
    reasons: dict[str, set[str]] = defaultdict(set)
    for case, result in _EXPECTED.items():
        if result.outcome != "passed":
            method = "all" if case.name == EVERY else case.method
            reasons[result.why.partition(":")[0]].add(f"{case.of}.{method}")
    assert len(reasons) > 5
    assert _rows() == {reason: len(tests) for reason, tests in reasons.items()}


def test_the_page_counts_the_cases_that_pass() -> None:
    cases = [result.outcome for case, result in _EXPECTED.items() if case.name != EVERY]
    (numbers,) = re.findall(r"Of (\d+) cases (\d+) pass, (\d+) fail, and (\d+) are left out", _SECTION)
    counts = (len(cases), cases.count("passed"), cases.count("failed"), cases.count("left out"))
    assert tuple(map(int, numbers)) == counts
    assert counts[1] >= 200


def test_the_short_run_has_cases_that_pass() -> None:
    passing = {(case.of, case.method) for case, result in _EXPECTED.items() if result.outcome == "passed"}
    classes, methods = {of for of, _ in passing}, {f"{of}.{method}" for of, method in passing}
    assert [name for name in SHORT if name not in classes | methods] == []
