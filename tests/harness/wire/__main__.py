"""``python -m tests.harness.wire LIBS [SCENARIO …]``: record what a broker of Kafka answers, into ``tests/traces/wire``.

LIBS is the folder with the jars of a Kafka release (``build/kafka/libs`` after ``make kafka``).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from kio.schema.errors import ErrorCode

from tests.harness.kafka.cluster import Cluster
from tests.harness.wire.connection import Wire
from tests.harness.wire.recorded import FOLDER, dumps
from tests.harness.wire.scenarios import SCENARIOS
from txnstore.gateway.apis import Api


def main() -> int:
    """Record the scenarios, each with a new broker."""
    parser = argparse.ArgumentParser(prog="python -m tests.harness.wire", description=__doc__)
    parser.add_argument("libs", type=Path)
    parser.add_argument("scenarios", nargs="*", default=list(SCENARIOS), metavar="SCENARIO")
    options = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    for name in options.scenarios:
        rows = _recorded(options.libs, name)
        (FOLDER / f"{name}.json").write_text(dumps(rows))
        sys.stdout.write(f"{name}: {len(rows)} responses\n")
        sys.stdout.flush()
    return 0


def _recorded(libs: Path, name: str) -> list[tuple[str, object]]:
    cluster = Cluster(libs, {"group.max.session.timeout.ms": "1800000"})
    try:
        host, _, port = cluster.address.rpartition(":")
        wire = Wire(host, int(port))
        for kind in (0, 1):  # Its internal topics.
            for _ in range(400):
                asked = {"key_type": kind, "coordinator_keys": ["any"]}
                (found,) = wire.ask(Api.FIND_COORDINATOR, 4, asked).coordinators
                if found.error_code is ErrorCode.none:
                    break
                wire.pause()
        SCENARIOS[name](wire)
        wire.close()
        return wire.rows
    finally:
        cluster.close()


if __name__ == "__main__":
    sys.exit(main())
