"""Which files Spark's own reader reads: merged ones as a whole, or none of them."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pytest

from tests.helpers.compaction import new_store
from tests.helpers.connections import connection_of
from tests.helpers.merging import merge_now, numbers, send
from txnstore.core.log.model import Layout
from txnstore.core.model import TopicPartition
from txnstore.read.rows import Columns, RowPlan
from txnstore.scan import Scan
from txnstore.spark.reads.native import _FILES, _is_readable, _shared_rows, _stored_bytes
from txnstore.storage.counting import CountingStore
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create_on
from txnstore.testing import ManualClock


@pytest.fixture
def store(clock: ManualClock) -> Iterator[Store]:
    with new_store(clock) as made:
        made.create_topic("t", partitions=3)
        for first in (0, 2):
            send(made, numbers(2, first), partitions=range(3))
            merge_now(made)
        yield made


def plan_of(store: Store, topic: str = "t", names: list[str] | None = None) -> RowPlan:
    scan = Scan(connection_of(store), topic)
    plan, rest = RowPlan(Columns(scan.topic, names), tuple(scan.plan())).split(_FILES)
    assert not rest.slices
    return plan


def is_readable(plan: RowPlan) -> bool:
    return _is_readable(plan.columns, plan.groups())


def test_merged_files_are_read_whole_with_the_partitions_that_they_store(store: Store) -> None:
    plan = plan_of(store)
    (group,) = plan.groups()
    assert is_readable(plan)
    assert (group.layout, group.cut) == (Layout.MERGED_SHARED, False)
    assert len({file.segment.key for file in group.files}) == len(group.files) == 2


@pytest.mark.parametrize("offset", [1, 2])
def test_files_of_which_some_rows_are_not_visible_are_not(store: Store, offset: int) -> None:
    """A log that starts inside a batch, or behind it."""
    store.delete_records({TopicPartition("t", 1): offset})
    assert not is_readable(plan_of(store))


def test_a_time_column_that_spark_reads_otherwise_matters_only_where_event_times_are_derived_from_it(
    store: Store,
) -> None:
    """A merge stores ``_timestamp``."""
    schema = pa.schema([("at", pa.timestamp("us"))])
    store.create_topic("local", schema=schema, timestamp="at", config={"inline.bytes": 0, "segment.own.bytes": 0})
    for _ in range(2):
        with store.producer() as producer:
            producer.send_table("local", pa.table({"at": [0, 1]}, schema=schema)).result()

    assert not is_readable(plan_of(store, "local"))
    assert is_readable(plan_of(store, "local", ["at", "_offset"]))
    store.compact("local")
    assert is_readable(plan_of(store, "local"))


def test_the_driver_fetches_each_shared_segment_once_and_counts_it_as_a_whole() -> None:
    """However many partitions have rows in it, and however few of these are left."""
    with create_on(CountingStore(MemoryStore(), log=True)) as store:
        store.create_topic("wide", partitions=8, config={"inline.bytes": 0})
        for first in (0, 1, 2):
            send(store, numbers(1, first), "wide", partitions=range(8))
        store.delete_records({TopicPartition("wide", partition): 2 for partition in range(4)})
        connection = connection_of(store)
        scan = Scan(connection, "wide")
        parts = scan.plan()
        objects = {part.batch.segment.key: part.batch.segment.size for part in parts}
        assert len(objects) == 3
        assert _stored_bytes(parts) == sum(objects.values()) > sum(part.batch.size for part in parts)
        connection.counts.reset()
        rows = pa.concat_tables(_shared_rows(connection, RowPlan(Columns(scan.topic), tuple(parts))))
        assert sorted(key for kind, key in connection.counts.log if kind == "get") == sorted(objects)
        assert rows.sort_by([("_partition", "ascending"), ("_offset", "ascending")]) == scan.to_table()
