"""The generated parts of pages are up to date, links lead to files, and every must item has a test."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.pages import conformance, sizing, states
from tests.pages.conformance import Item, Section, Test

ROOT = Path(__file__).parents[3]
PAGES = [
    *(ROOT / "README.md", ROOT / "CONTRIBUTING.md"),
    *sorted(set((ROOT / "docs").rglob("*.md")) - {conformance.PAGE}),
]


@pytest.mark.slow
def test_every_must_item_has_a_test_or_a_reason() -> None:
    assert conformance.faults(conformance.sections(), conformance.citations()) == []


@pytest.mark.slow
def test_links_of_the_conformance_page_lead_to_files() -> None:
    """The page is generated when the site is built."""
    made = conformance.page(conformance.sections(), conformance.citations())
    targets = set(re.findall(r"\]\(([^)#\s]+)", made))
    assert len(targets) > 50
    assert [target for target in sorted(targets) if not (conformance.PAGE.parent / target).exists()] == []


def test_state_diagram_is_up_to_date() -> None:
    """STM-02: what the page shows is the table that the core checks with."""
    text = states.PAGE.read_text(encoding="utf-8")
    assert states.with_diagram(text) == text, "docs/protocol.md is out of date: run `make docs`"
    assert "ONGOING --> PREPARE_COMMIT" in text
    assert "EMPTY --> PREPARE_COMMIT" not in text


def test_sizing_table_is_up_to_date() -> None:
    text = sizing.PAGE.read_text(encoding="utf-8")
    assert sizing.with_table(text) == text, "docs/howto/sizing.md is out of date: run `make docs`"


def test_dollars_of_the_readme_are_those_of_the_sizing_table() -> None:
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    table = sizing.PAGE.read_text(encoding="utf-8")
    seldom, often = (
        re.search(rf"^\| 10 × 0\.1 MB/s \| {every} s \|.*?(\$\d+)", table, re.MULTILINE) for every in (10, 1)
    )
    assert seldom is not None
    assert often is not None
    assert f"cost {seldom[1]} a month in requests to S3 if each producer commits every 10 s, {often[1]} if" in readme


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_of_pages_resolve(page: Path) -> None:
    """Every relative link leads to a file, and its fragment to a heading of that file."""
    broken = []
    for target, fragment in re.findall(r"\]\(([^)#\s]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
        path = page.parent / target if target else page
        if "://" in target:
            continue
        if not path.exists() or (fragment and fragment not in _anchors(path)):
            broken.append(f"{target}#{fragment}")
    assert broken == []


@cache
def _tests() -> set[str]:
    """The names of all tests."""
    return {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))
    }


def test_each_difference_from_kafka_names_the_test_that_shows_it() -> None:
    """DIF-09: a difference that no test shows may be none, or a worse one than the page says."""
    page = (ROOT / "docs" / "kafka-differences.md").read_text(encoding="utf-8")
    rows = [row for _, section in _sections(page) for row in _rows(section)]
    assert len(rows) > 60
    unproven = [row[:80] for row in rows if not re.findall(r"`(test_\w+)`", row)]
    assert unproven == []
    assert set(re.findall(r"`(test_\w+)`", page)) - _tests() == set()


def _sections(page: str) -> list[tuple[str, str]]:
    """The headings of a page, each with its text."""
    parts = re.split(r"^## (.*)$", page, flags=re.MULTILINE)
    return list(zip(parts[1::2], parts[2::2], strict=True))


def _rows(section: str) -> list[str]:
    """The items of all lists, and the rows of all tables but their headers."""
    items = re.findall(r"^ *- (?:.*\n)(?: *(?!- )\S.*\n)*", section, re.MULTILINE)
    return items + re.findall(r"^\| [^|\s].*$", section, re.MULTILINE)


def test_rows_of_a_page_are_its_items_and_table_rows() -> None:
    section = "\ntext\n\n- a\n  b:\n  - c\n    d\n- e\n\n| | x |\n|---|---|\n| D1 | y |\n"
    assert _rows(section) == ["- a\n  b:\n", "  - c\n    d\n", "- e\n", "| D1 | y |"]


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_citations_are_names_and_docstrings_of_tests() -> None:
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


def test_contradictions_are_reported() -> None:
    test = Test("tests/test_x.py", "test_x")
    items = (
        Item("XYZ-01", "must", "unproven"),
        Item("XYZ-02", "must", "pending", pending="later work"),
        Item("XYZ-03", "must", "no more pending", pending="done work"),
        Item("XYZ-04", "should", "needs none"),
        Item("XYZ-05", "must", "not here", applies="it has no meaning here"),
        Item("XYZ-06", "most", "misspelt"),
    )
    faults = conformance.faults([Section("XYZ", "x", items)], {"XYZ-03": [test], "XYZ-09": [test], "UTF-16": [test]})
    assert faults == [
        "tests/test_x.py::test_x cites XYZ-09, which is not in the list",
        "no test cites XYZ-01: unproven",
        "XYZ-03 has a test, and is no longer pending: run `make docs`",
        "XYZ-06 has the unknown severity 'most'",
    ]


def test_tested_items_are_no_longer_pending() -> None:
    before = '[XYZ]\n01 = { title = "a", pending = "b" }\n02 = { title = "c", pending = "d" }\n'
    after = conformance.without_proven(before, {"XYZ-02": [Test("x", "y")]})
    assert after == '[XYZ]\n01 = { title = "a", pending = "b" }\n02 = { title = "c" }\n'


def test_example_of_testing_page_runs() -> None:
    page = (ROOT / "docs" / "internals" / "testing.md").read_text(encoding="utf-8")
    example = re.search(r"^## Testing your own code\n.*?^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert example is not None
    names: dict[str, Any] = {}
    exec(compile(example[1], "testing.md", "exec"), names)  # noqa: S102
    names["test_a_lost_response_commits_once"]()


def test_con_11_what_is_not_guaranteed_is_documented() -> None:
    """CON-11: what KIP-98 does not promise to consumers, each with its name."""
    page = (ROOT / "docs" / "guarantees.md").read_text(encoding="utf-8")
    (section,) = [text for heading, text in _sections(page) if heading == "What is not guaranteed"]
    assert {"Delivery of a transaction as a unit", "Effects outside the store", "Positions after an abort"} <= set(
        re.findall(r"^- \*\*(.*?)\.\*\*", section, re.MULTILINE)
    )


def test_each_item_has_a_test_or_a_reason() -> None:
    """Also those that are no must."""
    cited = conformance.citations()
    open_items = [
        item.name
        for section in conformance.sections()
        for item in section.items
        if item.name not in cited and not (item.applies or item.pending or section.later)
    ]
    assert open_items == []
