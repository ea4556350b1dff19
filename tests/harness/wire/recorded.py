"""The recorded responses of a broker: a file of JSON for each scenario, one line for each response."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "recorded" / "wire"


def dumps(rows: Sequence[tuple[str, Any]]) -> str:
    """The text of a file."""
    lines = ",\n".join(json.dumps([label, value], ensure_ascii=False) for label, value in rows)
    return f"[\n{lines}\n]\n"


def load(name: str) -> list[tuple[str, Any]]:
    """The responses of a scenario, by label."""
    return [(label, value) for label, value in json.loads((FOLDER / f"{name}.json").read_text())]
