"""Stores to query, and what a query should find in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tests.helpers.connections import connection_of
from txnstore.read.plan import IsolationLevel
from txnstore.snapshot import Snapshot
from txnstore.sql.types import duckdb_type, quote
from txnstore.store import Store

if TYPE_CHECKING:
    import duckdb

_ORDER = ("_partition", "_offset")


def rows(connection: duckdb.DuckDBPyConnection, query: str) -> list[dict[str, Any]]:
    """The rows of a query as dicts; instants with their zone, which ``fetchall`` would need another package for."""
    listed: list[dict[str, Any]] = connection.sql(query).to_arrow_table().to_pylist()
    return listed


def values(connection: duckdb.DuckDBPyConnection, query: str) -> list[Any]:
    """The one column of a query."""
    return [value for row in rows(connection, query) for value in row.values()]


def assert_equals_scan(
    store: Store,
    connection: duckdb.DuckDBPyConnection,
    topic: str,
    isolation: IsolationLevel = "read_committed",
    snapshot: Snapshot | None = None,
) -> int:
    """The view of a topic has the columns, types and rows of a scan; returns how many rows."""
    scan = store.scan(topic, isolation, snapshot=snapshot)
    relation = connection.sql(f"SELECT * FROM {quote(topic)} ORDER BY _partition, _offset")
    assert relation.columns == scan.schema.names
    types = [
        str(kind) for kind in connection.sql(f"DESCRIBE {quote(topic)}").to_arrow_table()["column_type"].to_pylist()
    ]
    assert types == [_canonical(connection, field.type) for field in scan.schema]
    rows: list[dict[str, Any]] = relation.to_arrow_table().to_pylist()
    expected: list[dict[str, Any]] = scan.to_table().sort_by([(name, "ascending") for name in _ORDER]).to_pylist()
    assert rows == expected
    return len(rows)


def _canonical(connection: duckdb.DuckDBPyConnection, data_type: pa.DataType) -> str:
    """The name that DuckDB itself gives the type."""
    table = connection.sql(f"SELECT typeof(CAST(NULL AS {duckdb_type(data_type)})) AS type").to_arrow_table()
    return str(table["type"][0].as_py())


def fill(store: Store, topic: str, transactions: int = 3, records: int = 8, first: int = 0) -> None:
    """Some committed transactions of records spread over the topic's partitions."""
    with store.producer(f"filler-{topic}") as producer:
        for number in range(first, first + transactions):
            with producer.transaction():
                for record in range(records):
                    producer.send(topic, b"value-%d-%d" % (number, record), key=b"key-%d" % record)
    _complete(store, f"filler-{topic}")


def abort(store: Store, topic: str, records: int = 8) -> None:
    """An aborted transaction whose records are in the log."""
    with store.producer(f"aborter-{topic}") as producer:
        producer.begin_transaction()
        for record in range(records):
            producer.send(topic, b"aborted-%d" % record, key=b"key-%d" % record)
        producer.flush()
        producer.abort_transaction()
    _complete(store, f"aborter-{topic}")


def _complete(store: Store, transactional_id: str) -> None:
    """Wait for the markers in other chains, which the coordinator writes in the background."""
    connection_of(store).coordinator.completions.wait_for(transactional_id)
