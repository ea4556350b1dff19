"""The findings of the doctor: one sentence with numbers for each check, and the command to run."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Severity(StrEnum):
    """The importance of a finding."""

    OK = "ok"
    NOTE = "note"
    WARN = "warn"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Attributes:
        section: What was checked: ``storage``, ``identity``, ``chains``, ``sharing``, ``authorization``,
            ``maintenance``, ``segments``, ``transactions``, ``groups``, ``tables``, ``garbage``.
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
