"""The command: ``python -m tests.harness.mutation --seed 1 --count 100``; exit status 1 if a mutant survives."""

from __future__ import annotations

import argparse
import os
import sys

from tests.harness.mutation.reach import measured
from tests.harness.mutation.run import drawn, outcomes


def main() -> int:
    """Run the mutants, and print each one that survives when it does."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.harness.mutation",
        description="Put random faults into the product; the unit and protocol tests must notice each one.",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    reach, kept = measured(arguments.jobs)
    mutants, unreached = drawn(arguments.seed, arguments.count, reach)
    survived = 0
    for number, (mutant, outcome) in enumerate(outcomes(mutants, arguments.jobs, kept), start=1):
        sys.stderr.write(f"\r{number} of {len(mutants)}")
        if not outcome.killed:
            survived += 1
            sys.stdout.write(f"\rsurvived: {mutant}\n")
            sys.stdout.flush()
    each = f"{len(mutants) - survived} killed, {survived} survived"
    sys.stdout.write(f"{len(mutants)} mutants of seed {arguments.seed}: {each}; {unreached} others have no test\n")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
