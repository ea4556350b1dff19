"""All cases: those of damage and those of hostile input, with what is wrong in each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tests.harness.corruption import damages, hostile
from tests.harness.corruption.damaged import DamagedCase, damaged_case
from tests.harness.corruption.hostile import HostileCase, hostile_case

Case = DamagedCase | HostileCase
#: What is done in cases, and with which kinds of objects or input.
EFFECTS = (*damages.EFFECTS, hostile.EFFECT)
KINDS = tuple(dict.fromkeys((*damages.KINDS, *hostile.KINDS)))


@dataclass(frozen=True)
class Finding:
    """A wrong answer, an error that is none of ours or names no object, or a repair that does not keep its word."""

    case: Case
    subject: str
    step: str
    what: str

    def __str__(self) -> str:
        return f"seed {self.case.seed} ({self.case}): {self.subject[:120]}: {self.step}: {self.what}"


def cases(count: int, seed: int) -> Iterator[Case]:
    """For each of ``count`` seeds a case of damage and one of hostile input."""
    for number in range(seed, seed + count):
        yield damaged_case(number)
        yield hostile_case(number)


def run_case(case: Case) -> list[Finding]:
    """Make the store, use it, and return what is wrong."""
    noted: list[tuple[str, str]] = []
    subject = case.run(lambda step, problem: noted.append((step, problem)))
    return [Finding(case, subject, step, problem) for step, problem in noted]
