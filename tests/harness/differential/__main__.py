"""``python -m tests.harness.differential``: replay traces, or record the operations of one with the model.

::

    replay TRACE ... [--chains N]   run traces against the model and against a new store of N chains in memory
    record OPS [--name NAME]        run operations against the model and print the trace: JSON lines, or a trace again
    record OPS --kafka LIBS         the same against a new broker; LIBS is the folder with the jars of a Kafka release
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.compat.broker import BrokerDriver, RunningBroker
from tests.compat.broker.cluster import release_of
from tests.harness.differential.compare import SESSIONS
from tests.harness.differential.model_driver import ModelDriver
from tests.harness.differential.replay import MismatchError, record, replay
from tests.harness.differential.store_driver import StoreDriver
from tests.harness.traces import MODEL, Trace


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; the exit code is 1 if a trace differs."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m tests.harness.differential", description=__doc__, formatter_class=form
    )
    commands = parser.add_subparsers(dest="command", required=True)
    replaying = commands.add_parser("replay", help="compare traces with the model and with a store")
    replaying.add_argument("traces", nargs="+", type=Path)
    replaying.add_argument("--chains", type=int, default=1)
    recording = commands.add_parser("record", help="turn operations into a trace of the model, or of a broker")
    recording.add_argument("ops", type=Path, help="a file of JSON lines, or a trace: its operations are run again")
    recording.add_argument("--name", help="the name of the trace (default: that of its file)")
    recording.add_argument(
        "--kafka", type=_libs, metavar="LIBS", help="run a broker of the Kafka release with these jars"
    )
    recording.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the broker")
    recording.add_argument("--transactions", type=int, choices=[1, 2], default=2, help="their version, in the broker")
    options = parser.parse_args(arguments)
    if options.command == "record":
        sys.stdout.write(_recorded(options).dumps())
        return 0
    return max(_replay(Trace.load(path), options.chains) for path in options.traces)


def _libs(text: str) -> Path:
    """The folder with the jars of a Kafka release."""
    try:
        release_of(Path(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return Path(text)


def _recorded(options: argparse.Namespace) -> Trace:
    """The operations of a file with the observations of the model, or of a new broker, after each."""
    trace = _script(options.ops)
    trace.name = options.name or trace.name
    if options.kafka is None:
        trace.source, trace.observations = MODEL, record(trace.ops)
        return trace
    settings = dict(setting.split("=", 1) for setting in options.set)
    with RunningBroker(options.kafka, settings, transactions=options.transactions) as running:
        trace.source = source_of(running)
        trace.observations = record(trace.ops, BrokerDriver(running))
    return trace


def source_of(running: RunningBroker) -> str:
    """What a trace says of its broker."""
    older = SESSIONS if running.transactions == 1 else ""
    return f"kafka {running.cluster.version}{older}"


def _script(path: Path) -> Trace:
    """The operations to run: those of a trace, or those in the lines; without observations."""
    if path.suffix == ".json":
        return Trace.load(path)
    ops = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return Trace(path.stem, "", [], ops, [])


def _replay(trace: Trace, chains: int) -> int:
    """Replay one trace against model and store; 1 if it differs."""
    failed = 0
    for name, driver in (("model", ModelDriver()), (f"store of {chains} chains", StoreDriver(chains))):
        missing = sorted(set(trace.needs) - driver.supports)
        try:
            outcome = f"not run, it has no {missing}" if missing else _fits(trace, driver)
        except MismatchError as mismatch:
            outcome, failed = f"differs\n{mismatch}", 1
        finally:
            driver.close()
        sys.stdout.write(f"{trace.name}: {name}: {outcome}\n")
    return failed


def _fits(trace: Trace, driver: ModelDriver | StoreDriver) -> str:
    used = replay(trace, driver).used
    allowed = ", ".join(f"{item} {count} times" for item, count in sorted(used.items()))
    return f"the same after each of {len(trace.ops)} operations" + (f" (allowed: {allowed})" if allowed else "")


if __name__ == "__main__":
    sys.exit(main())
