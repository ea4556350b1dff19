"""Why a process could not merge small commits: no call raises it, so the run asks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from tests.harness.simulation.world import World
from txnstore.compactor.compact import background
from txnstore.connection import OpenParts
from txnstore.core.state import State
from txnstore.errors import AuthorizationError, StorageError, StoreNotFoundError

#: Storages fail, a store is deleted, and a right is taken away; that a replacement is refused is no failure.
_EXPECTED = (StorageError, StoreNotFoundError, AuthorizationError)


@contextmanager
def merges_watched(world: World) -> Iterator[None]:
    """Inside the block, a merge that fails for another reason than those of the run is an anomaly."""
    before = background._report_failure

    def failed(parts: OpenParts, state: State, error: Exception, level: int = logging.WARNING) -> None:
        before(parts, state, error, level)
        if not isinstance(error, _EXPECTED) and not world.explains(error):
            world.anomalies.append(f"not-merged: {type(error).__name__}: {error}")

    background._report_failure = failed
    try:
        yield
    finally:
        background._report_failure = before
