"""The command: ``python -m tests.harness.hostile --cases 2000 --seed 0``; exit status 1 if anything is wrong."""

from __future__ import annotations

import argparse
import logging
import sys

from tests.harness.findings import report
from tests.harness.hostile.run import KINDS, cases, run_case


def main() -> int:
    """Run the cases, print each finding when it is made."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.harness.hostile",
        description="Put hostile entries, names and schemas into stores; every reader must answer, or say why not.",
    )
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=KINDS)
    arguments = parser.parse_args()
    logging.getLogger("txnstore").setLevel(logging.CRITICAL)  # A damaged checkpoint is a warning in each reader.
    chosen = (case for case in cases(arguments.cases, arguments.seed) if arguments.kind in (None, case.kind))
    return report(((case.kind, run_case(case)) for case in chosen), arguments.seed)


if __name__ == "__main__":
    sys.exit(main())
