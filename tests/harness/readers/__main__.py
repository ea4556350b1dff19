"""Runs histories: ``python -m tests.harness.readers --first 0 --count 100``.

Exit status 1 if a reader differs from the model.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.harness.readers.faults import FAULTS, SOUGHT
from tests.harness.readers.gateway import gateway
from tests.harness.readers.history import ALONE, CHANGES, READS, Coverage
from tests.harness.readers.iceberg import READERS, reading_with
from tests.harness.readers.run import STEPS, drawn, run, shortest
from tests.helpers.tables import EngineObjects
from txnstore.testing import ManualClock


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the histories; returns the exit status."""
    logging.disable(logging.CRITICAL)
    parser = argparse.ArgumentParser(prog="python -m tests.harness.readers")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first history")
    parser.add_argument("--count", type=int, default=100, help="how many histories")
    parser.add_argument("--steps", type=int, default=STEPS, help="of a history")
    parser.add_argument("--readers", nargs="*", choices=sorted(READS), help="only these; by default all")
    parser.add_argument("--gateway", action="store_true", help="also fetch through a gateway")
    parser.add_argument("--spark", action="store_true", help="also read with Spark")
    parser.add_argument("--engines", nargs="+", choices=sorted(READERS.values()), default=(), help="also these engines")
    parser.add_argument("--environments", type=Path, help="a folder with an environment for each of the engines")
    parser.add_argument("--faults", action="store_true", help="find the faults of faults.py, in --count histories each")
    parser.add_argument("--whole", action="store_true", help="print failing histories as they are, not shortened")
    options = parser.parse_args(arguments)
    if options.engines and options.environments is None:
        parser.error("--engines needs --environments")
    if options.faults:
        return _find_faults(options.count)
    with ExitStack() as stack:
        also = [gateway.__name__] if options.gateway else []
        if options.spark:
            from tests.harness.readers.spark import reading_with_spark

            also.append(stack.enter_context(reading_with_spark()).__name__)
        objects: Callable[[ManualClock], Any] = EngineObjects
        if options.engines:
            names, objects = stack.enter_context(reading_with(options.engines, options.environments))
            also += names
        return _run_all(options, also, objects)


def _run_all(options: argparse.Namespace, also: Sequence[str], objects: Callable[[ManualClock], Any]) -> int:
    """Run the histories, and print those that differ."""
    began, failed, coverage = time.monotonic(), 0, Coverage()
    for seed in range(options.first, options.first + options.count):
        failure, covered = run(seed, drawn(seed, options.steps, options.readers, also), objects)
        coverage.add(covered)
        if failure is not None:
            failed += 1
            _say(str(failure if options.whole else shortest(failure, objects=objects)))
    took = time.monotonic() - began
    _say(*_summary(coverage))
    _say(f"{options.count} histories from {options.first}: {failed} differ; {took / options.count:.2f} s each")
    return int(failed > 0)


def _find_faults(count: int) -> int:
    """Print which history finds each fault."""
    left = 0
    for fault in (*FAULTS, *SOUGHT):
        found = fault.found_by(count)
        left += found is None and fault in FAULTS
        _say(f"{fault.name}: {'not found' if found is None else f'seed {found[0]}: {found[1]}'}")
    return int(left > 0)


def _summary(coverage: Coverage) -> list[str]:
    """What was reached."""
    outer = sorted(
        (set(CHANGES) | set(READS))
        - set(ALONE)
        - {
            "rights",
            "format",
            "inspect",
            "spark",
            *READERS,
            "spare",
            *([] if coverage.steps["gateway"] else ["gateway"]),
        }
    )
    never = [pair for pair in itertools.product(outer, sorted(CHANGES)) if not coverage.pairs[pair]]
    lines = [f"{sum(coverage.pairs.values())} injections, {len(coverage.pairs)} of {len(outer) * len(CHANGES)} pairs:"]
    for step in outer:
        reached = ", ".join(
            f"{beside} {count}" for beside in sorted(CHANGES) if (count := coverage.pairs[step, beside])
        )
        lines.append(f"    {step}: {reached}")
    if len(never) < 40:
        lines.append(f"never: {', '.join(f'{beside} in {step}' for step, beside in never)}")
    reads = (f"{who} {count} ({coverage.rows[who]} rows)" for who, count in sorted(coverage.reads.items()))
    return [*lines, f"compared: {', '.join(reads)}"]


def _say(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
