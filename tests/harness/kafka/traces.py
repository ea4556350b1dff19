"""The recorded traces over the wire: ``python -m tests.harness.kafka.traces LIBS [NAME …] [--chains 1 3]``.

Kafka's own clients run the operations of each trace against a gateway on a new store, and after each operation all that they see
is compared with what they saw at the broker. LIBS is the folder with the jars of a Kafka release; ``make kafka-traces``
fetches it. Exit status 1 if a trace differs.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tests.harness.differential.replay import MismatchError, replay
from tests.harness.differential.trace import Trace
from tests.harness.kafka.at_gateway import gateway_comparison
from tests.harness.kafka.gateway import GatewayDriver, ServedHistories

#: What a broker answered.
TRACES = Path(__file__).parents[2] / "traces" / "kafka"


def main() -> int:
    """Replay the traces that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.kafka.traces", description=__doc__)
    parser.add_argument("libs", type=Path)
    parser.add_argument("names", nargs="*", default=[""], metavar="NAME", help="a part of the name of a trace")
    parser.add_argument("--chains", nargs="+", type=int, default=[1, 3])
    options = parser.parse_args()
    paths = [path for path in sorted(TRACES.glob("*.json")) if any(name in path.stem for name in options.names)]
    failed, needed = 0, set[str]()
    for chains in options.chains:
        with ServedHistories(options.libs, chains) as running:
            for path in paths:
                try:
                    used = replay_at(running, Trace.load(path))
                except MismatchError as mismatch:
                    failed += 1
                    outcome = f"differs\n{mismatch}"
                else:
                    needed |= set(used)
                    outcome = ", ".join(
                        ["the same", *(f"{item} {count} times" for item, count in sorted(used.items()))]
                    )
                sys.stdout.write(f"{path.stem}, {chains} chains: {outcome}\n")
                sys.stdout.flush()
    sys.stdout.write(f"{failed} traces differ; allowed differences that occurred: {', '.join(sorted(needed))}\n")
    return 1 if failed else 0


def replay_at(running: ServedHistories, trace: Trace) -> dict[str, int]:
    """Replay a trace of a broker at a gateway; which allowed differences it needed, and how often.

    Raises:
        MismatchError: Something else differs.
    """
    driver = GatewayDriver(running)
    try:
        return replay(trace, driver, gateway_comparison(trace.source)).used
    finally:
        driver.close()


if __name__ == "__main__":
    sys.exit(main())
