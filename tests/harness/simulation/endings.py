"""The end of a run: no process of it acts afterwards, neither in the next run nor when the interpreter exits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from txnstore.consumer import leases
from txnstore.producer import linger


@contextmanager
def no_clients_left() -> Iterator[None]:
    """Forget the consumers and producers that the block creates: the exit of the interpreter does nothing for them.

    During the run, no finalizer of a consumer makes a request either: ``spawn`` of a simulated runtime starts nothing.
    """
    before_leases, before_lingers = set(leases._OPEN), set(linger._OPEN)
    try:
        yield
    finally:
        leases._OPEN.difference_update(set(leases._OPEN) - before_leases)
        linger._OPEN.difference_update(set(linger._OPEN) - before_lingers)
