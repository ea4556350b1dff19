"""The command line: one module a noun, output in one place.

A command wraps one call of the library. Nothing here imports an engine before a command needs it, so ``--help`` and
usage errors answer at once.
"""

from __future__ import annotations


def main() -> None:
    """Run the command line with the arguments of this process, and end the process with its exit status."""
    import logging
    import sys

    from txnstore.cli.app import run

    # What went wrong is said once, as an error. What libraries log on the way is for --debug.
    logging.getLogger().addHandler(logging.NullHandler())
    raise SystemExit(run(sys.argv[1:]))


if __name__ != "txnstore.cli":
    raise ImportError("this folder is the package 'txnstore.cli': import it by that name")
