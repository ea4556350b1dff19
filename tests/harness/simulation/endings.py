"""The end of a run: no process of it acts afterwards, neither in the next run nor when the interpreter exits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from txnstore.consumer import leases


@contextmanager
def no_leases_left() -> Iterator[None]:
    """Forget the leases of the consumers that the block creates: the exit of the interpreter leaves no group of them.

    During the run, no finalizer of a consumer makes a request either: ``spawn`` of a simulated runtime starts nothing.
    """
    before = set(leases._OPEN)
    try:
        yield
    finally:
        for lease in set(leases._OPEN) - before:
            leases._OPEN.discard(lease)
