"""The command: ``python -m tests.harness.corruption --cases 2000 --seed 0``; exit status 1 if anything is wrong."""

from __future__ import annotations

import argparse
import logging
import sys

from tests.harness.corruption.run import EFFECTS, KINDS, cases, run_case
from tests.harness.findings import report


def main() -> int:
    """Run the cases, print each finding when it is made."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.harness.corruption",
        description="Damage a store in every way; no reader may answer wrongly, no repair may promise too much.",
    )
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--effect", choices=EFFECTS)
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)  # Each damage is warned of.
    chosen = (
        case
        for case in cases(arguments.cases, arguments.seed)
        if any(arguments.kind in (None, it.kind) and arguments.effect in (None, it.effect) for it in case.damages)
    )
    return report(((case.damages[0].effect, run_case(case)) for case in chosen), arguments.seed)


if __name__ == "__main__":
    sys.exit(main())
