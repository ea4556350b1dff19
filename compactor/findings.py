"""What :func:`txnstore.compactor.doctor` finds: one sentence with numbers for each check, and the command to run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """How much a finding matters."""

    OK = "ok"
    NOTE = "note"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        section: What was checked: ``storage``, ``identity``, ``chains``, ``segments``, ``transactions``, ``groups``,
            ``garbage``.
        name: The name of the check, the same in each release.
        severity: ``ok``; ``note``: nothing has to be done; ``warn``: the store works, and something should be done;
            ``bad``: data or availability is at risk.
        message: What was found, with numbers.
        command: The command to run; empty if there is none.
    """

    section: str
    name: str
    severity: Severity
    message: str
    command: str = ""


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """The findings of all checks, section by section."""

    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing has to be done: no finding is ``warn`` or ``bad``."""
        return not any(item.severity in (Severity.WARN, Severity.BAD) for item in self.findings)


def counted(count: int, what: str, many: str = "") -> str:
    """A number with its noun: ``1 segment``, ``1,000 segments``; ``many``: a plural that is not formed by an s."""
    return f"{count:,} {what if count == 1 else many or f'{what}s'}"


def lasting(milliseconds: int) -> str:
    """A duration in the largest unit of which it has two: ``90 s``, ``2 min``, ``3 h``, ``9 d``."""
    seconds = max(0, milliseconds) // 1000
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:,} {unit}"
    return f"{seconds} s"


def some(names: Iterable[str], most: int = 5) -> str:
    """The first names of a list, and how many more there are."""
    found = list(names)
    more = f" and {len(found) - most:,} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more
