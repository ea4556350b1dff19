"""Sessions: DuckDB connections of ``store.duckdb()``, each with a database of its own that shows one snapshot."""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary, ref

from txnstore.connection import Connection
from txnstore.core.authorization.rules import Authorization
from txnstore.core.model import Isolation
from txnstore.core.view import View
from txnstore.errors import InvalidConfigError, TxnStoreError
from txnstore.phrases import some
from txnstore.read.expired import judge_missing_segment
from txnstore.segment.schema import schema_from_text
from txnstore.snapshot import Snapshot
from txnstore.sql.access import Access, lock, open_database
from txnstore.sql.filesystem import SegmentFileSystem
from txnstore.sql.interrupts import raise_interrupt
from txnstore.sql.planning import TopicPlan, inspected, inspection_files, inspection_views, plan_not_shown, plan_topic
from txnstore.sql.statements import names_in, quoting_advice
from txnstore.sql.types import quote
from txnstore.sql.views import view_names
from txnstore.threads import ForkLock
from txnstore.values.maps import has_maps

if TYPE_CHECKING:
    import duckdb

_LOG = logging.getLogger(__name__)

#: What DuckDB proposes for a topic that does not exist if no topic has a similar name: a table of its own.
_OWN_TABLE = re.compile(r'\nDid you mean "(?:\w+\.)?(?:pg|duckdb|sqlite|pragma)_\w+"\?')
#: In errors of DuckDB about the bytes of a file that it does not name; a query may cause one, too, but seldom.
_OF_A_FILE = re.compile(r"parquet|bitpacked|encoding", re.IGNORECASE)
#: The sessions of this process whose databases are open, by the number in their view ``txn.snapshot``.
_sessions: WeakValueDictionary[int, Session] = WeakValueDictionary()


class Session:
    """An in-memory database with the views of a store at one isolation level.

    The database owns its file system, which owns the session. The session has no strong reference to either, so
    closing the last DuckDB connection releases everything.
    """

    def __init__(self, connection: Connection, isolation: Isolation, files: SegmentFileSystem) -> None:
        self.connection = connection
        self.isolation = isolation
        #: In the view ``txn.snapshot``, which SQL can replace: no other session may be guessed.
        self.number = secrets.randbits(62)
        self._files = ref(files)
        #: The SELECT of each view that the database shows, by the quoted name of the view.
        self._views: dict[str, str] = {}
        #: The rules by which it shows topics.
        self._rules: Authorization | None = None
        self._lock = ForkLock()
        files.owner = self
        _sessions[self.number] = self

    def show(self, database: duckdb.DuckDBPyConnection, snapshot: Snapshot) -> None:
        """Move all views to the snapshot in one transaction: no query sees views of two snapshots."""
        with self._lock.own:
            rules = self.connection.authorization  # Before the plans, which check them: they may change meanwhile.
            view = snapshot.view
            plans = self._plan_topics(view)
            folder = f"state/{view.sequence}"
            topic_files = {path: file for plan in plans.values() for path, file in plan.files.items()}
            self.files.add(topic_files | inspection_files(folder, self.connection, view))
            if rules is not self._rules:
                self.files.forget_earlier()  # Some may be of topics that the principal may not read any more.
            own_tables = _own_tables(database)
            for name in [name for name in plans if name.lower() in own_tables]:
                extra = {"topic": plans.pop(name).topic.name}
                _LOG.warning("topic not shown: the DuckDB connection has a table of its name", extra=extra)
            inspection = inspection_views(inspected(folder, view, self.isolation, self.number))
            self._views = self._replace_until_shown(database, plans, inspection, own_tables)
            self._rules = rules

    def _plan_topics(self, view: View) -> dict[str, TopicPlan]:
        """The plan of the view of each topic, by the quoted name of the view."""
        names = view_names(view)
        return {
            quote(names[topic.name]): plan_topic(self.connection, topic, view, self.isolation)
            for topic in view.sorted_topics()
        }

    def _replace_until_shown(
        self,
        database: duckdb.DuckDBPyConnection,
        plans: dict[str, TopicPlan],
        inspection: dict[str, str],
        own_tables: Container[str],
    ) -> dict[str, str]:
        """Replace the views; return the SELECT of each view that is shown.

        Args:
            plans: The plans of topics by the name of the view; one that DuckDB refuses becomes a view that says why.
            inspection: The SELECT of each view of the schema ``txn``, by the name of the view.
            own_tables: See :func:`_own_tables`.
        """
        while True:
            views = {name: plan.select for name, plan in plans.items()} | inspection
            self.files.refuse(plan.refused for plan in plans.values() if plan.refused is not None)
            failure = self._replace_views(database, views, own_tables)
            if failure is None:
                return views
            name, error = failure
            if name not in plans:
                raise error
            plans[name] = plan_not_shown(plans[name].topic, error)

    def _replace_views(
        self, database: duckdb.DuckDBPyConnection, views: Mapping[str, str], own_tables: Container[str]
    ) -> tuple[str, duckdb.Error] | None:
        """Replace all views in a transaction; or none, and return the view that DuckDB refuses, and why."""
        import duckdb

        # A view without a topic is dropped; not a table that the user has created under its name meanwhile.
        removed_views = sorted(name for name in self._views.keys() - views.keys() if name.lower() not in own_tables)
        statements = [("", f"DROP VIEW IF EXISTS {name}") for name in removed_views]
        statements += [
            (name, f"CREATE OR REPLACE VIEW {name} AS {select}")
            for name, select in views.items()
            if self._views.get(name) != select
        ]
        # A cursor, because the connection itself may have an unfinished result. Closing it early rolls back.
        current_name = ""
        with database.cursor() as cursor, self.files.planning():
            try:
                cursor.execute("BEGIN")
                for name, statement in statements:
                    current_name = name
                    cursor.execute(statement)
                cursor.execute("COMMIT")
            except duckdb.Error as error:
                raise_interrupt(error)
                return current_name, error
        return None

    def find_damage(self, error: Exception) -> TxnStoreError | None:
        """Find the damaged segment that caused an error of DuckDB, among those that it reads directly.

        Without checksums, and for a file that was damaged after its check. Most errors of DuckDB name the file.
        Undecodable bytes raise its base error class, or another one that tells of Parquet, without a name: then all
        segments of the connection are checked.

        Args:
            error: The error of DuckDB.

        Returns:
            The error of the damaged segment; None if there is no damage.
        """
        import duckdb

        if not self.files.is_local:
            return None
        segments = self.files.segments()
        suspects = [segment for segment in segments if segment.described.key in str(error)]
        is_of_a_file = type(error) is duckdb.Error or _OF_A_FILE.search(str(error)) is not None
        for segment in suspects or (segments if is_of_a_file else []):
            try:
                segment.load()
            except TxnStoreError as damage:
                return damage
        return None

    def quoting_advice(self, query: str) -> str:
        """What to write instead if the query names topics without the quotation marks that they need; else empty."""
        return quoting_advice(query, self.connection.view(refresh=False).topics)

    def map_advice(self, query: str, error: Exception) -> str:
        """Which columns of the query have maps, if DuckDB refuses the keys of one and names no column; else empty.

        An older release accepted maps with equal keys, or a null key.
        """
        if "Map keys" not in str(error):
            return ""
        query_names = names_in(query)
        topics = self.connection.view(refresh=False).sorted_topics()
        topics = [topic for topic in topics if topic.name.lower() in query_names]
        columns = [
            f"{field.name!r} of topic {topic.name!r}"
            for topic in topics
            if topic.schema is not None
            for field in schema_from_text(topic.schema)
            if has_maps(field.type)
        ]
        if not columns:
            return ""
        return (
            f"The query reads maps of column {some(columns)}; an older release accepted equal keys and null keys. "
            "Select the column as it is, or without such rows: WHERE len(list_distinct(map_keys(…))) = cardinality(…)."
        )

    @property
    def files(self) -> SegmentFileSystem:
        """The file system of the database."""
        files = self._files()
        if files is None:
            msg = "the DuckDB connection is closed"
            raise InvalidConfigError(msg)
        return files


def _own_tables(database: duckdb.DuckDBPyConnection) -> set[str]:
    """The tables that the user of a database has created where the topics are: quoted names in lower case."""
    with database.cursor() as cursor:
        rows = cursor.execute(
            "SELECT table_name FROM duckdb_tables() WHERE database_name = current_database() AND schema_name = 'main'"
        ).fetchall()
    return {quote(name).lower() for (name,) in rows}


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
        if not access.external:
            lock(database)
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
    files = session.files
    files.take_damage()
    try:
        yield
    except duckdb.Error as error:
        raise_interrupt(error)
        damage = files.take_damage() or session.find_damage(error)
        if damage is not None:
            # Not from DuckDB's error, which has the same text below a traceback.
            raise judge_missing_segment(session.connection, damage) from damage.__cause__
        if isinstance(error, duckdb.CatalogException):
            error.args = (_OWN_TABLE.sub("", str(error)),)
        if query is not None and (advice := session.map_advice(query, error) or session.quoting_advice(query)):
            error.add_note(advice)
        raise
