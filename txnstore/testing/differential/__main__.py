"""``python -m txnstore.testing.differential``: replay traces, or record the operations of one with the model.

::

    replay TRACE ... [--chains N]   run traces against the model and against a new store of N chains in memory
    record OPS [--name NAME]        run a file of JSON lines, one operation each, against the model; print the trace
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from txnstore.testing.differential.model_driver import ModelDriver
from txnstore.testing.differential.replay import MismatchError, record, replay
from txnstore.testing.differential.store_driver import StoreDriver
from txnstore.testing.differential.trace import Trace


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; the exit code is 1 if a trace does not fit."""
    parser = argparse.ArgumentParser(prog="python -m txnstore.testing.differential", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    replaying = commands.add_parser("replay", help="compare traces with the model and with a store")
    replaying.add_argument("traces", nargs="+", type=Path)
    replaying.add_argument("--chains", type=int, default=1)
    recording = commands.add_parser("record", help="turn operations into a trace of the model")
    recording.add_argument("ops", type=Path)
    recording.add_argument("--name", default="")
    options = parser.parse_args(arguments)
    if options.command == "record":
        ops = [json.loads(line) for line in options.ops.read_text().splitlines() if line.strip()]
        sys.stdout.write(Trace(options.name or options.ops.stem, "", [], ops, record(ops)).dumps())
        return 0
    return max(_replay(Trace.load(path), options.chains) for path in options.traces)


def _replay(trace: Trace, chains: int) -> int:
    """Both replays of one trace; 1 if it does not fit."""
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
