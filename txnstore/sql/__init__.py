"""SQL through DuckDB: one view per topic, and the inspection views. Imports DuckDB only when it is used.

:func:`query` (``store.sql``) runs a query in a database that the store keeps. :func:`connect` (``store.duckdb``) opens
a connection to an in-memory database of its own. In both, a topic is a view of its name with the columns of a scan.
Of topics whose names differ in case only, which an older release could create and DuckDB cannot distinguish, the first
one has its name, and the next ones are ``"name#2"``, ``"name#3"``; one with the name of
a view of DuckDB, such as ``duckdb_tables``, is ``"name#2"`` (``txn.topics.view`` lists the names). The schema
``txn`` shows the state of the store:

    topics, partitions, segments, batches, transactions, producers, aborted, groups, members
                                  of the snapshot's state
    entries, compactions          of the newest 1,000 entries of the chains: one GET per entry, when first queried
    snapshot                      the snapshot: ``heads``, the last entry of each chain, and their sum

All views of a call, or of a connection and its cursors until :func:`refresh`, show one snapshot over all chains of the
store: it contains a transaction in all topics, partitions and groups, or in none (END-06), whether its markers are
written or not. A query reads only the segments that are visible at its isolation level, each with one GET. Segments in
a local folder are read in place, after a comparison of their checksums, which each process makes once per file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from txnstore.connection import Connection
from txnstore.core.blocked import BlockedPartition, blocked_partitions
from txnstore.core.model import Isolation
from txnstore.core.view import View
from txnstore.errors import InvalidConfigError
from txnstore.read.blocked import warn_blocked
from txnstore.snapshot import Snapshot, check_snapshot
from txnstore.sql.access import Access
from txnstore.sql.interrupts import raise_interrupt
from txnstore.sql.statements import names_in, parse
from txnstore.threads import load
from txnstore.validation import check_bool, check_choice, check_query

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

R = TypeVar("R")

__all__ = ["connect", "emit_views", "query", "read_table", "refresh"]


@contextmanager
def interrupts_raised() -> Iterator[None]:
    """Raise ``KeyboardInterrupt`` after Ctrl-C in the block, whatever DuckDB raises for it."""
    # Before the block, so that Ctrl-C in it meets none of these imports.
    for name in ("duckdb", "txnstore.sql.shared", "txnstore.sql.session"):
        load(name)
    import duckdb

    try:
        yield
    except (duckdb.Error, RuntimeError) as error:
        raise_interrupt(error)
        raise


@interrupts_raised()
def connect(
    connection: Connection,
    isolation: str = "read_committed",
    snapshot: Snapshot | None = None,
    *,
    sandbox: bool = False,
    checksums: bool = True,
) -> duckdb.DuckDBPyConnection:
    """Opens a DuckDB connection whose views show a snapshot. It downloads no extensions by itself.

    Args:
        connection: The connection to the store.
        isolation: ``"read_committed"`` or ``"read_uncommitted"``.
        snapshot: What to show; None: the current state (one GET per chain if nothing is new).
        sandbox: SQL reads the store and nothing else: no other files, no network, no extensions, no Python variables;
            it writes no file and changes no setting. Every connection to a read-only store is such a sandbox.
        checksums: Compare the SHA-256 of a segment in a local folder before DuckDB reads the file, once per process and
            file. False: do not; ``verify(deep=True)`` compares them. Elsewhere, in a sandbox and of a read-only store
            every read compares it.

    Returns:
        The connection. Close it as any DuckDB connection; it cannot be used after a fork.

    Raises:
        InvalidConfigError: An argument is invalid.
    """
    from txnstore.sql.session import open_session

    access, level = _access_and_isolation(connection, isolation, sandbox=sandbox, checksums=checksums)
    return open_session(connection, level, _snapshot_to_show(connection, snapshot, level), access)


@interrupts_raised()
def query(
    connection: Connection,
    sql: str,
    isolation: str = "read_committed",
    snapshot: Snapshot | None = None,
    *,
    params: Sequence[Any] | Mapping[str, Any] | None = None,
    sandbox: bool = False,
    checksums: bool = True,
) -> Any:
    """Runs a query over the topics and the schema ``txn``.

    A query that only selects runs in a database that all calls share: only the topics that it names are planned, and
    only if they have changed. Any other statement, and a listing such as ``SHOW TABLES``, runs in a new database with
    views of all topics. In either case no call sees what another one created or set, so a query whose last statement
    only creates or sets something is refused.

    Args:
        connection: The connection to the store.
        sql: One or more statements.
        isolation: ``"read_committed"`` or ``"read_uncommitted"``.
        snapshot: What to show; None: the current state (one GET per chain if nothing is new).
        params: The values of the parameters in the query: a sequence for ``?`` and ``$1``, a mapping for ``$name``.
        sandbox: SQL reads the store and nothing else, see :func:`connect`; for queries that you did not write.
        checksums: Compare the checksums of files in a local folder, see :func:`connect`.

    Returns:
        The DuckDB relation of the last statement; None if that has no result. It is evaluated when it is read, as often
        as wanted, always on the snapshot of this call. Views that the query does not name are not visible to
        ``relation.query``.

    Raises:
        InvalidConfigError: An argument is invalid, or the query would have no effect.
        CorruptionError: A segment that the query reads from a local folder is missing or damaged; the error names it.
        UnsupportedFormatError: A topic of the query has columns that DuckDB cannot show.
        duckdb.Error: DuckDB refuses the query. Damage that is found during the evaluation is a DuckDB error whose text
            names the object, unless DuckDB itself finds it, in a file whose checksum was not compared.
            :func:`read_table` raises it as :class:`~txnstore.errors.CorruptionError`, which names it.
    """
    access, level = _access_and_isolation(connection, isolation, sandbox=sandbox, checksums=checksums)
    return _run_query(connection, sql, params, level, snapshot, access, lambda _, relation: relation())


def _access_and_isolation(
    connection: Connection, isolation: str, *, sandbox: bool, checksums: bool
) -> tuple[Access, Isolation]:
    """What a call may read, and what it shows.

    SQL on a read-only store reaches nothing else, as in a sandbox: ``COPY … TO`` could overwrite the store.
    """
    sandboxed = check_bool("sandbox", sandbox)
    level = check_choice("isolation", isolation, Isolation)
    external = not (sandboxed or connection.read_only)
    return Access(check_bool("checksums", checksums), external=external, shared=not sandboxed), level


def _run_query(
    connection: Connection,
    sql: str,
    params: object,
    isolation: Isolation,
    snapshot: Snapshot | None,
    access: Access,
    result: Callable[[duckdb.DuckDBPyConnection, Callable[[], Any]], R],
) -> R:
    """Runs a query in the database that all calls share, or in one of its own.

    Args:
        result: Returns the result, by a connection and a function that returns the relation of the last statement.
    """
    import duckdb

    from txnstore.sql.session import errors_of, open_session
    from txnstore.sql.shared import shared_database

    text = check_query(sql)
    snapshot_to_show = _snapshot_to_show(connection, snapshot, isolation, text)
    cursor = None
    if access.shared:
        cursor = shared_database(connection, access).cursor(connection, text, isolation, snapshot_to_show.view)
    if cursor is not None:
        try:
            return result(cursor, partial(cursor.sql, text, params=params))
        except duckdb.Error as error:
            raise_interrupt(error)
    # What DuckDB refuses runs again: the error names a damaged segment, and proposes topics for a name.
    database = open_session(connection, isolation, snapshot_to_show, access)
    with errors_of(database, text):
        parse(database, text)
        return result(database, partial(database.sql, text, params=params))


@interrupts_raised()
def read_table(
    connection: Connection,
    sql: str,
    isolation: str = "read_committed",
    snapshot: Snapshot | None = None,
    *,
    params: Sequence[Any] | Mapping[str, Any] | None = None,
    sandbox: bool = False,
    checksums: bool = True,
) -> pa.Table:
    """Runs a query and returns its result as an Arrow table; empty for a statement without a result.

    An interrupt (Ctrl-C) ends the query. The arguments are those of :func:`query`.

    Raises:
        InvalidConfigError: An argument is invalid, or the query would have no effect.
        CorruptionError: A segment is missing or damaged; the error names it.
        UnsupportedFormatError: A topic of the query has columns that DuckDB cannot show.
        StorageError: The storage cannot be reached.
        duckdb.Error: DuckDB refuses the query.
    """
    access, level = _access_and_isolation(connection, isolation, sandbox=sandbox, checksums=checksums)
    return _run_query(connection, sql, params, level, snapshot, access, _read_relation)


def _read_relation(
    database: duckdb.DuckDBPyConnection, relation: Callable[[], duckdb.DuckDBPyRelation | None]
) -> pa.Table:
    """The rows of a relation; closes its connection."""
    import pyarrow as pa

    from txnstore.sql.interrupts import interruptible

    def read() -> pa.Table:
        rows = relation()
        return pa.table({}) if rows is None else rows.to_arrow_table()

    with database:
        return interruptible(database, read)


@interrupts_raised()
def refresh(connection: Connection, database: duckdb.DuckDBPyConnection) -> Snapshot:
    """Moves all views of a connection to the current state, in one transaction.

    Args:
        connection: The connection to the store.
        database: One of :func:`connect`, or a cursor of it. Queries that run finish on the snapshot that they began
            with.

    Returns:
        The snapshot that the views show now.

    Raises:
        InvalidConfigError: The connection is another one, or shows another store.
    """
    from txnstore.sql.session import session_of

    session = session_of(database)
    if session.connection is not connection:
        msg = "this DuckDB connection shows another store"
        raise InvalidConfigError(msg)
    snapshot = _snapshot_to_show(connection, None, session.isolation)
    session.show(database, snapshot)
    return snapshot


def emit_views(connection: Connection, isolation: str = "read_committed", snapshot: Snapshot | None = None) -> str:
    """Returns the SQL that creates the views of a snapshot in a DuckDB without txnstore.

    It is plain ``CREATE VIEW … read_parquet([…])`` over absolute paths or ``s3://`` URLs (for which DuckDB needs its
    httpfs extension and credentials). The views name files: emit them again after new commits, and before a vacuum
    deletes what a compaction replaced. A topic with segments that DuckDB cannot read, or that the
    principal may not read, is left out, with a comment.

    Args:
        connection: The connection to the store.
        isolation: ``"read_committed"`` or ``"read_uncommitted"``.
        snapshot: What to show; None: the current state.

    Raises:
        InvalidConfigError: An argument is invalid, or no other process can read the store.
    """
    load("txnstore.sql.emit")
    from txnstore.sql.emit import emit

    level = check_choice("isolation", isolation, Isolation)
    return emit(connection, _snapshot_to_show(connection, snapshot, level), level)


def _snapshot_to_show(
    connection: Connection, snapshot: object, isolation: Isolation, named_in: str | None = None
) -> Snapshot:
    """The snapshot to show: the given one, or a new one without expired transactions that hold back what it shows.

    Warns of committed records that it does not show. ``named_in``: a query, whose topics alone are of interest.
    """
    if snapshot is not None:
        existing = check_snapshot(snapshot, connection.store_id)
        connection.refresh_rules()
        if isolation is Isolation.READ_COMMITTED and existing.view.open_partitions:
            warn_blocked(connection, _blocked_partitions(existing.view, named_in), existing.view)
        return existing
    view = connection.view()
    if isolation is Isolation.READ_COMMITTED and view.open_partitions:
        blocked = _blocked_partitions(view, named_in)
        if blocked:
            view = connection.unblocked(view, [part.tp for part in blocked])
            blocked = _blocked_partitions(view, named_in)
        warn_blocked(connection, blocked, None)
    return Snapshot(view, connection.store_id)


def _blocked_partitions(view: View, query: str | None) -> tuple[BlockedPartition, ...]:
    """The blocked partitions of the topics that a query names; None: of all topics."""
    if query is None:
        return blocked_partitions(view)
    load("txnstore.sql.views")
    from txnstore.sql.views import view_names

    names, views = names_in(query), view_names(view)
    return blocked_partitions(view, [tp for tp in view.open_partitions if views[tp.topic].lower() in names])
