"""A store with the topics of Kafka's tests, and clients that are closed in the end."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka.cluster import Cluster
from txnstore.testing import ManualClock


@pytest.fixture
def cluster(chains: int, clock: ManualClock) -> Iterator[Cluster]:
    """A store in memory of one chain or of three, with the topics ``one`` and ``two`` of four partitions."""
    cluster = Cluster(chains, clock)
    cluster.store.create_topic("one", partitions=4)
    cluster.store.create_topic("two", partitions=4)
    yield cluster
    cluster.close()
