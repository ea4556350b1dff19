"""Which rows of which files a view reads: slices that are only a part of their file."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.batches import BatchList
from txnstore.core.log.model import Batch, Partition, Segment
from txnstore.core.log.slices import Slice
from txnstore.core.model import Isolation, Map, TopicPartition
from txnstore.core.state import State
from txnstore.core.view import View
from txnstore.read.rows import RowPlan
from txnstore.segment.schema import OFFSET_FIELD, PARTITION_FIELD, TIMESTAMP_FIELD, schema_to_text
from txnstore.sql.views import shown_columns, shown_plan, topic_select, view_names

SCHEMA = pa.schema([("n", pa.int64())])
TOPIC = CatalogTopic("t", "id", 2, schema=schema_to_text(SCHEMA))


def batch(segment: Segment, base: int, limit: int, records: int, first_row: int = 0) -> Batch:
    return Batch(base, limit, records, segment, 1_000, 2_000, first_row=first_row)


def read(folder: Path, slices: list[Slice]) -> list[tuple[int, int, int]]:
    """Partition, offset and value of the rows of some slices."""
    with duckdb.connect() as con:
        select = topic_select(RowPlan(shown_columns(TOPIC), tuple(slices)), lambda segment: str(folder / segment.key))
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
    with pytest.raises(duckdb.Error, match=r"a merged segment has no _offset: .*fresh\.parquet"):
        read(tmp_path, [part])


def merged(folder: Path, partitions: int, batches: int, gap: int = 5) -> list[Slice]:
    """The batches of a merged segment: two records in each, at offsets with gaps between the batches."""
    offsets = [number * gap + record for number in range(batches) for record in range(2)]
    rows = [(partition, offset) for partition in range(partitions) for offset in offsets]
    columns = [*SCHEMA, PARTITION_FIELD, OFFSET_FIELD, TIMESTAMP_FIELD]
    arrays = [range(len(rows)), *zip(*rows, strict=True), [0] * len(rows)]
    table = pa.table(
        [pa.array(each, field.type) for each, field in zip(arrays, columns, strict=True)], pa.schema(columns)
    )
    segment = stored(folder, "merged.parquet", table)
    return [
        Slice(TopicPartition("t", partition), merged, merged.base_offset, merged.limit)
        for partition in range(partitions)
        for number in range(batches)
        for merged in [batch(segment, number * gap, number * gap + 2, 2, (partition * batches + number) * 2)]
    ]


@pytest.mark.parametrize("seed", range(20))
def test_a_merged_file_gives_the_rows_of_the_visible_batches(tmp_path: Path, seed: int) -> None:
    """Whichever they are: of some partitions or all, with removed ones between them, and cut at either end."""
    numbers = random.Random(seed)
    every = merged(tmp_path, numbers.randint(1, 9), numbers.randint(1, 5))
    share = numbers.random()
    kept = [part for part in every if numbers.random() < share]
    visible: list[Slice] = []
    for _, group in groupby(kept, key=attrgetter("tp")):
        of_partition = list(group)
        of_partition[0] = replace(of_partition[0], start=of_partition[0].start + numbers.randint(0, 1))
        of_partition[-1] = replace(of_partition[-1], limit=of_partition[-1].limit - numbers.randint(0, 1))
        visible += of_partition
    assert read(tmp_path, visible) == [
        (part.tp.partition, offset, part.batch.first_row + offset - part.batch.base_offset)
        for part in visible
        for offset in range(part.start, part.limit)
    ]


def test_the_condition_on_a_merged_file_has_no_term_for_each_partition(tmp_path: Path) -> None:
    """Planning a query takes a time quadratic in the terms."""
    for partitions in (2, 200):
        first, *others = merged(tmp_path, partitions, 2)
        cut = [replace(first, start=first.start + 1), *others]
        assert topic_select(RowPlan(shown_columns(TOPIC), tuple(cut)), lambda segment: segment.key).count(" AND ") == 3
        assert len(read(tmp_path, cut)) == 4 * partitions - 1


def test_a_partition_that_starts_inside_a_batch_is_read_from_there(tmp_path: Path) -> None:
    segment = stored(tmp_path, "one.parquet", pa.table({"n": [0, 1, 2, 3]}))
    log = Partition(log_start=2, high_watermark=4, batches=BatchList([batch(segment, 0, 4, 4)]))
    partitions = {TopicPartition("t", 0): log, TopicPartition("t", 1): Partition()}
    state = State(topics=Map({"t": TOPIC}), partitions=Map(partitions))
    assert read(tmp_path, [*shown_plan("t", View((state,)), Isolation.READ_COMMITTED).slices]) == [(0, 2, 2), (0, 3, 3)]


def test_views_have_their_topics_names_unless_only_the_case_differs() -> None:
    topics = [
        CatalogTopic("orders", "1", 1, created_at=2),
        CatalogTopic("Orders", "2", 1, created_at=1),
        CatalogTopic("other", "3", 1, created_at=3),
    ]
    state = State(topics=Map({topic.name: topic for topic in topics}))
    assert view_names(View((state,))) == {"Orders": "Orders", "orders": "orders#2", "other": "other"}


def test_a_topic_does_not_hide_a_view_that_duckdb_needs() -> None:
    """``SHOW TABLES`` reads ``duckdb_tables`` by its name."""
    names = ["duckdb_tables", "Duckdb_Tables", "sqlite_master", "duckdb", "my_duckdb_tables"]
    topics = {name: CatalogTopic(name, name, 1, created_at=number) for number, name in enumerate(names)}
    shown = view_names(View((State(topics=Map(topics)),)))
    assert [shown[name] for name in names] == [
        "duckdb_tables#2", "Duckdb_Tables#3", "sqlite_master#2", "duckdb", "my_duckdb_tables"
    ]  # fmt: skip
    with duckdb.connect() as con:
        own = con.sql("SELECT view_name FROM duckdb_views() WHERE internal AND schema_name = 'main'").fetchall()
    assert own
    for (name,) in own:
        assert view_names(View((State(topics=Map({name: CatalogTopic(name, "id", 1)})),)))[name] == f"{name}#2"
