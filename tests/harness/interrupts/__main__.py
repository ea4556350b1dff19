"""The command: ``python -m tests.harness.interrupts --interrupts 10000``; exit status 1 if anything is wrong."""

from __future__ import annotations

import argparse
import sys
import tempfile

from tests.harness.interrupts.run import KINDS, Settings, interrupt


def main() -> int:
    """Run with the arguments, print the report."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.harness.interrupts",
        description="Interrupt (Ctrl-C) all clients at random instants, and check what is stored in the end.",
    )
    parser.add_argument("--interrupts", type=int, default=Settings.interrupts)
    parser.add_argument("--seed", type=int, default=Settings.seed)
    parser.add_argument("--chains", type=int, default=Settings.chains)
    parser.add_argument("--store", choices=["memory", "local"], default="memory")
    parser.add_argument("--mean", type=float, default=Settings.mean, help="seconds between two interrupts")
    parser.add_argument("--only", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--places", action="store_true", help="where the interrupts struck")
    arguments = parser.parse_args()
    remaining, seed, ok = arguments.interrupts, arguments.seed, True
    while remaining > 0 and ok:  # Stores of some thousand records, so that a step stays short.
        with tempfile.TemporaryDirectory(prefix="interrupts-") as folder:
            url = f"{folder}/store" if arguments.store == "local" else f"memory://{folder}"
            report = interrupt(
                Settings(min(remaining, 500), seed, url, arguments.chains, tuple(arguments.only), arguments.mean)
            )
        sys.stdout.writelines(line + "\n" for line in report.lines())
        if arguments.places:
            for name, count in sorted(report.places.items(), key=lambda item: -item[1])[:60]:
                sys.stdout.write(f"{count:6} {name}\n")
        sys.stdout.flush()
        ok, remaining, seed = report.ok, remaining - max(1, report.sent), seed + 1
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
