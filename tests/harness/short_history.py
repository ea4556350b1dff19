"""Makes the history of chains so short that a run sees entries deleted."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from txnstore.chain import boundary


@contextmanager
def short_history(lease_ms: int) -> Iterator[None]:
    """Inside the block, a process trusts its look at the boundary for so long, and a vacuum waits for twice as long.

    0: as long as outside.
    """
    before = boundary.LEASE_MS, boundary.WAIT_MS
    if lease_ms:
        boundary.LEASE_MS, boundary.WAIT_MS = lease_ms, 2 * lease_ms
    try:
        yield
    finally:
        boundary.LEASE_MS, boundary.WAIT_MS = before
