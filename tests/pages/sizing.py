"""Generates the table of ``docs/howto/sizing.md`` from the estimate that ``python -m benchmarks sizing`` measures."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.sizing import TITLES, Load, estimate, row

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "sizing.md"

LOADS = (
    Load(1, 0.01, 1),
    Load(10, 0.1, 1),
    Load(10, 0.1, 10),
    Load(10, 1, 10),
    Load(4, 10, 10),
    Load(50, 1, 10),
    Load(50, 1, 60),
    Load(100, 0.1, 10),
    Load(100, 0.1, 60),
    Load(100, 0.1, 1),
)

_PLACE = re.compile(r"(?<=<!-- sizing: written by `make docs` -->\n).*?(?=<!-- /sizing -->)", re.DOTALL)


def table() -> str:
    """A row for each load."""
    rows = [list(TITLES), ["---"] * len(TITLES), *(row(load, estimate(load)) for load in LOADS)]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in rows)


def with_table(text: str) -> str:
    """The page with its table replaced by the current one."""
    page, count = _PLACE.subn(lambda _: table(), text)
    assert count == 1, f"{PAGE} has no place for the table"
    return page
