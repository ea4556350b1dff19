"""Merged segments in SQL: files with the rows of several partitions, of which only some may be visible."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from tests.helpers.connections import connection_of
from tests.helpers.merging import merge_now, numbers, send
from tests.helpers.sqlstore import abort, assert_equals_scan, fill
from txnstore.compactor.compact import merge
from txnstore.core.model import TopicPartition
from txnstore.errors import TxnStoreError
from txnstore.read.plan import IsolationLevel
from txnstore.segment.codec import SegmentWriter
from txnstore.sql import emit_views
from txnstore.store import Store, create

ISOLATIONS: tuple[IsolationLevel, IsolationLevel] = ("read_committed", "read_uncommitted")


@pytest.fixture(params=[1, 3], ids=["one chain", "three chains"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    with create(tmp_path / "it's here", chains=request.param) as made:
        made.create_topic("t", partitions=5)
        yield made


def merge_all(store: Store) -> None:
    for chain in connection_of(store).chains:
        merge_now(store, chain.number)


def shown(store: Store) -> int:
    """The number of rows in the view of the topic, which are those of a scan at both isolation levels."""
    for isolation in ISOLATIONS:
        with store.duckdb(isolation=isolation) as con:
            rows = assert_equals_scan(store, con, "t", isolation)
    return rows


def test_the_view_has_the_rows_of_a_scan(store: Store) -> None:
    fill(store, "t", transactions=5)
    abort(store, "t")
    fill(store, "t", transactions=2, first=5)
    merge_all(store)
    fill(store, "t", transactions=2, first=7)
    merge_all(store)
    fill(store, "t", transactions=1, first=9)
    before = store.snapshot()
    assert shown(store) == 11 * 8
    store.delete_records({TopicPartition("t", 1): 3, TopicPartition("t", 2): -1})
    assert shown(store) < 11 * 8
    with store.duckdb(snapshot=before) as con:
        assert assert_equals_scan(store, con, "t", snapshot=before) == 10 * 8
    store.compact()
    shown(store)


@pytest.mark.parametrize("config", [{"segment.format": "arrow", "compression.type": "lz4"}, {}])
def test_each_format(store: Store, config: dict[str, str]) -> None:
    store.alter_topic("t", config=config)
    send(store, numbers(3), partitions=range(5))
    merge_all(store)
    store.delete_records({TopicPartition("t", 3): 2})
    assert shown(store) == 13


def test_columns_that_a_topic_has_got_since(store: Store) -> None:
    old = pa.schema([("a", pa.int32())])
    store.create_topic("wide", schema=old, partitions=3)
    with store.producer() as producer:
        producer.send_table("wide", pa.table({"a": range(9)}, schema=old))
    merge_all(store)
    store.alter_topic("wide", schema=pa.schema([("a", pa.int64()), ("b", pa.string())]))
    with store.duckdb() as con:
        assert assert_equals_scan(store, con, "wide") == 9


def test_emitted_views_read_merged_files(store: Store) -> None:
    send(store, numbers(3), partitions=range(5))
    merge_all(store)
    send(store, numbers(2, 3), partitions=range(5))
    merge_all(store)
    store.delete_records({TopicPartition("t", 1): 1})
    with duckdb.connect() as bare:
        bare.execute(emit_views(connection_of(store)))
        assert assert_equals_scan(store, bare, "t") == 24


@pytest.mark.parametrize("cut", [False, True])
def test_a_file_without_partitions_is_damage(store: Store, monkeypatch: pytest.MonkeyPatch, *, cut: bool) -> None:
    """It must neither give rows without a partition nor lose its rows."""

    class Without(SegmentWriter):
        def __init__(self, schema: pa.Schema, *args: Any, **options: Any) -> None:
            self._left = [name for name in schema.names if name != "_partition"]  # A file of one partition has none.
            super().__init__(pa.schema([schema.field(name) for name in self._left]), *args, **options)

        def append(self, rows: pa.Table | pa.RecordBatch) -> None:
            super().append(rows.select(self._left))

    monkeypatch.setattr(merge, "SegmentWriter", Without)
    send(store, numbers(3), partitions=range(5))
    merge_all(store)
    if cut:
        store.delete_records({TopicPartition("t", partition): 1 for partition in range(5)})
    with store.duckdb() as con, pytest.raises((duckdb.Error, TxnStoreError), match="_partition"):
        con.sql("SELECT * FROM t").fetchall()
    with duckdb.connect() as bare:
        bare.execute(emit_views(connection_of(store)))
        with pytest.raises(duckdb.Error, match="a merged segment has no _partition: "):
            bare.sql("SELECT * FROM t").fetchall()
