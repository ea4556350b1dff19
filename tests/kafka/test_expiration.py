"""Kafka's TransactionsExpirationTest and ProducerIdExpirationTest: what a producer sees of expired state."""

from __future__ import annotations

import pytest

from tests.kafka.cluster import Cluster, drain, values
from txnstore import Producer
from txnstore.errors import InvalidPidMappingError, TransactionalIdNotFoundError

_DAY_MS = 86_400_000


def _begin_and_send(producer: Producer) -> None:
    producer.begin_transaction()
    producer.send("one", b"1", partition=0).result()


def test_a_transactional_id_that_expired(cluster: Cluster) -> None:
    """TransactionsExpirationTest.testBumpTransactionalEpochAfterInvalidProducerIdMapping.

    Kafka's producer takes a new identity by itself, until KIP-1050 makes this error one that needs a new producer. Here
    the application creates a new producer.
    """
    producer = cluster.producer("p")
    producer.begin_transaction()
    producer.send("one", b"2", partition=0)
    producer.send("two", b"4", partition=0)
    producer.abort_transaction()
    assert cluster.store.transaction("p").transactional_id == "p"
    cluster.clock.advance(8 * _DAY_MS)
    cluster.store.expire()
    with pytest.raises(TransactionalIdNotFoundError):
        cluster.store.transaction("p")

    with pytest.raises(InvalidPidMappingError):
        _begin_and_send(producer)
    producer.close()

    producer = cluster.producer("p")
    producer.begin_transaction()
    for topic, value in (("two", b"2"), ("one", b"4"), ("two", b"1"), ("one", b"3")):
        producer.send(topic, value)
    producer.commit_transaction()
    assert cluster.store.transaction("p").transactional_id == "p"
    assert values(drain(cluster.consumer("one", "two"))) == [b"1", b"2", b"3", b"4"]


def test_a_producer_id_that_expired_in_a_partition(cluster: Cluster) -> None:
    """TransactionsExpirationTest.testTransactionAfterProducerIdExpires: the id's producer id and epoch remain."""
    producer = cluster.producer("p")
    producer.begin_transaction()
    producer.send("one", b"2", partition=0)
    producer.flush()
    (before,) = cluster.store.producers("one", 0)
    producer.abort_transaction()
    producer.close()
    cluster.clock.advance(2 * _DAY_MS)
    cluster.store.expire()
    assert cluster.store.producers("one", 0) == []

    producer = cluster.producer("p")
    producer.begin_transaction()
    producer.send("one", b"4", partition=0)
    producer.send("one", b"3", partition=3)
    producer.commit_transaction()
    (after,) = cluster.store.producers("one", 0)
    assert after.producer_id == before.producer_id
    assert after.epoch > before.epoch
    assert values(drain(cluster.consumer("one"))) == [b"3", b"4"]


def test_an_idempotent_producer_after_its_expiration(cluster: Cluster) -> None:
    """SEQ-16: ProducerIdExpirationTest.testProducerIdExpirationWithNoTransactions."""
    producer = cluster.producer()
    producer.send("one", b"value", b"key", partition=0)
    producer.flush()
    assert len(cluster.store.producers("one", 0)) == 1
    cluster.clock.advance(2 * _DAY_MS)
    cluster.store.expire()
    assert cluster.store.producers("one", 0) == []
    assert producer.send("one", b"value", b"key", partition=0).result().offset == 1
    assert len(cluster.store.producers("one", 0)) == 1


def test_a_transactional_id_that_expires_before_its_producer_id(cluster: Cluster) -> None:
    """ProducerIdExpirationTest.testTransactionAfterTransactionIdExpiresButProducerIdRemains."""
    producer = cluster.producer("p")
    producer.begin_transaction()
    producer.send("one", b"2", partition=0)
    producer.flush()
    producer.abort_transaction()
    cluster.clock.advance(_DAY_MS)
    cluster.store.expire(producer_ids=30 * 86_400.0, transactional_ids=3_600.0)
    with pytest.raises(TransactionalIdNotFoundError):
        cluster.store.transaction("p")
    assert len(cluster.store.producers("one", 0)) == 1
    with pytest.raises(InvalidPidMappingError):
        _begin_and_send(producer)
    producer.close()

    with cluster.producer("p") as fresh:
        fresh.begin_transaction()
        fresh.send("one", b"4", partition=0)
        fresh.send("one", b"3", partition=0)
        fresh.commit_transaction()
    assert values(drain(cluster.consumer("one"))) == [b"3", b"4"]


def test_another_limit_for_producer_ids(cluster: Cluster) -> None:
    """ProducerIdExpirationTest.testDynamicProducerIdExpirationMs: the limit is an argument of each expiration."""
    producer = cluster.producer()
    producer.send("one", b"value", partition=0).result()
    cluster.clock.advance(2 * _DAY_MS)
    cluster.store.expire(producer_ids=7 * 86_400.0)
    assert len(cluster.store.producers("one", 0)) == 1
    cluster.store.expire(producer_ids=86_400.0)
    assert cluster.store.producers("one", 0) == []
