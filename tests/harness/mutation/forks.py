"""Runs pytest for each line of its input, in a fork of a process that has imported what no mutant changes.

It is started by its path in a copy of the tree: neither the product nor its tests may be imported before the fork.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path

import pytest

#: What most tests import, directly or not.
_MODULES = (
    "_pytest.assertion.rewrite",
    "duckdb",
    "fsspec",
    "hypothesis",
    "jsonschema",
    "pandas",
    "pyarrow.compute",
    "pyarrow.csv",
    "pyarrow.dataset",
    "pyarrow.json",
    "pyarrow.parquet",
    "pydantic",
    "xdist.plugin",
)
#: The exit status if pytest raises an error: none of its own.
_NO_STATUS = 99


def main() -> None:
    """Read ``[arguments, seconds, file]``, write the exit status; what pytest prints is in the file."""
    for name in _MODULES:
        importlib.import_module(name)
    for line in sys.stdin:
        arguments, seconds, output = json.loads(line)
        process = os.fork()
        if process == 0:
            status = _NO_STATUS
            try:
                os.setsid()
                signal.alarm(seconds)
                with Path(output).open("w", encoding="utf-8") as file:
                    os.dup2(file.fileno(), 1)
                    os.dup2(file.fileno(), 2)
                status = int(pytest.main(arguments))
                sys.stdout.flush()
            except BaseException:  # noqa: BLE001 - The process must not go on as its parent.
                traceback.print_exc()
            finally:
                os._exit(status)  # without waiting for threads that a test has left
        try:
            _, status = os.waitpid(process, 0)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process, signal.SIGKILL)  # with what the tests have started
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
