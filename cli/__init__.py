"""The command line: one module a noun, output in one place."""

from __future__ import annotations

if __name__ != "txnstore.cli":
    raise ImportError("this folder is the package 'txnstore.cli': import it by that name")
