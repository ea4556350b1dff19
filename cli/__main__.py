"""``python -m txnstore.cli``: the command line without the console script."""

from __future__ import annotations

from txnstore.cli import main

main()
