"""The command: ``python -m tests.harness.corruption --cases 2000 --seed 0``; exit status 1 if anything is wrong."""

from __future__ import annotations

import argparse
import logging
import sys

from tests.harness.corruption import EFFECTS, KINDS, cases, run_case
from tests.harness.findings import report


def main() -> int:
    """Run the cases, print each finding when it is made."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.harness corruption",
        description="Damage stores, and put hostile input into them: no reader may answer wrongly or fail by accident, "
        "no repair may promise too much.",
    )
    parser.add_argument("--cases", type=int, default=2000, help="how many of each sort (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="that of the first case (default: %(default)s)")
    parser.add_argument("--kind", choices=KINDS, help="only cases with objects or input of this kind")
    parser.add_argument("--effect", choices=EFFECTS, help="only cases in which this is done")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)  # Each damage is warned of.
    chosen = (
        case
        for case in cases(arguments.cases, arguments.seed)
        if any(arguments.kind in (None, kind) and arguments.effect in (None, effect) for effect, kind in case.contents)
    )
    return report(((case.group, run_case(case)) for case in chosen), arguments.seed)


if __name__ == "__main__":
    sys.exit(main())
