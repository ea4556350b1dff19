"""``python -m benchmarks [NAME …]``: run the benchmarks that take minutes, or the named ones; 1 if a target is missed.

``day`` takes hours, and ``crowd`` minutes to half an hour, as idle as the processors are; ``gateway`` and ``waiting``
need the extra of the gateway, ``optimize`` another Spark, ``tables`` pyiceberg.
"""

from __future__ import annotations

import importlib
import sys

NAMES = ("send", "commits", "history", "hot", "bulk", "threads", "writers", "beginning", "sizing", "chains", "sql",
         "fresh", "background", "merge", "clean", "spark", "microbatches", "transports", "starting",
         "rights")  # fmt: skip
OTHERS = ("crowd", "day", "gateway", "optimize", "tables", "waiting")


def main(names: list[str]) -> int:
    """Run and print; returns the exit code."""
    unknown = set(names).difference(NAMES, OTHERS)
    if unknown:
        sys.stderr.write(f"no benchmark named {', '.join(sorted(unknown))}; there are {', '.join((*NAMES, *OTHERS))}\n")
        return 2
    missed = 0
    for name in names or NAMES:
        for result in importlib.import_module(f"benchmarks.{name}").run():
            print(result.line(), flush=True)
            missed += not result.met
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
