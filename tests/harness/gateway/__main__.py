"""The command: ``python -m tests.harness.gateway --duration 120 --chains 3``; exit status 1 on any anomaly."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.harness.gateway.run import Settings, torture
from tests.harness.places import PLACES


def main() -> int:
    """Run with the arguments, print the report."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.harness.gateway",
        description="Torture two gateways and their connections, and check the histories of Kafka's clients.",
    )
    parser.add_argument("--duration", type=float, default=Settings.duration, help="seconds of faults")
    parser.add_argument("--store", choices=PLACES, default=Settings.store)
    parser.add_argument("--chains", type=int, default=Settings.chains)
    parser.add_argument("--workers", type=int, default=Settings.workers, help="of each gateway (default: one process)")
    parser.add_argument("--seed", type=int, default=Settings.seed, help="of the faults and of the work")
    parser.add_argument("--folder", type=Path, help="an empty one, for histories, logs and a local store")
    parser.add_argument("--jars", type=Path, help="a folder with kafka-clients and what it needs: clients in Java too")
    parser.add_argument("--debug", default="", help="contexts of librdkafka, such as eos,protocol, that its logs have")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="torture-gateway-"))
    report = torture(
        Settings(
            folder,
            arguments.duration,
            arguments.store,
            arguments.chains,
            arguments.seed,
            arguments.jars,
            arguments.workers,
            debug=arguments.debug,
        )
    )
    sys.stdout.writelines(line + "\n" for line in report.lines())
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
