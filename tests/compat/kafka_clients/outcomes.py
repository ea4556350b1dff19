"""What became of each case, and what should have."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

#: ``left out``: the case looks into a broker, or needs what a gateway does not have, so it is not run.
Outcome = Literal["passed", "failed", "left out"]

EXPECTED = Path(__file__).with_name("expected.tsv")
#: The case that stands for all others of a class.
EVERY = "*"

_HEADER = ("class", "case", "outcome", "why")
_INTERNALS = "NeedsInternals: "
#: Ports, times, random names and addresses differ from run to run.
_CHANGING = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27,}|@[0-9a-f]{4,}|\d{4,}|(?<=group_)\w+")


@dataclass(frozen=True, slots=True)
class Case:
    """A test with one of its clusters; ``of`` is the class without its package."""

    of: str
    name: str

    @property
    def method(self) -> str:
        """The name without the number of the cluster."""
        return self.name.partition("[")[0]


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of a case, and why it is not ``passed``."""

    outcome: Outcome
    why: str = ""
    seconds: float = 0.0


def read_expected(path: Path = EXPECTED) -> dict[Case, Result]:
    """The list in the tree; empty if there is none."""
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    return {Case(row["class"], row["case"]): _result(row["outcome"], row["why"] or "") for row in rows}


def write_expected(results: Mapping[Case, Result], path: Path = EXPECTED) -> None:
    """Write the whole list."""
    rows = sorted((case.of, case.name, result.outcome, result.why) for case, result in results.items())
    path.write_text("".join("\t".join(row).rstrip("\t") + "\n" for row in (_HEADER, *rows)))


def parse(lines: Iterable[str], end: str) -> dict[Case, Result]:
    """The results of one class from the lines that its process wrote.

    Args:
        lines: What ``Outcomes.java`` describes.
        end: How the process ended, for a case that has begun and not ended.
    """
    results: dict[Case, Result] = {}
    started: dict[Case, int] = {}
    for line in lines:
        event, time, of, method, number, error = line.rstrip("\n").split("\t")
        case = Case(of.rpartition(".")[2], (method or EVERY) + (f"[{number}]" if number not in {"", "1"} else ""))
        if event == "STARTED":
            started[case] = int(time)
        elif event != "SKIPPED":
            seconds = (int(time) - started.pop(case, int(time))) / 1000
            outcome: Outcome = "passed" if event == "SUCCESSFUL" else "failed"
            if _INTERNALS in error:
                outcome, error = "left out", "looks into the broker: " + error.split(_INTERNALS)[1].split(" ")[0]
            results[case] = Result(outcome, _CHANGING.sub("…", error)[:240].strip(), seconds)
    return results | {case: Result("failed", end) for case in started}


def accepted(expected: Mapping[Case, Result], results: Mapping[Case, Result]) -> dict[Case, Result]:
    """The list with these results; what it says about a case stays if the outcome is the same."""
    same = {case for case, result in results.items() if case in expected and expected[case].outcome == result.outcome}
    return {**expected, **{case: replace(result, seconds=0.0) for case, result in results.items() if case not in same}}


def left_out_of(expected: Mapping[Case, Result], of: str, *, failing: bool = False) -> list[str] | None:
    """The methods of a class of which no case is run; ``None`` if all are. ``failing`` adds those that only fail."""
    unwanted: set[Outcome] = {"left out", "failed"} if failing else {"left out"}
    if (every := expected.get(Case(of, EVERY))) and every.outcome in unwanted:
        return None
    cases = [(case.method, result.outcome) for case, result in expected.items() if case.of == of]
    run = {method for method, outcome in cases if outcome not in unwanted}
    return sorted({method for method, _ in cases} - run)


def differences(expected: Mapping[Case, Result], results: Mapping[Case, Result], run: Sequence[Case]) -> list[str]:
    """What fails the run, a line each: cases that should pass and do not, and cases that the list does not name.

    Args:
        expected: The list.
        results: What came out.
        run: The cases of the list that should have run.
    """
    lines = []
    for case, result in results.items():
        if case not in expected:
            lines.append(f"{case.of}.{case.name} is not in the list: {result.outcome} {result.why}".rstrip())
        elif expected[case].outcome == "passed" and result.outcome != "passed":
            lines.append(f"{case.of}.{case.name} should pass: {result.why}")
    missing = [case for case in run if case not in results and expected[case].outcome == "passed"]
    return sorted(lines + [f"{case.of}.{case.name} should pass, and did not run" for case in missing])


def _result(outcome: str, why: str) -> Result:
    match outcome:
        case "passed" | "failed" | "left out":
            return Result(outcome, why)
        case _:
            msg = f"{outcome!r} is no outcome of a case"
            raise ValueError(msg)
