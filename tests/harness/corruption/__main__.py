"""The command: ``python -m tests.harness.corruption --cases 2000 --seed 0``; exit status 1 if anything is wrong."""

from __future__ import annotations

import argparse
import sys

from tests.harness.corruption.run import EFFECTS, KINDS, cases, run_case
from tests.harness.findings import report


def main() -> int:
    """Run the cases, print each finding when it is made."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.harness.corruption",
        description="Damage one object of a store in every way; no reader may return a wrong answer.",
    )
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--effect", choices=EFFECTS)
    given = parser.parse_args()
    chosen = (
        case
        for case in cases(given.cases, given.seed)
        if given.kind in (None, case.kind) and given.effect in (None, case.effect)
    )
    return report(((f"{case.effect} {case.kind}", run_case(case)) for case in chosen), given.seed)


if __name__ == "__main__":
    sys.exit(main())
