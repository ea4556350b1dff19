"""Connections of DuckDB: cursors, views that are refreshed, threads, and what a closed connection leaves."""

from __future__ import annotations

import gc
import itertools
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import duckdb
import pytest

from tests.helpers.sqlstore import assert_equals_scan, fill, values
from txnstore.errors import InvalidConfigError
from txnstore.sql.session import session_of
from txnstore.storage.memory import MemoryStore
from txnstore.store import Store, create

_NAMES = itertools.count()


@pytest.fixture(params=["local", "memory", "three chains"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    name = f"sql-{next(_NAMES)}"
    url = tmp_path / "store" if request.param == "local" else f"memory://{name}"
    with create(url, chains=3 if request.param == "three chains" else 1) as made:
        yield made
    MemoryStore.forget(name)


def test_views_show_one_snapshot_until_they_are_refreshed(store: Store) -> None:
    store.create_topic("orders")
    store.create_topic("gone")
    fill(store, "orders", transactions=1)
    pinned = store.snapshot()
    with store.duckdb() as con:
        fill(store, "orders", transactions=2, first=1)
        store.create_topic("later")
        store.delete_topic("gone")
        assert values(con, "SELECT count(*) FROM orders") == [8]
        assert values(con, "SELECT sequence FROM txn.snapshot") == [pinned.sequence]
        assert values(con, 'SELECT count(*) FROM "gone"') == [0]
        moved = store.refresh(con)
        assert moved.sequence == store.snapshot().sequence
        assert values(con, "SELECT count(*) FROM orders") == [24]
        assert values(con, "SELECT count(*) FROM later") == [0]
        assert values(con, "SELECT sequence FROM txn.snapshot") == [moved.sequence]
        with pytest.raises(duckdb.CatalogException):
            con.sql('SELECT * FROM "gone"')
    with store.duckdb(snapshot=pinned) as old:
        assert assert_equals_scan(store, old, "orders", snapshot=pinned) == 8
        store.refresh(old)
        assert assert_equals_scan(store, old, "orders") == 24


def test_a_cursor_of_the_connection_can_be_refreshed(store: Store) -> None:
    store.create_topic("orders")
    with store.duckdb() as con:
        cursor = con.cursor()
        fill(store, "orders", transactions=1)
        store.refresh(cursor)
        assert values(con, "SELECT count(*) FROM orders") == values(cursor, "SELECT count(*) FROM orders") == [8]


def test_a_connection_with_a_result_half_read_can_be_refreshed(store: Store) -> None:
    store.create_topic("orders")
    fill(store, "orders", transactions=1)
    with store.duckdb() as con:
        result = con.execute("SELECT value FROM orders ORDER BY _offset")
        assert result.fetchone() == (b"value-0-0",)
        fill(store, "orders", transactions=1, first=1)
        store.refresh(con)
        assert len(result.fetchall()) == 7
        assert values(con, "SELECT count(*) FROM orders") == [16]


def test_a_topic_with_the_name_of_a_table_of_the_connection_stops_no_refresh(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    """Another client may create it at any time."""
    for topic in ("orders", "gone"):
        store.create_topic(topic)
    with store.duckdb() as con:
        con.execute("CREATE TABLE Later AS SELECT 42 AS own; DROP VIEW gone; CREATE TABLE gone AS SELECT 43 AS own")
        fill(store, "orders", transactions=1)
        store.create_topic("later")
        store.delete_topic("gone")
        store.refresh(con)
        assert values(con, "SELECT count(*) FROM orders") == [8]
        assert values(con, "FROM later UNION ALL FROM gone ORDER BY ALL") == [42, 43]
        assert [record.__dict__["topic"] for record in caplog.records if "of its name" in record.message] == ["later"]
        con.execute("DROP TABLE later")
        fill(store, "later", transactions=1)
        store.refresh(con)
        assert assert_equals_scan(store, con, "later") == 8


def test_only_connections_of_this_store_are_refreshed(store: Store, memory_store_url: str) -> None:
    with duckdb.connect() as foreign, pytest.raises(InvalidConfigError, match="not opened by"):
        store.refresh(foreign)
    with create(memory_store_url) as other, other.duckdb() as con:
        with pytest.raises(InvalidConfigError, match="another store"):
            store.refresh(con)
        other.refresh(con)


def test_cursors_query_concurrently_while_the_views_move(store: Store) -> None:
    store.create_topic("orders", partitions=2)
    fill(store, "orders", transactions=2)
    start = threading.Barrier(33)
    with store.duckdb() as con, ThreadPoolExecutor(32) as pool:

        def count(cursor: duckdb.DuckDBPyConnection) -> int:
            start.wait()
            with cursor:
                return int(cursor.execute("SELECT count(DISTINCT (_partition, _offset)) FROM orders").fetchall()[0][0])

        counts = [pool.submit(count, con.cursor()) for _ in range(32)]
        fill(store, "orders", transactions=1, first=2)
        start.wait()
        store.refresh(con)
        assert {future.result() for future in counts} <= {16, 24}
        assert values(con, "SELECT count(*) FROM orders") == [24]


def test_duckdb_never_looks_for_an_extension_on_the_internet(store: Store) -> None:
    with store.duckdb() as con:
        for setting in ("autoinstall_known_extensions", "autoload_known_extensions"):
            assert values(con, f"SELECT current_setting('{setting}')") == [False]
        assert values(con, "SELECT current_setting('TimeZone')") == ["UTC"]
        with pytest.raises(duckdb.Error):
            con.sql("SELECT * FROM read_parquet('s3://bucket/a.parquet')")


def test_a_closed_connection_leaves_nothing_behind(store: Store) -> None:
    store.create_topic("orders")
    con = store.duckdb()
    files = weakref.ref(session_of(con).files)
    con.close()
    del con
    gc.collect()
    assert files() is None


def test_nothing_of_duckdb_is_imported_with_the_package() -> None:
    code = "import sys, txnstore, txnstore.sql; sys.exit('duckdb' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
