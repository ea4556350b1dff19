"""What is behind a store, for tests that look there."""

from __future__ import annotations

from txnstore.connection import Connection
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Batch
from txnstore.store import Store


def connection_of(store: Store) -> Connection:
    """The connection of a store."""
    return store._connection


def stored_topic(store: Store, name: str) -> CatalogTopic:
    """A topic as the chain holds it."""
    return connection_of(store).view().find_topic(name)


def batches_of(store: Store, topic: str) -> list[Batch]:
    """The batches of a topic, by partition, then offset."""
    return [batch for _, log in connection_of(store).view().partitions_of(topic) for batch in log.batches]
