"""The loop of the commands that look for faults: case after case, each finding printed when it is made."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from typing import Protocol


class Finding(Protocol):
    """What is wrong in a case; its text names the seed."""

    @property
    def step(self) -> str:
        """What the case did when it was found."""
        ...


def report(done: Iterable[tuple[str, Iterable[Finding]]], seed: int) -> int:
    """Print the findings of cases, then how often each step had one.

    Args:
        done: The kind of each case, and its findings.
        seed: The seed of the first case.

    Returns:
        The exit status: 1 with findings, else 0.
    """
    kinds: Counter[str] = Counter()
    steps: Counter[str] = Counter()
    for kind, findings in done:
        kinds[kind] += 1
        for finding in findings:
            steps[f"{kind}: {finding.step}"] += 1
            sys.stdout.write(f"{finding}\n")
            sys.stdout.flush()
    each = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    sys.stdout.write(f"{kinds.total()} cases from seed {seed} ({each}): {steps.total() or 'no'} findings\n")
    for step, times in steps.most_common():
        sys.stdout.write(f"{times:6} {step}\n")
    return 1 if steps else 0
