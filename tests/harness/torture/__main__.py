"""The command: ``python -m tests.harness.torture --duration 120 --chains 4``; exit status 1 on any anomaly."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.harness.places import PLACES
from tests.harness.s3.programs import PROGRAMS
from tests.harness.torture.run import Settings, torture


def main() -> int:
    """Run with the arguments, print the report."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.harness.torture",
        description="Torture a store with real processes, and check their histories.",
    )
    parser.add_argument("--duration", type=float, default=Settings.duration, help="seconds of faults")
    parser.add_argument("--store", choices=PLACES, default=Settings.store)
    parser.add_argument("--chains", type=int, default=Settings.chains)
    parser.add_argument(
        "--machines", type=int, default=Settings.machines, help="processes of different ones share entries over TCP"
    )
    parser.add_argument("--seed", type=int, default=Settings.seed, help="of the faults and of the work")
    parser.add_argument("--folder", type=Path, help="an empty one, for histories, logs and a local store")
    parser.add_argument("--server-kills", action="store_true", help=f"kill and restart {' or '.join(PROGRAMS)} too")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="torture-"))
    settings = Settings(
        folder,
        arguments.duration,
        arguments.store,
        arguments.chains,
        arguments.seed,
        machines=arguments.machines,
        server_kills=arguments.server_kills,
    )
    report = torture(settings)
    sys.stdout.writelines(line + "\n" for line in report.lines())
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
