"""Generates ``docs/internals/conformance.md`` from ``conformance/items.toml`` and the tests that cite its items.

A test cites an item with its id in the name (``test_seq_03_…``) or in the docstring (``SEQ-03``) of the function or
class. Module docstrings, comments and ranges ("INIT-01…11") are no citations, because they do not name one test.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
ITEMS = ROOT / "docs" / "internals" / "conformance" / "items.toml"
PAGE = ROOT / "docs" / "internals" / "conformance.md"

_RANGE = re.compile(r"\b[A-Z0-9]{3,5}-\d\d\s?(?:…|\.\.+|–)\s?(?:[A-Z0-9]{3,5}-)?\d\d\b")
_CITED = re.compile(r"\b([A-Z][A-Z0-9]{2,4}-\d\d)\b")
_INTRO = """# Conformance

The properties of Kafka's transactions, item by item, and the tests that show each of them for txnstore. **must**:
atomicity, isolation, idempotence or fencing depend on it; should: visible behaviour of Kafka, or liveness; nice: parity
in detail.
Deliberate differences are listed in [kafka-differences.md](../kafka-differences.md), terms in the
[glossary](../glossary.md).

`make docs` generates this page from [conformance/items.toml](conformance/items.toml) and the tests; it is not in the
repository. A unit test fails if a must item has neither a test nor a reason why it needs none.
"""


@dataclass(frozen=True)
class Item:
    """One property. ``applies``: why it does not apply to txnstore; ``pending``: the work that will add its test."""

    name: str
    severity: str
    title: str
    applies: str = ""
    pending: str = ""


@dataclass(frozen=True)
class Section:
    """The items of an area. ``later``: the work that will implement the area; until then its items need no tests."""

    name: str
    about: str
    items: tuple[Item, ...]
    later: str = ""


@dataclass(frozen=True, order=True)
class Test:
    """A test function or class, in a file whose path is relative to the project."""

    __test__ = False
    path: str
    name: str


def sections() -> list[Section]:
    """All sections of ``items.toml``, in its order."""
    tables = tomllib.loads(ITEMS.read_text(encoding="utf-8"))
    return [_section(name, dict(table)) for name, table in tables.items()]


def _section(name: str, table: dict[str, str | dict[str, str]]) -> Section:
    items = tuple(Item(f"{name}-{number}", **entry) for number, entry in table.items() if isinstance(entry, dict))
    return Section(name, str(table["about"]), items, str(table.get("later", "")))


@cache
def citations() -> dict[str, list[Test]]:
    """The tests that cite each item."""
    citing = defaultdict[str, set[Test]](set)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        source = path.read_text(encoding="utf-8")
        for name, cited in cited_in(source):
            citing[cited].add(Test(path.relative_to(ROOT).as_posix(), name))
    return {cited: sorted(tests) for cited, tests in citing.items()}


def cited_in(source: str) -> Iterator[tuple[str, str]]:
    """Pairs of a test of this source file and an item that it cites."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name.lower().startswith("test"):
            words = re.sub(r"(?<=_)([a-z][a-z0-9]{2,4})_(\d\d)(?=_|$)", lambda m: f" {m[1].upper()}-{m[2]} ", node.name)
            text = _RANGE.sub("", ast.get_docstring(node) or "")
            for cited in dict.fromkeys(_CITED.findall(f"{words} {text}")):
                yield node.name, cited


def faults(wanted: list[Section], cited: dict[str, list[Test]]) -> list[str]:
    """The contradictions between the list and the tests, as messages; empty if there are none."""
    items = {item.name: (section, item) for section in wanted for item in section.items}
    areas = {section.name for section in wanted}
    problems = [
        f"{test.path}::{test.name} cites {name}, which is not in the list"
        for name, tests in sorted(cited.items())
        for test in tests
        if name not in items and name.split("-")[0] in areas
    ]
    for name, (section, item) in items.items():
        if item.severity not in {"must", "should", "nice"}:
            problems.append(f"{name} has the unknown severity {item.severity!r}")
        if item.pending and name in cited:
            problems.append(f"{name} has a test, and is no longer pending: run `make docs`")
        excused = item.applies or item.pending or section.later
        if item.severity == "must" and name not in cited and not excused:
            problems.append(f"no test cites {name}: {item.title}")
    return problems


def without_proven(items: str, cited: dict[str, list[Test]]) -> str:
    """The text of the list without ``pending`` where an item has a test."""
    section, lines = "", []
    for line in items.splitlines(keepends=True):
        section = line[1:].split("]")[0] if line.startswith("[") else section
        done = f"{section}-{line[:2]}" in cited
        lines.append(re.sub(r', pending = "[^"]*"', "", line) if done else line)
    return "".join(lines)


def page(wanted: list[Section], cited: dict[str, list[Test]]) -> str:
    """The Markdown text of ``docs/internals/conformance.md``."""
    lines = [_INTRO, "| | area | must | with a test | all | with a test |", "|---|---|---|---|---|---|"]
    for section in wanted:
        counts = [_count(items, cited) for items in (_musts(section), section.items)]
        lines.append(f"| [{section.name}](#{section.name.lower()}) | {section.about} | {' | '.join(counts)} |")
    for section in wanted:
        lines += ["", f"## {section.name}", "", f"{section.about}.{' ' + section.later if section.later else ''}", ""]
        lines += ["| item | | what | tests |", "|---|---|---|---|"]
        for item in section.items:
            severity = f"**{item.severity}**" if item.severity == "must" else item.severity
            lines.append(f"| {item.name} | {severity} | {item.title} | {_proof(section, item, cited)} |")
    return "\n".join(lines) + "\n"


def _musts(section: Section) -> tuple[Item, ...]:
    return tuple(item for item in section.items if item.severity == "must")


def _count(items: tuple[Item, ...], cited: dict[str, list[Test]]) -> str:
    apply = [item for item in items if not item.applies]
    return f"{len(apply)} | {sum(item.name in cited for item in apply)}"


def _proof(section: Section, item: Item, cited: dict[str, list[Test]]) -> str:
    tests = cited.get(item.name, [])
    links = [f"[{Path(test.path).stem}::{test.name}](../../{test.path})" for test in tests]
    if item.applies:
        links.insert(0, f"Does not apply: {item.applies}")
    elif not links:
        links = [f"pending: {item.pending}" if item.pending else "later" if section.later else "–"]
    return "<br>".join(links)


def write() -> None:
    """Write the page, which the site contains and the repository does not."""
    PAGE.write_text(page(sections(), citations()), encoding="utf-8")


if __name__ == "__main__":
    write()
