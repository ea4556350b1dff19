"""The persistent list of batches behaves as a plain list does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txnstore.core.log import batches
from txnstore.core.log.batches import BatchList

REPEATABLE = settings(derandomize=True, deadline=None, max_examples=150)


@dataclass(frozen=True)
class Range:
    """The least that a batch list holds."""

    base_offset: int
    limit: int
    version: int = 0


@pytest.fixture(autouse=True, scope="module")
def small_chunks() -> Iterator[None]:
    """Chunks of four, so that short lists have many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batches, "_CHUNK", 4)
        yield


@st.composite
def ranges(draw: st.DrawFn, max_size: int = 30) -> list[Range]:
    """Batches in offset order, with gaps here and there."""
    result, at = [], 0
    for gap, width in draw(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4)), max_size=max_size)):
        result.append(Range(at + gap, at + gap + width))
        at += gap + width
    return result


def _appended(items: list[Range]) -> BatchList[Range]:
    result: BatchList[Range] = BatchList()
    for item in items:
        result = result.append(item)
    return result


@pytest.mark.slow
@REPEATABLE
@given(ranges())
def test_batch_list_contains_appended_batches(items: list[Range]) -> None:
    one_by_one, at_once = _appended(items), BatchList(items)
    assert list(one_by_one) == items
    assert list(reversed(one_by_one)) == items[::-1]
    assert len(one_by_one) == len(items)
    assert one_by_one == at_once
    assert hash(one_by_one) == hash(at_once)
    assert repr(one_by_one) == f"BatchList({items!r})"


@REPEATABLE
@given(ranges(), st.integers(0, 30))
def test_append_does_not_change_older_version(items: list[Range], cut: int) -> None:
    older = _appended(items[:cut])
    newer = older
    for item in items[cut:]:
        newer = newer.append(item)
    assert list(older) == items[:cut]
    assert list(newer) == items


@REPEATABLE
@given(ranges(), st.integers(0, 150), st.integers(0, 150))
def test_overlapping_is_a_filter(items: list[Range], start: int, limit: int) -> None:
    expected = [item for item in items if start < limit and item.base_offset < limit and item.limit > start]
    assert list(_appended(items).overlapping(start, limit)) == expected
    assert list(BatchList(items).overlapping(start, limit)) == expected


@pytest.mark.slow
@REPEATABLE
@given(ranges(), st.data())
def test_replace_is_a_splice(items: list[Range], data: st.DataObject) -> None:
    first = data.draw(st.integers(0, len(items)))
    last = data.draw(st.integers(first, len(items)))
    removed = items[first:last]
    merged: bool = data.draw(st.booleans())
    added = [Range(removed[0].base_offset, removed[-1].limit, 1)] if removed and merged else []
    before = _appended(items)
    after = before.replace(removed, added)
    assert list(after) == [*items[:first], *added, *items[last:]]
    assert list(before) == items
    assert before.changes(after) == (removed, added)
    assert after.changes(before) == (added, removed)


@REPEATABLE
@given(ranges(), st.integers(0, 30))
def test_changes_of_append_are_appended_batches(items: list[Range], cut: int) -> None:
    older = _appended(items[:cut])
    newer = older
    for item in items[cut:]:
        newer = newer.append(item)
    assert older.changes(newer) == ([], items[cut:])
    assert older.changes(older) == ([], [])


def test_full_runs_are_shared() -> None:
    """An append costs the tail, not the list."""
    before = _appended([Range(number, number + 1) for number in range(9)])
    after = before.append(Range(9, 10))
    assert all(mine is theirs for mine, theirs in zip(before._runs, after._runs, strict=True))


def test_batch_list_equals_only_batch_lists() -> None:
    assert BatchList([Range(0, 1)]) != [Range(0, 1)]
    assert BatchList([Range(0, 1)]) != BatchList([Range(0, 2)])
