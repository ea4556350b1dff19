"""A gateway on a store in memory, and admin clients of two libraries."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from kafka.admin import KafkaAdminClient

from tests.helpers.gateway import serving
from tests.helpers.kafka_wire import ServedStore, users_of
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on


@pytest.fixture
def store(gateway: ServedStore) -> Store:
    """The store that the gateway serves."""
    return gateway.store


@pytest.fixture
def gateway() -> Iterator[ServedStore]:
    """A gateway that everyone may use, on a new store."""
    with create_on(MemoryStore()) as store, serving(store, {"num.partitions": "2"}) as gateway:
        yield ServedStore(store, gateway)


@pytest.fixture
def confluent(gateway: ServedStore) -> AdminClient:
    """The admin client of librdkafka."""
    return AdminClient(gateway.librdkafka())


@pytest.fixture
def kafka_python(gateway: ServedStore) -> Iterator[KafkaAdminClient]:
    """The admin client of kafka-python."""
    with KafkaAdminClient(**gateway.kafka_python()) as client:
        yield client


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[ServedStore]:
    """A gateway on a store that checks rights: ``root`` is a super user, ``alice`` and ``bob`` have no rule yet."""
    with create_on(MemoryStore(), principal="User:gateway") as store:
        store.create_topic("t", partitions=2)
        store.acls.enable(["User:gateway", "User:root"])
        with serving(store, security=users_of(tmp_path, "root", "alice", "bob")) as gateway:
            yield ServedStore(store, gateway)
