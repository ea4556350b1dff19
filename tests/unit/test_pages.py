"""The generated pages are those of today's code and tests, and every must item of the conformance list is proven."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.pages import conformance, states
from tests.pages.conformance import Item, Section, Test


def test_every_must_item_has_a_test_or_a_reason() -> None:
    assert conformance.faults(conformance.sections(), conformance.citations()) == []


def test_the_conformance_page_is_up_to_date() -> None:
    made = conformance.page(conformance.sections(), conformance.citations())
    assert conformance.PAGE.read_text(encoding="utf-8") == made, "docs/conformance.md is out of date: run `make docs`"


def test_the_diagram_of_states_is_up_to_date() -> None:
    """STM-02: what the page shows is the table that the core checks with."""
    text = states.PAGE.read_text(encoding="utf-8")
    assert states.with_diagram(text) == text, "docs/protocol.md is out of date: run `make docs`"
    assert "ONGOING --> PREPARE_COMMIT" in text
    assert "EMPTY --> PREPARE_COMMIT" not in text


@pytest.mark.parametrize("page", [conformance.PAGE, conformance.PAGE.with_name("kafka-differences.md"), states.PAGE])
def test_the_links_of_the_pages_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if "://" not in target and not (page.parent / target).exists()] == []


def test_what_counts_as_a_citation() -> None:
    source = '''
"""XYZ-01: a module cites nothing."""

def test_xyz_02_and_xyz_03_by_name(): ...

def test_in_words():
    """XYZ-04, XYZ-05 and the range XYZ-06…09."""
    # XYZ-10: a comment cites nothing.

def no_test():
    """XYZ-11."""

class TestAll:
    """XYZ-12."""
'''
    cited = {name: tests for tests, name in conformance.cited_in(source)}
    assert cited == {
        "XYZ-02": "test_xyz_02_and_xyz_03_by_name",
        "XYZ-03": "test_xyz_02_and_xyz_03_by_name",
        "XYZ-04": "test_in_words",
        "XYZ-05": "test_in_words",
        "XYZ-12": "TestAll",
    }


def test_what_is_wrong_is_told() -> None:
    test = Test("tests/test_x.py", "test_x")
    items = (
        Item("XYZ-01", "must", "unproven"),
        Item("XYZ-02", "must", "pending", pending="later work"),
        Item("XYZ-03", "must", "no more pending", pending="done work"),
        Item("XYZ-04", "should", "needs none"),
        Item("XYZ-05", "must", "not here", applies="it has no meaning here"),
        Item("XYZ-06", "most", "misspelt"),
    )
    found = conformance.faults([Section("XYZ", "x", items)], {"XYZ-03": [test], "XYZ-09": [test], "UTF-16": [test]})
    assert found == [
        "tests/test_x.py::test_x cites XYZ-09, which is not in the list",
        "no test cites XYZ-01: unproven",
        "XYZ-03 has a test, and is not pending any more: run `make docs`",
        "XYZ-06 has the unknown severity 'most'",
    ]


def test_what_is_proven_is_not_pending_any_more() -> None:
    before = '[XYZ]\n01 = { title = "a", pending = "b" }\n02 = { title = "c", pending = "d" }\n'
    after = conformance.without_proven(before, {"XYZ-02": [Test("x", "y")]})
    assert after == '[XYZ]\n01 = { title = "a", pending = "b" }\n02 = { title = "c" }\n'
