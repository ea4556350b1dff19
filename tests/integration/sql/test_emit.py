"""Views for a DuckDB that does not have txnstore."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from tests.helpers.connections import connection_of
from tests.helpers.sqlstore import abort, assert_equals_scan, fill
from txnstore.errors import InvalidConfigError
from txnstore.sql import emit_views
from txnstore.store import Store, create
from txnstore.store import open as open_store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with create(tmp_path / "it's here") as made:
        yield made


@pytest.fixture
def bare() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as con:
        con.execute("SET TimeZone = 'Europe/Vienna'")
        yield con


@pytest.mark.usefixtures("own_objects")
def test_the_views_show_in_a_bare_duckdb_what_a_scan_shows(store: Store, bare: duckdb.DuckDBPyConnection) -> None:
    store.create_topic("a.b-c", partitions=2)
    store.create_topic("empty")
    fill(store, "a.b-c", transactions=3)
    store.compact()
    abort(store, "a.b-c")
    fill(store, "a.b-c", transactions=1, first=3)
    bare.execute(emit_views(connection_of(store)))
    assert assert_equals_scan(store, bare, "a.b-c") == 32
    assert assert_equals_scan(store, bare, "empty") == 0
    bare.execute(emit_views(connection_of(store), "read_uncommitted"))
    assert assert_equals_scan(store, bare, "a.b-c", "read_uncommitted") == 40


@pytest.mark.usefixtures("own_objects")
def test_a_topic_that_duckdb_cannot_read_is_left_out_with_a_reason(
    store: Store,
    bare: duckdb.DuckDBPyConnection,
) -> None:
    store.create_topic("fast", config={"segment.format": "arrow"})
    store.create_topic("orders")
    fill(store, "fast", transactions=1)
    fill(store, "orders", transactions=1)
    sql = emit_views(connection_of(store))
    assert '-- "fast" is left out' in sql
    bare.execute(sql)
    assert assert_equals_scan(store, bare, "orders") == 8
    with pytest.raises(duckdb.CatalogException):
        bare.sql("SELECT * FROM fast")


def test_a_topic_with_records_in_entries_is_left_out_until_they_are_moved(
    store: Store, bare: duckdb.DuckDBPyConnection
) -> None:
    """A part of an object is no file; the reason says what to do, also for a single small commit."""
    store.create_topic("orders")
    fill(store, "orders", transactions=1)
    sql = emit_views(connection_of(store))
    assert '-- "orders" is left out: DuckDB cannot read a part of chains/' in sql
    assert "Set inline.bytes=0 and compact the topic" in sql
    store.alter_topic("orders", config={"inline.bytes": 0})
    store.compact("orders")
    bare.execute(emit_views(connection_of(store)))
    assert assert_equals_scan(store, bare, "orders") == 8


@pytest.mark.usefixtures("own_objects")
@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\u2028"])
def test_nothing_in_a_name_ends_a_comment(tmp_path: Path, bare: duckdb.DuckDBPyConnection, end: str) -> None:
    """Neither in the folder of the store, nor in the principal that a refusal names."""
    injected = f"{end}CREATE TABLE injected AS SELECT 1; --"
    with create(tmp_path / f"a{injected}" / "s", principal="User:root") as store:
        store.create_topic("t")
        fill(store, "t", transactions=1)
        sql = emit_views(connection_of(store))
        bare.execute(sql)
        assert assert_equals_scan(store, bare, "t") == 8
        store.create_topic("secret")
        store.acls.enable("User:root")
        with open_store(store.url, principal="User:bob") as bob:
            bare.execute(refused := emit_views(connection_of(bob)))
    assert "is left out: User:bob has no right" in refused
    assert bare.sql("SELECT table_name FROM duckdb_tables()").fetchall() == []


def test_a_store_in_memory_has_no_views_to_emit(memory_store_url: str) -> None:
    with create(memory_store_url) as store, pytest.raises(InvalidConfigError, match="local folders and s3"):
        emit_views(connection_of(store))
