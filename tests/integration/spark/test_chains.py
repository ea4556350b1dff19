"""Spark on a store of several chains: a job is one transaction, a read is of one snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

import txnstore
from tests.harness.executors import DeferredExecutor
from tests.helpers.connections import connection_of
from tests.helpers.spark import append, load, records, values
from txnstore.core.model import Outcome, ProducerIdentity, TopicPartition
from txnstore.core.routing import chain_of_partition
from txnstore.core.transactions.commands import EndTxn
from txnstore.core.transactions.model import TxnState
from txnstore.runtime import Runtime
from txnstore.spark import read
from txnstore.store import Store, open_on

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

CHAINS = 3


@pytest.fixture
def store(local_store_url: str) -> Iterator[Store]:
    """Two topics with a partition in each of three chains."""
    with txnstore.create(local_store_url, chains=CHAINS) as created:
        for name in ("events", "others"):
            created.create_topic(name, partitions=CHAINS)
            led = {chain_of_partition(TopicPartition(name, number), CHAINS) for number in range(CHAINS)}
            assert led == set(range(CHAINS))
        yield created


def _numbers(frame: DataFrame) -> list[int]:
    return sorted(int(row[0]) for row in frame.selectExpr("cast(value as string)").collect())


def _read_twice(spark: SparkSession, store: Store) -> list[list[int]]:
    """Through the data source, and through Spark's own Parquet reader."""
    return [_numbers(load(spark, store.url, "events")), _numbers(read(spark, store.url, "events"))]


def test_a_job_over_two_topics_and_all_chains_is_one_transaction(spark: SparkSession, store: Store) -> None:
    """A version that is committed is committed in all chains: the same job again does nothing."""
    frame = records(spark, 60, tasks=3).selectExpr("*", "if(int(value) % 2 = 0, 'events', 'others') as _topic")
    for _ in range(2):
        append(frame, store.url, transactionalId="loader", txnVersion=4)
    assert values(store, "events") == list(range(0, 60, 2))
    assert values(store, "others") == list(range(1, 60, 2))
    state = connection_of(store).view()
    assert state.transactions["loader"].state is TxnState.COMPLETE_COMMIT, "Spark's driver waits for its end"
    for tp, partition in state.partitions.items():
        assert partition.high_watermark == sum(batch.records for batch in partition.batches) + 1, tp
    append(frame, store.url, transactionalId="loader", txnVersion=5)
    assert len(values(store, "events")) == 60
    assert store.verify(deep=True).ok


def test_reads_see_a_decided_transaction_whole_before_its_markers_are_written(
    spark: SparkSession, store: Store
) -> None:
    """END-06."""
    append(records(spark, 30), store.url, "events")
    writer = open_on(connection_of(store).counts.inner, runtime=Runtime(background=DeferredExecutor))
    producer = writer.producer("everywhere")
    producer.begin_transaction()
    for number in range(30, 33):
        producer.send("events", str(number).encode(), partition=number - 30)
    producer.flush()
    assert _read_twice(spark, store) == [list(range(30))] * 2
    connection_of(writer).submit(
        EndTxn(ProducerIdentity(producer.producer_id, producer.epoch, "everywhere"), Outcome.COMMIT)
    )
    assert any(
        log.open_txns for p in range(CHAINS) if (log := connection_of(store).view().log(TopicPartition("events", p)))
    )
    assert _read_twice(spark, store) == [list(range(33))] * 2
    store.compact()
    assert _read_twice(spark, store) == [list(range(33))] * 2
    writer.close()
