"""Checks tables: the newest cut must show the rows that readers of committed records see at it."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from txnstore.catalog.iceberg.columns import table_columns
from txnstore.catalog.iceberg.cut import CutDocument, PublishedTable
from txnstore.catalog.iceberg.files import DataFile, DeleteFile, TableFiles
from txnstore.catalog.iceberg.location import Location, location_of
from txnstore.catalog.settings import publishes_table
from txnstore.chain import keys
from txnstore.connection import Connection
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Layout
from txnstore.core.log.slices import Slice
from txnstore.core.log.sums import Sums, add_up
from txnstore.core.log.visibility import visible_slices
from txnstore.core.model import Isolation, TopicPartition
from txnstore.core.view import View
from txnstore.errors import CorruptionError, ObjectNotFoundError, SnapshotExpiredError
from txnstore.read.readahead import read_ahead
from txnstore.read.reader import is_missing
from txnstore.read.rows import Columns
from txnstore.segment.schema import OFFSET_FIELD
from txnstore.segment.sums import sums_of
from txnstore.storage.base import ObjectStore, read_if_there
from txnstore.tables.lost_entries import LostEntriesError, check_lost_entries
from txnstore.tables.plan import PartitionPlan, Tail
from txnstore.tables.published import Published, missing_error, published_of
from txnstore.tables.version import plan_table

#: The fix for a damaged table.
_REBUILD = "`txnstore table sync --rebuild TOPIC` rebuilds the table"


@dataclass(frozen=True, slots=True)
class TableProblem:
    """A fault of a table.

    Attributes:
        topic: The topic of the table.
        message: The fault, with the command that fixes it.
    """

    topic: str
    message: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The result of a check.

    Attributes:
        cut: The number of the cut; 0 without one.
        tables: The number of tables.
        files: The number of their data files and delete files.
        rows: The rows that readers see.
        problems: The faults.
        skipped: The reason why rows could not be compared with the chains at the cut; empty if all were.
    """

    cut: int
    tables: int
    files: int
    rows: int
    problems: tuple[TableProblem, ...]
    skipped: str = ""

    @property
    def ok(self) -> bool:
        """Whether no fault was found."""
        return not self.problems


def check_tables(connection: Connection, *, deep: bool) -> CheckReport:
    """Check the newest cut; see :meth:`txnstore.tables.tables.Tables.check`."""
    published = published_of(connection)
    cut = published.newest()
    while cut is not None:
        report = _check_cut(connection, published, cut, deep=deep)
        newer = published.newest(cut) if report.problems else cut
        if newer is not None and newer.number == cut.number:
            return report
        cut = newer  # A publisher has completed the cut, or added one, meanwhile.
    return CheckReport(0, 0, 0, 0, tuple(_unpublished_tables(connection)))


def _unpublished_tables(connection: Connection) -> Iterator[TableProblem]:
    """The tables of a store where nothing is published: not yet, or all was deleted."""
    for topic in connection.view().sorted_topics():
        if publishes_table(topic.config):
            yield TableProblem(topic.name, "it is not published yet: `txnstore table sync` does it")


def _check_cut(connection: Connection, published: Published, cut: CutDocument, *, deep: bool) -> CheckReport:
    """Check the tables of a cut against the logs, as they were at its entries."""
    location = location_of(connection.objects)
    try:
        check_lost_entries(connection, cut, connection.view())
    except LostEntriesError as error:
        topics = sorted(topic for topic, table in cut.tables.items() if not table.dropped)
        return CheckReport(cut.number, 0, 0, 0, tuple(TableProblem(topic, str(error)) for topic in topics))
    view, expiry = _view_at(connection, cut)
    check = _Check(connection, published, location, view, deep=deep)
    for topic, table in sorted(cut.tables.items()):
        if table.dropped and read_if_there(connection.objects, table.metadata) is None:
            continue  # A vacuum has deleted the whole table; the next cut leaves it out.
        check.problems += name_problems(connection.objects, topic, table)
        if not table.dropped:
            check.check_table(topic, table)
    return CheckReport(
        cut.number, check.tables, check.files, check.rows, tuple(check.problems), expiry or check.skipped
    )


def _view_at(connection: Connection, cut: CutDocument) -> tuple[View | None, str]:
    """The view of a cut, and an empty reason; or None, and the reason why its entries cannot be read any more."""
    entry = cut.heads if len(cut.heads) > 1 else cut.heads[0]  # As for `Store.snapshot`: one chain has a number.
    try:
        return connection.chains.past_view(entry), ""
    except SnapshotExpiredError as error:
        return None, str(error)


def name_problems(objects: ObjectStore, topic: str, table: PublishedTable) -> list[TableProblem]:
    """The faults of the objects that engines find by name: the version, the hint, and a later version.

    Four GETs.
    """
    key, next_key = (keys.table_version(topic, number) for number in (table.number, table.number + 1))
    data, metadata = read_if_there(objects, key), read_if_there(objects, table.metadata)
    problems: list[str] = []
    if metadata is None:
        problems.append(str(missing_error(table.metadata)))
    elif data is None:
        problems.append(f"{key} is missing: `txnstore table sync --rebuild {topic}` rebuilds the table")
    elif data != metadata:
        problems.append(
            f"{key} was not written by a publisher: `txnstore table sync --rebuild {topic}` rebuilds the table"
        )
    if read_if_there(objects, keys.table_hint(topic)) != str(table.number).encode():
        problems.append(f"{keys.table_hint(topic)} does not name version {table.number}: `txnstore table sync` does it")
    if read_if_there(objects, next_key) is not None:
        problems.append(
            f"{next_key} is in no cut: an engine wrote it. The next `txnstore table sync` continues after it"
        )
    return [TableProblem(topic, message) for message in problems]


class _Check:
    """One check, which collects faults.

    Args:
        published: Reads published tables.
        location: The location of the store's objects.
        view: The view of the cut; None: its history was deleted.
        deep: Also read the rows of copies.
    """

    def __init__(
        self, connection: Connection, published: Published, location: Location, view: View | None, *, deep: bool
    ) -> None:
        self._connection, self._published, self._location = connection, published, location
        self._view, self._deep = view, deep
        self.tables = self.files = self.rows = 0
        self.problems: list[TableProblem] = []
        #: The reason why the rows of a copy could not be compared; empty if all were.
        self.skipped = ""

    def check_table(self, topic: str, table: PublishedTable) -> None:
        """Check the files of a table."""
        self.tables += 1
        try:
            state = self._published.table_state(table)
        except CorruptionError as error:
            self._add_problem(topic, str(error))
            return
        files = state.files
        self.files += len(files.data) + len(files.deletes)
        self.rows += files.rows
        self._check_objects(topic, files)
        if table.moment is not None:
            heads = ", ".join(map(str, table.moment.heads))
            message = f"it shows the entries {heads} of the chains, not those of the cut: it could not be published"
            self._add_problem(topic, f"{message} with it, which `txnstore table sync` explains")
            return
        topic_at_cut = self._view.topics.get(topic) if self._view is not None else None
        if self._view is None:
            return
        if topic_at_cut is None or topic_at_cut.topic_id != table.topic_id:
            self._add_problem(topic, "the table is that of a topic that did not exist at the cut")
            return
        if table_columns(topic_at_cut).fields != state.metadata.columns.fields:
            self._add_problem(topic, "the columns of the table are not those of the topic at the cut")
        plans = plan_table(self._view, topic_at_cut, state, self._location)
        for number, plan in enumerate(plans):
            if plan.has_changes and not self._is_without_rows(topic_at_cut, plan, files):
                message = f"partition {number} of the table does not have the rows of the topic at the cut. {_REBUILD}"
                self._add_problem(topic, message)
        if self._deep:
            self._check_copies(self._view, topic_at_cut, files)

    def _is_without_rows(self, topic: CatalogTopic, plan: PartitionPlan, files: TableFiles) -> bool:
        """Whether a plan only copies or deletes ranges without rows: aborted records in joined segments."""
        if plan.deleted or plan.outdated or plan.replacing:
            return False
        if not all(isinstance(added, Tail) for added in plan.appended):
            return False
        copied_slices = [part for tail in plan.tails for part in tail.slices]
        trimmed_slices = [trim.below for trim in plan.trims]
        deletes = [files.deletes.get(trim.file.path) for trim in plan.trims]
        deleted_rows = sum(delete.rows for delete in deletes if delete is not None)
        return self._count_rows(topic, copied_slices) == 0 and self._count_rows(topic, trimmed_slices) == deleted_rows

    def _count_rows(self, topic: CatalogTopic, slices: Sequence[Slice]) -> int:
        offsets = Columns(topic, [OFFSET_FIELD.name])
        tables = read_ahead(self._connection.objects, self._connection.pool, slices, offsets, together=True)
        return sum(table.num_rows for table in tables)

    def _check_objects(self, topic: str, files: TableFiles) -> None:
        """Check that the objects of all files exist with the size that the manifests give."""
        all_files: list[DataFile | DeleteFile] = [*files.data.values(), *files.deletes.values()]
        for file, stored_size in zip(all_files, self._connection.pool.map(self._stored_size, all_files), strict=True):
            if stored_size != file.size:
                fault = "is missing" if stored_size is None else f"has {stored_size} bytes, not {file.size}"
                self._add_problem(topic, f"{self._location.key(file.path)} {fault}. {_REBUILD}")

    def _stored_size(self, file: DataFile | DeleteFile) -> int | None:
        try:
            return self._connection.objects.stat(self._location.key(file.path)).size
        except ObjectNotFoundError:
            return None

    def _check_copies(self, view: View, topic: CatalogTopic, files: TableFiles) -> None:
        """Compare the rows of each copy with those of the topic in the same range of offsets."""
        tables_location = self._location.of(keys.TABLES)
        columns = Columns.of_segments(topic, Layout.MERGED)
        for file in files.data.values():
            data = (
                read_if_there(self._connection.objects, self._location.key(file.path))
                if file.path.startswith(tables_location)
                else None
            )
            if data is None:
                continue  # A segment, or it was reported as missing.
            expected = self._expected_sums(view, TopicPartition(topic.name, file.partition), file, columns)
            if expected is not None and _sums_of_copy(data, columns.schema) != expected:
                self._add_problem(
                    topic.name, f"{self._location.key(file.path)} does not have the rows of its offsets. {_REBUILD}"
                )

    def _expected_sums(self, view: View, tp: TopicPartition, file: DataFile, columns: Columns) -> Sums | None:
        """The sums of the topic's rows in a file's range of offsets; None if they can no longer be read.

        A compaction may have replaced small commits since the cut, and a vacuum deleted them: then the rows of the
        newest view are read, if neither retention nor a clean has reached them.
        """
        try:
            return self._sums_of_rows(view, tp, file, columns)
        except CorruptionError as error:
            if not is_missing(error):
                raise
        newest_view = self._connection.view()
        topic = newest_view.topics.get(tp.topic)
        topic_at_cut = view.find_topic(tp.topic)
        if topic is not None and topic.topic_id == topic_at_cut.topic_id:
            log = newest_view.find_partition(tp)
            if log.log_start <= file.first and log.clean_until <= file.first:
                return self._sums_of_rows(newest_view, tp, file, columns)
        self.skipped = f"a vacuum has deleted rows of {tp} that the table has: publish, then check"
        return None

    def _sums_of_rows(self, view: View, tp: TopicPartition, file: DataFile, columns: Columns) -> Sums:
        log = view.find_partition(tp)
        slices = visible_slices(tp, log, Isolation.READ_COMMITTED, file.first, file.last + 1)
        tables = read_ahead(self._connection.objects, self._connection.pool, slices, columns, together=True)
        return add_up(map(sums_of, tables))

    def _add_problem(self, topic: str, message: str) -> None:
        problem = TableProblem(topic, message.replace("--rebuild TOPIC", f"--rebuild {topic}"))
        if problem not in self.problems:
            self.problems.append(problem)


def _sums_of_copy(data: bytes, schema: pa.Schema) -> Sums | None:
    """The sums of the rows of a copy; None if they cannot be read."""
    try:
        copy = pq.read_table(io.BytesIO(data))
        for field in schema:
            if field.name not in copy.column_names:  # The topic has gained it since the rows were copied.
                copy = copy.append_column(field, pa.nulls(copy.num_rows, field.type))
        return sums_of(copy.select(schema.names).cast(schema))
    except (pa.ArrowException, OSError):
        return None
