"""The comparer lets pass what is on its list, and nothing else."""

from __future__ import annotations

import re

import pytest

from tests.harness.differential.compare import WHITELIST, Allowed, Comparison
from tests.pages import conformance


def test_dif_09_only_listed_differences_are_allowed() -> None:
    """DIF-09: one class of errors, and a difference that only a broker may make."""
    fenced = {"error": "INVALID_PRODUCER_EPOCH"}, {"error": "PRODUCER_FENCED"}
    assert Comparison().step({"op": "raw_append"}, *fenced) == []
    assert len(Comparison().step({"op": "commit"}, *fenced)) == 1
    assert Comparison().step({"op": "commit"}, *reversed(fenced)) == []
    assert len(Comparison().step({"op": "commit"}, {"error": "OUT_OF_ORDER"}, {"error": "PRODUCER_FENCED"})) == 1
    late = {"error": "INVALID_TXN_STATE"}, {"error": "PRODUCER_FENCED"}
    assert Comparison("kafka 4.4.0").step({"op": "commit"}, *late) == []
    assert len(Comparison("kafka 4.4.0").step({"op": "abort"}, *late)) == 1
    assert len(Comparison().step({"op": "commit"}, *late)) == 1


@pytest.mark.parametrize("allowed", WHITELIST, ids=lambda allowed: allowed.item)
def test_dif_09_each_difference_names_its_item(allowed: Allowed) -> None:
    """DIF-09: an item of the conformance list, or a decision on the page of differences."""
    item = allowed.item
    items = {listed.name for section in conformance.sections() for listed in section.items}
    page = (conformance.ROOT / "docs" / "kafka-differences.md").read_text(encoding="utf-8")
    assert item in items or re.search(rf"^\| {item} \|", page, re.MULTILINE)
