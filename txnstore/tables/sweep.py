"""What of the tables a vacuum keeps, and what it deletes.

An engine reads a table as of the version that it loaded, which may be one of an older cut. So everything that a cut
names is kept until a newer cut that does not name it is as old as the grace period.
See docs/internals/design/tables.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from txnstore.catalog.iceberg.cut import CutDocument
from txnstore.catalog.iceberg.location import Location, location_of
from txnstore.chain import keys
from txnstore.connection import Connection
from txnstore.errors import CorruptionError
from txnstore.storage.base import ObjectInfo
from txnstore.tables.published import Published, read

#: How long a cut is kept, in ms: a publisher that was suspended, and creates a cut late, finds that its number exists.
CUTS_MS = 7 * 24 * 3_600_000
#: So many objects are listed at a time.
_PAGE = 10_000
#: Younger objects are kept, in ms besides the grace period: a publication takes an hour at most.
_IN_WORK_MS = 2 * 3_600_000


@dataclass(frozen=True, slots=True)
class TablesInUse:
    """What engines may be reading, by the cuts of a store.

    Attributes:
        cuts: The oldest cut that engines may have loaded, the one after it, if that was not complete then, and the
            newest one.
        oldest: The time of each chain at the oldest retained snapshot of each topic: segments that were dropped or
            released later are in use.
    """

    cuts: tuple[CutDocument, ...]
    oldest: Mapping[str, Sequence[int]]

    @property
    def numbers(self) -> frozenset[int]:
        """The numbers of these cuts."""
        return frozenset(cut.number for cut in self.cuts)

    def protects(self, key: str, chain: int, removed_at: int) -> bool:
        """Whether a segment that a chain dropped or released at a time, in ms, may be part of a table."""
        oldest = self.oldest.get(keys.partition_in(key).topic)
        return oldest is not None and removed_at >= oldest[chain]


#: Of a store without tables.
NO_TABLES = TablesInUse((), {})


def tables_in_use(connection: Connection, published: Published, now: int, grace_ms: int) -> TablesInUse:
    """What engines may be reading of the tables of a store.

    Costs a LIST of the cuts, a GET for two of them, and a GET and a HEAD for each table that the older one has changed.

    Args:
        published: Reads the cuts.
        now: The time of the storage, in ms.
        grace_ms: How long ago an engine may have loaded a table, in ms.

    Raises:
        CorruptionError: One of the cuts is missing or damaged.
    """
    listed = {
        number: item.modified_ms
        for item in connection.objects.list(keys.CUTS)
        if (number := keys.cut_number(item.key)) is not None
    }
    if not listed:
        return NO_TABLES
    old = [number for number, modified in listed.items() if modified <= now - grace_ms]
    first = max(old) if old else min(listed)
    cuts = {number: _cut(published, number) for number in {first, max(listed)}}
    before = max((number for number in listed if number < first), default=first)
    if before != first and not _was_complete(connection, cuts[first], now - grace_ms):
        cuts[before] = _cut(published, before)
    ordered = [cuts[number] for number in sorted(cuts)]
    return TablesInUse(tuple(ordered), _oldest(ordered))


def _cut(published: Published, number: int) -> CutDocument:
    cut = published.cut(number)
    if cut is None:
        msg = f"{keys.cut(number)} is listed, and cannot be read"
        raise CorruptionError(msg)
    return cut


def _was_complete(connection: Connection, cut: CutDocument, until: int) -> bool:
    """Whether it is certain that engines found the new versions of a cut by their hints at a time, in ms.

    Its publisher may have died before it wrote them. Each publisher completes the newest cut before it adds another
    one, so the cut before this one was complete.
    """
    for topic in cut.changed:
        key = keys.table_hint(topic)
        hint = read(connection.objects, key)
        if hint is None and cut.tables[topic].dropped:
            continue  # Its folder was deleted: nothing is left that an engine could find.
        if hint != str(cut.tables[topic].number).encode():
            return False
        if connection.objects.stat(key).modified_ms > until:
            return False
    return True


def _oldest(cuts: Sequence[CutDocument]) -> dict[str, list[int]]:
    oldest: dict[str, list[int]] = {}
    for cut in cuts:
        for topic, table in cut.tables.items():
            if table.oldest is not None:
                before = oldest.get(topic, table.oldest)
                oldest[topic] = [min(times) for times in zip(before, table.oldest, strict=True)]
    return oldest


def unneeded(
    connection: Connection, published: Published, in_use: TablesInUse, now: int, grace_ms: int
) -> Iterator[list[ObjectInfo]]:
    """The objects of the tables that neither a cut in use nor a publication in work names, page by page.

    Costs the LISTs of all objects of the tables, and a GET for the metadata of each table of the cuts in use, for the
    list of each retained snapshot, and for each manifest.

    Args:
        published: Reads what was published.
        in_use: What engines may be reading.
        now: The time of the storage, in ms.
        grace_ms: How long ago an engine may have loaded a table, in ms.

    Raises:
        CorruptionError: An object of a table is missing or damaged: what it names is not known, nothing is deleted.
    """
    if not in_use.cuts:
        return
    named = {keys.LATEST_CUT, *_named(published, location_of(connection.objects), in_use)}
    folders = {keys.table(topic) for cut in in_use.cuts for topic in cut.tables}
    young = now - grace_ms - _IN_WORK_MS

    def is_kept(item: ObjectInfo) -> bool:
        number = keys.cut_number(item.key)
        if number is not None:
            return number in in_use.numbers or item.modified_ms > now - max(CUTS_MS, grace_ms)
        if keys.table_in(item.key) not in folders and not item.key.startswith(keys.CUTS):
            return True  # An object of no table of this store, such as a table that an engine has created.
        return item.key in named or item.modified_ms > young

    after = ""
    while True:
        page = connection.objects.list(keys.TABLES, after, _PAGE)
        yield [item for item in page if not is_kept(item)]
        if len(page) < _PAGE:
            return
        after = page[-1].key


def _named(published: Published, location: Location, in_use: TablesInUse) -> Iterator[str]:
    """The keys of all objects that cuts in use name."""
    seen = set[str]()
    shown = {topic for cut in in_use.cuts for topic, table in cut.tables.items() if not table.dropped}
    for cut in in_use.cuts:
        for topic, table in cut.tables.items():
            if topic not in shown:
                continue  # Dropped for longer than the grace period: the next cut leaves it out.
            yield from (table.metadata, keys.table_version(topic, table.number), keys.table_hint(topic))
            if table.metadata in seen or table.dropped:  # A dropped one has no snapshots.
                continue
            seen.add(table.metadata)
            yield from (location.key(path) for path in published.paths(table))
