"""The DuckDB database that the calls of ``store.sql`` share.

Views in it are never replaced or dropped: each state of a topic that a query reads gets a view in a schema of its own,
and each call gets a cursor whose search path lists the schemas of the topics that the query names. So a relation shows
its snapshot however often it is evaluated, a topic that has not changed costs nothing, and topics that a query does not
name are not planned. The schema ``txn`` exists once, from the first query of it on; its views read the files that a
variable of the cursor names.

Once most of a database is outdated, the next call begins a new one. So does the first call after a change of the rules,
because the views of a topic that may not be read any more stay in the database. Cursors and relations own the database
that they were made in, so an earlier one is released with the last of them.

Queries that might list or change the contents of the database get one of their own instead: see
:func:`~txnstore.sql.statements.is_plain`.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakSet

from txnstore.connection import Connection
from txnstore.core.authorization.rules import Authorization
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.model import Isolation
from txnstore.core.view import View
from txnstore.sql.access import Access, lock, open_database
from txnstore.sql.content import ContentCache
from txnstore.sql.filesystem import SegmentFileSystem
from txnstore.sql.interrupts import raise_interrupt
from txnstore.sql.planning import (
    InspectedSnapshot,
    inspected,
    inspection_files,
    inspection_views,
    plan_topic,
)
from txnstore.sql.statements import is_plain, names_in, parse
from txnstore.sql.types import literal, quote
from txnstore.sql.views import view_names
from txnstore.threads import ForkLock

if TYPE_CHECKING:
    import duckdb

#: The maximum size of segments that are cached between calls, in bytes.
CACHE_BYTES = 64 << 20
#: The maximum number of characters of outdated views in a database, unless the current ones have more.
OUTDATED_CHARACTERS = 4 << 20
#: The maximum number of states of the schema ``txn`` in a database.
STATES = 64
#: The maximum number of calls that a database serves: each leaves an empty schema.
CALLS = 1000
#: The maximum number of characters of a query that is parsed once for all calls.
TEXT_CHARACTERS = 4096

#: The variable of a cursor that selects the state that ``txn`` shows.
_SHOWN = "txn shown"


class SharedDatabase:
    """The shared database of one open store in one process, with one kind of access. Thread-safe."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._lock = ForkLock()
        self._database: _Database | None = None
        _all_databases.add(self)

    def cursor(
        self, connection: Connection, query: str, isolation: Isolation, view: View
    ) -> duckdb.DuckDBPyConnection | None:
        """Create a cursor in which the topics that a query names are views of a state.

        Args:
            query: The query that is going to run.
            isolation: Which records are visible.
            view: The view to show.

        Returns:
            The cursor; None if the query needs a database of its own, which also reports invalid SQL and missing
            segments.

        Raises:
            InvalidConfigError: The query would have no effect.
        """
        import duckdb

        with self._lock.own:
            database, rules = self._database, connection.authorization
            if database is None or database.rules is not rules or database.is_outdated():
                database = self._database = _Database(connection, self._access, rules)
            try:
                names = database.names(query)
                if names is None:
                    return None
                cursor = database.main.cursor()
                database.prepare(cursor, connection, names, isolation, view)
            except duckdb.Error as error:
                raise_interrupt(error)
                return None
            return cursor

    def release(self) -> None:
        """Release the database; relations that were created in it stay valid."""
        self._database = None


#: All instances: they release their databases before a fork, because a forked process has no threads of DuckDB, and
#: without them a database cannot be released.
_all_databases: WeakSet[SharedDatabase] = WeakSet()


def _release_all() -> None:
    for database in list(_all_databases):
        database.release()


os.register_at_fork(before=_release_all)


@dataclass(frozen=True, slots=True)
class _TopicView:
    """The newest view of a topic.

    Attributes:
        schema: The quoted name of its schema.
        size: The number of its characters.
        seen: The parts of the state that it shows.
    """

    schema: str
    size: int
    seen: tuple[object, ...]


class _Database:
    """An in-memory database whose views never change; only used under the lock of its :class:`SharedDatabase`."""

    def __init__(self, connection: Connection, access: Access, rules: Authorization) -> None:
        #: The rules by which its topics may be read.
        self.rules = rules
        self.files = SegmentFileSystem(connection.objects, access, ContentCache(CACHE_BYTES))
        self.main = open_database(self.files, access)
        lock(self.main)  # What one call sets would be set for the next ones. DuckDB lets a cursor set its search path.
        #: The view of the store that the last call showed.
        self._view: View | None = None
        #: Its topics by the lower-case names of their views, each with that name as it is written.
        self._topics: dict[str, tuple[str, CatalogTopic]] = {}
        #: The schemas that show topics of this view; empty again when the view changes.
        self._current_schemas: dict[tuple[str, Isolation], str] = {}
        #: The newest view of each topic: still right for a later view of the store in which the topic has not changed.
        self._newest_views: dict[tuple[str, Isolation], _TopicView] = {}
        #: The schema of each view that was created, by name and SELECT: an earlier snapshot may be shown again.
        self._schemas: dict[tuple[str, str], str] = {}
        #: The characters of all views, and of the newest ones.
        self._written_characters = self._live_characters = 0
        #: The view of the store whose inspection tables were kept last, and the number of their folder. Assigned in one
        #: step after all of them: an interrupt leaves the pair before or the one after.
        self._inspected: tuple[View, int] | None = None
        #: The number of the newest folder; it is used once, also if an interrupt keeps it from being shown.
        self._state_count = 0
        #: The names in each query that only selects; a database serves a limited number of them.
        self._names_by_query: dict[str, set[str]] = {}
        #: The number of calls, each of which leaves a schema.
        self._call_count = 0

    def is_outdated(self) -> bool:
        """Whether most of the database belongs to earlier states or calls."""
        outdated = self._written_characters - self._live_characters
        return (
            outdated > max(OUTDATED_CHARACTERS, self._live_characters)
            or self._state_count > STATES
            or self._call_count > CALLS
        )

    def names(self, query: str) -> set[str] | None:
        """The names in a query that only selects; None if it needs a database of its own.

        Raises:
            InvalidConfigError: The query would have no effect.
        """
        names = self._names_by_query.get(query)
        if names is None and is_plain(query, parse(self.main, query)):
            names = names_in(query)
            if len(query) <= TEXT_CHARACTERS:
                self._names_by_query[query] = names
        return names

    def prepare(
        self,
        cursor: duckdb.DuckDBPyConnection,
        connection: Connection,
        names: set[str],
        isolation: Isolation,
        view: View,
    ) -> None:
        """Prepare a cursor that shows the topics of a view with the given names."""
        self._move_to(view)
        topics = [self._topics[name] for name in sorted(self._topics.keys() & names)]
        schemas = [self._schema_of_view(connection, view_name, topic, isolation) for view_name, topic in topics]
        # Objects that a method of the relation creates go to the first schema of the path, which belongs to this call.
        call_schema = _unguessable_schema("call")
        self._call_count += 1
        cursor.execute(f"CREATE SCHEMA {call_schema}; SET search_path = '{','.join([call_schema, *schemas])}'")
        if "txn" in names:
            self._show_inspection(cursor, connection, isolation, view)

    def _move_to(self, view: View) -> None:
        """Make a view the current one, and forget the topics that it does not have."""
        if self._view is view:
            return
        if self._view is None or self._view.topics is not view.topics:
            names = view_names(view)
            self._topics = {view_name.lower(): (view_name, view.topics[name]) for name, view_name in names.items()}
            for key in [key for key in self._newest_views if key[0].lower() not in self._topics]:
                self._live_characters -= self._newest_views.pop(key).size
        self._view = view
        self._current_schemas.clear()

    def _schema_of_view(self, connection: Connection, view_name: str, topic: CatalogTopic, isolation: Isolation) -> str:
        """The quoted name of the schema with the current view of a topic; plans the topic if it has changed."""
        key = (view_name, isolation)
        if key not in self._current_schemas:
            assert self._view is not None
            shown_parts = (topic, *(partition for _, partition in self._view.partitions_of(topic.name)))
            newest_view = self._newest_views.get(key)
            if newest_view is None or not _are_same_objects(newest_view.seen, shown_parts):
                planned_view = self._plan_view(connection, view_name, topic, isolation, shown_parts)
                self._live_characters += planned_view.size - (0 if newest_view is None else newest_view.size)
                newest_view = self._newest_views[key] = planned_view
            self._current_schemas[key] = newest_view.schema
        return self._current_schemas[key]

    def _plan_view(
        self,
        connection: Connection,
        view_name: str,
        topic: CatalogTopic,
        isolation: Isolation,
        seen: tuple[object, ...],
    ) -> _TopicView:
        """Plan the view of a topic, and create it in a schema of its own unless an equal one exists."""
        assert self._view is not None
        plan = plan_topic(connection, topic, self._view, isolation)
        if plan.refused is not None:
            self.files.refuse([plan.refused])
        self.files.keep(plan.files)
        schema = self._schemas.get((view_name, plan.select))
        if schema is None:
            schema = _unguessable_schema("view")
            with self.files.planning():
                self.main.execute(
                    f"CREATE SCHEMA IF NOT EXISTS {schema}; "
                    f"CREATE OR REPLACE VIEW {schema}.{quote(view_name)} AS {plan.select}",
                )
            self._written_characters += plan.size
            self._schemas[view_name, plan.select] = schema
        return _TopicView(schema, plan.size, seen)

    def _show_inspection(
        self, cursor: duckdb.DuckDBPyConnection, connection: Connection, isolation: Isolation, view: View
    ) -> None:
        """Let a cursor read the schema ``txn`` as of a view."""
        shown_state = self._inspected
        if shown_state is None or shown_state[0] is not view:
            self._state_count += 1
            shown_state = view, self._state_count
            self.files.keep(inspection_files(_inspection_folder(shown_state[1]), connection, view))
        value = _inspection_variable(_inspection_folder(shown_state[1]), view, isolation)
        statement = f"SET VARIABLE {quote(_SHOWN)} = {value}"
        if self._inspected is None:  # DuckDB binds a view when it is created, so the variable must have a value.
            self.main.execute(";\n".join([statement, *_inspection_statements()]))
        self._inspected = shown_state
        cursor.execute(statement)


def _unguessable_schema(kind: str) -> str:
    """The quoted name of a new schema, which no other call can name: it has tables of one call, or an earlier view."""
    return f'"txn {kind} {secrets.token_hex(16)}"'


def _are_same_objects(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    """Whether both contain the same objects; states share unchanged parts."""
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def _inspection_folder(state: int) -> str:
    """The folder of the inspection tables of a state."""
    return f"state/{state}"


def _inspection_variable(folder: str, view: View, isolation: Isolation) -> str:
    """The value of the variable that selects what ``txn`` shows."""
    expressions = inspected(folder, view, isolation)
    return (
        f"{{'folder': {expressions.folder}, 'sequence': {expressions.sequence}, 'timestamp': {expressions.timestamp}, "
        f"'isolation': {expressions.isolation}, 'heads': {expressions.heads}}}"
    )


def _inspection_statements() -> list[str]:
    """The statements that create the schema ``txn``, whose views show what the variable of a cursor selects."""
    variable = f"getvariable({literal(_SHOWN)})"
    selected = InspectedSnapshot(
        folder=f"{variable}.folder",
        sequence=f"{variable}.sequence",
        timestamp=f"{variable}.timestamp",
        isolation=f"{variable}.isolation",
        heads=f"{variable}.heads",
    )
    return [
        "CREATE SCHEMA IF NOT EXISTS txn",
        *(f"CREATE OR REPLACE VIEW {name} AS {select}" for name, select in inspection_views(selected).items()),
    ]


def shared_database(connection: Connection, access: Access = Access()) -> SharedDatabase:  # noqa: B008 - immutable
    """Return the shared database of an open store."""
    return connection.cached(access, lambda: SharedDatabase(access))
