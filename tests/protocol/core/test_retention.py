"""RET: where the log start may go, what it takes with it, and what a retention plans; from the state alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.helpers.core import RC, RU, T0, T1, World, offsets
from txnstore.core.catalog.model import AlterTopic, DeleteTopic
from txnstore.core.groups.commands import CommitOffsets
from txnstore.core.log.batches import BatchList
from txnstore.core.log.commands import Append, DeleteRecords, Deletion
from txnstore.core.log.model import Batch, Partition, Segment
from txnstore.core.log.retention import plan_retention
from txnstore.core.maintenance import DropObjects, ReplaceSegments
from txnstore.core.model import Map, ProducerIdentity, TopicPartition
from txnstore.errors import (
    CompactionConflictError,
    OffsetOutOfRangeError,
    PolicyViolationError,
    UndecidedRecordsError,
    UnknownTopicOrPartitionError,
)


@pytest.fixture
def world() -> World:
    return World(partitions=2)


def delete(offset: int, tp: TopicPartition = T0, topic_id: str | None = None) -> DeleteRecords:
    return DeleteRecords((Deletion(tp, offset, topic_id),))


def bounds(world: World) -> tuple[int, int]:
    """The log start, and the number of batches."""
    return world.log().log_start, len(world.log().batches)


# The command ----------------------------------------------------------------------------------------------------------


def test_whole_batches_leave_the_log_and_their_objects_are_dropped(world: World) -> None:
    """RET-04, RET-06, RET-09: the objects are dropped, so a vacuum deletes them after its grace period."""
    for _ in range(3):
        world.plain(2)
    keys = [batch.segment.key for batch in world.log().batches]
    assert world.do(delete(4)) == {T0: 4}
    assert bounds(world) == (4, 1)
    assert world.read(RC) == world.read(RU) == [4, 5]
    assert set(world.state.dropped) == set(keys[:2])
    assert world.do(DropObjects(tuple(keys))) == tuple(keys[:2])


def test_a_batch_that_is_cut_stays_and_is_read_from_the_log_start_on(world: World) -> None:
    """RET-06: the log start may be inside a segment."""
    world.plain(5)
    assert world.do(delete(3)) == {T0: 3}
    assert bounds(world) == (3, 1)
    assert world.read(RC) == [3, 4]
    assert not list(world.state.dropped)
    world.do(delete(5))
    assert bounds(world) == (5, 0)
    assert len(list(world.state.dropped)) == 1


def test_an_object_of_several_batches_is_released(world: World) -> None:
    """RET-09, OBJ-19: batches may share a segment."""
    first = world.batch(2)
    world.do(Append(ProducerIdentity(), (first,)))
    log = world.log()
    (batch,) = log.batches
    shared = replace(batch.segment, rows=4)
    halves = (replace(batch, segment=shared), replace(batch, segment=shared, base_offset=2, limit=4, first_row=2))
    changed = replace(log, high_watermark=4, batches=BatchList(halves))
    world.start = world.state = replace(world.state, partitions=world.state.partitions.insert(T0, changed))
    world.entries = []
    world.do(delete(2))
    assert (bounds(world), list(world.state.dropped), list(world.state.released)) == ((2, 1), [], [shared.key])
    assert world.do(DropObjects((shared.key,))) == ()
    world.do(delete(4))
    assert (bounds(world), list(world.state.dropped), list(world.state.released)) == ((4, 0), [], [shared.key])
    assert world.do(DropObjects((shared.key,))) == (shared.key,)
    assert (list(world.state.dropped), list(world.state.released)) == ([shared.key], [])


def test_minus_one_is_the_high_watermark(world: World) -> None:
    """RET-06: also of an empty partition."""
    world.plain(3)
    world.client("a").send(1)
    world.refuse(UndecidedRecordsError, delete(-1))
    assert world.do(DeleteRecords((Deletion(T1, -1),))) == {T1: 0}


def test_offsets_outside_of_the_log_are_refused(world: World) -> None:
    """RET-06: above the high watermark, and negative ones but -1."""
    world.plain(3)
    for offset in (4, -2):
        refused = world.refuse(OffsetOutOfRangeError, delete(offset))
        assert f"below offset {offset}: its high watermark is 3" in str(refused)


def test_an_offset_below_the_log_start_changes_nothing(world: World) -> None:
    """RET-06, LSO-05: the log start never goes back."""
    world.plain(3)
    world.do(delete(2))
    entries = len(world.entries)
    assert [world.do(delete(offset)) for offset in (0, 1, 2)] == [{T0: 2}] * 3
    assert (len(world.entries), bounds(world)) == (entries, (2, 1))


def test_nothing_at_or_above_the_last_stable_offset_is_deleted(world: World) -> None:
    """RET-01, D1: the error names the transaction that holds it."""
    world.plain(2)
    client = world.client("loader")
    client.send(2)
    world.plain(3)
    refused = world.refuse(UndecidedRecordsError, delete(3))
    assert "of transactional id 'loader' begins at offset 2" in str(refused)
    assert world.do(delete(2)) == {T0: 2}
    client.commit()
    assert world.do(delete(-1)) == {T0: 8}
    assert bounds(world) == (8, 0)


def test_a_topic_without_delete_refuses(world: World) -> None:
    """RET-06: Kafka's POLICY_VIOLATION."""
    world.plain(2)
    topic = world.state.topics["t"]
    compacted = replace(topic, config={"cleanup.policy": "compact"}, version=1)
    world.do(AlterTopic(compacted, topic.version))
    assert "cleanup.policy of topic 't' is compact" in str(world.refuse(PolicyViolationError, delete(1)))
    both = replace(compacted, config={"cleanup.policy": "compact,delete"}, version=2)
    world.do(AlterTopic(both, 1))
    assert world.do(delete(1)) == {T0: 1}


def test_another_topic_of_the_name_keeps_its_records(world: World) -> None:
    """RET-11."""
    world.plain(2)
    old = world.state.topics["t"].topic_id
    world.do(DeleteTopic("t"))
    world.refuse(UnknownTopicOrPartitionError, delete(1, topic_id=old))
    new = world.create("t", 1)
    world.plain(2)
    world.refuse(UnknownTopicOrPartitionError, delete(1, topic_id=old))
    world.refuse(UnknownTopicOrPartitionError, delete(1, T1))
    assert world.do(delete(1, topic_id=new.topic_id)) == {T0: 1}


def test_one_entry_moves_the_log_starts_of_all_partitions_or_none(world: World) -> None:
    world.plain(2)
    world.plain(2, T1)
    entries = len(world.entries)
    world.refuse(OffsetOutOfRangeError, DeleteRecords((Deletion(T0, 1), Deletion(T1, 3))))
    assert world.do(DeleteRecords((Deletion(T0, 1), Deletion(T1, 2)))) == {T0: 1, T1: 2}
    assert len(world.entries) == entries + 1


# What stays -----------------------------------------------------------------------------------------------------------


def test_producer_states_survive_the_deletion_of_their_batches(world: World) -> None:
    """RET-05, PST-10: a repeated batch is still a duplicate, the next sequence still follows."""
    client = world.client()
    first = client.numbered(2)
    world.do(client.append(first))
    client.sequences[T0] = 2
    before = world.log().producers
    world.do(delete(-1))
    assert world.log().producers == before
    (again,) = world.do(client.append(first))
    assert (again.duplicate, again.base_offset) == (True, 0)
    assert client.send(1).base_offset == 2


def test_a_transaction_continues_above_the_log_start(world: World) -> None:
    """RET-05: the end of a transaction that begins at the log start."""
    world.plain(2)
    client = world.client("a")
    client.send(2)
    world.do(delete(2))
    client.send(1)
    client.commit()
    assert world.read(RC) == [2, 3, 4]


def test_the_rest_of_an_aborted_transaction_stays_filtered(world: World) -> None:
    """RET-07, RET-08, LSO-05: the entry of the aborted index goes with the marker, not with the first batch."""
    client = world.client("a")
    client.send(2)
    world.plain(1)
    client.send(2)
    client.abort()
    world.plain(1)
    world.do(delete(3))
    assert (world.read(RC), world.read(RU)) == ([6], [3, 4, 6])
    assert len(world.log().aborted) == 1
    world.do(delete(5))
    assert len(world.log().aborted) == 1
    world.do(delete(6))
    assert (world.log().aborted, world.read(RC)) == ((), [6])


def test_offsets_of_groups_below_the_log_start_stay(world: World) -> None:
    """RET-13: the consumer meets them as out of range."""
    world.plain(3)
    world.do(CommitOffsets(offsets({T0: 1})))
    world.do(delete(2))
    assert world.offset() == 1


def test_a_compaction_that_was_planned_before_brings_nothing_back(world: World) -> None:
    """RET-04, CMP-21: neither what has left the log nor what the log start cuts."""
    for _ in range(3):
        world.plain(2)
    removed = tuple(world.log().batches)
    merged = (Batch(0, 6, 6, world.segment(6), 7, 8),)
    world.do(delete(3))
    world.refuse(CompactionConflictError, ReplaceSegments(T0, removed, merged))
    cut = ReplaceSegments(T0, removed[1:], (Batch(2, 6, 4, world.segment(4), 7, 8),))
    assert "below offset 3 were deleted" in str(world.refuse(CompactionConflictError, cut))
    batch = replace(cut.added[0], base_offset=3, records=3)
    assert world.state.partitions[T0].log_start == batch.base_offset
    world.do(replace(cut, removed=removed[1:2], added=(replace(batch, limit=4, records=1),)))
    world.do(ReplaceSegments(T0, removed[2:], (Batch(4, 6, 2, world.segment(2), 7, 8),)))
    assert world.read(RC) == [3, 4, 5]


# The plan of a retention ----------------------------------------------------------------------------------------------


def log_of(*batches: tuple[int, int, int], opened: int | None = None, start: int = 0, markers: int = 0) -> Partition:
    """A log of batches with (records, size, newest timestamp); ``markers`` offsets follow each."""
    at, made = 0, []
    for records, size, newest in batches:
        segment = Segment(f"topics/t/0/{at}.parquet", "parquet", size, "00", records)
        made.append(Batch(at, at + records, records, segment, 0, newest))
        at += records + markers
    open_txns = Map({5: opened}) if opened is not None else Map()
    return Partition(log_start=start, high_watermark=at, batches=BatchList(made), open_txns=open_txns)


def planned(partition: Partition, age: int = -1, size: int = -1, now: int = 1_000) -> tuple[int, int]:
    """The planned log start, and the number of batches that go."""
    plan = plan_retention(partition, age, size, now)
    return plan.offset, len(plan.removed)


def test_records_go_when_their_newest_is_too_old() -> None:
    """RET-03: more than ``retention.ms``, not exactly that."""
    log = log_of((2, 10, 499), (2, 10, 500), (2, 10, 900))
    assert planned(log, age=500) == (2, 1)
    assert planned(log, age=499) == (4, 2)
    assert planned(log, age=0) == (6, 3)
    assert planned(log, age=-1) == (0, 0)


def test_the_first_young_batch_ends_the_deletion() -> None:
    """RET-03: a log is deleted from its head only."""
    assert planned(log_of((1, 10, 100), (1, 10, 900), (1, 10, 100)), age=500) == (1, 1)
    assert planned(log_of((1, 10, 5_000), (1, 10, 100)), age=500) == (0, 0)


def test_the_oldest_go_while_enough_is_left() -> None:
    """RET-03: never below ``retention.bytes``."""
    log = log_of((1, 10, 1), (1, 10, 1), (1, 10, 1))
    assert [planned(log, size=limit) for limit in (-1, 0, 9, 10, 11, 20, 21, 30, 31)] == [
        (0, 0), (3, 3), (2, 2), (2, 2), (1, 1), (1, 1), (0, 0), (0, 0), (0, 0),
    ]  # fmt: skip


def test_both_limits_hold_together() -> None:
    """RET-03: what one of them deletes may be too young for the other, as in Kafka."""
    log = log_of((1, 10, 900), (1, 10, 100), (1, 10, 900))
    assert planned(log, age=500, size=20) == (2, 2)
    assert planned(log, age=500) == (0, 0)


def test_batches_share_the_size_of_their_segment() -> None:
    log = log_of((1, 10, 1), (3, 30, 1))
    (first, second) = log.batches
    shared = replace(second.segment, rows=4, size=40)
    halves = (replace(first, segment=shared), replace(second, segment=shared, first_row=1))
    assert planned(replace(log, batches=BatchList(halves)), size=30) == (1, 1)
    assert planned(replace(log, batches=BatchList(halves)), size=31) == (0, 0)


def test_no_retention_goes_beyond_the_last_stable_offset() -> None:
    """RET-01, RET-03: age and size."""
    log = log_of((2, 10, 1), (2, 10, 1), (2, 10, 1), opened=2)
    assert planned(log, age=1) == planned(log, size=0) == (2, 1)
    assert planned(log_of((2, 10, 1), opened=0), age=1, size=0) == (0, 0)


def test_markers_at_the_head_and_the_end_do_not_stop_a_retention() -> None:
    """RET-12: they take offsets and no space; the log start moves to the next batch, or to the end of the log."""
    log = log_of((2, 10, 1), (2, 10, 900), markers=3)
    assert planned(log, age=500) == (5, 1)
    assert planned(log, age=1) == (10, 2)
    behind = replace(log, batches=BatchList(list(log.batches)[1:]))
    assert planned(behind, age=500) == (0, 0)
    assert planned(behind, age=1) == (10, 1)
    assert planned(Partition(high_watermark=4), age=0, size=0) == (0, 0)


def test_a_batch_that_the_log_start_cuts_goes_when_its_newest_record_is_too_old() -> None:
    log = log_of((4, 10, 1), (2, 10, 900), start=3)
    assert planned(log, age=500) == (4, 1)
    assert planned(log, size=10) == (4, 1)
