"""Publishes tables: all of them at one closed cut of the chains, which the creation of one object decides.

A publication writes everything under new names, then creates ``tables/cuts/<n>.json``, as an entry decides a
transaction. Then it copies the new versions to the names that engines look for, which any later publisher completes.
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
from txnstore.catalog.settings import TABLE_FORMAT
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
)
from txnstore.phrases import size
from txnstore.read.reader import is_missing
from txnstore.storage.base import Claim, make_durable
from txnstore.tables.lost_entries import check_lost_entries
from txnstore.tables.published import HINT_EVERY, Published, TableState, published_of, read
from txnstore.tables.version import HISTORY_MS, TableWork, Version, metadata_of

T = TypeVar("T")

_LOG = logging.getLogger(__name__)

#: The most bytes of segments that one publication copies.
TAIL_BYTES = 1 << 30
#: In place of the names of topics: all of them.
ALL = "*"
#: A publication that took longer, in ms, begins again: what it has written may be deleted.
_LONGEST_MS = 3_600_000
#: A publisher that loses the race for a cut so often in a row gives up.
_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class TableChange:
    """What a publication has changed in a table.

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

    What it has read of the newest cut is kept: a later publication reads only what another publisher has changed.
    """

    def __init__(self, connection: Connection) -> None:
        avro()
        self._connection = connection
        self._location = location_of(connection.objects)
        #: Held during a publication.
        self._lock = threading.Lock()
        #: The newest known cut; None before the first look, or if there is none.
        self._cut: CutDocument | None = None
        #: When it was looked for, in ms of the uptime.
        self._looked_at = 0
        #: The number of the last cut whose versions are all copied, as far as this publisher knows.
        self._completed = 0
        #: The publication of the cut whose entries were compared with those of the chains.
        self._compared = ""
        #: When it was looked at the names of all tables, in ms of the uptime: a slow publisher may set a hint back, and
        #: an engine may write a version. None: never.
        self._names_checked_at: int | None = None
        #: The tables by topic, as of any cut: one whose key is not that of the newest cut is out of date.
        self._states: dict[str, TableState] = {}
        #: The topics whose newest version is hidden by one that others have written, under its name or the next one.
        self._hidden: set[str] = set()
        #: The dropped tables whose objects a vacuum has deleted: the next cut leaves them out.
        self._swept: set[str] = set()
        #: The keys of versions that others have written, and that no report has named yet.
        self._foreign: list[str] = []
        #: Why the tables of topics are not published, by topic: of the current attempt.
        self._failed: dict[str, TxnStoreError] = {}

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
            for attempt in range(1, _ATTEMPTS + 1):
                self._failed = {}
                report = self._publish(tail_bytes, rebuild)
                if report is not None and self._hidden <= self._failed.keys():
                    foreign, self._foreign = tuple(self._foreign), []
                    self._report_failures(on_error)
                    return replace(report, foreign=foreign)
                connection.runtime.backoff(attempt)
        msg = f"the tables of {connection.url} were published by others in each of {_ATTEMPTS} attempts"
        raise TablesChangedError(msg)

    def _report_failures(self, on_error: Callable[[TxnStoreError], object] | None) -> None:
        """Raise, or give to ``on_error``, one error that names the tables that are not published."""
        errors: list[TxnStoreError] = []
        for topic, error in sorted(self._failed.items()):
            failure = type(error)(f"the table of topic {topic!r} is not published, and stays as it was: {error}")
            failure.__cause__ = error
            errors.append(failure)
        together = joined(errors, "tables are not published")
        if together is not None:
            if on_error is None:
                raise together
            on_error(together)

    def _attempt(self, topic: str, call: Callable[[], T]) -> T | None:
        """What a call for the table of a topic returns; None, and a failure, if it fails for this table alone."""
        try:
            return call()
        except StorageFullError:
            raise
        except StorageError as error:
            if error.retriable:
                raise  # It may fail for a moment, and a cut in which a table stays as it was is not of one moment.
            failure: TxnStoreError = error
        except (CorruptionError, UnsupportedFormatError, InvalidConfigError) as error:
            missing = isinstance(error, CorruptionError) and is_missing(error)
            if missing and self._connection.runtime.uptime() - self._looked_at > _LONGEST_MS:
                raise  # A compaction has replaced what is missing, and a vacuum deleted it.
            failure = error
        _LOG.warning("table not published: %s", failure, extra={"topic": topic, "error": str(failure)})
        self._failed[topic] = failure
        return None

    def _publish(self, tail_bytes: int, rebuild: Collection[str]) -> SyncReport | None:
        """One attempt; None if it has to begin again."""
        connection, began = self._connection, self._connection.runtime.uptime()
        published = published_of(self._connection)
        # Of a publisher that slept, the cuts after the one that it knows may be deleted.
        known = self._remembered(published) if began - self._looked_at < _LONGEST_MS else None
        cut = self._cut = published.newest(known)
        self._looked_at = began
        checks_names = self._names_checked_at is None or began - self._names_checked_at >= _LONGEST_MS
        if cut is not None and checks_names:
            self._find_foreign(cut)
        if cut is not None and (checks_names or cut.number != self._completed):
            self._complete(cut)
        if checks_names:
            self._names_checked_at = began
        view = connection.unblocked(connection.view())
        topics = {topic.name: topic for topic in view.sorted_topics() if topic.config.get(TABLE_FORMAT) == "iceberg"}
        to_rebuild = _named(rebuild, topics, view)
        if cut is not None and cut.has_tables and not to_rebuild >= topics.keys():
            unknown = checks_names or cut.publication_id != self._compared
            self._compared = ""
            check_lost_entries(connection, cut, view, compares=unknown)
            self._compared = cut.publication_id
        before = cut.tables if cut is not None else {}
        try:
            versions = self._versions(published, view, topics, before, tail_bytes, to_rebuild)
        except CorruptionError as error:
            if is_missing(error) and connection.runtime.uptime() - began > _LONGEST_MS:
                return None
            raise
        if not (versions or self._swept) and (cut is None or view.timestamp - cut.timestamp < _LONGEST_MS):
            return self._report(cut, {})
        self._swept.difference_update(versions)
        current = {**before, **{topic: version.table for topic, version in versions.items()}}
        document = CutDocument(
            store_id=connection.store_id,
            number=cut.number + 1 if cut is not None else 1,
            publication_id=connection.runtime.new_id(),
            heads=[state.sequence for state in view.states],
            hashes=[state.entry_hash for state in view.states],
            timestamp=view.timestamp,
            tables={name: table for name, table in current.items() if not (table.dropped and name in self._swept)},
            changed=sorted(versions),
        )
        # What the cut shows must last as long as the cut: another process may have written these entries, and failed to
        # flush them.
        make_durable(connection.objects, _newest_entries(connection, view))
        if connection.runtime.uptime() - began > _LONGEST_MS:
            return None
        data = encode(document)
        if Claim(keys.cut(document.number), data).settle(connection.objects, connection.runtime.backoff) != data:
            return None
        self._cut, self._compared = document, document.publication_id
        self._hidden.difference_update(versions)
        self._swept.clear()
        self._passed(before, versions)
        self._states |= {topic: version.state for topic, version in versions.items() if version.state is not None}
        self._complete(document, {topic: version.data for topic, version in versions.items()})
        report = self._report(document, versions)
        changed = {"cut": report.cut, "tables": len(report.changes)}
        if versions:
            _LOG.info("tables published", extra=changed)
        return report

    def _remembered(self, published: Published) -> CutDocument | None:
        """The newest known cut; None if it does not exist: the tables were deleted, and are rebuilt.

        Costs a GET. Without it a publisher would continue after the deletion from tables that no longer exist.
        """
        if self._cut is None:
            return None
        stored = published.cut(self._cut.number)
        if stored is not None and stored.publication_id == self._cut.publication_id:
            return self._cut
        self._completed = 0
        self._states.clear()
        self._hidden.clear()
        self._swept.clear()
        return None

    def _report(self, cut: CutDocument | None, versions: Mapping[str, Version]) -> SyncReport:
        if cut is None:
            return SyncReport(0, (), 0, (), 0)
        changes = tuple(_change(topic, versions[topic], self._location) for topic in sorted(versions))
        tables = sum(not table.dropped for table in cut.tables.values())
        return SyncReport(cut.number, tuple(cut.heads), cut.timestamp, changes, tables)

    # Versions ---------------------------------------------------------------------------------------------------------

    def _versions(
        self,
        published: Published,
        view: View,
        topics: Mapping[str, CatalogTopic],
        before: Mapping[str, PublishedTable],
        tail_bytes: int,
        rebuild: Collection[str],
    ) -> dict[str, Version]:
        """The new versions of all tables that have changed and can be written; everything that they need is written."""
        works: list[TableWork] = []
        for name, topic in topics.items():
            plan = partial(self._work, published, view, topic, before.get(name), rebuilds=name in rebuild)
            planned = self._attempt(name, plan)
            works += [planned] if planned is not None else []
        _check_tails(works, tail_bytes)
        now = self._connection.runtime.clock()
        versions: dict[str, Version] = {}
        for work in works:
            table = before.get(work.topic.name)
            overdue = table is not None and table.replaced is not None and table.replaced < now - HISTORY_MS
            forced = work.topic.name in self._hidden or overdue
            if work.changes or forced:
                version = self._attempt(work.topic.name, partial(self._written, work, table, now, forced=forced))
                if version is not None:
                    versions[work.topic.name] = version
        for name, table in before.items():
            # Nor does a table that cannot be published show the rows of a deleted topic of its name.
            ended = name not in topics or (name in self._failed and topics[name].topic_id != table.topic_id)
            if ended and (not table.dropped or name in self._hidden):
                version = self._attempt(name, partial(self._dropped, published, name, table, now))
                if version is not None:
                    versions[name] = version
        return versions

    def _written(self, work: TableWork, table: PublishedTable | None, now: int, *, forced: bool) -> Version | None:
        return work.write(self._free_number(work.topic.name, table), now, forced=forced)

    def _work(
        self, published: Published, view: View, topic: CatalogTopic, table: PublishedTable | None, *, rebuilds: bool
    ) -> TableWork:
        """What there is to do for a table; ``table``: what the newest cut says of it."""
        while True:
            remembered = topic.name in self._states
            state = self._known(published, topic, table) if not rebuilds else None
            work = TableWork(self._connection, view, topic, state, table)
            hint = keys.table_hint(topic.name)
            if (
                not (remembered and state is not None and work.changes)
                or read(self._connection.objects, hint) is not None
            ):
                return work
            del self._states[topic.name]  # An engine may have dropped the table, and its manifests with it.

    def _known(self, published: Published, topic: CatalogTopic, table: PublishedTable | None) -> TableState | None:
        """What the table of a topic has now; None if it has none, or it is that of a deleted topic of this name.

        Nor is a damaged one of any use: it is rebuilt.
        """
        if table is None or table.dropped or table.topic_id != topic.topic_id:
            return None
        state = self._states.get(topic.name)
        if state is None or state.key != table.metadata:
            try:
                state = published.table(table)
                if state.metadata.location != self._location.of(keys.table(topic.name).rstrip("/")):
                    return None  # The store was at another place, and this table has no rows whose location tells it.
                self._states[topic.name] = state
            except CorruptionError as error:
                extra = {"topic": topic.name, "error": str(error)}
                _LOG.warning("table is damaged, and is rebuilt: %s", error, extra=extra)
                return None
        return state

    def _free_number(self, topic: str, table: PublishedTable | None) -> int:
        """The number of the next version of a table, after those that exist."""
        number = table.number + 1 if table is not None else 1
        while read(self._connection.objects, keys.table_version(topic, number)) is not None:
            number += 1
        return number

    def _passed(self, before: Mapping[str, PublishedTable], versions: Mapping[str, Version]) -> None:
        """Report the versions that a decided publication has passed: no cut has them.

        Not before it is decided: until then they may be those of the publisher that decides before it.
        """
        for topic, version in versions.items():
            last = before[topic].number if topic in before else 0
            for number in range(last + 1, version.table.number):
                self._found_foreign(keys.table_version(topic, number))

    def _dropped(self, published: Published, name: str, table: PublishedTable, now: int) -> Version:
        """The last version of a table, without snapshots: engines that still know it see no rows of it."""
        try:
            metadata = published.table(table).metadata
        except CorruptionError:  # It goes: nothing needs it any more.
            place = self._location.of(keys.table(name).rstrip("/"))
            metadata = TableMetadata(table.topic_id, place, name, (leading_columns(),), updated=now)
        last = replace(metadata, snapshots=(), cuts=()).after(self._location.of(table.metadata), now)
        key, data = metadata_of(self._connection, name, number := self._free_number(name, table), last)
        self._connection.objects.put(key, data)
        entry = PublishedTable(
            topic_id=table.topic_id, number=number, metadata=key, sha256=content_hash(data), dropped=True
        )
        return Version(entry, data, None)

    # Copies -----------------------------------------------------------------------------------------------------------

    def _complete(self, cut: CutDocument, written: Mapping[str, bytes] | None = None) -> None:
        """Copy the versions of a cut to the names that engines look for: the new ones, or all that are not copied.

        Costs of each changed table two PUTs; of a cut of another publisher, or an earlier process, a GET of the hint of
        each table, and these PUTs if it names another version.

        Args:
            cut: The newest cut.
            written: The metadata by topic, if this publisher has written it.
        """
        published, objects = published_of(self._connection), self._connection.objects
        if written is None:
            make_durable(objects, [keys.cut(cut.number)])  # Else its number may be taken again after a loss of power.

        def complete(topic: str) -> None:
            table = cut.tables[topic]
            if written is None:
                hint = read(objects, keys.table_hint(topic))
                if hint == _hint(table) or (hint is None and table.dropped):  # A vacuum has deleted all of it.
                    return
            try:
                data = written[topic] if written is not None else published.metadata(table)
            except CorruptionError as error:  # The table is rebuilt, under a later number.
                _LOG.warning("version of a table not copied: %s", error, extra={"topic": topic, "error": str(error)})
                self._states.pop(topic, None)
                self._hidden.add(topic)
                return
            self._copy(topic, table, data)

        topics = sorted(cut.tables) if written is None else cut.changed
        self._each(topics, complete)
        if written is not None and (cut.number % HINT_EVERY == 0 or cut.number == 1):
            hint = LatestCutDocument(store_id=cut.store_id, number=cut.number)
            self._connection.objects.put(keys.LATEST_CUT, encode(hint))
        if not self._failed:  # Else the next publication looks what is not copied.
            self._completed = cut.number

    def _each(self, topics: Iterable[str], work: Callable[[str], None]) -> None:
        """Do the same for each table, concurrently."""
        pool = self._connection.pool
        for future in [pool.submit(self._attempt, topic, partial(work, topic)) for topic in topics]:
            future.result()

    def _find_foreign(self, cut: CutDocument) -> None:
        """Look for versions of others: under the name of the cut's own, or the next one, which readers find, too.

        Two GETs for each table. Finds also the dropped tables whose objects a vacuum has deleted.
        """
        objects = self._connection.objects

        def find(topic: str) -> None:
            table = cut.tables[topic]
            own = read(objects, keys.table_version(topic, table.number))
            if own is None and table.dropped and read(objects, table.metadata) is None:
                self._swept.add(topic)
                return
            if own is not None and content_hash(own) != table.sha256:
                self._found_foreign(keys.table_version(topic, table.number))
                self._hidden.add(topic)
            elif read(objects, keys.table_version(topic, table.number + 1)) is not None:
                self._hidden.add(topic)

        self._each(sorted(cut.tables), find)

    def _copy(self, topic: str, table: PublishedTable, data: bytes) -> None:
        connection = self._connection
        key = keys.table_version(topic, table.number)
        if Claim(key, data).settle(connection.objects, connection.runtime.backoff) != data:
            self._found_foreign(key)
            self._hidden.add(topic)
        connection.objects.put(keys.table_hint(topic), _hint(table))

    def _found_foreign(self, key: str) -> None:
        _LOG.warning("a version of a table was not written by a publisher", extra={"key": key})
        if key not in self._foreign:
            self._foreign.append(key)


def _named(rebuild: Collection[str], topics: Mapping[str, CatalogTopic], view: View) -> set[str]:
    """The topics whose tables are to be rebuilt."""
    for name in rebuild:
        if name not in topics and name != ALL:
            view.find_topic(name)
            msg = f"topic {name!r} has no table: `txnstore table list` shows all"
            raise InvalidConfigError(msg)
    return set(topics) if ALL in rebuild else set(rebuild)


def _newest_entries(connection: Connection, view: View) -> list[str]:
    return [connection.keys.entry(state.chain, state.sequence) for state in view.states if state.sequence]


def _hint(table: PublishedTable) -> bytes:
    return str(table.number).encode()


def _change(topic: str, version: Version, location: Location) -> TableChange:
    table, state = version.table, version.state
    files = state.files if state is not None else TableFiles({}, {})
    copied = state.copies(location) if state is not None else []
    return TableChange(
        topic,
        table.number,
        table.snapshot_id,
        state is not None and not state.metadata.earlier,
        version.operations,
        table.rows,
        len(files.data),
        len(copied),
        table.copied_bytes,
    )


def _check_tails(works: Iterable[TableWork], most: int) -> None:
    """Raise CopiesTooLargeError if more than ``most`` bytes would be copied."""
    sizes = {work.topic.name: work.copied_bytes for work in works}
    if sum(sizes.values()) > most:
        largest = max(sizes, key=lambda name: sizes[name])
        msg = (
            f"to publish the tables, {size(sum(sizes.values()))} of rows must be copied, which no compaction has "
            f"written yet, most of them of topic {largest!r}; the limit is {size(most)}. `txnstore compact` makes the "
            "copies unnecessary; --tail-bytes raises the limit"
        )
        raise CopiesTooLargeError(msg)
