"""The compactor: merges small committed segments into large ones, and removes what nothing names."""

from __future__ import annotations

if __name__ != "txnstore.compactor":
    raise ImportError("this folder is the package 'txnstore.compactor': import it by that name")
