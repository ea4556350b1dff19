"""Spark on a store whose old entries a vacuum has deleted (docs/internals/design/history.md)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

import txnstore
import txnstore.spark
from tests.helpers.aging import age
from tests.helpers.spark import append, drain, load, load_stream, records

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


def commit(url: str, first: int, limit: int) -> None:
    """One entry for each record, of a process that ends."""
    with txnstore.open(url) as store, store.producer("writer") as producer:
        for number in range(first, limit):
            with producer.transaction() as txn:
                txn.send("in", b"%d" % number, partition=number % 2)


def delete_history(url: str) -> int:
    """Two vacuums, eight days after all commits and a day after that; returns the entry before the remaining ones."""
    root = Path(urlsplit(url).path)
    for days in (8, 1):
        age(root, days)
        with txnstore.open(url) as store:
            store.vacuum()
    entries = sorted((root / "chains").rglob("entries/*.json"))
    return int(entries[0].stem) - 1


@pytest.mark.parametrize("config", [{}, {"inline.bytes": 0}], ids=["inlined", "segments"])
def test_reads_queries_and_writes_go_on_after_the_deletion_of_entries(
    spark: SparkSession, local_store_url: str, tmp_path: Path, config: dict[str, int]
) -> None:
    """A query continues with the offsets of its checkpoint, which are older than the history.

    No process writes before and after the deletion: to a clock that was not set, it is in the lease of what it knows.
    """
    url, numbers = local_store_url, list[int]()

    def collect(frame: DataFrame, _: int) -> None:
        numbers.extend(int(bytes(row.value)) for row in frame.collect())

    def query() -> list[int]:
        writer = load_stream(spark, url, "in").writeStream.foreachBatch(collect).trigger(availableNow=True)
        drain(writer.option("checkpointLocation", str(tmp_path / "checkpoint")))
        return sorted(numbers)

    def read() -> list[int]:
        return sorted(int(bytes(row.value)) for row in load(spark, url, "in").collect())

    with txnstore.create(url) as store:
        store.create_topic("in", partitions=2, config=config)
    commit(url, 0, 80)
    assert query() == list(range(80))
    with txnstore.open(url) as store:
        store.compact()
        store.checkpoint()
    commit(url, 80, 90)
    with txnstore.open(url) as store:
        store.checkpoint()
    assert delete_history(url) > 80
    commit(url, 90, 100)
    assert query() == list(range(100))
    assert read() == list(range(100))
    native = txnstore.spark.read(spark, url, "in").collect()
    assert sorted(int(bytes(row.value)) for row in native) == list(range(100))
    append(records(spark, 20, first=100), url, "in")
    assert read() == list(range(120))
    with txnstore.open(url) as store:
        assert store.verify(deep=True).ok
    with pytest.raises(Exception, match="a vacuum has deleted the history of chain 0 before entry"):
        load(spark, url, "in", snapshot="5").count()
