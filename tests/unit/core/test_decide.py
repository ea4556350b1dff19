"""The rules of the catalog, of compactions and of vacuums; and that a state survives its way through a checkpoint."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.helpers import checkpoints
from tests.helpers.core import RC, T0, World
from txnstore.core.catalog.model import AlterTopic, CatalogTopic, CreateTopic, DeleteTopic
from txnstore.core.log.model import Batch
from txnstore.core.maintenance import DropObjects, ForgetObjects, ReplaceSegments
from txnstore.core.model import Outcome, TopicPartition
from txnstore.errors import (
    CompactionConflictError,
    InvalidConfigError,
    TopicChangedError,
    TopicExistsError,
    UnknownTopicOrPartitionError,
    UploadExpiredError,
)
from txnstore.storage.memory import MemoryStore


@pytest.fixture
def world() -> World:
    return World(partitions=2)


# Topics ---------------------------------------------------------------------------------------------------------------


def test_create_topic_rejects_existing_name(world: World) -> None:
    error = world.refuse(TopicExistsError, CreateTopic(CatalogTopic(name="t", topic_id="x", partitions=1)))
    assert "'t'" in str(error)
    world.refuse(InvalidConfigError, CreateTopic(CatalogTopic(name="u", topic_id="x", partitions=0)))
    assert [topic.name for topic in world.state.sorted_topics()] == ["t"]


def test_alter_topic_rejects_fewer_partitions(world: World) -> None:
    world.plain(2)
    topic = world.state.topics["t"]
    grown: CatalogTopic = world.do(AlterTopic(replace(topic, partitions=3, version=1), 0))
    assert [(str(tp), log.high_watermark) for tp, log in world.state.partitions_of("t")] == [
        ("t-0", 2),
        ("t-1", 0),
        ("t-2", 0),
    ]
    world.refuse(InvalidConfigError, AlterTopic(replace(grown, partitions=2, version=2), 1))


def test_alter_topic_rejects_stale_version(world: World) -> None:
    topic = world.state.topics["t"]
    world.do(AlterTopic(replace(topic, config={"retention.ms": "1"}, version=1), 0))
    for command in (
        AlterTopic(replace(topic, version=1), 0),
        AlterTopic(replace(topic, version=2, topic_id="another"), 1),
    ):
        assert world.refuse(TopicChangedError, command).retriable


def test_unknown_topic_cannot_be_altered_or_deleted(world: World) -> None:
    topic = replace(world.state.topics["t"], name="gone")
    world.refuse(UnknownTopicOrPartitionError, AlterTopic(topic, 0))
    world.refuse(UnknownTopicOrPartitionError, DeleteTopic("gone"))


def test_the_segments_of_a_deleted_topic_are_dropped(world: World) -> None:
    world.plain(2)
    client = world.client("a")
    client.send()
    keys = {batch.segment.key for batch in world.log().batches}
    world.do(DeleteTopic("t"))
    assert dict(world.state.dropped.items()) == dict.fromkeys(keys, world.now)
    assert len(list(world.state.partitions)) == 0
    client.commit()


# Compactions ----------------------------------------------------------------------------------------------------------


def _merge(world: World, removed: tuple[Batch, ...], *, records: int = 3, explicit: bool = True) -> Batch:
    segment = world.segment(records, explicit_offsets=explicit)
    return Batch(removed[0].base_offset, removed[-1].limit, records, segment, 7, 8)


@pytest.fixture
def log(world: World) -> tuple[Batch, ...]:
    """Plain batches at 0, 1, 2; an aborted one at 3 (marker 4), and an open one at 5."""
    client, other = world.client("a"), world.client("b")
    for _ in range(3):
        world.plain()
    client.send()
    client.abort()
    other.send()
    return tuple(world.log().batches)


def test_compaction_replaces_contiguous_batches(world: World, log: tuple[Batch, ...]) -> None:
    merged = _merge(world, log[:4])
    world.do(ReplaceSegments(T0, log[:4], (merged,)))
    assert tuple(world.log().batches) == (merged, log[4])
    assert set(world.state.dropped) == {batch.segment.key for batch in log[:4]}
    assert world.ends() == (5, 6)


def test_compaction_may_remove_aborted_batches(world: World, log: tuple[Batch, ...]) -> None:
    world.do(ReplaceSegments(T0, log[3:4], ()))
    assert world.read(RC) == [0, 1, 2]
    assert tuple(world.log().batches) == (*log[:3], log[4])


def test_invalid_compactions_are_refused(world: World, log: tuple[Batch, ...]) -> None:
    """Each is refused, and nothing changes: above the LSO, not neighbours, made up, out of range, too much, owned."""
    pair = log[:2]
    good = _merge(world, pair, records=2)
    dropped = world.segment(2, explicit_offsets=True)
    world.do(DropObjects((dropped.key,)))
    bad: list[tuple[str, tuple[Batch, ...], tuple[Batch, ...]]] = [
        ("must replace at least one batch", (), ()),
        ("above the last stable offset 5", log, (_merge(world, log),)),
        ("not contiguous", (log[0], log[2]), (_merge(world, log[:3]),)),
        ("replaced by another compaction", (replace(log[0], segment=good.segment), log[1]), (good,)),
        ("not removed", pair, (replace(good, limit=3),)),
        ("not removed", log[1:3], (replace(good, base_offset=0, limit=2),)),
        ("not removed", pair, (replace(good, limit=1, records=1), replace(good, records=1))),
        ("not removed", pair, (replace(good, limit=0),)),
        ("must have no producer", pair, (replace(good, producer_id=0),)),
        ("must have no producer", pair, (replace(good, transactional=True),)),
        ("cannot turn 2 records into 3", pair, (replace(good, records=3),)),
        ("must store the offset", log[:4], (_merge(world, log[:4], explicit=False, records=2),)),
        ("was vacuumed", pair, (replace(good, segment=dropped),)),
    ]
    for message, removed, added in bad:
        assert message in str(world.refuse(CompactionConflictError, ReplaceSegments(T0, removed, added)))
    world.do(ReplaceSegments(T0, pair, (good,)))


def test_later_of_two_conflicting_compactions_is_refused(world: World, log: tuple[Batch, ...]) -> None:
    first, second = (ReplaceSegments(T0, log[:3], (_merge(world, log[:3]),)) for _ in range(2))
    world.do(first)
    assert world.refuse(CompactionConflictError, second).retriable


def test_a_compaction_of_a_deleted_topic_is_refused(world: World, log: tuple[Batch, ...]) -> None:
    command = ReplaceSegments(T0, log[:3], (_merge(world, log[:3]),))
    world.do(DeleteTopic("t"))
    world.refuse(CompactionConflictError, command)
    world.create("t", 2)
    world.refuse(CompactionConflictError, command)


# Vacuums --------------------------------------------------------------------------------------------------------------


def test_only_unreferenced_segments_may_be_deleted(world: World, log: tuple[Batch, ...]) -> None:
    named = log[0].segment.key
    assert world.do(DropObjects((named, "orphan"))) == ("orphan",)
    entries = len(world.entries)
    assert world.do(DropObjects((named, "orphan"))) == ("orphan",)
    assert len(world.entries) == entries
    world.do(ForgetObjects(("orphan", "never heard of")))
    assert list(world.state.dropped) == []
    world.do(ForgetObjects(("orphan",)))
    assert world.last_events() == ["ObjectsForgotten"]


def test_vacuumed_upload_cannot_be_registered(world: World) -> None:
    """OBJ-06: the chain orders the two, and the second is refused; a duplicate is still answered."""
    client = world.client()
    batch, late = client.numbered(), client.numbered(sequence=1)
    world.do(client.append(batch))
    world.compact()
    world.do(DropObjects((late.segment.key,)))
    error = world.refuse(UploadExpiredError, client.append(late))
    assert "was vacuumed" in str(error)
    assert world.do(client.append(batch))[0].duplicate


# The way through a checkpoint -----------------------------------------------------------------------------------------


def test_state_is_restored_from_checkpoint(world: World, log: tuple[Batch, ...]) -> None:
    """Invariant 10: what is read back equals the fold, in every field that this world has filled."""
    client = world.client("with offsets")
    client.send(2, TopicPartition("t", 1))
    client.send_offsets({T0: 3})
    world.commit_offset(1)
    ended = world.client("ended")
    world.do(ended.end(Outcome.COMMIT, ended.numbered(2), versions=(("scope", 3),)))
    world.compact()
    world.create("deleted")
    world.plain(1, TopicPartition("deleted", 0))
    world.do(DeleteTopic("deleted"))
    objects = MemoryStore()
    checkpoints.write(objects, world.state)
    assert checkpoints.read(objects, world.state.sequence) == world.state
