"""The command: ``python -m tests.harness.corruption --cases 2000 --seed 0``; exit status 1 if anything is wrong."""

from __future__ import annotations

import argparse
import sys
from collections import Counter

from tests.harness.corruption.run import EFFECTS, KINDS, cases, run_case


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
    found: Counter[str] = Counter()
    count = 0
    for case in cases(given.cases, given.seed):
        if given.kind not in (None, case.kind) or given.effect not in (None, case.effect):
            continue
        count += 1
        for finding in run_case(case):
            found[f"{case.effect} {case.kind}: {finding.step}"] += 1
            sys.stdout.write(f"{finding}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{count} cases from seed {given.seed}: {sum(found.values()) or 'no'} findings\n")
    for what, times in found.most_common():
        sys.stdout.write(f"{times:6} {what}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
