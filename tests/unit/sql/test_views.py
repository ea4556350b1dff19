"""Which rows of which files a view reads: slices that are only a part of their file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.batches import BatchList
from txnstore.core.log.model import Batch, Partition, Segment
from txnstore.core.log.visibility import Slice
from txnstore.core.model import Isolation, Map, TopicPartition
from txnstore.core.state import State
from txnstore.core.view import View
from txnstore.segment.schema import OFFSET_FIELD, TIMESTAMP_FIELD, schema_to_text
from txnstore.sql.views import topic_select, view_names, visible_slices

SCHEMA = pa.schema([("n", pa.int64())])
TOPIC = CatalogTopic("t", "id", 2, schema=schema_to_text(SCHEMA))


def batch(segment: Segment, base: int, limit: int, records: int, first_row: int = 0) -> Batch:
    return Batch(base, limit, records, segment, 1_000, 2_000, first_row=first_row)


def read(folder: Path, slices: list[Slice]) -> list[tuple[int, int, int]]:
    """Partition, offset and value of the rows of some slices."""
    with duckdb.connect() as con:
        select = topic_select(TOPIC, slices, lambda segment: str(folder / segment.key))
        return con.sql(f"SELECT _partition, _offset, n FROM ({select}) ORDER BY ALL").fetchall()


def stored(folder: Path, key: str, table: pa.Table) -> Segment:
    pq.write_table(table, folder / key)
    return Segment(key, "parquet", 0, "", table.num_rows, OFFSET_FIELD.name in table.column_names)


def test_a_file_with_several_batches_gives_each_its_own_offsets(tmp_path: Path) -> None:
    segment = stored(tmp_path, "many.parquet", pa.table({"n": list(range(10))}))
    slices = [
        Slice(TopicPartition("t", 0), batch(segment, 100, 104, 4), 100, 104),
        Slice(TopicPartition("t", 1), batch(segment, 7, 13, 6, first_row=4), 7, 13),
    ]
    assert read(tmp_path, slices) == [(0, 100 + n, n) for n in range(4)] + [(1, 3 + n, n) for n in range(4, 10)]


def test_a_slice_that_is_cut_gives_the_rows_inside(tmp_path: Path) -> None:
    whole = stored(tmp_path, "whole.parquet", pa.table({"n": [0, 1, 2]}))
    cut = stored(tmp_path, "cut.parquet", pa.table({"n": list(range(10))}))
    tp = TopicPartition("t", 0)
    slices = [Slice(tp, batch(whole, 0, 3, 3), 0, 3), Slice(tp, batch(cut, 50, 60, 10), 53, 56)]
    assert read(tmp_path, slices) == [(0, n, n) for n in range(3)] + [(0, 50 + n, n) for n in range(3, 6)]


def test_a_merged_file_is_cut_by_its_stored_offsets(tmp_path: Path) -> None:
    columns = [*SCHEMA, OFFSET_FIELD, TIMESTAMP_FIELD]
    arrays = [
        pa.array(values, field.type)
        for values, field in zip(([1, 2, 3], [10, 20, 25], [0, 0, 0]), columns, strict=True)
    ]
    merged = stored(tmp_path, "merged.parquet", pa.Table.from_arrays(arrays, schema=pa.schema(columns)))
    part = Slice(TopicPartition("t", 0), batch(merged, 10, 30, 3), 15, 22)
    assert read(tmp_path, [part]) == [(0, 20, 2)]


@pytest.mark.parametrize("limit", [30, 22], ids=["whole", "cut"])
def test_a_merged_file_without_offsets_is_damage(tmp_path: Path, limit: int) -> None:
    """Its rows must neither have null offsets nor be left out."""
    fresh = stored(tmp_path, "fresh.parquet", pa.table({"n": [1, 2, 3]}))
    segment = replace(fresh, explicit_offsets=True)
    part = Slice(TopicPartition("t", 0), batch(segment, 10, 30, 3), 10, limit)
    with pytest.raises(duckdb.Error, match=r"a merged segment has no offsets: .*fresh\.parquet"):
        read(tmp_path, [part])


def test_a_partition_that_starts_inside_a_batch_is_read_from_there(tmp_path: Path) -> None:
    segment = stored(tmp_path, "one.parquet", pa.table({"n": [0, 1, 2, 3]}))
    log = Partition(log_start=2, high_watermark=4, batches=BatchList([batch(segment, 0, 4, 4)]))
    partitions = {TopicPartition("t", 0): log, TopicPartition("t", 1): Partition()}
    state = State(topics=Map({"t": TOPIC}), partitions=Map(partitions))
    assert read(tmp_path, visible_slices(TOPIC, View((state,)), Isolation.READ_COMMITTED)) == [(0, 2, 2), (0, 3, 3)]


def test_views_have_their_topics_names_unless_only_the_case_differs() -> None:
    topics = [
        CatalogTopic("orders", "1", 1, created_at=2),
        CatalogTopic("Orders", "2", 1, created_at=1),
        CatalogTopic("other", "3", 1, created_at=3),
    ]
    state = State(topics=Map({topic.name: topic for topic in topics}))
    assert view_names(View((state,))) == {"Orders": "Orders", "orders": "orders#2", "other": "other"}
