"""Compactions and deep verifications whose parts are tasks of Spark."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import txnstore
from tests.helpers.cli import Cli
from tests.helpers.compaction import batches, rows
from tests.helpers.connections import connection_of
from txnstore.core.log.model import Batch
from txnstore.core.model import TopicPartition
from txnstore.errors import CorruptionError, StorageRefusedError, TxnStoreError
from txnstore.runtime import Runtime
from txnstore.spark import engine
from txnstore.spark.engine import SparkEngine
from txnstore.storage.base import ObjectStore
from txnstore.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

PARTITIONS = [TopicPartition(topic, number) for topic in ("log", "users") for number in range(3)]
ITEMS = TopicPartition("items", 0)
ITEM = pa.schema([("id", pa.int64()), ("gone", pa.bool_())])


@pytest.fixture
def store(local_store_url: str, spark: SparkSession) -> Iterator[Store]:
    """A store of two chains with small segments of a log and of a table, some of an aborted transaction."""
    with txnstore.create(local_store_url, chains=2) as created:
        created.create_topic("log", partitions=3, config={"segment.own.bytes": 0})
        created.create_topic("users", partitions=3, config={"cleanup.policy": "compact", "segment.own.bytes": 0})
        with created.producer("writer") as producer:
            for outcome in ("commit", "commit", "abort", "commit"):
                producer.begin_transaction()
                for tp in PARTITIONS:
                    for number in range(3):
                        value = f"{outcome} {number}".encode()
                        producer.send(tp.topic, value, key=b"k%d" % number, partition=tp.partition, timestamp=number)
                producer.flush()
                producer.commit_transaction() if outcome == "commit" else producer.abort_transaction()
        config = {"cleanup.policy": "compact", "tombstone.column": "gone"}
        created.create_topic("items", schema=ITEM, key="id", config=config)
        with created.producer() as producer:
            producer.send_table("items", [{"id": number} for number in range(3)])
            producer.send("items", None, key=1)
        created.recover()  # Completes the transactions now, not beside what a test compares.
        yield created


def test_both_engines_make_the_same_segments(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same plan, the same event, tombstones of a typed topic included: CMP-01, CMP-06, CMP-08, CMP-20."""
    monkeypatch.setattr(engine, "_TASKS", 2)  # Several jobs of Spark.
    folder = Path(store.url.removeprefix("file://"))
    store.close()  # The last transaction is completed in the background.
    shutil.copytree(folder, tmp_path / "copy")
    with txnstore.open(tmp_path / "copy") as copy:
        reports = [store.compact(engine="spark"), copy.compact()]
        assert reports[0] == reports[1]
        assert (reports[0].cleans, reports[0].merges, reports[0].superseded) == (4, 3, 19)
        for tp in PARTITIONS:
            assert [_content(each) for each in batches(store, tp)] == [_content(each) for each in batches(copy, tp)]
        for each in (store, copy):  # The horizons are of two moments.
            assert [batch.delete_horizon is None for batch in batches(each, ITEMS)] == [False]
        for topic in ("log", "users", "items"):
            assert rows(store, topic) == rows(copy, topic)
    assert store.verify(deep=True, engine="spark").ok
    assert store.compact(engine="spark").partitions == ()


def _content(batch: Batch) -> Batch:
    """A batch without the name of its segment."""
    return replace(batch, segment=replace(batch.segment, object=""))


def test_damage_of_a_partition_leaves_the_others(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit status is 1, and the error names each damaged segment."""
    altered, missing = (batches(store, tp)[0].segment.key for tp in (PARTITIONS[0], PARTITIONS[3]))
    _alter(store, altered)
    connection_of(store).objects.delete([missing])
    result = Cli(store.url, monkeypatch)("compact", "--engine", "spark")
    assert result.status == 1
    assert altered in result.err
    assert missing in result.err
    damaged = (PARTITIONS[0], PARTITIONS[3])
    with txnstore.open(store.url) as after:
        assert {tp: len(batches(after, tp)) for tp in PARTITIONS} == {
            tp: 4 if tp in damaged else 1 for tp in PARTITIONS
        }


def _alter(store: Store, key: str) -> None:
    """Change the last bytes of an object, but not its size."""
    objects = connection_of(store).objects
    data = objects.get(key)
    objects.put(key, data[:-8] + bytes(8))


def test_a_deep_verification_finds_the_same_on_spark(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    _alter(store, batches(store, PARTITIONS[1])[1].segment.key)
    connection_of(store).objects.delete([batches(store, PARTITIONS[4])[0].segment.key])
    report = store.verify(deep=True, engine="spark")
    assert report == store.verify(deep=True)
    assert {each.name for each in report.violations} == {"segment_content", "segment_present"}
    result = Cli(store.url, monkeypatch)("verify", "--deep", "--engine", "spark")
    assert (result.status, "2 violations" in result.out + result.err) == (1, True)


def _job(objects: ObjectStore, pool: Executor, runtime: Runtime, *, number: int) -> Any:
    if number == 0:
        raise StorageRefusedError("no space left")
    if number == 1:
        raise CorruptionError("damaged")
    return number


def test_what_succeeded_comes_before_what_failed(store: Store) -> None:
    """So that the driver commits all uploads before it raises the error of a machine without space."""
    ended = list(SparkEngine(connection_of(store)).run((number, partial(_job, number=number)) for number in range(4)))
    assert [number for number, _ in ended] == [2, 3, 0, 1]
    assert [call() for _, call in ended[:2]] == [2, 3]
    with pytest.raises(StorageRefusedError, match="no space left"):
        ended[2][1]()
    with pytest.raises(CorruptionError, match=r"^damaged$"):
        ended[3][1]()


def _die(objects: ObjectStore, pool: Executor, runtime: Runtime) -> None:
    os._exit(1)


def test_a_worker_that_dies_ends_the_compaction_with_one_error(store: Store) -> None:
    """As one that the system kills because it has no memory left."""
    with pytest.raises(TxnStoreError, match=r"a job of Spark failed, and nothing of it was committed: .*memory_limit"):
        list(SparkEngine(connection_of(store)).run([(0, _die)]))
