"""How rows are stored is asked in one place: readers know slices and values of columns."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import txnstore

#: Members of the chain's values by which a reader would decide alone what rows mean.
_FORBIDDEN = {"explicit_offsets", "first_row", "timestamp_type"}
#: What reads rows, below the package.
_READERS = ("read", "sql", "spark", "tables", "gateway", "consumer", "scan.py", "compactor/compact",
            "compactor/verify/segments.py")  # fmt: skip
#: It shows these members.
_SHOWN = ("sql/inspection.py",)
_ROOT = Path(txnstore.__file__).parent


def _modules() -> Iterator[Path]:
    for name in _READERS:
        path = _ROOT / name
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def _asked(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} & _FORBIDDEN


def test_no_reader_decides_alone_how_rows_are_stored() -> None:
    asked = {str(path.relative_to(_ROOT)): _asked(path) for path in _modules()}
    assert len(asked) > 100
    assert {name: names for name, names in asked.items() if names} == {name: asked[name] for name in _SHOWN}
    assert all(asked[name] for name in _SHOWN)
