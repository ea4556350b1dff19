"""Slices of a partition log: where a read begins and ends, and which batches it gets."""

from __future__ import annotations

from typing import Any, cast

import pytest

from tests.helpers.core import RC, RU, T0, World
from txnstore.core.log.batches import BatchList, Chunk
from txnstore.core.log.model import Batch, Partition, Segment
from txnstore.core.log.slices import Slice
from txnstore.core.log.visibility import aborted_batches, check_offset, iterate_visible_slices, visible_slices
from txnstore.core.model import Isolation
from txnstore.errors import OffsetOutOfRangeError


@pytest.fixture
def world() -> World:
    """Three records of ``a`` (aborted: 0-2), a marker at 3, plain 4-7, and two open ones of ``b`` (8, 9)."""
    world = World()
    aborted, opened = world.client("a"), world.client("b")
    aborted.send(3)
    aborted.abort()
    world.plain(4)
    opened.send(2)
    return world


def _cut(
    world: World, isolation: Isolation, start: int | None = None, limit: int | None = None
) -> list[tuple[int, int]]:
    return [(part.start, part.limit) for part in visible_slices(T0, world.log(), isolation, start, limit)]


def test_slices_are_cut_to_the_range(world: World) -> None:
    assert _cut(world, RU) == [(0, 3), (4, 8), (8, 10)]
    assert _cut(world, RU, 1, 5) == [(1, 3), (4, 5)]
    assert _cut(world, RC) == [(4, 8)]
    assert _cut(world, RC, 5, 7) == [(5, 7)]
    assert _cut(world, RC, 6, 6) == []
    assert _cut(world, RC, 7, 3) == []


def test_a_range_outside_the_log_is_cut_to_it(world: World) -> None:
    assert _cut(world, RU, -5, 99) == [(0, 3), (4, 8), (8, 10)]
    assert _cut(world, RU, 10, 99) == []
    assert visible_slices(T0, Partition(), RC) == []


def test_a_slice_knows_whether_it_is_whole(world: World) -> None:
    batch = next(iter(world.log().batches))
    assert Slice(T0, batch, 0, 3).whole
    assert not Slice(T0, batch, 1, 3).whole
    assert not Slice(T0, batch, 0, 2).whole


def test_only_transactional_batches_are_aborted(world: World) -> None:
    """LSO-07: by producer and offset; the batch of another, or a later one of the same producer, is not."""
    log = world.log()
    batches: list[Batch] = list(log.batches)
    is_aborted = aborted_batches(log)
    assert [is_aborted(batch) for batch in batches] == [True, False, False]
    again = world.client("a")
    again.send()
    assert [aborted_batches(world.log())(batch) for batch in world.log().batches] == [True, False, False, False]


@pytest.mark.parametrize("isolation", list(Isolation))
def test_offsets_of_the_log_may_be_asked_for(world: World, isolation: Isolation) -> None:
    """LSO-12: from the log start up to the end; also between LSO and HW, where there is nothing to read yet."""
    for offset in (0, 8, 9, 10):
        check_offset(T0, world.log(), isolation, offset)
    assert visible_slices(T0, world.log(), RC, 9) == []
    for offset in (-1, 11):
        with pytest.raises(OffsetOutOfRangeError, match=f"offset {offset} of t-0"):
            check_offset(T0, world.log(), isolation, offset)


class _Unread:
    """A run of batches whose index file was not read; reading it fails the test."""

    base_offset, limit = 1_000, 2_000

    def __iter__(self) -> Any:
        raise AssertionError("the run was read")

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("the run was read")


def test_slices_are_not_read_before_they_are_asked_for() -> None:
    """A fetch takes the first batches of a long log: what is behind them stays in the index."""
    segment = Segment("data/t/0/a", "parquet", 1, "", 10)
    chunk = Chunk(Batch(10 * number, 10 * number + 10, 10, segment, 0, 0) for number in range(3))
    batches = BatchList[Batch]().extended([chunk]).extended([cast("Any", _Unread())])
    parts = iterate_visible_slices(T0, Partition(high_watermark=2_000, batches=batches), RU, 15)
    assert [next(parts).start, next(parts).start] == [15, 20]
    with pytest.raises(AssertionError, match="was read"):
        next(parts)


def test_a_log_is_in_memory_from_its_last_index_file_on() -> None:
    segment = Segment("data/t/0/a", "parquet", 1, "", 10)
    late = Chunk([Batch(2_000, 2_010, 10, segment, 0, 0)])
    batches = BatchList[Batch]().extended([cast("Any", _Unread())]).extended([late])
    assert not batches.in_memory_from(0)
    assert not batches.in_memory_from(1_500)
    assert batches.append(Batch(2_010, 2_020, 10, segment, 0, 0)).in_memory_from(2_010)
    assert BatchList[Batch]([late[0]]).in_memory_from(0)
