"""The command line: one module per group of commands, and one for output.

A command wraps one call of the library. Engines are imported only when a command needs them, so that ``--help`` and
usage errors are fast.
"""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line with the arguments of this process, and end the process with its exit status."""
    import logging

    from txnstore.cli.app import run

    # Errors are printed once, in one line. Log records of libraries are shown with --debug only.
    logging.getLogger().addHandler(logging.NullHandler())
    try:
        status = run(sys.argv[1:])
    except Exception:  # noqa: BLE001 - with --debug
        sys.excepthook(*sys.exc_info())
        status = 1
    leave(status)


def leave(status: int) -> NoReturn:
    """End the process with this exit status, without finalizing the interpreter.

    Libraries with threads of their own (obstore, Arrow, DuckDB) may be in the middle of a request after Ctrl-C. A
    thread of Rust that needs the interpreter during finalization ends the process by a signal; see
    :func:`txnstore.threads.wait_for_deliveries`. The duties of an exit remain: wait for threads that are no daemons,
    call exit functions, flush output.
    """
    import atexit
    import contextlib
    import os
    import threading

    try:
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - as the interpreter does
        atexit._run_exitfuncs()  # noqa: SLF001 - the same
    except KeyboardInterrupt:
        status = 130
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(status)


if __name__ != "txnstore.cli":
    raise ImportError("this folder is the package 'txnstore.cli': import it by that name")
