"""One finding of a verification."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Violation:
    """An invariant that does not hold: its ``name``, the object or partition that breaks it, and what is wrong."""

    name: str
    subject: str
    message: str

    def __str__(self) -> str:
        return f"{self.name}: {self.subject}: {self.message}"
