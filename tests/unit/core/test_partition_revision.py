"""The revision of a partition: what changes it, and that a compaction of another one is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.helpers.core import T0, World
from txnstore.core.catalog.model import DeleteTopic
from txnstore.core.log.commands import DeleteRecords, Deletion
from txnstore.core.log.model import Batch
from txnstore.core.maintenance import ReplaceRuns, ReplaceSegments
from txnstore.errors import CompactionConflictError


@pytest.fixture
def world() -> World:
    world = World()
    for _ in range(4):
        world.plain(2)
    return world


def _merge(world: World, first: int, last: int, revision: int | None) -> ReplaceSegments:
    """A merge of these batches of the log, planned at this revision."""
    removed = tuple(world.log().batches)[first : last + 1]
    start, limit = removed[0].base_offset, removed[-1].limit
    segment = world.segment(limit - start, explicit_offsets=True)
    return ReplaceSegments(T0, removed, (Batch(start, limit, limit - start, segment, 7, 8),), revision=revision)


def _checkpoint_of_a_clean(world: World) -> None:
    world.do(ReplaceSegments(T0, (), (), clean_until=2))


@pytest.mark.parametrize(
    "change",
    [
        lambda world: world.do(_merge(world, 0, 1, world.log().revision)),
        lambda world: world.do(DeleteRecords((Deletion(T0, 1),))),
        lambda world: world.do(DeleteRecords((Deletion(T0, 2),))),
        _checkpoint_of_a_clean,
    ],
)
def test_a_compaction_that_was_planned_at_another_revision_is_refused(
    world: World, change: Callable[[World], None]
) -> None:
    """Also if the batches that it replaces are still there."""
    planned = _merge(world, 2, 3, world.log().revision)
    before = world.log().revision
    change(world)
    assert before < world.log().revision == world.state.sequence
    refused = world.refuse(CompactionConflictError, planned)
    assert f"planned at revision {before} of the partition, which is {world.state.sequence} now" in str(refused)
    removed = tuple(world.log().batches)[-2:]
    again = ReplaceSegments(T0, removed, planned.added, revision=world.log().revision)
    assert world.do(again) == world.log().revision == world.state.sequence


def test_runs_are_of_the_same_revision_and_in_the_same_entry(world: World) -> None:
    planned, before = world.log().revision, world.state.sequence
    runs = ReplaceRuns((_merge(world, 0, 1, planned), _merge(world, 2, 3, planned)))
    assert world.do(runs) == world.state.sequence == before + 1
    assert [batch.limit for batch in world.log().batches] == [4, 8]
    late = ReplaceRuns((_merge(world, 0, 0, planned), _merge(world, 1, 1, planned)))
    world.refuse(CompactionConflictError, late)


def test_one_refused_replacement_refuses_those_with_it(world: World) -> None:
    planned, before = world.log().revision, tuple(world.log().batches)
    stale = _merge(world, 2, 3, planned)
    for wrong in (replace(stale, removed=before[1:3]), replace(stale, removed=before[2:3])):
        world.refuse(CompactionConflictError, ReplaceRuns((_merge(world, 0, 1, planned), wrong)))
    assert tuple(world.log().batches) == before


def test_appends_and_transactions_leave_the_revision(world: World) -> None:
    planned = _merge(world, 0, 3, world.log().revision)
    world.plain(1)
    client = world.client("c")
    client.send(2)
    client.abort()
    assert world.log().revision == planned.revision == 1
    world.do(planned)


def test_a_deletion_of_nothing_leaves_the_revision(world: World) -> None:
    world.do(DeleteRecords((Deletion(T0, 3),)))
    before = world.log().revision
    world.do(DeleteRecords((Deletion(T0, 1),)))
    assert world.log().revision == before
    assert world.do(ReplaceSegments(T0, (), (), clean_until=0, revision=before)) == before


def test_another_life_of_a_topic_has_other_revisions(world: World) -> None:
    planned = world.log().revision
    world.do(DeleteTopic("t"))
    world.create("t", 1)
    world.plain(2)
    world.plain(2)
    assert world.log().revision == world.state.sequence - 2 > planned
    world.refuse(CompactionConflictError, _merge(world, 0, 1, planned))
    world.do(_merge(world, 0, 1, world.log().revision))


def test_a_compaction_without_a_revision_is_checked_by_its_batches_alone(world: World) -> None:
    planned = _merge(world, 2, 3, None)
    world.do(_merge(world, 0, 1, None))
    world.do(planned)
    assert len(world.log().batches) == 2
