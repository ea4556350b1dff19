"""The recorded traces over the wire: ``python -m tests.compat.broker.traces LIBS [NAME …] [--chains 1 3]``.

Kafka's own clients run the operations of each trace against a gateway on a new store, and after each operation all that
they see is compared with what they saw at the broker. LIBS is the folder with the jars of a Kafka release; ``python -m
tests.harness kafka-traces`` fetches it. Exit status 1 if a trace differs twice: on a machine that is busy, the sender
of Java's producer may overtake a call, and a record that should be dropped is sent.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

from tests.compat.broker.at_gateway import gateway_comparison
from tests.compat.broker.gateway import GatewayDriver, ServedHistories
from tests.harness.differential.replay import MismatchError, replay
from tests.harness.traces import Trace, traces

#: The folders of what a broker answered, by the version of transactions.
_FOLDERS = {2: "kafka", 1: "kafka_transactions_v1"}


def main() -> int:
    """Replay the traces that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.compat.broker.traces", description=__doc__)
    parser.add_argument("libs", type=Path)
    parser.add_argument("names", nargs="*", default=[""], metavar="NAME", help="a part of the name of a trace")
    parser.add_argument("--chains", nargs="+", type=int, default=[1, 3])
    options = parser.parse_args()
    outcomes = Counter[bool]()
    for chains in options.chains:
        for version, folder in _FOLDERS.items():
            with ServedHistories(options.libs, chains, version) as running:
                for name, trace in traces(folder).items():
                    if any(part in name for part in options.names):
                        outcomes[_is_same(running, trace, f"{name}, {chains} chains")] += 1
    sys.stdout.write(f"{outcomes[False]} of {outcomes.total()} traces differ\n")
    return 1 if outcomes[False] else 0


def _is_same(running: ServedHistories, trace: Trace, label: str) -> bool:
    """Replay a trace, at most twice, and print what came of it."""
    for _ in range(2):
        try:
            used = replay_at(running, trace)
        except MismatchError as mismatch:
            sys.stdout.write(f"{label}: differs\n{mismatch}\n")
        else:
            allowed = ", ".join(f"{item} {count} times" for item, count in sorted(used.items()))
            sys.stdout.write(f"{label}: the same" + (f" (allowed: {allowed})\n" if allowed else "\n"))
            sys.stdout.flush()
            return True
    return False


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
