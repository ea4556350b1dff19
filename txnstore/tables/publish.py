"""Publishes tables: all of them at one closed cut of the chains, which the creation of one object decides.

A publication writes all objects under new names, then creates ``tables/cuts/<n>.json``, which decides it as an entry
decides a transaction. Then it copies the new versions to the names that engines look for; any later
publisher completes that.
See docs/internals/design/tables.md.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from txnstore.catalog.iceberg.columns import leading_columns
from txnstore.catalog.iceberg.cut import CutDocument, LatestCutDocument, PublishedTable
from txnstore.catalog.iceberg.files import TableFiles
from txnstore.catalog.iceberg.location import Location, location_of
from txnstore.catalog.iceberg.manifest import avro
from txnstore.catalog.iceberg.metadata import TableMetadata
from txnstore.catalog.settings import publishes_table
from txnstore.chain import keys
from txnstore.chain.codec import content_hash, encode
from txnstore.connection import Connection
from txnstore.core.authorization.rights import CLUSTER_ACTION
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.view import View
from txnstore.errors import (
    CopiesTooLargeError,
    CorruptionError,
    InvalidConfigError,
    StorageError,
    StorageFullError,
    TablesChangedError,
    TxnStoreError,
    UnsupportedFormatError,
    joined,
    raise_or_report,
)
from txnstore.phrases import size
from txnstore.read.reader import is_missing
from txnstore.storage.base import Claim, make_durable, read_if_there
from txnstore.tables.lost_entries import check_lost_entries
from txnstore.tables.published import HINT_EVERY, Published, TableState, published_of
from txnstore.tables.version import HISTORY_MS, TableWork, Version, encode_metadata

T = TypeVar("T")

_LOG = logging.getLogger(__name__)

#: The most bytes of segments that one publication copies.
TAIL_BYTES = 1 << 30
#: In place of the names of topics: all of them.
ALL = "*"
#: A publication that took longer, in ms, begins again: a vacuum may have deleted the objects that it has written.
_MAX_PUBLICATION_MS = 3_600_000
#: The races for a cut that a publisher loses in a row before it gives up.
_MAX_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class TableChange:
    """The changes of a publication in a table.

    Attributes:
        topic: The topic.
        version: The number of the new version.
        snapshot_id: The current snapshot; None: the table was dropped, or has no rows yet.
        rebuilt: Whether the table has no earlier snapshots: it is new, was damaged, or is rebuilt on request.
        operations: The kinds of its new snapshots, in order.
        rows: The rows that readers see now.
        files: The files that they are in.
        copied_files: Those of them that are copies of rows, which a compaction makes unnecessary.
        copied_bytes: Their size.
    """

    topic: str
    version: int
    snapshot_id: int | None
    rebuilt: bool
    operations: tuple[str, ...]
    rows: int
    files: int
    copied_files: int
    copied_bytes: int


@dataclass(frozen=True, slots=True)
class SyncReport:
    """The result of a publication.

    Attributes:
        cut: The number of the newest cut; 0 without one.
        heads: The last entry of each chain in it.
        timestamp: The time of the newest of them, in ms.
        changes: The tables that were changed, by name.
        tables: The number of tables.
        foreign: The versions of tables that others than publishers have written; readers by path may have seen them.
    """

    cut: int
    heads: tuple[int, ...]
    timestamp: int
    changes: tuple[TableChange, ...]
    tables: int
    foreign: tuple[str, ...] = ()


class Publisher:
    """Publishes the tables of a store. Thread-safe; one publication at a time.

    It keeps the state of the newest cut: a later publication reads only changes of other publishers.
    """

    def __init__(self, connection: Connection) -> None:
        avro()
        self._connection = connection
        self._location = location_of(connection.objects)
        #: Held during a publication.
        self._lock = threading.Lock()
        #: The newest known cut; None before the first look, or if there is none.
        self._cut: CutDocument | None = None
        #: The time of the last look for a newer cut, in ms of the uptime.
        self._refreshed_at = 0
        #: The number of the last cut whose versions are all copied, as far as this publisher knows.
        self._completed_cut_number = 0
        #: The id of the publication whose entries were last compared with those of the chains.
        self._checked_publication = ""
        #: The time of the last check of the names of all tables, in ms of the uptime: a slow publisher may set a hint
        #: back, and an engine may write a version. None: never.
        self._names_checked_at: int | None = None
        #: The tables by topic, as of any cut: one whose key is not that of the newest cut is out of date.
        self._table_states: dict[str, TableState] = {}
        #: The topics whose newest version is hidden by one that others have written, under its name or the next one.
        self._hidden_topics: set[str] = set()
        #: The dropped tables whose objects a vacuum has deleted: the next cut leaves them out.
        self._swept_topics: set[str] = set()
        #: The keys of versions that others have written, and that no report has named yet.
        self._foreign_versions: list[str] = []
        #: The errors of tables that the current attempt cannot publish, by topic.
        self._failures: dict[str, TxnStoreError] = {}

    def sync(
        self,
        *,
        tail_bytes: int = TAIL_BYTES,
        rebuild: Collection[str] = (),
        on_error: Callable[[TxnStoreError], object] | None = None,
    ) -> SyncReport:
        """Publish what has changed; see :meth:`txnstore.tables.tables.Tables.sync`."""
        connection = self._connection
        connection.check_writable("its tables cannot be published")
        connection.check_rights(CLUSTER_ACTION)
        connection.check_storage()
        with self._lock:
            for attempt in range(1, _MAX_ATTEMPTS + 1):
                self._failures = {}
                report = self._publish(tail_bytes, rebuild)
                if report is not None and self._hidden_topics <= self._failures.keys():
                    foreign, self._foreign_versions = tuple(self._foreign_versions), []
                    self._report_failures(on_error)
                    return replace(report, foreign=foreign)
                connection.runtime.backoff(attempt)
        msg = f"the tables of {connection.url} were published by others in each of {_MAX_ATTEMPTS} attempts"
        raise TablesChangedError(msg)

    def _report_failures(self, on_error: Callable[[TxnStoreError], object] | None) -> None:
        """Raise, or pass to ``on_error``, one error for all tables that are not published."""
        errors: list[TxnStoreError] = []
        for topic, error in sorted(self._failures.items()):
            table = self._cut.tables.get(topic) if self._cut is not None else None
            state = "has no rows" if table is None or table.dropped else "stays as it was"
            failure = type(error)(f"the table of topic {topic!r} is not published, and {state}: {error}")
            failure.__cause__ = error
            errors.append(failure)
        raise_or_report(joined(errors, "tables are not published"), on_error)

    def _attempt(self, topic: str, call: Callable[[], T]) -> T | None:
        """Call for one topic; record a failure that concerns only its table, and return None."""
        try:
            return call()
        except StorageFullError:
            raise
        except StorageError as error:
            if error.retriable:
                raise  # Temporary: a cut without the newest version of this table would not be of one moment.
            failure: TxnStoreError = error
        except (CorruptionError, UnsupportedFormatError, InvalidConfigError) as error:
            is_object_missing = isinstance(error, CorruptionError) and is_missing(error)
            if is_object_missing and self._connection.runtime.uptime() - self._refreshed_at > _MAX_PUBLICATION_MS:
                raise  # A vacuum may have deleted the object since the view was read: begin again.
            failure = error
        _LOG.warning("table not published: %s", failure, extra={"topic": topic, "error": str(failure)})
        self._failures[topic] = failure
        return None

    def _publish(self, tail_bytes: int, rebuild: Collection[str]) -> SyncReport | None:
        """Attempt a publication once; None if it must begin again."""
        connection = self._connection
        began_at = connection.runtime.uptime()
        published = published_of(connection)
        checks_names = self._names_checked_at is None or began_at - self._names_checked_at >= _MAX_PUBLICATION_MS
        cut = self._follow_cuts(published, began_at, checks_names=checks_names)
        view = connection.unblocked(connection.view())
        topics = {topic.name: topic for topic in view.sorted_topics() if publishes_table(topic.config)}
        to_rebuild = _topics_to_rebuild(rebuild, topics, view)
        has_lost_entries = False
        if cut is not None and cut.has_tables:
            is_unchecked = checks_names or cut.publication_id != self._checked_publication
            self._checked_publication = ""
            try:
                check_lost_entries(connection, cut, view, compare_hashes=is_unchecked)
                self._checked_publication = cut.publication_id
            except CorruptionError:
                if not to_rebuild >= topics.keys():
                    raise
                has_lost_entries = True
        old_tables = cut.tables if cut is not None else {}
        copy_failures, self._failures = self._failures, {}
        try:
            versions = self._write_versions(published, view, topics, old_tables, tail_bytes, to_rebuild)
        except CorruptionError as error:
            if is_missing(error) and connection.runtime.uptime() - began_at > _MAX_PUBLICATION_MS:
                return None
            raise
        outdated = {name for name, table in old_tables.items() if name in self._failures and not table.dropped}
        outdated -= versions.keys()
        if has_lost_entries and outdated:  # With their earlier versions they would show what the store has lost.
            lost_tables = {name: old_tables[name] for name in outdated}
            versions |= self._write_dropped_versions(published, {}, lost_tables, connection.runtime.clock())
            outdated -= versions.keys()
            if outdated:
                self._report_failures(None)
        self._failures = copy_failures | self._failures
        has_caught_up = any(table.moment is not None and name not in outdated for name, table in old_tables.items())
        if not (versions or self._swept_topics or has_caught_up) and (
            cut is None or view.timestamp - cut.timestamp < _MAX_PUBLICATION_MS
        ):
            return self._report(cut, {})
        self._swept_topics.difference_update(versions)
        document = self._next_cut(cut, view, versions, outdated)
        # The entries must be as durable as the cut: another process may have written them, and failed to flush them.
        connection.chains.make_durable(view)
        if connection.runtime.uptime() - began_at > _MAX_PUBLICATION_MS:
            return None
        data = encode(document)
        if Claim(keys.cut(document.number), data).resolve(connection.objects, connection.runtime.backoff) != data:
            return None
        self._report_skipped_versions(old_tables, versions)
        return self._complete(document, versions)

    def _follow_cuts(self, published: Published, now: int, *, checks_names: bool) -> CutDocument | None:
        """Read the newest cut, and complete the copies of its versions, if another publisher has not.

        Args:
            now: The uptime of this process in ms.
            checks_names: Look also for versions that an engine has written, and for copies that are missing.
        """
        # After a long sleep, the cuts that follow the known one may be deleted.
        known_cut = self._confirm_known_cut(published) if now - self._refreshed_at < _MAX_PUBLICATION_MS else None
        cut = published.newest(known_cut)
        self._cut = cut
        self._refreshed_at = now
        if cut is not None and checks_names:
            self._find_foreign_versions(cut)
        if cut is not None and (checks_names or cut.number != self._completed_cut_number):
            self._copy_versions(cut)
        if checks_names:
            self._names_checked_at = now
        return cut

    def _complete(self, cut: CutDocument, versions: Mapping[str, Version]) -> SyncReport:
        """Remember a cut that this process has published, and copy its versions to the names that engines look for."""
        self._cut, self._checked_publication = cut, cut.publication_id
        self._hidden_topics.difference_update(versions)
        self._swept_topics.clear()
        self._table_states |= {topic: version.state for topic, version in versions.items() if version.state is not None}
        self._copy_versions(cut, {topic: version.data for topic, version in versions.items()})
        report = self._report(cut, versions)
        if versions:
            _LOG.info("tables published", extra={"cut": report.cut, "tables": len(report.changes)})
        return report

    def _next_cut(
        self, cut: CutDocument | None, view: View, versions: Mapping[str, Version], outdated: Collection[str]
    ) -> CutDocument:
        """The cut after the newest one: all tables as of a view, without dropped ones that a vacuum has deleted.

        ``outdated``: the tables that could not be published, which show an earlier moment.
        """
        heads = [state.sequence for state in view.states]
        tables: dict[str, PublishedTable] = {}
        if cut is not None:
            moments = {name: cut.moment_of(name) for name in outdated}
            outdated_moments = {name: moment for name, moment in moments.items() if moment.heads != heads}
            tables = {name: replace(table, moment=outdated_moments.get(name)) for name, table in cut.tables.items()}
        tables |= {name: version.table for name, version in versions.items()}
        return CutDocument(
            store_id=self._connection.store_id,
            number=cut.number + 1 if cut is not None else 1,
            publication_id=self._connection.runtime.new_id(),
            heads=heads,
            hashes=[state.entry_hash for state in view.states],
            timestamp=view.timestamp,
            tables={
                name: table for name, table in tables.items() if not (table.dropped and name in self._swept_topics)
            },
            changed=sorted(versions),
        )

    def _confirm_known_cut(self, published: Published) -> CutDocument | None:
        """Return the newest known cut if the storage still has it, else forget the tables, which were deleted. One GET.

        Otherwise a publisher would continue from tables that no longer exist.
        """
        if self._cut is None:
            return None
        stored_cut = published.cut(self._cut.number)
        still_exists = stored_cut is not None and stored_cut.publication_id == self._cut.publication_id
        if still_exists:
            return self._cut
        self._completed_cut_number = 0
        self._table_states.clear()
        self._hidden_topics.clear()
        self._swept_topics.clear()
        return None

    def _report(self, cut: CutDocument | None, versions: Mapping[str, Version]) -> SyncReport:
        if cut is None:
            return SyncReport(0, (), 0, (), 0)
        changes = tuple(_table_change(topic, versions[topic], self._location) for topic in sorted(versions))
        tables = sum(not table.dropped for table in cut.tables.values())
        return SyncReport(cut.number, tuple(cut.heads), cut.timestamp, changes, tables)

    # Versions ---------------------------------------------------------------------------------------------------------

    def _write_versions(
        self,
        published: Published,
        view: View,
        topics: Mapping[str, CatalogTopic],
        old_tables: Mapping[str, PublishedTable],
        tail_bytes: int,
        rebuild: Collection[str],
    ) -> dict[str, Version]:
        """Write the new versions of all changed tables with the objects that they need; skip those that fail."""
        works: list[TableWork] = []
        for name, topic in topics.items():
            plan = partial(self._plan_work, published, view, topic, old_tables.get(name), rebuild=name in rebuild)
            if (work := self._attempt(name, plan)) is not None:
                works.append(work)
        _check_copied_bytes(works, tail_bytes)
        now = self._connection.runtime.clock()
        versions: dict[str, Version] = {}
        for work in works:
            name = work.topic.name
            table = old_tables.get(name)
            is_history_overdue = table is not None and table.replaced is not None and table.replaced < now - HISTORY_MS
            needs_new_version = name in self._hidden_topics or is_history_overdue
            if work.has_changes or needs_new_version:
                write = partial(self._write_version, work, table, now, forced=needs_new_version)
                if (version := self._attempt(name, write)) is not None:
                    versions[name] = version
        return versions | self._write_dropped_versions(published, topics, old_tables, now)

    def _write_dropped_versions(
        self,
        published: Published,
        topics: Mapping[str, CatalogTopic],
        old_tables: Mapping[str, PublishedTable],
        now: int,
    ) -> dict[str, Version]:
        """Write the last versions of tables whose topics have none any more; skip those that fail."""
        versions: dict[str, Version] = {}
        for name, table in old_tables.items():
            # A table that cannot be published must not show the rows of a deleted topic of the same name.
            has_ended = name not in topics or (name in self._failures and topics[name].topic_id != table.topic_id)
            if has_ended and (not table.dropped or name in self._hidden_topics):
                write = partial(self._write_dropped_version, published, name, table, now)
                if (version := self._attempt(name, write)) is not None:
                    versions[name] = version
        return versions

    def _write_version(
        self, work: TableWork, table: PublishedTable | None, now: int, *, forced: bool
    ) -> Version | None:
        return work.write(self._free_number(work.topic.name, table), now, forced=forced)

    def _plan_work(
        self, published: Published, view: View, topic: CatalogTopic, table: PublishedTable | None, *, rebuild: bool
    ) -> TableWork:
        """Plan the work for a table; ``table`` is its entry in the newest cut."""
        was_known = topic.name in self._table_states
        state = self._known_state(published, topic, table) if not rebuild else None
        work = TableWork(self._connection, view, topic, state, table)
        rests_on_known_state = was_known and state is not None and work.has_changes
        if not rests_on_known_state or read_if_there(self._connection.objects, keys.table_hint(topic.name)) is not None:
            return work
        # An engine may have dropped the table, and its manifests with it: plan by what the storage has.
        del self._table_states[topic.name]
        return self._plan_work(published, view, topic, table, rebuild=rebuild)

    def _known_state(
        self, published: Published, topic: CatalogTopic, table: PublishedTable | None
    ) -> TableState | None:
        """The state of a topic's table; None if it has none, or it is damaged or of a deleted topic.

        A damaged table is rebuilt.
        """
        if table is None or table.dropped or table.topic_id != topic.topic_id:
            return None
        state = self._table_states.get(topic.name)
        if state is None or state.key != table.metadata:
            try:
                state = published.table_state(table)
                if state.metadata.location != self._location.of(keys.table(topic.name).rstrip("/")):
                    return None  # The store was moved: only the location of the table shows it, if it has no files.
                self._table_states[topic.name] = state
            except CorruptionError as error:
                extra = {"topic": topic.name, "error": str(error)}
                _LOG.warning("table is damaged, and is rebuilt: %s", error, extra=extra)
                return None
        return state

    def _free_number(self, topic: str, table: PublishedTable | None) -> int:
        """The number of the next version of a table, after all existing ones."""
        number = table.number + 1 if table is not None else 1
        while read_if_there(self._connection.objects, keys.table_version(topic, number)) is not None:
            number += 1
        return number

    def _report_skipped_versions(
        self, old_tables: Mapping[str, PublishedTable], versions: Mapping[str, Version]
    ) -> None:
        """Report versions that a decided publication has skipped because their names were taken: no cut has them.

        Only after the decision: until then they may be of a publisher that decides before this one.
        """
        for topic, version in versions.items():
            last_number = old_tables[topic].number if topic in old_tables else 0
            for number in range(last_number + 1, version.table.number):
                self._add_foreign_version(keys.table_version(topic, number))

    def _write_dropped_version(self, published: Published, name: str, table: PublishedTable, now: int) -> Version:
        """Write the last version of a table, without snapshots: engines that still know it see no rows."""
        try:
            metadata = published.table_state(table).metadata
        except CorruptionError:  # A dropped table needs nothing of its old metadata.
            location = self._location.of(keys.table(name).rstrip("/"))
            metadata = TableMetadata(table.topic_id, location, name, (leading_columns(),), updated=now)
        last_metadata = replace(metadata, snapshots=(), cuts=()).after(self._location.of(table.metadata), now)
        key, data = encode_metadata(self._connection, name, number := self._free_number(name, table), last_metadata)
        self._connection.objects.put(key, data)
        entry = PublishedTable(
            topic_id=table.topic_id, number=number, metadata=key, sha256=content_hash(data), dropped=True
        )
        return Version(entry, data, None)

    # Copies -----------------------------------------------------------------------------------------------------------

    def _copy_versions(self, cut: CutDocument, written_metadata: Mapping[str, bytes] | None = None) -> None:
        """Copy the versions of a cut to the names that engines look for: the new ones, or all that are not copied.

        Costs of each changed table two PUTs; of a cut of another publisher, or an earlier process, a GET of the hint of
        each table, and these PUTs if it names another version.

        Args:
            cut: The newest cut.
            written_metadata: The metadata by topic, if this publisher has written it.
        """
        if written_metadata is None:
            # Else its number may be taken again after a loss of power.
            make_durable(self._connection.objects, [keys.cut(cut.number)])
            self._run_for_each(sorted(cut.tables), partial(self._complete_table, cut))
        else:
            self._run_for_each(
                cut.changed, lambda topic: self._copy_version(topic, cut.tables[topic], written_metadata[topic])
            )
        if written_metadata is not None and (cut.number % HINT_EVERY == 0 or cut.number == 1):
            hint = LatestCutDocument(store_id=cut.store_id, number=cut.number)
            self._connection.objects.put(keys.LATEST_CUT, encode(hint))
        if not self._failures:  # Else the next publication copies the rest.
            self._completed_cut_number = cut.number

    def _complete_table(self, cut: CutDocument, topic: str) -> None:
        """Copy the version of a table to its name unless its hint shows that it is copied."""
        table = cut.tables[topic]
        hint = read_if_there(self._connection.objects, keys.table_hint(topic))
        if hint == _hint_bytes(table) or (hint is None and table.dropped):  # A vacuum has deleted the dropped table.
            return
        try:
            data = published_of(self._connection).metadata(table)
        except CorruptionError as error:  # The table is rebuilt, under a later number.
            _LOG.warning("version of a table not copied: %s", error, extra={"topic": topic, "error": str(error)})
            self._table_states.pop(topic, None)
            self._hidden_topics.add(topic)
            return
        self._copy_version(topic, table, data)

    def _run_for_each(self, topics: Iterable[str], work: Callable[[str], None]) -> None:
        """Run ``work`` for each topic, concurrently; failures are recorded by topic."""
        pool = self._connection.pool
        for future in [pool.submit(self._attempt, topic, partial(work, topic)) for topic in topics]:
            future.result()

    def _find_foreign_versions(self, cut: CutDocument) -> None:
        """Look for versions that others have written, under the name of the cut's version or the next one.

        Two GETs for each table. Also finds dropped tables whose objects a vacuum has deleted.
        """
        objects = self._connection.objects

        def find_in_table(topic: str) -> None:
            """Note whether a table was swept, or has versions that txnstore has not written."""
            table = cut.tables[topic]
            stored_data = read_if_there(objects, keys.table_version(topic, table.number))
            if stored_data is None and table.dropped and read_if_there(objects, table.metadata) is None:
                self._swept_topics.add(topic)
                return
            if stored_data is not None and content_hash(stored_data) != table.sha256:
                self._add_foreign_version(keys.table_version(topic, table.number))
                self._hidden_topics.add(topic)
            elif read_if_there(objects, keys.table_version(topic, table.number + 1)) is not None:
                self._hidden_topics.add(topic)

        self._run_for_each(sorted(cut.tables), find_in_table)

    def _copy_version(self, topic: str, table: PublishedTable, data: bytes) -> None:
        """Copy a version to the name that engines look for, and write the hint to it."""
        connection = self._connection
        key = keys.table_version(topic, table.number)
        if Claim(key, data).resolve(connection.objects, connection.runtime.backoff) != data:
            self._add_foreign_version(key)
            self._hidden_topics.add(topic)
        connection.objects.put(keys.table_hint(topic), _hint_bytes(table))

    def _add_foreign_version(self, key: str) -> None:
        _LOG.warning("a version of a table was not written by a publisher", extra={"key": key})
        if key not in self._foreign_versions:
            self._foreign_versions.append(key)


def _topics_to_rebuild(rebuild: Collection[str], topics: Mapping[str, CatalogTopic], view: View) -> set[str]:
    """The topics whose tables are to be rebuilt; checks the names."""
    for name in rebuild:
        if name not in topics and name != ALL:
            view.find_topic(name)
            msg = f"topic {name!r} has no table: `txnstore table list` shows all"
            raise InvalidConfigError(msg)
    return set(topics) if ALL in rebuild else set(rebuild)


def _hint_bytes(table: PublishedTable) -> bytes:
    return str(table.number).encode()


def _table_change(topic: str, version: Version, location: Location) -> TableChange:
    """Describe what a version of a table has changed."""
    table, state = version.table, version.state
    files = state.files if state is not None else TableFiles({}, {})
    copies = state.copies(location) if state is not None else []
    return TableChange(
        topic,
        table.number,
        table.snapshot_id,
        state is not None and not state.metadata.earlier,
        version.operations,
        table.rows,
        len(files.data),
        len(copies),
        table.copied_bytes,
    )


def _check_copied_bytes(works: Iterable[TableWork], max_bytes: int) -> None:
    """Raise CopiesTooLargeError if more than ``max_bytes`` would be copied."""
    sizes = {work.topic.name: work.copied_bytes for work in works}
    if sum(sizes.values()) > max_bytes:
        largest = max(sizes, key=lambda name: sizes[name])
        msg = (
            f"to publish the tables, {size(sum(sizes.values()))} of rows must be copied, which no compaction has "
            f"written yet, most of them of topic {largest!r}; the limit is {size(max_bytes)}. `txnstore compact` "
            "makes the copies unnecessary; --tail-bytes raises the limit"
        )
        raise CopiesTooLargeError(msg)
