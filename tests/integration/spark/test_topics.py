"""Topics that Spark jobs and queries create from the columns of their frames."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import txnstore
import txnstore.spark
from tests.helpers.connections import connection_of
from tests.helpers.spark import append, drain, load, load_stream, records, stream_to, values
from txnstore.store import Store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def store(local_store_url: str) -> Iterator[Store]:
    with txnstore.create(local_store_url) as created:
        yield created


def test_a_topic_made_from_a_frame_takes_its_rows(spark: SparkSession, store: Store) -> None:
    """And gives them back with the same types, also the nested ones."""
    frame = spark.sql(
        "select id, cast(id as decimal(10, 2)) as price, timestamp_micros(id) as at, array(id, null) as list, "
        "map('n', id) as map, named_struct('a b', array(named_struct('d', date'2026-01-02'))) as nested from range(20)"
    )
    txnstore.spark.create_topic(store, "orders", frame.schema, partitions=2, key="id", timestamp="at")
    append(frame, store.url, "orders")
    stored = load(spark, store.url, "orders", columns=",".join(frame.columns))
    assert [field.dataType.simpleString() for field in stored.schema] == [
        field.dataType.simpleString() for field in frame.schema
    ]
    assert sorted(stored.collect()) == sorted(frame.collect())


def test_a_write_creates_its_topic_once(spark: SparkSession, store: Store) -> None:
    """With an existing topic the option does nothing, and the columns must still be those of the topic."""
    create = {"createTopic": "true", "createTopic.partitions": "3", "createTopic.key": "id"}
    append(spark.range(0, 50, 1, 2), store.url, "ids", **create)
    topic = store.topic("ids")
    assert (topic.partitions, topic.key, topic.schema) == (3, "id", pa.schema([("id", pa.int64())]))
    append(spark.range(50, 60, 1, 2), store.url, "ids", **{**create, "createTopic.partitions": "5"})
    assert store.topic("ids").partitions == 3
    assert sorted(row[0] for row in load(spark, store.url, "ids", columns="id").collect()) == list(range(60))
    with pytest.raises(Exception, match="topic 'ids' has no column 'name'"):
        append(spark.sql("select 'a' as name"), store.url, "ids", **create)


def test_a_write_that_is_refused_creates_no_topic(spark: SparkSession, store: Store) -> None:
    with pytest.raises(Exception, match="column 'pause' is of type interval day, which a topic cannot"):
        append(spark.sql("select 1 as id, interval '1' day as pause"), store.url, "new", createTopic=True)
    with pytest.raises(Exception, match="there is no topic 'new'"):
        append(records(spark, 1), store.url, "new")
    assert not store.topics()


def test_a_query_creates_its_topic(spark: SparkSession, store: Store, tmp_path: Path) -> None:
    """Rows of Kafka records make a topic of Kafka records; only the first micro-batch creates it."""
    store.create_topic("in")
    append(records(spark, 30), store.url, "in")
    frame = load_stream(spark, store.url, "in", maxOffsetsPerTrigger=10).select("key", "value")
    before = connection_of(store).view().sequence
    create = {"topic": "copy", "createTopic": "true", "createTopic.partitions": "2"}
    drain(stream_to(frame, store.url, tmp_path / "checkpoint", **create))
    assert values(store, "copy") == list(range(30))
    assert (store.topic("copy").schema, store.topic("copy").partitions) == (None, 2)
    # The topic, the epoch of the run, and three micro-batches with records.
    assert connection_of(store).view().sequence == before + 2 + 3
