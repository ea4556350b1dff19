"""Plans the change of a table to a view: the files that stay, the rows to copy, the snapshots. No I/O.

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
    """Visible rows to copy into a file of the table.

    Attributes:
        slices: The slices that have the rows, in offset order; at least one.
    """

    partition: int
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class Trim:
    """A direct file with the log start inside; ``below`` has the rows below the log start, which are deleted."""

    file: DataFile
    below: Slice


#: The segments that a table uses where they are.
DIRECT = Ability(layouts=frozenset({Layout.MERGED}))

#: An addition to a table: a file that exists, or rows to copy.
Added = DataFile | Tail


@dataclass(frozen=True, slots=True)
class PartitionPlan:
    """The changes of a partition.

    Attributes:
        deleted: The files below the log start.
        trims: The files with the log start inside; files of the table only if it has moved.
        appended: The additions with new rows.
        outdated: The files of the table that others replace, and new tails that are also part of a direct file.
        replacing: The additions that replace them.
    """

    deleted: tuple[DataFile, ...] = ()
    trims: tuple[Trim, ...] = ()
    appended: tuple[Added, ...] = ()
    outdated: tuple[Added, ...] = ()
    replacing: tuple[Added, ...] = ()

    @property
    def has_changes(self) -> bool:
        """Whether the partition changes."""
        return bool(self.deleted or self.trims or self.appended or self.outdated or self.replacing)

    @property
    def tails(self) -> Iterator[Tail]:
        """The rows to copy."""
        return (added for added in (*self.appended, *self.replacing) if isinstance(added, Tail))


@dataclass(frozen=True, slots=True)
class Bounds:
    """The offsets of a partition below which rows are deleted, and have been cleaned by key."""

    log_start: int = 0
    clean_until: int = 0


def plan_partition(
    partition: int,
    files: Collection[DataFile],
    slices: Iterable[Slice],
    bounds: Bounds,
    old_bounds: Bounds,
    location: Callable[[str], str],
) -> PartitionPlan:
    """Plan the file changes that bring a partition of a table to the committed records of a view.

    Args:
        partition: The number of the partition.
        files: The files of the partition in the table.
        slices: The slices that readers of committed records see, in offset order.
        bounds: The bounds of the partition.
        old_bounds: The bounds at the newest snapshot.
        location: Returns the absolute location of a key.
    """
    log_start = bounds.log_start
    # A clean removes rows of small batches, too, of which the chain keeps no trace.
    cleaned_until = bounds.clean_until if bounds.clean_until != old_bounds.clean_until else 0
    all_slices = list(slices)
    direct_files: dict[str, tuple[DataFile, Slice]] = {}
    to_copy: list[Slice] = []
    for part in all_slices:
        if DIRECT.opens(part.batch):
            file = _direct_file(partition, part.batch, location)
            direct_files[file.path] = file, part
        else:
            to_copy.append(part)
    direct_ranges = [(file.first, file.last) for file, _ in direct_files.values()]
    deleted = [file for file in files if file.last < log_start]
    retained = [file for file in files if file.last >= log_start]
    unchanged = [
        file
        for file in retained
        if file.path in direct_files
        or (file.first >= max(cleaned_until, log_start) and _is_tail_of(file, to_copy, direct_ranges, location))
    ]
    table_end = _end_of_table_rows(all_slices, files, max((file.last + 1 for file in files), default=0), bounds)
    kept_paths = {file.path for file in unchanged}
    added = [direct for path, direct in direct_files.items() if path not in kept_paths]
    outdated = [file for file in retained if file.path not in kept_paths]
    tails = _plan_tails(partition, to_copy, [*unchanged, *(file for file, _ in added)], outdated, table_end)
    first_new = max(table_end, log_start)
    across_end = [
        Tail(partition, (part.between(max(table_end, part.start), part.limit),))
        for file, part in added
        if file.first < first_new <= file.last
    ]
    with_new_rows = [file for file, _ in added if file.first >= first_new]
    with_old_rows = [file for file, _ in added if file.first < first_new]
    trimmed = [
        Trim(file, part.between(file.first, log_start))
        for file, part in direct_files.values()
        if file.first < log_start and (log_start != old_bounds.log_start or file.path not in kept_paths)
    ]
    return PartitionPlan(
        deleted=tuple(deleted),
        trims=tuple(trimmed),
        appended=(*with_new_rows, *(tail for tail in tails if tail.slices[0].start >= table_end), *across_end),
        outdated=(*outdated, *across_end),
        replacing=(*with_old_rows, *(tail for tail in tails if tail.slices[0].start < table_end)),
    )


def _end_of_table_rows(slices: Sequence[Slice], files: Iterable[DataFile], end_of_files: int, bounds: Bounds) -> int:
    """The offset below which files have all rows: ``end_of_files``, or the end of the slice around it.

    A compaction may join the table's last rows with offsets of aborted records: the slice has no new rows if the files
    have as many rows as it. The rows of a slice that the log start or a clean has cut are not known.
    """
    index = bisect_left(slices, end_of_files, key=lambda part: part.start) - 1
    if index < 0 or slices[index].limit <= end_of_files or bounds.clean_until:
        return end_of_files
    slice_end, records = slices[index].limit, 0
    descending = sorted(files, key=lambda file: file.first, reverse=True)
    while index >= 0 and slices[index].whole and slices[index].batch.base_offset >= bounds.log_start:
        first_offset = slices[index].batch.base_offset
        records += slices[index].batch.records
        files_inside = [file for file in descending if file.last >= first_offset]
        if not files_inside or files_inside[-1].first >= first_offset:
            return slice_end if records == sum(file.rows for file in files_inside) else end_of_files
        index -= 1
    return end_of_files


def _direct_file(partition: int, batch: Batch, location: Callable[[str], str]) -> DataFile:
    """The data file of a direct segment."""
    segment, last = batch.segment, batch.limit - 1
    times = batch.min_timestamp, batch.max_timestamp
    return DataFile(location(segment.object), partition, batch.base_offset, last, segment.rows, segment.size, *times)


def _is_tail_of(
    file: DataFile, to_copy: Sequence[Slice], direct_ranges: Sequence[tuple[int, int]], location: Callable[[str], str]
) -> bool:
    """Whether a file is a tail whose rows no direct file has."""
    if not file.path.startswith(location(TABLES)) or _overlaps_range(direct_ranges, file.first, file.last):
        return False
    index = bisect_right(to_copy, file.last, key=lambda part: part.start) - 1
    return index >= 0 and to_copy[index].limit > file.first


def _overlaps_range(ranges: Sequence[tuple[int, int]], first: int, last: int) -> bool:
    """Whether one of ascending ranges has an offset from ``first`` to ``last``."""
    index = bisect_right(ranges, last, key=lambda offsets: offsets[0]) - 1
    return index >= 0 and ranges[index][1] >= first


def _plan_tails(
    partition: int, to_copy: Iterable[Slice], files: Iterable[DataFile], outdated: Iterable[DataFile], table_end: int
) -> list[Tail]:
    """Plan tails for slices that no file has; joined where no file is between them, old and new rows apart.

    Files of the table have all rows below ``table_end``. So only markers are between files that are kept.
    """
    ranges = sorted((file.first, file.last) for file in files)
    starts = [first for first, _ in ranges]
    outdated_ranges = sorted((file.first, file.last) for file in outdated)

    def group_key(part: Slice) -> tuple[int, bool]:
        return bisect_left(starts, part.start), part.start >= table_end

    def pieces() -> Iterator[Slice]:
        for part in to_copy:
            for uncovered in _parts_outside(part, ranges):
                for piece in _split_slice(uncovered, table_end):
                    yield from [piece] if piece.start >= table_end else _parts_inside(piece, outdated_ranges)

    return [Tail(partition, tuple(group)) for _, group in groupby(pieces(), key=group_key)]


def _parts_inside(part: Slice, ranges: Sequence[tuple[int, int]]) -> Iterator[Slice]:
    """The parts of a slice inside of ascending ranges of offsets."""
    index = max(0, bisect_right(ranges, part.start, key=lambda offsets: offsets[0]) - 1)
    for first, last in ranges[index:]:
        if first >= part.limit:
            break
        if last >= part.start:
            yield part.between(max(first, part.start), min(last + 1, part.limit))


def _parts_outside(part: Slice, ranges: Sequence[tuple[int, int]]) -> Iterator[Slice]:
    """The parts of a slice outside of ascending ranges of offsets."""
    start = part.start
    index = max(0, bisect_right(ranges, start, key=lambda offsets: offsets[0]) - 1)
    for first, last in ranges[index:]:
        if first >= part.limit:
            break
        if last < start:
            continue
        if first > start:
            yield part.between(start, first)
        start = last + 1
    if start < part.limit:
        yield part.between(start, part.limit)


def _split_slice(part: Slice, offset: int) -> Iterator[Slice]:
    if part.start < offset < part.limit:
        yield part.between(part.start, offset)
        yield part.between(offset, part.limit)
    else:
        yield part


# Snapshots ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Step:
    """The changes of one snapshot of a table.

    Attributes:
        operation: Iceberg's name of the operation: ``delete``, ``append``, ``overwrite`` or ``replace``.
        added: The files that it adds.
        removed: The locations of the data files and delete files that it removes.
        added_deletes: The delete files that it adds.
    """

    operation: str
    added: tuple[DataFile, ...] = ()
    removed: frozenset[str] = frozenset()
    added_deletes: tuple[DeleteFile, ...] = ()


@dataclass(slots=True)
class _StepBuilder:
    """Collects the changes of a step."""

    added: list[DataFile] = field(default_factory=list)
    removed: set[str] = field(default_factory=set)
    added_deletes: list[DeleteFile] = field(default_factory=list)

    def step(self, operation: str) -> Iterator[Step]:
        if self.added or self.removed or self.added_deletes:
            yield Step(operation, tuple(self.added), frozenset(self.removed), tuple(self.added_deletes))


@dataclass(frozen=True, slots=True)
class WrittenFiles:
    """The files that were written for plans.

    Attributes:
        tails: The file of each tail; None: it has no rows.
        deletes: The delete file of each trimmed file, by its location; None: no rows are below the log start.
    """

    tails: Mapping[Tail, DataFile | None]
    deletes: Mapping[str, DeleteFile | None]

    def files(self, added: Iterable[Added]) -> list[DataFile]:
        """The data files of additions, without tails that have no rows."""
        files = (self.tails[addition] if isinstance(addition, Tail) else addition for addition in added)
        return [file for file in files if file is not None]


def plan_steps(old_files: TableFiles, plans: Iterable[PartitionPlan], written: WrittenFiles) -> list[Step]:
    """Plan the snapshots of a publication, in order; none if nothing changes.

    Args:
        old_files: The files of the newest snapshot.
        written: The files that were written for the plans.
    """
    delete, append, overwrite, replace = _StepBuilder(), _StepBuilder(), _StepBuilder(), _StepBuilder()
    deletes = dict(old_files.deletes)

    def remove(changes: _StepBuilder, files: Iterable[DataFile]) -> None:
        """Remove files with their delete files."""
        for file in files:
            changes.removed.add(file.path)
            delete_file = deletes.pop(file.path, None)
            if delete_file is not None:
                changes.removed.add(delete_file.path)

    def trim(changes: _StepBuilder, files: Iterable[DataFile]) -> None:
        """Replace delete files by those that were written, if these delete more rows."""
        for file in files:
            earlier = deletes.get(file.path)
            later = written.deletes.get(file.path)
            if later is None or (earlier is not None and earlier.rows == later.rows):
                continue
            if earlier is not None:
                changes.removed.add(earlier.path)
            changes.added_deletes.append(later)
            deletes[file.path] = later

    for plan in plans:
        remove(delete, plan.deleted)
        trim(delete, [planned.file for planned in plan.trims if planned.file.path in old_files.data])
        append.added += written.files(plan.appended)
        replacing, outdated = written.files(plan.replacing), written.files(plan.outdated)
        if not replacing and not outdated:
            continue
        has_same_rows = _visible_rows(outdated, deletes) == _visible_rows(replacing, written.deletes)
        changes = replace if has_same_rows else overwrite
        remove(changes, outdated)
        changes.added += replacing
        trim(changes, replacing)
    builders = ("delete", delete), ("append", append), ("overwrite", overwrite), ("replace", replace)
    return [step for operation, changes in builders for step in changes.step(operation)]


def _visible_rows(files: Sequence[DataFile], deletes: Mapping[str, DeleteFile | None]) -> int:
    """The number of rows of these files that no delete file removes."""
    delete_files = (deletes.get(file.path) for file in files)
    deleted_rows = sum(delete_file.rows for delete_file in delete_files if delete_file is not None)
    return sum(file.rows for file in files) - deleted_rows
