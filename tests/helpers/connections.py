"""What is behind a store, for tests that look there."""

from __future__ import annotations

from txnstore.connection import Connection
from txnstore.core.catalog.model import Topic
from txnstore.store import Store


def connection_of(store: Store) -> Connection:
    """The connection of a store."""
    return store._connection


def stored_topic(store: Store, name: str) -> Topic:
    """A topic as the chain holds it."""
    return connection_of(store).view().find_topic(name)
