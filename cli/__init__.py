"""The command line: one module per group of commands, and one for output.

A command wraps one call of the library. Engines are imported only when a command needs them, so that ``--help`` and
usage errors are fast.
"""

from __future__ import annotations


def main() -> None:
    """Run the command line with the arguments of this process, and end the process with its exit status."""
    import logging
    import sys

    from txnstore.cli.app import run

    # Errors are printed once, in one line. Log records of libraries are shown with --debug only.
    logging.getLogger().addHandler(logging.NullHandler())
    raise SystemExit(run(sys.argv[1:]))


if __name__ != "txnstore.cli":
    raise ImportError("this folder is the package 'txnstore.cli': import it by that name")
