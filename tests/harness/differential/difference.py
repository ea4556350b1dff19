"""A difference between two observations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Path = tuple[str, ...]


@dataclass(frozen=True)
class Difference:
    """One field with different values in two stores."""

    path: Path
    expected: Any
    actual: Any

    def __str__(self) -> str:
        return f"{'.'.join(self.path)}: expected {self.expected!r}, got {self.actual!r}"
