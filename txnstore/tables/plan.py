"""Plans what a table needs to show a view: which files stay, which rows are copied, in which snapshots. No I/O.

A segment is *direct*, and used where it is, if it is a Parquet object of one batch with stored offsets: compactions
write such segments. The other visible rows are copied into *tails*, Parquet files of the table, one for each range of
offsets, until a compaction replaces them.

The rows of a partition that a table has shown stay as they are, but for what retention deletes and a clean removes.
So a publication has up to four snapshots, in this order: ``delete``, ``append``, ``overwrite`` and ``replace``. Readers
of the increments of a table see each row once: in the ``append`` that has it. An ``append`` has new rows only. A file
that has others too, which the table has shown or the log start has deleted, comes with a ``replace`` in place of a
tail.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from txnstore.catalog.iceberg.files import DataFile, DeleteFile, TableFiles
from txnstore.chain.keys import TABLES
from txnstore.core.log.model import Batch, Layout
from txnstore.core.log.slices import Slice
from txnstore.read.rows import Ability


@dataclass(frozen=True, slots=True)
class Tail:
    """Visible rows to be copied into a file of the table.

    Attributes:
        slices: The slices that have the rows, in offset order; at least one.
    """

    partition: int
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class Trim:
    """A direct file that the log start is in; ``below`` has the rows below it, which are deleted."""

    file: DataFile
    below: Slice


#: The segments that a table uses where they are.
DIRECT = Ability(layouts=frozenset({Layout.MERGED}))

#: What a plan adds to a table: files that exist, and rows that are to be copied.
Added = DataFile | Tail


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """What changes in a partition.

    Attributes:
        deleted: The files below the log start.
        trims: The files that the log start is in, shown ones only if it has moved.
        appended: What has the new rows.
        outdated: The shown files that others replace, and of the new tails those that are part of a direct file.
        replacing: What replaces them.
    """

    deleted: tuple[DataFile, ...] = ()
    trims: tuple[Trim, ...] = ()
    appended: tuple[Added, ...] = ()
    outdated: tuple[Added, ...] = ()
    replacing: tuple[Added, ...] = ()

    @property
    def changes(self) -> bool:
        """Whether anything changes."""
        return bool(self.deleted or self.trims or self.appended or self.outdated or self.replacing)

    @property
    def tails(self) -> Iterator[Tail]:
        """The rows to copy."""
        return (each for each in (*self.appended, *self.replacing) if isinstance(each, Tail))


@dataclass(frozen=True, slots=True)
class Bounds:
    """The offsets of a partition below which rows are deleted, and have been cleaned by key."""

    log_start: int = 0
    clean_until: int = 0


def plan_partition(
    partition: int,
    shown: Collection[DataFile],
    slices: Iterable[Slice],
    bounds: Bounds,
    before: Bounds,
    location: Callable[[str], str],
) -> PartitionPlan:
    """Plan a partition.

    Args:
        partition: Its number.
        shown: Its files in the table.
        slices: What readers of committed records see of it, in offset order.
        before: Those of the newest snapshot.
        location: Returns the absolute location of a key.
    """
    log_start = bounds.log_start
    # A clean removes rows of small batches, too, of which the chain keeps no trace.
    cleaned = bounds.clean_until if bounds.clean_until != before.clean_until else 0
    parts = list(slices)
    direct: dict[str, tuple[DataFile, Slice]] = {}
    loose: list[Slice] = []
    for part in parts:
        if DIRECT.opens(part.batch):
            file = _direct_file(partition, part.batch, location)
            direct[file.path] = file, part
        else:
            loose.append(part)
    occupied = [(file.first, file.last) for file, _ in direct.values()]
    deleted = [file for file in shown if file.last < log_start]
    left = [file for file in shown if file.last >= log_start]
    kept = [
        file
        for file in left
        if file.path in direct
        or (file.first >= max(cleaned, log_start) and _is_tail_of(file, loose, occupied, location))
    ]
    end = _shown_until(parts, shown, max((file.last + 1 for file in shown), default=0), bounds)
    known = {file.path for file in kept}
    new = [each for path, each in direct.items() if path not in known]
    outdated = [file for file in left if file.path not in known]
    tails = _tails(partition, loose, [*kept, *(file for file, _ in new)], outdated, end)
    first = max(end, log_start)
    straddling = [
        Tail(partition, (part.between(max(end, part.start), part.limit),))
        for file, part in new
        if file.first < first <= file.last
    ]
    fresh = [file for file, _ in new if file.first >= first]
    older = [file for file, _ in new if file.first < first]
    trimmed = [
        Trim(file, part.between(file.first, log_start))
        for file, part in direct.values()
        if file.first < log_start and (log_start != before.log_start or file.path not in known)
    ]
    return PartitionPlan(
        deleted=tuple(deleted),
        trims=tuple(trimmed),
        appended=(*fresh, *(tail for tail in tails if tail.slices[0].start >= end), *straddling),
        outdated=(*outdated, *straddling),
        replacing=(*older, *(tail for tail in tails if tail.slices[0].start < end)),
    )


def _shown_until(parts: Sequence[Slice], shown: Iterable[DataFile], end: int, bounds: Bounds) -> int:
    """The offset below which all rows are in files: ``end``, or the end of the slice that it is in.

    A compaction may join the last rows that are shown with offsets of aborted records: nothing new is among them if
    files have as many rows as the slice. That is not known of a slice that the log start or a clean has cut.
    """
    at = bisect_left(parts, end, key=lambda part: part.start) - 1
    if at < 0 or parts[at].limit <= end or bounds.clean_until:
        return end
    limit, records = parts[at].limit, 0
    descending = sorted(shown, key=lambda file: file.first, reverse=True)
    while at >= 0 and parts[at].whole and parts[at].batch.base_offset >= bounds.log_start:
        first = parts[at].batch.base_offset
        records += parts[at].batch.records
        inside = [file for file in descending if file.last >= first]
        if not inside or inside[-1].first >= first:
            return limit if records == sum(file.rows for file in inside) else end
        at -= 1
    return end


def _direct_file(partition: int, batch: Batch, location: Callable[[str], str]) -> DataFile:
    segment, last = batch.segment, batch.limit - 1
    times = batch.min_timestamp, batch.max_timestamp
    return DataFile(location(segment.object), partition, batch.base_offset, last, segment.rows, segment.size, *times)


def _is_tail_of(
    file: DataFile, loose: Sequence[Slice], occupied: Sequence[tuple[int, int]], location: Callable[[str], str]
) -> bool:
    """Whether a file has rows of loose slices only: a tail that nothing has replaced."""
    if not file.path.startswith(location(TABLES)) or _overlaps(occupied, file.first, file.last):
        return False
    at = bisect_right(loose, file.last, key=lambda part: part.start) - 1
    return at >= 0 and loose[at].limit > file.first


def _overlaps(ranges: Sequence[tuple[int, int]], first: int, last: int) -> bool:
    """Whether one of ascending ranges has an offset from ``first`` to ``last``."""
    at = bisect_right(ranges, last, key=lambda each: each[0]) - 1
    return at >= 0 and ranges[at][1] >= first


def _tails(
    partition: int, loose: Iterable[Slice], files: Iterable[DataFile], outdated: Iterable[DataFile], end: int
) -> list[Tail]:
    """The loose slices that no file has, joined where no file is between them, old and new rows apart.

    All rows below ``end`` are in shown files. So between those that are kept there are none: only markers.
    """
    ranges = sorted((file.first, file.last) for file in files)
    starts = [first for first, _ in ranges]
    outdated_ranges = sorted((file.first, file.last) for file in outdated)

    def place(part: Slice) -> tuple[int, bool]:
        return bisect_left(starts, part.start), part.start >= end

    def pieces() -> Iterator[Slice]:
        for part in loose:
            for whole in _without(part, ranges):
                for piece in _split(whole, end):
                    yield from [piece] if piece.start >= end else _within(piece, outdated_ranges)

    return [Tail(partition, tuple(group)) for _, group in groupby(pieces(), key=place)]


def _within(part: Slice, ranges: Sequence[tuple[int, int]]) -> Iterator[Slice]:
    """What of a slice is inside of ascending ranges of offsets."""
    at = max(0, bisect_right(ranges, part.start, key=lambda each: each[0]) - 1)
    for first, last in ranges[at:]:
        if first >= part.limit:
            break
        if last >= part.start:
            yield part.between(max(first, part.start), min(last + 1, part.limit))


def _without(part: Slice, ranges: Sequence[tuple[int, int]]) -> Iterator[Slice]:
    """What is left of a slice outside of ascending ranges of offsets."""
    start = part.start
    at = max(0, bisect_right(ranges, start, key=lambda each: each[0]) - 1)
    for first, last in ranges[at:]:
        if first >= part.limit:
            break
        if last < start:
            continue
        if first > start:
            yield part.between(start, first)
        start = last + 1
    if start < part.limit:
        yield part.between(start, part.limit)


def _split(part: Slice, at: int) -> Iterator[Slice]:
    if part.start < at < part.limit:
        yield part.between(part.start, at)
        yield part.between(at, part.limit)
    else:
        yield part


# Snapshots ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """What one snapshot of a table changes.

    Attributes:
        operation: Iceberg's name of it: ``delete``, ``append``, ``overwrite`` or ``replace``.
        added: The files that it adds.
        removed: The locations of the data files and delete files that it removes.
        added_deletes: The delete files that it adds.
    """

    operation: str
    added: tuple[DataFile, ...] = ()
    removed: frozenset[str] = frozenset()
    added_deletes: tuple[DeleteFile, ...] = ()


@dataclass(slots=True)
class _Changes:
    added: list[DataFile] = field(default_factory=list)
    removed: set[str] = field(default_factory=set)
    added_deletes: list[DeleteFile] = field(default_factory=list)

    def step(self, operation: str) -> Iterator[Step]:
        if self.added or self.removed or self.added_deletes:
            yield Step(operation, tuple(self.added), frozenset(self.removed), tuple(self.added_deletes))


@dataclass(frozen=True, slots=True)
class Written:
    """What was written for a plan.

    Attributes:
        tails: The file of each tail; None: it has no rows.
        deletes: The delete file of each trimmed file, by its location; None: it has no rows below the log start.
    """

    tails: Mapping[Tail, DataFile | None]
    deletes: Mapping[str, DeleteFile | None]

    def files(self, added: Iterable[Added]) -> list[DataFile]:
        """The files of what a plan adds."""
        files = (self.tails[each] if isinstance(each, Tail) else each for each in added)
        return [file for file in files if file is not None]


def steps(before: TableFiles, plans: Iterable[PartitionPlan], written: Written) -> list[Step]:
    """The snapshots of a publication, in order; none if nothing changes.

    Args:
        before: The files of the newest snapshot.
        written: What was written for them.
    """
    delete, append, overwrite, replace = _Changes(), _Changes(), _Changes(), _Changes()
    deletes = dict(before.deletes)

    def remove(changes: _Changes, files: Iterable[DataFile]) -> int:
        """Remove files with what is deleted of them; returns the number of the rows that readers saw in them."""
        rows = 0
        for file in files:
            deleted = deletes.pop(file.path, None)
            changes.removed |= {file.path} if deleted is None else {file.path, deleted.path}
            rows += file.rows - (0 if deleted is None else deleted.rows)
        return rows

    def trim(changes: _Changes, files: Iterable[DataFile]) -> int:
        """Add what is deleted of files, in place of what was; returns the number of rows that are left."""
        rows = 0
        for file in files:
            earlier, later = deletes.get(file.path), written.deletes.get(file.path)
            if later is not None and (earlier is None or earlier.rows != later.rows):
                changes.removed |= set() if earlier is None else {earlier.path}
                changes.added_deletes.append(later)
                deletes[file.path] = later
            trimmed = deletes.get(file.path)
            rows += file.rows - (0 if trimmed is None else trimmed.rows)
        return rows

    for plan in plans:
        remove(delete, plan.deleted)
        trim(delete, [each.file for each in plan.trims if each.file.path in before.data])
        appended = written.files(plan.appended)
        append.added += appended
        replacing, outdated = written.files(plan.replacing), written.files(plan.outdated)
        if not replacing and not outdated:
            continue
        same = sum(file.rows for file in outdated) - _deleted(outdated, deletes) == sum(
            file.rows for file in replacing
        ) - _deleted(replacing, written.deletes)
        changes = replace if same else overwrite
        remove(changes, outdated)
        changes.added += replacing
        trim(changes, replacing)
    named = ("delete", delete), ("append", append), ("overwrite", overwrite), ("replace", replace)
    return [step for operation, changes in named for step in changes.step(operation)]


def _deleted(files: Iterable[DataFile], deletes: Mapping[str, DeleteFile | None]) -> int:
    found = (deletes.get(file.path) for file in files)
    return sum(each.rows for each in found if each is not None)
