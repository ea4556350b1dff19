"""Lets engines read the tables of random histories: ``python -m tests.readers ENVIRONMENTS [ENGINE …] --seeds 0 10``.

Exit status 1 if a snapshot differs.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import traceback
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.harness.places import PLACES
from tests.harness.s3.servers import S3Server
from tests.readers.checks import Check, Increments, Result, plain_reader
from tests.readers.engines import ENGINES, Worker, running
from tests.readers.history import History
from txnstore import BlockedReadWarning


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the seeds; returns the exit status."""
    warnings.simplefilter("ignore", BlockedReadWarning)
    options = _options(arguments)
    first, count = options.seeds
    results = {name: Result() for name in ("plain", *options.engines)}
    failed = False
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="readers-")))
        workers = {
            name: stack.enter_context(
                running(ENGINES[name], options.environments, folder, [str(options.runtime)] if name == "spark" else [])
            )
            for name in options.engines
        }
        server = None
        if options.store != "local":
            server = stack.enter_context(S3Server(None if options.store == "s3" else options.store))
        for seed in range(first, first + count):
            problems = _seed(seed, folder, server, options, workers, results)
            failed = failed or bool(problems)
            _say(f"seed {seed}: {'different' if problems else 'equal'}", *problems)
    for name, result in results.items():
        _say(f"{name}: {result}")
    return int(failed or any(not result.reads["snapshots"] for result in results.values()))


def _seed(
    seed: int,
    folder: Path,
    server: S3Server | None,
    options: argparse.Namespace,
    workers: dict[str, Worker],
    results: dict[str, Result],
) -> list[str]:
    """Run one history, and read its tables; returns what is wrong."""
    place = folder / f"store-{seed}"
    increments = Increments()
    history = History(
        seed,
        place if server is None else server.create_bucket(f"readers-{seed}"),
        None if server is None else server.storage_options,
        on_publication=increments.follow,
    )
    s3 = None if server is None else server.storage_options
    try:
        history.run(options.steps)
        problems = _lines("increments", increments.problems, options.most)
        problems += _read(Check(history), history, s3, options.most, workers, results)
    except Exception:  # noqa: BLE001 - the next history may say more; this one has failed.
        problems = [f"    after {history.log[-5:]}: {traceback.format_exc()}"]
    finally:
        history.close()
    if place.exists():
        if problems and options.keep is not None:
            shutil.copytree(place, options.keep / place.name, dirs_exist_ok=True)
        shutil.rmtree(place)
    return problems


def _read(
    check: Check,
    history: History,
    s3: dict[str, Any] | None,
    most: int,
    workers: dict[str, Worker],
    results: dict[str, Result],
) -> list[str]:
    """Let all engines read the tables of a history; returns what is wrong."""
    problems: list[str] = []
    for name, result in results.items():
        if name == "plain":
            found = check.run(plain_reader(history))
        else:
            found = check.run(workers[name].reader(s3), ENGINES[name].manner, ENGINES[name].kinds)
        result.add(found)
        problems += _lines(name, found.problems, most)
    return problems


def _lines(name: str, problems: list[str], most: int) -> list[str]:
    """The first of the problems of an engine."""
    more = [f"    {name}: and {len(problems) - most} more"] if len(problems) > most else []
    return [*(f"    {name}: {problem}" for problem in problems[:most]), *more]


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.readers")
    parser.add_argument(
        "environments", type=Path, metavar="ENVIRONMENTS", help="a folder with a virtual environment for each engine"
    )
    parser.add_argument("engines", nargs="*", metavar="ENGINE", help=f"of {', '.join(ENGINES)}; none: all")
    parser.add_argument("--seeds", type=int, nargs=2, default=(0, 1), metavar=("FIRST", "COUNT"))
    parser.add_argument("--steps", type=int, default=60, help="of a history")
    parser.add_argument("--store", choices=PLACES, default="local", help="a folder, or an S3 server")
    parser.add_argument("--runtime", type=Path, help="the jar of Iceberg's runtime for Spark")
    parser.add_argument("--most", type=int, default=5, help="how many problems of an engine are printed for each seed")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="where stores are kept whose tables differ")
    options = parser.parse_args(arguments)
    if unknown := set(options.engines) - set(ENGINES):
        parser.error(f"there is no engine {', '.join(sorted(unknown))}")
    options.engines = options.engines or [name for name in ENGINES if options.store == "local" or name != "spark"]
    if "spark" in options.engines and (options.runtime is None or options.store != "local"):
        parser.error("spark needs --runtime, and reads stores in folders only")
    return options


def _say(*lines: str) -> None:
    sys.stdout.writelines(f"{line}\n" for line in lines)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
