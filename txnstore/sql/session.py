"""Sessions: DuckDB connections of ``store.duckdb()``, each with a database of its own that shows one snapshot."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary, ref

from txnstore.connection import Connection
from txnstore.core.authorization.rights import read_topics
from txnstore.core.model import Isolation
from txnstore.errors import InvalidConfigError, TxnStoreError
from txnstore.read.expired import judged
from txnstore.snapshot import Snapshot
from txnstore.sql.access import Access, lock, open_database
from txnstore.sql.filesystem import SegmentFileSystem, VirtualFile
from txnstore.sql.planning import inspected, inspection_files, inspection_views, plan_topic
from txnstore.sql.statements import quoting_advice
from txnstore.sql.types import quote
from txnstore.sql.views import view_names
from txnstore.threads import ForkLock

if TYPE_CHECKING:
    import duckdb

_numbers = itertools.count(1)
#: The sessions of this process whose databases are open, by the number in their view ``txn.snapshot``.
_sessions: WeakValueDictionary[int, Session] = WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class _SnapshotPlan:
    """The views of a snapshot by name, the tables that they read, the topics that cannot be shown, and the segments."""

    views: dict[str, str] = field(default_factory=dict)
    tables: dict[str, VirtualFile] = field(default_factory=dict)
    refused: list[tuple[str, TxnStoreError]] = field(default_factory=list)
    segments: list[str] = field(default_factory=list)


class Session:
    """An in-memory database with the views of a store at one isolation level.

    The database owns its file system, which owns the session. The session has no strong reference to either, so
    closing the last DuckDB connection releases everything.
    """

    def __init__(self, connection: Connection, isolation: Isolation, files: SegmentFileSystem) -> None:
        self.connection = connection
        self.isolation = isolation
        self.number = next(_numbers)
        self._files = ref(files)
        self._views: dict[str, str] = {}
        self._segments: list[str] = []
        self._lock = ForkLock()
        files.owner = self
        _sessions[self.number] = self

    def show(self, database: duckdb.DuckDBPyConnection, snapshot: Snapshot) -> None:
        """Moves all views to the snapshot in one transaction: no query sees views of two snapshots."""
        with self._lock.own:
            self._show(database, self._plan(snapshot))

    def _show(self, database: duckdb.DuckDBPyConnection, plan: _SnapshotPlan) -> None:
        files = self.files
        files.add(plan.tables)
        for path, reason in plan.refused:
            files.refuse(path, reason)
        statements = [f"DROP VIEW {name}" for name in sorted(self._views.keys() - plan.views.keys())]
        statements += [
            f"CREATE OR REPLACE VIEW {name} AS {select}"
            for name, select in plan.views.items()
            if self._views.get(name) != select
        ]
        # A cursor, because the connection itself may have an unfinished result. Closing it early rolls back.
        cursor = database.cursor()
        try:
            with files.planning():
                cursor.execute("BEGIN")
                for statement in statements:
                    cursor.execute(statement)
                cursor.execute("COMMIT")
        finally:
            cursor.close()
        self._views, self._segments = plan.views, plan.segments

    def damaged(self, error: Exception) -> TxnStoreError | None:
        """Find the damaged segment that caused an error of DuckDB, among those that it reads directly.

        Without checksums, and for a file that was damaged after its check. Most errors of DuckDB name the file.
        Undecodable bytes raise its base error class without a name: then all segments of the connection are checked.

        Args:
            error: The error of DuckDB.

        Returns:
            The error of the damaged segment; None if there is no damage.
        """
        import duckdb

        message, files = str(error), self.files
        if not files.is_local:
            return None
        suspects = [path for path in self._segments if path.partition("/")[2] in message]
        if not suspects and type(error) is duckdb.Error:
            suspects = self._segments
        for path in suspects:
            segment = files.segment(path)
            try:
                if segment is not None:
                    segment.load()
            except TxnStoreError as damage:
                return damage
        return None

    def quoting_advice(self, query: str) -> str:
        """What to write instead if the query names topics without the quotation marks that they need; else empty."""
        return quoting_advice(query, self.connection.view(refresh=False).topics)

    @property
    def files(self) -> SegmentFileSystem:
        """The file system of the database."""
        files = self._files()
        if files is None:
            msg = "the DuckDB connection is closed"
            raise InvalidConfigError(msg)
        return files

    def _plan(self, snapshot: Snapshot) -> _SnapshotPlan:
        """The views and files of a snapshot."""
        view = snapshot.view
        plan = _SnapshotPlan()
        names = view_names(view)
        for topic in view.sorted_topics():
            refusal = self.connection.refusal(read_topics([topic.name]))
            topic_plan = plan_topic(self.connection, topic, view, self.isolation, refusal)
            plan.views[quote(names[topic.name])] = topic_plan.select
            plan.segments.extend(topic_plan.paths)
            plan.tables.update(topic_plan.fresh)
            if topic_plan.refused is not None:
                plan.refused.append(topic_plan.refused)
        folder = f"state/{view.sequence}"
        plan.tables.update(inspection_files(folder, self.connection, view))
        plan.views.update(inspection_views(inspected(folder, view, self.isolation, self.number)))
        return plan


def open_session(
    connection: Connection, isolation: Isolation, snapshot: Snapshot, access: Access
) -> duckdb.DuckDBPyConnection:
    """Opens a new in-memory database whose views show the snapshot.

    Args:
        connection: The connection to the store to show.
        isolation: Which records are visible.
        snapshot: What to show.
        access: What SQL may read besides.

    Returns:
        A connection to it. Closing it and its cursors releases the database.
    """
    files = SegmentFileSystem(connection.objects, access)
    session = Session(connection, isolation, files)
    database = open_database(files, access)
    try:
        database.execute("CREATE SCHEMA txn")
        session.show(database, snapshot)
        lock(database, access)
    except BaseException:
        database.close()
        raise
    return database


def session_of(database: duckdb.DuckDBPyConnection) -> Session:
    """The session of a connection, or of a cursor of it.

    Raises:
        InvalidConfigError: The connection is not one of ``store.duckdb()`` in this process.
    """
    import duckdb

    cursor = database.cursor()
    try:
        row = cursor.execute("SELECT session FROM txn.snapshot").fetchone()
        session = _sessions.get(row[0]) if row else None
    except duckdb.CatalogException:
        session = None
    finally:
        cursor.close()
    if session is None:
        msg = "this DuckDB connection was not opened by store.duckdb() in this process, so it cannot be refreshed"
        raise InvalidConfigError(msg)
    return session


@contextmanager
def errors_of(database: duckdb.DuckDBPyConnection, query: str | None = None) -> Iterator[None]:
    """Raises failures of the store during the evaluation of a query as :class:`TxnStoreError`.

    DuckDB reports an exception of a file system, also an interrupt, as an error of its own class that contains the
    text. Errors of the query itself pass through, with a note where the text of ``query`` needs quotation marks.
    """
    import duckdb

    session = session_of(database)
    session.files.damage = None
    try:
        yield
    except duckdb.Error as error:
        session.files.raise_interrupt(error)
        damage = session.files.damage or session.damaged(error)
        if damage is not None:
            # Not from DuckDB's error, which has the same text below a traceback.
            raise judged(session.connection, damage) from damage.__cause__
        if query is not None and (advice := session.quoting_advice(query)):
            error.add_note(advice)
        raise
