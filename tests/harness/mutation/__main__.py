"""The command: ``python -m tests.harness.mutation --seed 1 --count 100``; exit status 1 if a mutant survives."""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter

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
    parser.add_argument("--most", type=int, help="the number of tests for each mutant; default: all that reach it")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    arguments = parser.parse_args()
    mutants, unreached = drawn(arguments.seed, arguments.count, measured(arguments.jobs))
    counts: Counter[str] = Counter()
    for mutant, outcome in outcomes(mutants, arguments.jobs, arguments.most):
        counts[outcome] += 1
        sys.stderr.write(f"\r{counts.total()} of {len(mutants)}")
        if outcome == "survived":
            sys.stdout.write(f"\rsurvived: {mutant}\n")
            sys.stdout.flush()
    each = f"{counts['killed']} killed, {counts['survived']} survived"
    sys.stdout.write(f"{counts.total()} mutants of seed {arguments.seed}: {each}; {unreached} others have no test\n")
    return 1 if counts["survived"] else 0


if __name__ == "__main__":
    sys.exit(main())
