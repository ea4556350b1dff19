"""Plans the views of a snapshot: the SELECT of each topic and of each table of ``txn``, and the files that they read.

Both kinds of database show snapshots through these views: the one that all queries share, and those of sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from weakref import ref

import pyarrow as pa

from txnstore.connection import Connection
from txnstore.core.authorization.rights import read_topics
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Segment
from txnstore.core.model import Isolation
from txnstore.core.view import View
from txnstore.errors import CorruptionError, TxnStoreError, UnsupportedFormatError
from txnstore.read.rows import Ability
from txnstore.read.sharing import SharedSegments
from txnstore.sql import history, inspection
from txnstore.sql.access import PROTOCOL
from txnstore.sql.combined_files import combined_files
from txnstore.sql.filesystem import SegmentObject, TableFile, VirtualFile, segment_path
from txnstore.sql.history import EntryHistory
from txnstore.sql.types import literal, shown_ms
from txnstore.sql.views import read_parquet, read_parquet_from, shown_plan, topic_select

#: What DuckDB reads through txnstore, which shows it each format as Parquet.
_FILES = Ability(formats=None)
#: What a database keeps for a slice whose rows are in a virtual file, in bytes.
SLICE_BYTES = 100


@dataclass(frozen=True, slots=True)
class TopicPlan:
    """The view of a topic.

    Attributes:
        topic: The topic.
        select: The SELECT of the view.
        refused: The path below ``txnseg://`` that the view reads instead of its segments, and why the topic cannot be
            shown; None if it can.
        files: The files that the view reads, by their paths below ``txnseg://``.
        slices: The number of slices of which the rows are in virtual files.
    """

    topic: CatalogTopic
    select: str
    refused: tuple[str, TxnStoreError] | None = None
    files: Mapping[str, VirtualFile] = field(default_factory=dict)
    slices: int = 0

    @property
    def size(self) -> int:
        """What the view takes in memory, roughly: the number of its characters, and of bytes of its fresh slices."""
        return len(self.select) + SLICE_BYTES * self.slices


def plan_topic(connection: Connection, topic: CatalogTopic, view: View, isolation: Isolation) -> TopicPlan:
    """Plans the view of a topic: lists the visible segments and writes the SELECT over them. Reads no object.

    A topic that DuckDB cannot show, or that the principal may not read, gets a view that raises the reason, so that it
    does not hide the others.

    Args:
        topic: The topic, as it is in ``view``.
        view: The view to show.
        isolation: Which records are visible.

    Returns:
        The plan. Equal visible segments give the same text.
    """
    refusal = connection.refusal(read_topics([topic.name]))
    if refusal is not None:
        return _refused_plan(topic, refusal)
    files: dict[str, VirtualFile] = {}

    def locate(segment: Segment) -> str:
        path = segment_path(segment)
        files[path] = SegmentObject(connection.objects, segment)
        return f"{PROTOCOL}://{path}"

    try:
        segment_plan, rest = shown_plan(topic.name, view, isolation).split(_FILES)
        shared_files = combined_files(rest, _shared_segments(connection))
        select = topic_select(segment_plan, locate, [f"{PROTOCOL}://{path}" for path in shared_files])
    except Exception as error:  # noqa: BLE001 - Whatever is wrong with this topic, the others are shown.
        return plan_not_shown(topic, error)
    return TopicPlan(topic, select, files=files | shared_files, slices=len(rest.slices))


def plan_not_shown(topic: CatalogTopic, reason: Exception) -> TopicPlan:
    """The plan of a topic for which no view can be made."""
    kind = CorruptionError if isinstance(reason, CorruptionError) else UnsupportedFormatError
    return _refused_plan(topic, kind(f"topic {topic.name!r} cannot be shown in SQL: {reason}"))


def _refused_plan(topic: CatalogTopic, reason: TxnStoreError) -> TopicPlan:
    """The plan of a view that raises the reason."""
    path = f"refused/{topic.topic_id}-{topic.version}"
    columns = pa.schema([("reason", pa.string())])
    return TopicPlan(topic, f"SELECT reason FROM {read_parquet([f'{PROTOCOL}://{path}'], columns)}", (path, reason))


def _shared_segments(connection: Connection) -> SharedSegments:
    """The shared segments that all databases of a store have decoded."""
    make = partial(SharedSegments, connection.objects, _pool_getter(connection))
    return connection.cached(SharedSegments, make)


# Inspection -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class InspectedSnapshot:
    """SQL expressions of what the schema ``txn`` shows: constants, or fields of a variable.

    Attributes:
        folder: The folder of the inspection tables below ``txnseg://``.
        sequence: The sum of the sequence numbers of the heads.
        timestamp: The time of the newest entry, in ms.
        isolation: The isolation level of the topics.
        heads: The sequence numbers of the heads of the chains.
        session: The number of the session; 0 in the shared database.
    """

    folder: str
    sequence: str
    timestamp: str
    isolation: str
    heads: str
    session: int = 0


def inspected(folder: str, view: View, isolation: Isolation, session: int = 0) -> InspectedSnapshot:
    """The constants of a view whose inspection tables were added in a folder."""
    return InspectedSnapshot(
        folder=literal(folder),
        sequence=f"{view.sequence}::BIGINT",
        timestamp=f"{shown_ms(view.timestamp)}::BIGINT",
        isolation=literal(isolation),
        heads=f"{[chain.sequence for chain in view.states]}::BIGINT[]",
        session=session,
    )


def inspection_views(snapshot: InspectedSnapshot) -> dict[str, str]:
    """The SELECT of each view of the schema ``txn``, by the name of the view."""
    views = {
        f"txn.{name}": f"SELECT * FROM {read_parquet_from(_inspection_file(snapshot.folder, name), schema)}"
        for name, schema in _inspection_schemas().items()
    }
    views["txn.snapshot"] = (
        f"SELECT {snapshot.sequence} AS sequence, make_timestamptz({snapshot.timestamp} * 1000) AS timestamp, "
        f"{snapshot.isolation} AS isolation, {snapshot.session}::BIGINT AS session, {snapshot.heads} AS heads"
    )
    return views


def _inspection_file(folder: str, name: str) -> str:
    """The SQL expression of the path of an inspection table."""
    return f"'{PROTOCOL}://' || {folder} || '/{name}.parquet'"


def _inspection_schemas() -> dict[str, pa.Schema]:
    """The columns of each table of the schema ``txn``, except for ``txn.snapshot``."""
    return inspection.SCHEMAS | history.SCHEMAS | {"log": history.LOG}


def inspection_files(folder: str, connection: Connection, view: View) -> dict[str, VirtualFile]:
    """The tables of the schema ``txn`` for a view, by their paths in a folder; each is computed when it is first read.

    They have no strong reference to the connection, which their database may outlive. What leads to the bytes of a
    topic, they show only if the principal may read it.

    Args:
        folder: The folder below ``txnseg://``.
        view: The view to show.
    """
    heads = [chain.sequence for chain in view.states]
    entries = EntryHistory(
        connection.objects, connection.keys, _pool_getter(connection), heads, _deletable_up_to(connection)
    )
    readable = _readability_check(connection)
    files: dict[str, VirtualFile] = {name: _state_table(name, view, readable) for name in inspection.SCHEMAS}
    files |= {name: _entry_table(name, entries) for name in history.SCHEMAS}
    files["log"] = TableFile(lambda: entries.log(view, readable))
    return {f"{folder}/{name}.parquet": file for name, file in files.items()}


def _state_table(name: str, view: View, readable: Callable[[str], bool]) -> TableFile:
    return TableFile(lambda: inspection.table(name, view, readable))


def _readability_check(connection: Connection) -> Callable[[str], bool]:
    """A function that returns whether the principal may read a topic, by the rules as they are known now."""
    authorization, principal = connection.authorization, connection.principal
    return lambda topic: authorization.mode == "off" or authorization.allows(principal, "READ", "TOPIC", topic)


def _entry_table(name: str, entries: EntryHistory) -> TableFile:
    return TableFile(lambda: entries.table(name))


def _pool_getter(connection: Connection) -> Callable[[], Executor]:
    """A function that returns the executor of the store, or a new one after the connection was released."""
    weak, runtime = ref(connection), connection.runtime

    def pool() -> Executor:
        alive = weak()
        return runtime.executor() if alive is None else alive.pool

    return pool


def _deletable_up_to(connection: Connection) -> Callable[[], list[int]]:
    """A function that returns the last entry of each chain that may be deleted; none after the connection has ended."""
    weak = ref(connection)

    def deletable_up_to() -> list[int]:
        alive = weak()
        return [] if alive is None else alive.chains.boundaries()

    return deletable_up_to
