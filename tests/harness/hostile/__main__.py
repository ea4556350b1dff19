"""The command: ``python -m tests.harness.hostile --cases 2000 --seed 0``; exit status 1 if anything is wrong."""

from __future__ import annotations

import argparse
import logging
import sys
from collections import Counter

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
    given = parser.parse_args()
    logging.getLogger("txnstore").setLevel(logging.CRITICAL)  # A damaged checkpoint is a warning in each reader.
    found: Counter[str] = Counter()
    done: Counter[str] = Counter()
    for case in cases(given.cases, given.seed):
        if given.kind not in (None, case.kind):
            continue
        done[case.kind] += 1
        for finding in run_case(case):
            found[f"{case.kind}: {finding.step}"] += 1
            sys.stdout.write(f"{finding}\n")
            sys.stdout.flush()
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(done.items()))
    sys.stdout.write(f"{done.total()} cases from seed {given.seed} ({kinds}): {found.total() or 'no'} findings\n")
    for what, times in found.most_common():
        sys.stdout.write(f"{times:6} {what}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
