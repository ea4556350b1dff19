"""What is behind a store, for tests that look there."""

from __future__ import annotations

from txnstore.connection import Connection
from txnstore.store import Store


def connection_of(store: Store) -> Connection:
    """The connection of a store."""
    return store._connection
