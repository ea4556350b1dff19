"""A DuckDB connection that shows one snapshot of a store, and moving it to another one."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary, ref

from txnstore.core.model import (
    Isolation,
    Segment,
    TopicPartition,
)
from txnstore.core.view import View
from txnstore.errors import InvalidConfigError, TxnStoreError
from txnstore.reading.snapshot import Snapshot
from txnstore.sql import history, inspection
from txnstore.sql.filesystem import PROTOCOL, SegmentFileSystem, SegmentObject, TableFile, VirtualFile
from txnstore.sql.history import History
from txnstore.sql.local import local_root
from txnstore.sql.types import literal, quote
from txnstore.sql.views import read_parquet, topic_select, view_names, visible_slices

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from txnstore.store import Store

#: The settings of every connection: nothing is ever fetched from the internet.
_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}

_numbers = itertools.count(1)
#: The sessions of this process whose databases are open, by the number that the database itself knows.
_sessions: WeakValueDictionary[int, Session] = WeakValueDictionary()


@dataclass(frozen=True, slots=True)
class _Plan:
    """The views of a snapshot by name, the files that they need of us, the segments that DuckDB reads by itself."""

    views: dict[str, str] = field(default_factory=dict)
    files: dict[str, VirtualFile] = field(default_factory=dict)
    in_place: list[SegmentObject] = field(default_factory=list)


class Session:
    """What belongs to one in-memory database: its store, its isolation, the views it has now.

    The database keeps its file system alive, that keeps the session; nothing here keeps the database.
    """

    def __init__(self, store: Store, isolation: Isolation, files: SegmentFileSystem) -> None:
        self.store = store
        self.isolation = isolation
        self.number = next(_numbers)
        self._files = ref(files)
        self._views: dict[str, str] = {}
        self._in_place: list[SegmentObject] = []
        self._lock = threading.Lock()
        files.owner = self
        _sessions[self.number] = self

    def show(self, connection: duckdb.DuckDBPyConnection, snapshot: Snapshot) -> None:
        """Move all views to the snapshot in one step: no query sees views of two snapshots."""
        import duckdb

        with self._lock:
            try:
                self._show(connection, self._plan(snapshot, local_root(self.store.objects)))
            except duckdb.IOException:
                # A file that should be there is not. Through our own file system it is missed when it is read, and
                # named; the other topics are not affected.
                self._show(connection, self._plan(snapshot, None))

    def _show(self, connection: duckdb.DuckDBPyConnection, plan: _Plan) -> None:
        self.files.replace(plan.files)
        statements = [f"DROP VIEW {name}" for name in sorted(self._views.keys() - plan.views.keys())]
        statements += [
            f"CREATE OR REPLACE VIEW {name} AS {select}"
            for name, select in plan.views.items()
            if self._views.get(name) != select
        ]
        # A cursor, because the connection itself may be in the middle of a result. Closed early, it rolls back.
        cursor = connection.cursor()
        try:
            cursor.execute("BEGIN")
            for statement in statements:
                cursor.execute(statement)
            cursor.execute("COMMIT")
        finally:
            cursor.close()
        self._views, self._in_place = plan.views, plan.in_place

    def damaged(self, error: Exception) -> TxnStoreError | None:
        """What is wrong with a segment that DuckDB reads in place, if that is what its error is about.

        DuckDB mostly names the file. Bytes that make no sense to its decoders end in its bare error class instead,
        without a name: then all segments of the connection are checked.
        """
        import duckdb

        message = str(error)
        suspects = [item for item in self._in_place if item.segment.key in message]
        if not suspects and type(error) is duckdb.Error:
            suspects = self._in_place
        for suspect in suspects:
            try:
                suspect.load()
            except TxnStoreError as found:
                return found
        return None

    @property
    def files(self) -> SegmentFileSystem:
        """The files of the database, which is open as long as somebody can ask."""
        files = self._files()
        if files is None:
            msg = "the DuckDB connection is closed"
            raise InvalidConfigError(msg)
        return files

    def _plan(self, snapshot: Snapshot, root: str | None) -> _Plan:
        """What a snapshot needs; segments below the folder ``root`` are read in place."""
        state = snapshot.state
        plan = _Plan()
        locate = _Locator(self.store, root, plan)
        names = view_names(state)
        for topic in state.sorted_topics():
            slices = visible_slices(topic, state, self.isolation)
            plan.views[quote(names[topic.name])] = topic_select(topic, slices, locate)
        for name, (schema, file) in _inspection(self.store, state).items():
            path = f"state/{state.sequence}/{name}.parquet"
            plan.files[path] = file
            plan.views[f"txn.{name}"] = f"SELECT * FROM {read_parquet([f'{PROTOCOL}://{path}'], schema)}"
        plan.views["txn.snapshot"] = (
            f"SELECT {state.sequence}::BIGINT AS sequence, make_timestamptz({state.timestamp * 1000}) AS timestamp, "
            f"{literal(self.isolation)} AS isolation, {self.number}::BIGINT AS session, "
            f"{[chain.sequence for chain in state.states]}::BIGINT[] AS heads"
        )
        return plan


class _Locator:
    """Where a connection finds a segment: in the folder itself where DuckDB can read it there, else through us."""

    def __init__(self, store: Store, root: str | None, plan: _Plan) -> None:
        self._objects = store.objects
        self._root = root
        self._plan = plan

    def __call__(self, tp: TopicPartition, segment: Segment) -> str:
        file = SegmentObject(self._objects, tp, segment)
        if self._root is not None and segment.format == "parquet":
            self._plan.in_place.append(file)
            return f"{self._root}/{segment.key}"
        self._plan.files[segment.key] = file
        return f"{PROTOCOL}://{segment.key}"


def _inspection(store: Store, state: View) -> dict[str, tuple[pa.Schema, VirtualFile]]:
    """The tables of the schema ``txn``, each made when it is first read."""
    past = History(store.objects, lambda: store.pool, [chain.sequence for chain in state.states])
    tables = {name: (schema, _state_table(name, state)) for name, schema in inspection.SCHEMAS.items()}
    return tables | {name: (schema, _past_table(name, past)) for name, schema in history.SCHEMAS.items()}


def _state_table(name: str, state: View) -> TableFile:
    return TableFile(lambda: inspection.table(name, state))


def _past_table(name: str, past: History) -> TableFile:
    return TableFile(lambda: past.table(name))


def open_session(store: Store, isolation: Isolation, snapshot: Snapshot) -> duckdb.DuckDBPyConnection:
    """A connection to a new in-memory database whose views show the snapshot."""
    import duckdb

    files = SegmentFileSystem()
    session = Session(store, isolation, files)
    connection = duckdb.connect(":memory:", config=_SETTINGS)
    try:
        # The zone in which instants are shown; ICU is part of DuckDB's Python package.
        connection.execute("SET TimeZone = 'UTC'")
        connection.register_filesystem(files)
        connection.execute("CREATE SCHEMA txn")
        session.show(connection, snapshot)
    except BaseException:
        connection.close()
        raise
    return connection


def session_of(connection: duckdb.DuckDBPyConnection) -> Session:
    """The session of a connection, or of a cursor of it; :class:`InvalidConfigError` for any other connection."""
    import duckdb

    cursor = connection.cursor()
    try:
        row = cursor.execute("SELECT session FROM txn.snapshot").fetchone()
        session = _sessions.get(row[0]) if row else None
    except duckdb.CatalogException:
        session = None
    finally:
        cursor.close()
    if session is None:
        msg = "this DuckDB connection was not made by store.duckdb() in this process, so it has no views to move"
        raise InvalidConfigError(msg)
    return session


@contextmanager
def errors_of(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Around the evaluation of a query: what went wrong in the store comes out as an error of ours.

    DuckDB reports what happens inside a file system as an error of its own with our text in it. Errors of the query
    itself pass through.
    """
    import duckdb

    session = session_of(connection)
    session.files.damage = None
    try:
        yield
    except duckdb.Error as error:
        found = session.files.damage or session.damaged(error)
        if found is not None:
            raise found from error
        raise
