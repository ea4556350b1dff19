"""Runs Kafka's programs against gateways: ``python -m tests.compat.kafka_programs KAFKA CLASSES SPARK [options]``.

The folders with the jars of Kafka's programs, with our compiled classes, and with the jars of Spark's source. Each step
reads the store with txnstore itself. Exit status 1 if one fails; its files are kept.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.compat.kafka_programs import connect, example, spark, streams, tools
from tests.compat.kafka_programs.place import Jars, Place, serving

_STEPS: Mapping[str, Callable[[Place], str]] = {
    "cluster": tools.cluster,
    "topics": tools.topics,
    "acls": tools.acls,
    "console": tools.console,
    "transactions": tools.transactions,
    "groups": tools.groups,
    "copier": tools.copier,
    "verifiable": tools.verifiable,
    "performance": tools.performance,
    "streams": streams.word_count,
    "connect": connect.standalone,
    "connect-distributed": connect.distributed,
    "spark": spark.source_and_sink,
    "example": example.alarms,
}
#: Steps that together take about two minutes on a busy machine.
_SHORT = ("topics", "transactions", "copier", "streams")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen steps; returns the exit status."""
    options = _options(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # The gateways, and what runs, end with it.
    failed = 0
    for gateways in options.gateways:
        folder = Path(tempfile.mkdtemp(prefix=f"kafka-programs-{gateways}-"))
        with serving(folder, Jars(options.kafka, options.classes, options.spark), gateways) as place:
            failures = [name for name in options.only if not _ran(name, place)]
        if failures:
            _say(f"failed with {gateways} gateways: {', '.join(failures)}; files: {folder}")
        else:
            shutil.rmtree(folder)
        failed += len(failures)
    return 1 if failed else 0


def _ran(name: str, place: Place) -> bool:
    begun = time.monotonic()
    try:
        seen = _STEPS[name](place)
    except Exception:  # noqa: BLE001 - Others continue.
        seen = f"FAILED\n{traceback.format_exc()}"
    _say(f"{place.brokers} {name} {time.monotonic() - begun:.1f} s: {seen}")
    return not seen.startswith("FAILED")


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("kafka", "classes", "spark"):
        parser.add_argument(name, type=lambda text: Path(text).absolute())
    parser.add_argument(
        "--gateways", type=int, nargs="+", default=[1, 2], help="how many serve the store; each in turn"
    )
    parser.add_argument("--only", nargs="+", choices=_STEPS, default=list(_STEPS), metavar="STEP")
    parser.add_argument("--short", action="store_const", dest="only", const=_SHORT, help=f"{', '.join(_SHORT)}")
    return parser.parse_args(arguments)


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
