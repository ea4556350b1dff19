"""The rows of each kind of segment, however much of it is visible, as each reader shows them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import duckdb
import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatch

from tests.harness.executors import InlineExecutor
from tests.helpers.rows import CASES, DAMAGES, LAYOUTS, Case, Damage, Made, Row, made
from txnstore.compactor.verify.segments import _check_content, _readable_columns
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.slices import Slice
from txnstore.core.model import TopicPartition
from txnstore.errors import CorruptionError
from txnstore.gateway.cold import _encode
from txnstore.read.readahead import read_ahead
from txnstore.read.rows import Columns, RowPlan
from txnstore.read.sharing import SharedSegments
from txnstore.segment.schema import TIMESTAMP
from txnstore.sql.combined_files import combined_files
from txnstore.sql.views import shown_columns, topic_select
from txnstore.storage.local import LocalStore

NAMES = ["_partition", "_offset", "_timestamp", "n", "s"]
#: Reads the rows of slices of a topic.
Reader = Callable[[LocalStore, CatalogTopic, Sequence[Slice]], list[Row]]


def _rows(table: pa.Table) -> list[Row]:
    at = table.schema.get_field_index("_timestamp")
    numbers = table.set_column(at, "_timestamp", table["_timestamp"].cast(TIMESTAMP).cast(pa.int64()))
    return [tuple(row[name] for name in NAMES) for row in numbers.to_pylist()]


def scan(objects: LocalStore, topic: CatalogTopic, slices: Sequence[Slice]) -> list[Row]:
    tables = read_ahead(objects, InlineExecutor(), slices, Columns(topic))
    return [row for table in tables for row in _rows(table)]


def together(objects: LocalStore, topic: CatalogTopic, slices: Sequence[Slice]) -> list[Row]:
    """As merges and cleans read: small segments in one table."""
    tables = read_ahead(objects, InlineExecutor(), slices, Columns(topic, NAMES), together=True)
    return [row for table in tables for row in _rows(table)]


def fresh(objects: LocalStore, topic: CatalogTopic, slices: Sequence[Slice]) -> list[Row]:
    """As SQL reads what is in entries."""
    plan = RowPlan(shown_columns(topic), tuple(slices))
    [file] = combined_files(plan, SharedSegments(objects, InlineExecutor)).values()
    return _rows(pa.parquet.read_table(pa.BufferReader(file.load())))


def sql(objects: LocalStore, topic: CatalogTopic, slices: Sequence[Slice]) -> list[Row]:
    with duckdb.connect() as con:
        plan = RowPlan(shown_columns(topic), tuple(slices))
        select = topic_select(plan, lambda segment: f"{objects.root}/{segment.key}")
        columns = "_partition, _offset, epoch_ms(_timestamp), n, s"
        return con.sql(f"SELECT {columns} FROM ({select}) ORDER BY n").fetchall()


def gateway(objects: LocalStore, topic: CatalogTopic, slices: Sequence[Slice]) -> list[Row]:
    """Whole batches with offsets and times, of which a client takes what is visible."""
    rows: list[Row] = []
    with ThreadPoolExecutor(2) as pool:
        connection = cast("Any", SimpleNamespace(pool=pool))
        for part in slices:
            first, limit, batches = _encode(connection, objects, topic, [part], part.start)
            assert (first, limit) == (part.batch.base_offset, part.batch.limit)
            records = [record for batch in batches for record in DefaultRecordBatch(batch.data)]
            rows += [
                (part.tp.partition, each.offset, each.timestamp, *_of_json(each.value))
                for each in records
                if part.start <= each.offset < part.limit
            ]
    return rows


def _of_json(value: bytes) -> tuple[int, str | None]:
    row = json.loads(value)
    return row["n"], row["s"]


READERS: tuple[Reader, ...] = (scan, together, fresh, sql, gateway)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_each_reader_shows_the_rows(tmp_path: Path, case: Case) -> None:
    made_of = made(case)
    objects = LocalStore(tmp_path)
    slices = made_of.put(objects)
    for reader in READERS:
        assert reader(objects, made_of.topic, slices) == list(made_of.rows), reader.__name__
    assert not _verified(objects, made_of, slices)


def _verified(objects: LocalStore, made_of: Made, slices: Sequence[Slice]) -> list[str]:
    columns = _readable_columns(made_of.topic)
    assert columns is not None
    parts = [
        (replace(part, start=part.batch.base_offset, limit=part.batch.limit), made_of.topic, None) for part in slices
    ]
    return [each.message for each in _check_content(objects, parts, columns)]


@pytest.mark.parametrize("damage", DAMAGES, ids=str)
def test_each_reader_refuses_what_is_damaged(tmp_path: Path, damage: Damage) -> None:
    made_of = made(Case(damage.layout))
    objects = LocalStore(tmp_path)
    slices = made_of.put(objects, damage.table(made_of.table))
    if damage.name == "a row too few":
        slices = _described(made_of, slices)
    for reader in (scan, together, fresh, gateway):
        with pytest.raises(CorruptionError, match=damage.message):
            reader(objects, made_of.topic, slices)
    assert any(damage.message in message for message in _verified(objects, made_of, slices)) == damage.verified
    if damage.engines:
        with pytest.raises(duckdb.Error, match=f"no {damage.name}"):
            sql(objects, made_of.topic, slices)


def _described(made_of: Made, slices: Sequence[Slice]) -> tuple[Slice, ...]:
    """The slices of a segment whose rows the chain counts otherwise."""
    rows = made_of.table.num_rows
    return tuple(replace(p, batch=replace(p.batch, segment=replace(p.batch.segment, rows=rows))) for p in slices)


def test_columns_of_one_value_have_their_own_types() -> None:
    """Also if the value is the same: each column has the type of its own field."""
    columns = Columns(made(CASES[0]).topic, ["_partition", "_offset", "n"])
    for rows in (3, 2):
        constants = [columns.constant(name, 5, rows) for name in columns.names]
        assert pa.schema(zip(columns.names, (each.type for each in constants), strict=True)) == columns.schema
        assert [each.to_pylist() for each in constants] == [[5] * rows] * 3


def test_two_segments_of_one_query_are_not_mixed_up(tmp_path: Path) -> None:
    """Files of all kinds together: what belongs to a file is looked up by its number, or its name."""
    objects = LocalStore(tmp_path)
    slices, rows = list[Slice](), list[Row]()
    for number, layout in enumerate((*LAYOUTS, *LAYOUTS)):
        made_of = made(Case(layout, cut=number > 3))
        moved = [_moved(part, number) for part in made_of.slices]
        renamed = Made(made_of.topic, made_of.table, tuple(moved), made_of.rows)
        slices += renamed.put(objects)
        rows += made_of.rows
    for reader in READERS:
        assert sorted(reader(objects, made_of.topic, slices)) == sorted(rows), reader.__name__


def _moved(part: Slice, number: int) -> Slice:
    segment = replace(part.batch.segment, object=f"topics/t/{part.tp.partition}/made-{number}.parquet")
    return Slice(TopicPartition("t", part.tp.partition), replace(part.batch, segment=segment), part.start, part.limit)
