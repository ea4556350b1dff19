"""The door to DuckDB: a view a topic, and the inspection views. Imports the engine only when it is used.

``connect`` gives a plain DuckDB connection to an in-memory database. Each topic is a view of its name with the columns
of a scan; topics whose names differ in case only, which DuckDB cannot tell apart, are ``"name#1"``, ``"name#2"`` in the
order of their creation (``txn.topics.view`` tells). The schema ``txn`` shows how the store came to be what it is:

    topics, partitions, segments, batches, transactions, producers, aborted, groups, members
                                  of the snapshot's state
    entries, compactions          of the newest 1,000 entries of the chains: one GET an entry, when first queried
    snapshot                      what the connection shows: ``heads``, the last entry of each chain, and their sum

All of a connection, and of its cursors, is of one snapshot until :func:`refresh`, over all chains of the store: a
transaction is in it in all topics, partitions and groups, or in none (END-06), its markers written or not. It reads
nothing from the store until a query does; then only what is visible at its isolation, each segment with one GET (a
local store's are read in place).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from txnstore.errors import InvalidConfigError
from txnstore.reading.plan import parse_isolation
from txnstore.reading.snapshot import Snapshot

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from txnstore.store import Store

__all__ = ["connect", "emit_views", "query", "read_table", "refresh"]


def connect(
    store: Store,
    isolation: str = "read_committed",
    snapshot: Snapshot | None = None,
) -> duckdb.DuckDBPyConnection:
    """A DuckDB connection whose views show ``snapshot``; None: the store as it is now (one GET if nothing is new).

    Never touches the internet. Close it as any DuckDB connection; it is of no use after a fork.
    """
    from txnstore.sql.session import open_session

    level = parse_isolation(isolation)
    return open_session(store, level, _snapshot(store, snapshot))


def query(
    store: Store,
    sql: str,
    isolation: str = "read_committed",
    snapshot: Snapshot | None = None,
) -> Any:
    """The DuckDB relation of a query over the views of :func:`connect`; None for a statement without a result.

    DuckDB's own errors pass through. The relation is evaluated when it is read; a damaged segment is then a DuckDB
    error whose text names the object. :func:`read_table` raises it as :class:`~txnstore.errors.CorruptionError`.
    """
    from txnstore.sql.session import errors_of

    connection = connect(store, isolation, snapshot)
    with errors_of(connection):
        return connection.sql(sql)


def read_table(
    store: Store,
    sql: str,
    isolation: str = "read_committed",
    snapshot: Snapshot | None = None,
) -> pa.Table:
    """The result of a query as an Arrow table.

    A missing or damaged segment is a :class:`~txnstore.errors.CorruptionError` that names it, storage that cannot be
    reached a :class:`~txnstore.errors.StorageError`; DuckDB's own errors pass through.
    """
    import pyarrow as pa

    from txnstore.sql.session import errors_of

    with connect(store, isolation, snapshot) as connection, errors_of(connection):
        relation = connection.sql(sql)
        return relation.to_arrow_table() if relation is not None else pa.table({})


def refresh(store: Store, connection: duckdb.DuckDBPyConnection) -> Snapshot:
    """Move all views of a connection to the newest snapshot in one step, and return it.

    ``connection``: from :func:`connect`, or a cursor of it. Queries that run already finish on what they began with.
    :class:`InvalidConfigError` for any other connection, or one of another store.
    """
    from txnstore.sql.session import session_of

    session = session_of(connection)
    if session.store is not store:
        msg = "this DuckDB connection shows another store"
        raise InvalidConfigError(msg)
    snapshot = store.snapshot()
    session.show(connection, snapshot)
    return snapshot


def emit_views(store: Store, isolation: str = "read_committed", snapshot: Snapshot | None = None) -> str:
    """SQL that makes the topics of a snapshot views of a DuckDB that does not have txnstore.

    Plain ``CREATE VIEW … read_parquet([…])`` over absolute paths or ``s3://`` URLs (DuckDB needs its httpfs extension
    and the credentials for those). The views name files: run it again after new commits, and before a vacuum removes
    what a compaction replaced. A topic with segments that DuckDB cannot read is left out with a comment that says why.
    """
    from txnstore.sql.emit import emit

    level = parse_isolation(isolation)
    return emit(store.objects, _snapshot(store, snapshot), level)


def _snapshot(store: Store, snapshot: object) -> Snapshot:
    if snapshot is None:
        return store.snapshot()
    if not isinstance(snapshot, Snapshot):
        msg = f"snapshot must come from store.snapshot(), not {snapshot!r}"
        raise InvalidConfigError(msg)
    return snapshot
