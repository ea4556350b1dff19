"""Run seeds: one with its interleaving, or a range of them in several processes.

python -m tests.harness.simulation --seed 42 --trace
python -m tests.harness.simulation --seeds 10000 --jobs 2
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor

from tests.harness.simulation.ranges import Result, one, quiet
from tests.harness.simulation.settings import Settings, drawn
from tests.harness.simulation.shrink import shrink
from tests.harness.simulation.simulation import Run, simulate
from txnstore.core.routing import MAX_CHAINS

#: The maximum number of failing seeds to shrink: each takes as long as some dozens of runs.
_SHRUNK = 3


def show(run: Run, *, trace: bool) -> None:
    """Print a run."""
    if trace:
        lines = [(step.at, 0, str(step)) for step in run.trace]
        for operation in run.history:
            error = f"  {operation.error}" if operation.error else ""
            operation_text = f"{operation.type} {operation.f} {operation.value}{error}"
            text = f"{operation.time:>9} {operation.process:<14} == {operation_text}"
            lines.append((operation.time, 1, text))
        for _, _, line in sorted(lines, key=lambda item: item[:2]):
            print(line)
    print(f"settings: {run.settings.to_json()}")
    print(
        f"{len(run.trace)} requests, {len(run.history)} lines of history, {run.carried} carried commands, "
        f"digest {run.digest}"
    )
    for anomaly in run.anomalies:
        print(f"ANOMALY {anomaly}")


def many(first: int, count: int, jobs: int, draw: Callable[[int], Settings], run: Callable[[int], Result]) -> int:
    """Run a range of seeds; print a summary, and the failing ones after shrinking. Returns the number of failures."""
    failed: list[int] = []
    requests, carried, mishaps, operations = 0, 0, Counter[str](), Counter[str]()
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        for result in pool.map(run, range(first, first + count), chunksize=10):
            requests += result.requests
            carried += result.carried
            mishaps.update(result.mishaps)
            operations.update(result.operations)
            if result.anomalies:
                failed.append(result.seed)
                print(f"seed {result.seed}: {result.anomalies[0]} (of {len(result.anomalies)})", flush=True)
    print(
        f"{count} seeds from {first}: {len(failed)} with anomalies, {requests:,} requests, {carried:,} carried commands"
    )
    print("mishaps:", ", ".join(f"{name} {number:,}" for name, number in sorted(mishaps.items())))
    print("operations:", ", ".join(f"{name} {number:,}" for name, number in sorted(operations.items())))
    for seed in sorted(failed)[:_SHRUNK]:
        print(f"\nseed {seed}, as small as it gets:")
        show(shrink(draw(seed)), trace=False)
    return len(failed)


def _settings(text: str) -> Settings:
    try:
        return Settings.from_json(text)
    except (ValueError, TypeError, KeyError) as error:
        msg = f"not the JSON that a run prints: {error}"
        raise argparse.ArgumentTypeError(msg) from None


def _chains(text: str) -> int:
    if text.isdecimal() and 1 <= int(text) <= MAX_CHAINS:
        return int(text)
    msg = f"must be a number from 1 to {MAX_CHAINS}, not {text!r}"
    raise argparse.ArgumentTypeError(msg)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 1 if there was an anomaly."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.simulation", description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, help="run this seed")
    parser.add_argument("--settings", type=_settings, help="run exactly this (JSON, as a run prints it)")
    parser.add_argument("--trace", action="store_true", help="print each request and each operation")
    parser.add_argument("--shrink", action="store_true", help="look for a smaller run with an anomaly")
    parser.add_argument("--seeds", type=int, default=100, help="the number of seeds to run (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (default: %(default)s)")
    parser.add_argument("--chains", type=_chains, help="the number of chains (default: drawn from the seed)")
    parser.add_argument(
        "--rules", action="store_true", help="check rights in each run, by rules that change under load"
    )
    parser.add_argument("--gateways", action="store_true", help="the world of gateways and their clients only")
    parser.add_argument("--tables", action="store_true", help="publish tables in each run")
    parser.add_argument("--alterations", action="store_true", help="alter topics while compactors plan in each run")
    parser.add_argument("--committers", action="store_true", help="let processes of one machine share entries")
    parser.add_argument("--cuts", action="store_true", help="power cuts, and actors that keep copies elsewhere")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: %(default)s)")
    options = parser.parse_args(arguments)
    with quiet():
        return _run(options)


def _run(options: argparse.Namespace) -> int:
    names = ("rules", "gateways", "tables", "alterations", "committers", "cuts")
    worlds = {name: getattr(options, name) for name in names}
    draw: Callable[[int], Settings] = functools.partial(drawn, chains=options.chains, **worlds)
    if options.seed is None and options.settings is None:
        run_one = functools.partial(one, chains=options.chains, **worlds)
        return int(many(options.first, options.seeds, options.jobs, draw, run_one) > 0)
    settings = options.settings or draw(options.seed)
    run = shrink(settings) if options.shrink else simulate(settings)
    show(run, trace=options.trace)
    return int(bool(run.anomalies))


if __name__ == "__main__":
    sys.exit(main())
