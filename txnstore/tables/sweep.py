"""The objects of tables that a vacuum keeps, and those that it deletes.

An engine reads a table as of the version that it loaded, which may be one of an older cut. So each object that a cut
refers to is kept until a newer cut without it is as old as the grace period.
See docs/internals/design/tables.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from txnstore.catalog.iceberg.cut import CutDocument
from txnstore.catalog.iceberg.location import Location, location_of
from txnstore.chain import keys
from txnstore.connection import Connection
from txnstore.errors import CorruptionError, ObjectNotFoundError
from txnstore.storage.base import ObjectInfo, iterate_pages, read_if_there
from txnstore.tables.published import Published

#: The retention of cuts, in ms: a suspended publisher that creates a cut late must find that its number exists.
CUT_RETENTION_MS = 7 * 24 * 3_600_000
#: The age, in ms besides the grace period, from which objects may be deleted: a publication takes an hour at most.
_MAX_WORK_MS = 2 * 3_600_000


@dataclass(frozen=True, slots=True)
class TablesInUse:
    """The cuts of a store that engines may be reading.

    Attributes:
        cuts: The oldest cut that engines may have loaded, the one after it, if that was not complete then, and the
            newest one.
        oldest: The time of each chain at the oldest retained snapshot of each topic: segments that were dropped or
            released later are in use.
        unhinted: The topics to whose newest version no hint leads, maybe since the storage refuses to write it: engines
            find an earlier one, and all objects of the table are in use.
    """

    cuts: tuple[CutDocument, ...]
    oldest: Mapping[str, Sequence[int]]
    unhinted: frozenset[str] = frozenset()

    @property
    def numbers(self) -> frozenset[int]:
        """The numbers of these cuts."""
        return frozenset(cut.number for cut in self.cuts)

    def protects(self, key: str, chain: int, removed_at: int) -> bool:
        """Whether a segment that a chain dropped or released at a time, in ms, may be part of a table."""
        topic = keys.partition_in(key).topic
        oldest = self.oldest.get(topic)
        return topic in self.unhinted or (oldest is not None and removed_at >= oldest[chain])


#: The cuts of a store without tables.
NO_TABLES = TablesInUse((), {})


def tables_in_use(connection: Connection, published: Published, now: int, grace_ms: int) -> TablesInUse:
    """Find the cuts that engines may be reading.

    Costs a LIST of the cuts, a GET for two of them, a GET and a HEAD for each table that the older one has changed, and
    a GET for each table.

    Args:
        published: Reads the cuts.
        now: The time of the storage, in ms.
        grace_ms: How long ago an engine may have loaded a table, in ms.

    Raises:
        CorruptionError: One of the cuts is missing or damaged.
    """
    cuts_modified_ms = {
        number: info.modified_ms
        for info in connection.objects.list(keys.CUTS)
        if (number := keys.cut_number(info.key)) is not None
    }
    if not cuts_modified_ms:
        return NO_TABLES
    old_numbers = [number for number, modified in cuts_modified_ms.items() if modified <= now - grace_ms]
    first_number = max(old_numbers) if old_numbers else min(cuts_modified_ms)
    cuts = {number: _read_cut(published, number) for number in {first_number, max(cuts_modified_ms)}}
    previous_number = max((number for number in cuts_modified_ms if number < first_number), default=first_number)
    if previous_number != first_number and not _hints_were_written(connection, cuts[first_number], now - grace_ms):
        cuts[previous_number] = _read_cut(published, previous_number)
    in_order = [cuts[number] for number in sorted(cuts)]
    return TablesInUse(tuple(in_order), _oldest_times(in_order), _unhinted_topics(connection, in_order[-1]))


def _read_cut(published: Published, number: int) -> CutDocument:
    cut = published.cut(number)
    if cut is None:
        msg = f"{keys.cut(number)} is listed, and cannot be read"
        raise CorruptionError(msg)
    return cut


def _hints_were_written(connection: Connection, cut: CutDocument, at_ms: int) -> bool:
    """Whether the hints to the new versions of a cut were certainly written at a time, in ms.

    The publisher may have died before. Each publisher completes the newest cut before it adds another one, so the hints
    to the cut before this one were written.
    """
    for topic in cut.changed:
        key, table = keys.table_hint(topic), cut.tables[topic]
        try:
            hint = connection.objects.get(key)
            modified_ms = connection.objects.stat(key).modified_ms
        except ObjectNotFoundError:
            if table.dropped:
                continue  # A vacuum has deleted the table: engines find nothing of it.
            return False
        if hint != str(table.number).encode() or modified_ms > at_ms:
            return False
    return True


def _unhinted_topics(connection: Connection, cut: CutDocument) -> frozenset[str]:
    """The topics of a cut's tables whose hints name other versions."""
    hints = connection.pool.map(partial(read_if_there, connection.objects), map(keys.table_hint, cut.tables))
    return frozenset(
        topic
        for (topic, table), hint in zip(cut.tables.items(), hints, strict=True)
        if hint != str(table.number).encode() and not (hint is None and table.dropped)  # A vacuum has deleted it.
    )


def _oldest_times(cuts: Sequence[CutDocument]) -> dict[str, list[int]]:
    """Return for each topic the time of each chain at the oldest snapshot that the cuts retain."""
    oldest: dict[str, list[int]] = {}
    for cut in cuts:
        for topic, table in cut.tables.items():
            if table.oldest is not None:
                earlier = oldest.get(topic, table.oldest)
                oldest[topic] = [min(times) for times in zip(earlier, table.oldest, strict=True)]
    return oldest


def unused_objects(
    connection: Connection, published: Published, in_use: TablesInUse, now: int, grace_ms: int
) -> Iterator[list[ObjectInfo]]:
    """Yield pages of objects of tables that neither a cut in use nor a publication under way refers to.

    Costs the LISTs of all objects of the tables, and a GET for the metadata of each table of the cuts in use, for the
    list of each retained snapshot, and for each manifest.

    Args:
        published: Reads published tables.
        in_use: The cuts that engines may be reading.
        now: The time of the storage, in ms.
        grace_ms: How long ago an engine may have loaded a table, in ms.

    Raises:
        CorruptionError: An object of a table is missing or damaged: its references are unknown, nothing is deleted.
    """
    if not in_use.cuts:
        return
    keys_in_use = {keys.LATEST_CUT, *_keys_in_use(published, location_of(connection.objects), in_use)}
    folders = {keys.table(topic) for cut in in_use.cuts for topic in cut.tables if topic not in in_use.unhinted}
    newest_deletable = now - grace_ms - _MAX_WORK_MS

    def is_kept(info: ObjectInfo) -> bool:
        """Whether a vacuum keeps an object: it is in use, too young, or of no table of the store."""
        number = keys.cut_number(info.key)
        if number is not None:
            return number in in_use.numbers or info.modified_ms > now - max(CUT_RETENTION_MS, grace_ms)
        if keys.table_in(info.key) not in folders and not info.key.startswith(keys.CUTS):
            return True  # Of no table of this store, such as one that an engine has created, or of an unhinted one.
        return info.key in keys_in_use or info.modified_ms > newest_deletable

    for page in iterate_pages(connection.objects, keys.TABLES):
        yield [info for info in page if not is_kept(info)]


def _keys_in_use(published: Published, location: Location, in_use: TablesInUse) -> Iterator[str]:
    """The keys of all objects that cuts in use refer to."""
    seen_metadata = set[str]()
    live_topics = {topic for cut in in_use.cuts for topic, table in cut.tables.items() if not table.dropped}
    for cut in in_use.cuts:
        for topic, table in cut.tables.items():
            if topic not in live_topics:
                continue  # Dropped for longer than the grace period: the next cut leaves it out.
            yield from (table.metadata, keys.table_version(topic, table.number), keys.table_hint(topic))
            if table.metadata in seen_metadata or table.dropped:  # A dropped table has no snapshots.
                continue
            seen_metadata.add(table.metadata)
            yield from (location.key(path) for path in published.all_locations(table))
