"""The tables of a store, as :attr:`txnstore.Store.tables` gives them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from txnstore.catalog.iceberg.cut import CutDocument, PublishedTable
from txnstore.catalog.iceberg.location import Location, location_of
from txnstore.catalog.settings import TABLE_FORMAT, publishes_table
from txnstore.catalog.topics import alter_topic
from txnstore.chain import keys
from txnstore.connection import Connection
from txnstore.core.catalog.model import CatalogTopic
from txnstore.errors import (
    InvalidConfigError,
    TxnStoreError,
)
from txnstore.tables.check import CheckReport, check_tables
from txnstore.tables.plan import DIRECT
from txnstore.tables.publish import TAIL_BYTES, Publisher, SyncReport
from txnstore.tables.published import published_of
from txnstore.validation import check_integer, check_names


@dataclass(frozen=True, slots=True)
class TableDescription:
    """A table.

    Attributes:
        topic: Its topic.
        published: Whether engines can read it: a publication since it was enabled has created it.
        location: The location of its metadata; ``<location>/metadata/v<version>.metadata.json`` is the newest.
        version: The number of its newest version; 0: it is not published.
        snapshot_id: Its current snapshot; None: it has none.
        cut: The newest cut of all tables; 0 without one.
        heads: The last entry of each chain that it shows: those of the cut, unless it could not be published with it.
        timestamp: The time of the newest of them, in ms.
        rows: The rows that readers see.
        copied_bytes: The size of the files that are copies of rows, which a compaction makes unnecessary.
        behind: How many entries the chains have after these, as far as this process knows.
        lag_ms: How much later the newest of them was written, in ms.
    """

    topic: str
    published: bool
    location: str
    version: int
    snapshot_id: int | None
    cut: int
    heads: tuple[int, ...]
    timestamp: int
    rows: int
    copied_bytes: int
    behind: int
    lag_ms: int


@dataclass(frozen=True, slots=True)
class SnapshotDescription:
    """A snapshot of a table.

    Attributes:
        snapshot_id: Its id; of the last one of a publication the number of entries that it shows.
        timestamp: The time of the newest of them, in ms.
        operation: ``append``, ``delete``, ``overwrite`` or ``replace``.
        heads: The last entry of each chain.
        rows: The rows that readers see.
        files: The data files that they are in.
    """

    snapshot_id: int
    timestamp: int
    operation: str
    heads: tuple[int, ...]
    rows: int
    files: int


@dataclass(frozen=True, slots=True)
class TableDetails:
    """A table with its files.

    Attributes:
        description: The table.
        snapshots: Its retained snapshots, oldest first.
        files: The data files of the current one.
        bytes: Their size.
        copied_files: Those of them that are copies of rows, which a compaction makes unnecessary.
        copied_bytes: Their size.
        rows: The rows that readers see.
        deleted_rows: The rows in files that readers do not see.
    """

    description: TableDescription
    snapshots: tuple[SnapshotDescription, ...]
    files: int
    bytes: int
    copied_files: int
    copied_bytes: int
    rows: int
    deleted_rows: int


class Tables:
    """Topics as Apache Iceberg tables (docs/tables.md).

    Args:
        connection: The connection to the store.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __repr__(self) -> str:
        return f"<the tables of {self._connection.url}>"

    def enable(self, topic: str) -> int:
        """Give a topic a table: ``table.format=iceberg``. The next :meth:`sync` publishes it.

        Returns:
            The number of segments that were compacted until now. Spark can miss their rows when it filters by a column
            of milliseconds, such as ``_timestamp``, since they have statistics of it (apache/iceberg#18173). 0 if the
            topic had a table already.

        Raises:
            UnknownTopicOrPartitionError: There is no such topic.
            InvalidConfigError: The topic cannot have a table, nor any topic of this store.
        """
        location_of(self._connection.objects)
        view = self._connection.view()
        if publishes_table(view.find_topic(topic).config):
            self._connection.chains.make_durable(view)  # An earlier call may have had an unknown outcome.
            return 0
        alter_topic(self._connection, topic, None, None, {TABLE_FORMAT: "iceberg"})
        return sum(DIRECT.opens(batch) for _, log in view.partitions_of(topic) for batch in log.batches)

    def disable(self, topic: str) -> None:
        """Take the table of a topic away. The next :meth:`sync` publishes a last version, without rows.

        Raises:
            UnknownTopicOrPartitionError: There is no such topic.
        """
        alter_topic(self._connection, topic, None, None, {TABLE_FORMAT: None})

    def sync(
        self,
        *,
        tail_bytes: int = TAIL_BYTES,
        rebuild: Collection[str] = (),
        on_error: Callable[[TxnStoreError], object] | None = None,
    ) -> SyncReport:
        """Publish all tables at one closed cut of the chains: what a snapshot of this moment sees.

        Engines see either all tables of the new cut or all of the one before. Segments that a compaction has written
        are used where they are; the other new rows are copied into a file for each partition. For a table that has not
        changed nothing is written, for a changed one five PUTs and one for each partition with rows to copy, and for
        all together one for the cut. Any number of processes may do it at the same time.

        A table that cannot be published, because its topic is damaged or the storage refuses its objects, stays as it
        was, and the others are published.

        Args:
            tail_bytes: The most bytes of segments that are copied.
            rebuild: Topics whose tables are built from the segments alone: their files are lost or altered;
                ``["*"]``: all. Tables whose metadata or manifests are damaged are always rebuilt.
            on_error: Called at the end with the error of the tables that cannot be published, instead of raising it, so
                that the report of the others is returned.

        Raises:
            InvalidConfigError: Engines cannot read there, or a topic has no table.
            UnknownTopicOrPartitionError: There is no such topic.
            CopiesTooLargeError: More would be copied than ``tail_bytes``.
            CorruptionError: A topic or its segments are missing or damaged; the message names all such topics. The
                others are published before this is raised.
            StorageRefusedError: The storage refuses objects of tables. The same.
            StorageError: The storage fails for now. Nothing is published: repeat the call.
            CorruptionError: A cut is damaged; or the newest cut has entries that the store has lost: then only all
                tables together can be rebuilt. Nothing is published.
            TablesChangedError: Other publishers were faster in each attempt.
        """
        checked_tail_bytes = check_integer("tail_bytes", tail_bytes, 0)
        publisher = self._connection.cached("tables", lambda: Publisher(self._connection))
        return publisher.sync(tail_bytes=checked_tail_bytes, rebuild=check_names("rebuild", rebuild), on_error=on_error)

    def check(self, *, deep: bool = False) -> CheckReport:
        """Check that the newest cut shows what readers of committed records see at it.

        The manifests are compared with the chains at the cut, and each file is looked for. Some GETs for
        each table, and one HEAD for each file.

        Args:
            deep: Also read all copies of rows, and compare them with the topic. Segments that are used where they are
                are read by :meth:`txnstore.Store.verify`.

        Raises:
            CorruptionError: A cut, or a segment, is missing or damaged.
        """
        return check_tables(self._connection, deep=deep)

    def list(self) -> list[TableDescription]:
        """The tables by topic, also those that are not published yet."""
        connection = self._connection
        cut = published_of(connection).newest()
        tables = cut.tables if cut is not None else {}
        topics = self._topics()
        names = {*topics, *(name for name, table in tables.items() if not table.dropped)}
        location = location_of(connection.objects)
        return [self._describe(location, name, topics.get(name), tables.get(name), cut) for name in sorted(names)]

    def show(self, topic: str) -> TableDetails:
        """A table with its snapshots and files.

        Raises:
            UnknownTopicOrPartitionError: There is no such topic.
            InvalidConfigError: The topic has no table, or it is not published yet.
        """
        table_description = {description.topic: description for description in self.list()}.get(topic)
        if table_description is None:
            self._connection.view(refresh=False).find_topic(topic)  # Raises if there is none.
            msg = f"topic {topic!r} has no table: `txnstore table enable {topic}` gives it one"
            raise InvalidConfigError(msg)
        published = published_of(self._connection)
        cut = published.newest()
        if not table_description.published or cut is None:
            msg = f"the table of topic {topic!r} is not published yet: `txnstore table sync` does it"
            raise InvalidConfigError(msg)
        state = published.table_state(cut.tables[topic])
        files = state.files
        copies = state.copies(location_of(self._connection.objects))
        return TableDetails(
            table_description,
            tuple(
                SnapshotDescription(
                    snapshot.snapshot_id,
                    snapshot.timestamp,
                    snapshot.summary["operation"],
                    snapshot.numbers("txnstore.heads"),
                    int(snapshot.summary["total-records"]) - int(snapshot.summary["total-position-deletes"]),
                    int(snapshot.summary["total-data-files"]),
                )
                for snapshot in state.metadata.snapshots
            ),
            files=len(files.data),
            bytes=sum(file.size for file in files.data.values()),
            copied_files=len(copies),
            copied_bytes=sum(file.size for file in copies),
            rows=files.rows,
            deleted_rows=sum(file.rows for file in files.deletes.values()),
        )

    def _topics(self) -> dict[str, CatalogTopic]:
        topics = self._connection.view().sorted_topics()
        return {topic.name: topic for topic in topics if publishes_table(topic.config)}

    def _describe(
        self,
        location: Location,
        name: str,
        topic: CatalogTopic | None,
        table: PublishedTable | None,
        cut: CutDocument | None,
    ) -> TableDescription:
        """Describe the table of a topic as the newest cut has published it; all zero if it has not."""
        if table is not None and (table.dropped or (topic is not None and table.topic_id != topic.topic_id)):
            table = None
        view = self._connection.view(refresh=False)
        moment = cut.moment_of(name) if cut is not None else None
        heads = tuple(moment.heads) if moment is not None else ()
        return TableDescription(
            topic=name,
            published=table is not None,
            location=location.of(keys.table(name).rstrip("/")),
            version=table.number if table is not None else 0,
            snapshot_id=table.snapshot_id if table is not None else None,
            cut=cut.number if cut is not None else 0,
            heads=heads,
            timestamp=moment.timestamp if moment is not None else 0,
            rows=table.rows if table is not None else 0,
            copied_bytes=table.copied_bytes if table is not None else 0,
            behind=max(0, view.sequence - sum(heads)),
            lag_ms=max(0, view.timestamp - moment.timestamp) if moment is not None else 0,
        )
