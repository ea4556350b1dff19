"""The plan of a partition: whatever was shown, and however compactions have joined batches, rows are shown once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txnstore.catalog.iceberg.files import DataFile, DeleteFile, TableFiles
from txnstore.core.log.model import Batch, Segment
from txnstore.core.log.slices import Slice
from txnstore.core.model import TopicPartition
from txnstore.tables.plan import (
    DIRECT,
    Bounds,
    PartitionPlan,
    Step,
    Tail,
    WrittenFiles,
    _parts_outside,
    plan_partition,
    plan_steps,
)

TP = TopicPartition("t", 0)
ROOT = "s3://bucket/"
NOTHING = TableFiles({}, {})
#: The snapshots of a publication.
_ORDER = ("delete", "append", "overwrite", "replace")


def located(key: str) -> str:
    return f"{ROOT}{key}"


def batch(base: int, limit: int, records: int, name: str, *, direct: bool = True) -> Batch:
    """A batch in an object of its own; one that is not direct has another batch beside it."""
    segment = Segment(f"topics/t/0/{name}.parquet", "parquet", 10, "", records + (not direct), explicit_offsets=True)
    return Batch(base, limit, records, segment, 0, 0)


def whole(*batches: Batch, log_start: int = 0) -> list[Slice]:
    """What is visible of these batches."""
    return [Slice(TP, each, max(each.base_offset, log_start), each.limit) for each in batches if each.limit > log_start]


@dataclass
class Table:
    """A table of one partition, with the offsets of the rows of each file that was ever written.

    Attributes:
        rows: All rows of the partition.
        files: Its files.
        bounds: The bounds at the last publication.
        contents: The offsets in each data file, by location.
    """

    rows: set[int]
    files: TableFiles = NOTHING
    bounds: Bounds = field(default_factory=Bounds)
    contents: dict[str, list[int]] = field(default_factory=dict)
    written: int = 0

    @property
    def shown(self) -> list[int]:
        """The offsets that readers find."""
        return sorted(offset for path in self.files.data for offset in self.visible(path, self.files.deletes))

    def visible(self, path: str, deletes: dict[str, DeleteFile]) -> list[int]:
        deleted = deletes.get(path)
        return self.contents[path][0 if deleted is None else deleted.rows :]

    def plan(self, slices: Sequence[Slice], bounds: Bounds) -> PartitionPlan:
        for part in slices:
            if DIRECT.opens(part.batch):
                path = located(part.batch.segment.object)
                self.contents[path] = self._within(part.batch.base_offset, part.batch.limit)
        return plan_partition(0, self.files.data.values(), slices, bounds, self.bounds, located)

    def publish(self, slices: Sequence[Slice], bounds: Bounds) -> tuple[PartitionPlan, list[Step]]:
        plan = self.plan(slices, bounds)
        written = WrittenFiles(
            {tail: self._tail(tail) for tail in plan.tails},
            {trim.file.path: self._deletes(trim.file, bounds.log_start) for trim in plan.trims},
        )
        changes = plan_steps(self.files, [plan], written)
        for step in changes:
            self._apply(step)
        self.bounds = bounds
        return plan, changes

    def _apply(self, step: Step) -> None:
        data, deletes = dict(self.files.data), dict(self.files.deletes)
        known = {*data, *(each.path for each in deletes.values())}
        assert step.removed <= known
        assert not {file.path for file in step.added} & set(data)
        data = {path: file for path, file in data.items() if path not in step.removed}
        deletes = {path: each for path, each in deletes.items() if each.path not in step.removed}
        data |= {file.path: file for file in step.added}
        deletes |= {each.data_path: each for each in step.added_deletes}
        assert set(deletes) <= set(data)
        self.files = TableFiles(data, deletes)

    def _within(self, start: int, limit: int) -> list[int]:
        return sorted(offset for offset in self.rows if start <= offset < limit)

    def _name(self) -> str:
        self.written += 1
        return located(f"tables/t/data/{self.written}.parquet")

    def _tail(self, tail: Tail) -> DataFile | None:
        offsets = [offset for part in tail.slices for offset in self._within(part.start, part.limit)]
        if not offsets:
            return None
        assert offsets == sorted(offsets)
        path = self._name()
        self.contents[path] = offsets
        return DataFile(path, 0, offsets[0], offsets[-1], len(offsets), 10, 0, 0)

    def _deletes(self, file: DataFile, log_start: int) -> DeleteFile | None:
        below = sum(offset < log_start for offset in self.contents[file.path])
        return DeleteFile(self._name(), 0, file.path, below, 10) if below else None


def _cuts(rng: Random, end: int) -> list[int]:
    return sorted({0, end, *(rng.randrange(end + 1) for _ in range(rng.randrange(5)))})


def _batches(rng: Random, table: Table, end: int, before: Iterable[Batch]) -> list[Batch]:
    """Any batches that have the rows below an offset; some are those of before."""
    again = {(each.base_offset, each.limit): each for each in before}
    batches: list[Batch] = []
    cuts = _cuts(rng, end)
    for start, limit in pairwise(cuts):
        records = sum(start <= offset < limit for offset in table.rows)
        if not records:
            continue  # Aborted records, and markers.
        if (start, limit) in again and rng.random() < 0.8:
            batches.append(again[start, limit])
            continue
        table.written += 1
        batches.append(batch(start, limit, records, f"{table.written}", direct=rng.random() < 0.5))
    return batches


@pytest.mark.slow
@given(st.randoms(use_true_random=False))
def test_each_publication_shows_what_is_visible_and_appends_each_row_once(rng: Random) -> None:
    table = Table({offset for offset in range(30) if rng.random() < 0.7})
    batches: list[Batch] = []
    end = log_start = before_start = 0
    appended: list[int] = []
    for _ in range(4):
        end = min(30, end + rng.randrange(1, 12))
        before_start = log_start
        log_start = rng.choice((log_start, log_start, rng.randint(log_start, end)))
        batches = _batches(rng, table, end, batches)
        before = table.files
        plan, changes = table.publish(whole(*batches, log_start=log_start), Bounds(log_start))
        assert table.shown == [offset for offset in sorted(table.rows) if log_start <= offset < end]
        operations = [step.operation for step in changes]
        assert operations == [each for each in _ORDER if each in operations]
        assert "overwrite" not in operations or log_start != before_start  # Nothing was cleaned, but a copy may be cut.
        for step in changes:
            if step.operation == "append":
                assert not step.added_deletes
                assert not step.removed
                appended += [offset for file in step.added for offset in table.contents[file.path]]
        assert all(trim.file.first < log_start <= trim.file.last for trim in plan.trims)
        assert all(file.last < log_start for file in plan.deleted)
        assert before is not table.files or not changes
        again = table.plan(whole(*batches, log_start=log_start), Bounds(log_start))
        assert (again.deleted, again.trims, again.outdated, again.replacing) == ((), (), (), ())
        assert all(isinstance(each, Tail) and not _rows_of(table, each) for each in again.appended)
    assert len(appended) == len(set(appended))


def _rows_of(table: Table, tail: Tail) -> list[int]:
    return [offset for part in tail.slices for offset in table.rows if part.start <= offset < part.limit]


def _shown(rows: Iterable[int], *batches: Batch) -> Table:
    table = Table(set(rows))
    table.publish(whole(*batches), Bounds())
    return table


def _loose(base: int, limit: int, records: int, name: str = "loose") -> Batch:
    return batch(base, limit, records, name, direct=False)


def test_a_direct_file_with_shown_and_new_rows_is_preceded_by_a_copy_of_the_new_ones() -> None:
    table = _shown(range(8), _loose(0, 5, 5))
    merged = batch(0, 8, 8, "merged")
    plan, changes = table.publish(whole(merged), Bounds())
    [straddling] = plan.appended
    assert isinstance(straddling, Tail)
    assert (straddling.slices[0].start, straddling.slices[0].limit) == (5, 8)
    assert straddling in plan.outdated
    assert [step.operation for step in changes] == ["append", "replace"]
    assert table.shown == [*range(8)]


def test_offsets_without_rows_that_are_joined_to_shown_rows_are_no_new_rows() -> None:
    table = _shown(range(4), _loose(0, 4, 4))
    assert not table.plan(whole(_loose(0, 9, 4)), Bounds()).has_changes
    assert not table.plan(whole(_loose(0, 2, 2, "first"), _loose(2, 9, 2, "second")), Bounds()).has_changes
    direct = table.plan(whole(batch(0, 9, 4, "direct")), Bounds())
    assert (direct.appended, len(direct.outdated), len(direct.replacing)) == ((), 1, 1)


def test_new_rows_that_are_joined_to_shown_rows_are_copied() -> None:
    table = _shown({0, 1, 2, 3, 6}, _loose(0, 4, 4))
    [tail] = table.plan(whole(_loose(0, 9, 5)), Bounds()).appended
    assert isinstance(tail, Tail)
    assert [(part.start, part.limit) for part in tail.slices] == [(4, 9)]


def test_rows_that_were_cleaned_are_no_reason_to_leave_new_ones_out() -> None:
    """A clean has removed as many rows as are new."""
    table = _shown(range(4), _loose(0, 4, 4))
    table.bounds = cleaned = Bounds(0, 4)
    table.rows = {2, 3, 6, 7}
    table.publish(whole(_loose(0, 9, 4)), Bounds(0, 5))
    assert table.shown == [2, 3, 6, 7]
    assert cleaned.clean_until == 4


def test_a_clean_replaces_the_copies_of_what_it_has_read() -> None:
    table = _shown(range(8), _loose(0, 4, 4), _loose(4, 8, 4, "later"))
    table.rows -= {0, 1}
    plan, changes = table.publish(whole(_loose(0, 4, 2, "clean"), _loose(4, 8, 4, "later")), Bounds(0, 4))
    assert len(plan.outdated) == 1
    assert [step.operation for step in changes] == ["overwrite"]
    assert table.shown == [*range(2, 8)]


def test_a_file_that_the_log_start_is_in_is_trimmed_once_for_each_log_start() -> None:
    direct = batch(0, 8, 8, "direct")
    table = _shown(range(8), direct)
    for log_start in (3, 5):
        slices = whole(direct, log_start=log_start)
        plan, changes = table.publish(slices, Bounds(log_start))
        assert [(trim.file.first, trim.below.limit) for trim in plan.trims] == [(0, log_start)]
        assert [step.operation for step in changes] == ["delete"]
        assert table.shown == [*range(log_start, 8)]
        assert not table.plan(slices, Bounds(log_start)).has_changes
    assert len(table.files.deletes) == 1


def test_a_copy_that_the_log_start_is_in_is_written_again() -> None:
    table = _shown(range(8), _loose(0, 8, 8))
    plan, changes = table.publish(whole(_loose(0, 8, 8), log_start=3), Bounds(3))
    assert (plan.trims, len(plan.outdated), len(plan.replacing)) == ((), 1, 1)
    assert [step.operation for step in changes] == ["overwrite"]
    assert table.shown == [*range(3, 8)]


def test_a_direct_file_replaces_the_copies_below_it_only() -> None:
    table = _shown(range(12), _loose(0, 4, 4), batch(4, 8, 4, "between"), _loose(8, 12, 4, "last"))
    assert len(table.files.data) == 3
    merged = whole(batch(0, 4, 4, "merged"), batch(4, 8, 4, "between"), _loose(8, 12, 4, "last"))
    plan, changes = table.publish(merged, Bounds())
    assert [file.first for file in plan.outdated if isinstance(file, DataFile)] == [0]
    assert [step.operation for step in changes] == ["replace"]
    assert table.shown == [*range(12)]


def test_a_copy_of_which_a_segment_has_a_part_is_written_again_without_it() -> None:
    table = _shown(range(8), _loose(0, 4, 4), _loose(4, 8, 4, "later"))
    assert len(table.files.data) == 1
    plan, changes = table.publish(whole(batch(0, 4, 4, "merged"), _loose(4, 8, 4, "later")), Bounds())
    assert [len(plan.outdated), len(plan.replacing)] == [1, 2]
    assert [step.operation for step in changes] == ["replace"]
    assert table.shown == [*range(8)]


def test_only_objects_of_one_batch_with_offsets_are_used_where_they_are() -> None:
    def is_used(**members: object) -> bool:
        described = {"object": "o", "format": "parquet", "size": 1, "sha256": "", "rows": 4, "explicit_offsets": True}
        return DIRECT.opens(Batch(0, 4, 4, Segment(**(described | members)), 0, 0))  # type: ignore[arg-type]

    assert is_used()
    assert not is_used(format="arrow")
    assert not is_used(explicit_offsets=False)
    assert not is_used(rows=5)
    assert not is_used(first_byte=0)


def test_parts_outside_of_single_offsets() -> None:
    (part,) = whole(batch(5, 9, 4, "merged"))
    outside = [[(each.start, each.limit) for each in _parts_outside(part, [(at, at)])] for at in (4, 5, 8, 9)]
    assert outside == [[(5, 9)], [(6, 9)], [(5, 8)], [(5, 9)]]
