"""``python -m tests.compat.wire LIBS [SCENARIO …]``: record what a broker answers, into ``tests/traces/wire``.

LIBS is the folder with the jars of a Kafka release (``build/kafka/libs`` after ``python -m tests.harness kafka``).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kio.schema.errors import ErrorCode

from tests.compat.broker.cluster import Cluster
from tests.compat.wire.connection import Wire
from tests.compat.wire.scenarios import SCENARIOS
from tests.harness.traces import FOLDER, responses_text
from txnstore.gateway.apis import Api

#: Those that list everything in the broker, or depend on the length of names.
ALONE = ("descriptions_of_groups", "metadata", "topics", "transactions", "versions_of_apis")


def main() -> int:
    """Record the scenarios, each with a new broker."""
    parser = argparse.ArgumentParser(prog="python -m tests.compat.wire", description=__doc__)
    parser.add_argument("libs", type=Path)
    parser.add_argument("scenarios", nargs="*", default=list(SCENARIOS), metavar="SCENARIO")
    options = parser.parse_args()
    for together in [[name for name in options.scenarios if name not in ALONE], *([name] for name in ALONE)]:
        if set(together) <= set(options.scenarios) and together:
            _record(options.libs, together)
    return 0


def _record(libs: Path, names: list[str]) -> None:
    """Record scenarios with one new broker."""
    cluster = Cluster(libs, {"group.max.session.timeout.ms": "1800000"})
    try:
        host, _, port = cluster.address.rpartition(":")
        for number, name in enumerate(names):
            wire = Wire(host, int(port), f"h{number}-" if len(names) > 1 else "")
            if number == 0:
                _begin(wire)
            SCENARIOS[name](wire)
            wire.close()
            (FOLDER / "wire" / f"{name}.json").write_text(responses_text(wire.rows))
            sys.stdout.write(f"{name}: {len(wire.rows)} responses\n")
            sys.stdout.flush()
    finally:
        cluster.close()


def _begin(wire: Wire) -> None:
    """Wait for the internal topics of the broker."""
    for kind in (0, 1):
        for _ in range(400):
            (found,) = wire.ask(Api.FIND_COORDINATOR, 4, {"key_type": kind, "coordinator_keys": ["any"]}).coordinators
            if found.error_code is ErrorCode.none:
                break
            wire.pause()


if __name__ == "__main__":
    sys.exit(main())
