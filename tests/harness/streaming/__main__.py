"""The command: ``python -m tests.harness.streaming --kills 50``; exit status 1 if a record was lost or repeated."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import get_args

from tests.harness.places import PLACES
from tests.harness.s3.programs import PROGRAMS
from tests.harness.streaming.driver import Kind
from tests.harness.streaming.run import TARGETS, Settings, torture

KINDS: tuple[Kind, ...] = get_args(Kind)


def main() -> int:
    """Run with the arguments, print the report."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.harness.streaming",
        description="Kill streaming pipelines of Spark, and check that every record arrives exactly once.",
    )
    parser.add_argument("--kills", type=int, default=Settings.kills, help="for each kind of pipeline")
    parser.add_argument("--kind", choices=[*KINDS, "all"], default="all")
    parser.add_argument("--store", choices=PLACES, default=Settings.store)
    parser.add_argument("--server-kills", action="store_true", help=f"kill and restart {' or '.join(PROGRAMS)} too")
    parser.add_argument("--seed", type=int, default=Settings.seed, help="of the moments and targets of the kills")
    parser.add_argument("--records", type=int, default=Settings.records)
    arguments = parser.parse_args()
    ok = True
    for kind in KINDS if arguments.kind == "all" else (arguments.kind,):
        folder = Path(tempfile.mkdtemp(prefix=f"streaming-{kind}-"))
        targets = (*TARGETS, "server") if arguments.server_kills else TARGETS
        settings = Settings(
            folder, kind, arguments.kills, arguments.records, arguments.seed, store=arguments.store, targets=targets
        )
        report = torture(settings)
        sys.stdout.writelines(f"{kind}: {line}\n" for line in [*report.lines(), str(folder)])
        ok = ok and report.ok
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
