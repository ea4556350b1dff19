"""OFF: the offsets of consumer groups, in and out of transactions."""

from __future__ import annotations

import pytest

from tests.helpers.core import RC, T0, T1, World, offsets
from txnstore.core.catalog.model import DeleteTopic
from txnstore.core.groups.commands import CommitOffsets, TxnOffsets
from txnstore.core.groups.events import GroupMarkerWritten, GroupOffset
from txnstore.core.groups.model import OffsetAndMetadata
from txnstore.core.groups.offsets import MAX_METADATA_LENGTH, committed, group_offset
from txnstore.core.log.commands import Append
from txnstore.core.model import Outcome, ProducerIdentity, TopicPartition
from txnstore.errors import (
    IllegalGenerationError,
    InvalidConfigError,
    InvalidTxnStateError,
    OffsetMetadataTooLargeError,
    ProducerFencedError,
    TxnStoreError,
    UnknownMemberError,
    UnknownTopicOrPartitionError,
    UnstableOffsetCommitError,
)


@pytest.fixture
def world() -> World:
    return World(partitions=2)


def test_a_group_joins_a_transaction_once(world: World) -> None:
    """OFF-01: it is listed, so that it gets the marker; the second time nothing is added."""
    client = world.client("a")
    client.send_offsets({T0: 1})
    assert world.last_events() == ["OffsetsAdded", "OffsetsCommitted"]
    assert world.txn("a").groups == {"g"}
    client.send_offsets({T0: 2})
    assert world.last_events() == ["OffsetsCommitted"]
    client.commit()
    assert world.last_events() == ["TxnDecided", "GroupMarkerWritten", "TxnCompleted"]
    assert world.txn("a").groups == frozenset()
    assert world.offset() == 2


def test_pending_offsets_are_invisible(world: World) -> None:
    """OFF-02: the committed value is as before until the end."""
    client = world.client("a")
    world.commit_offset(10)
    client.send_offsets({T0: 20})
    assert world.offset() == 10
    assert world.pending() == {client.producer_id: {T0: 20}}


@pytest.mark.parametrize(("outcome", "position", "records"), [("COMMIT", 20, [0, 1, 2]), ("ABORT", 10, [])])
def test_offsets_and_records_end_together(world: World, outcome: str, position: int, records: list[int]) -> None:
    """OFF-03, OFF-04: one entry decides both; there is no state with one and not the other."""
    client = world.client("a")
    world.commit_offset(10)
    client.send(3)
    client.send_offsets({T0: 20})
    entries = len(world.entries)
    client.commit() if outcome == "COMMIT" else client.abort()
    assert len(world.entries) == entries + 1
    assert world.offset(require_stable=True) == position
    assert world.read(RC) == records


def test_late_offsets_of_an_ended_transaction_are_refused(world: World) -> None:
    """BUG-01, TST-17, OFF-05: pending are those of the second transaction only."""
    client = world.client("a")
    late = client.append(offsets=offsets({T0: 5}))
    client.send()
    client.commit()
    world.refuse(ProducerFencedError, late)
    client.send_offsets({T0: 6})
    world.refuse(ProducerFencedError, late)
    assert world.pending() == {client.producer_id: {T0: 6}}


def test_offsets_need_a_transaction(world: World) -> None:
    """A producer without a transactional id commits offsets with the group's own call."""
    command = Append(ProducerIdentity(), (), (offsets({T0: 1}),))
    world.refuse(InvalidTxnStateError, command)


@pytest.mark.parametrize(("group", "error"), [("known", UnknownMemberError), ("unknown", IllegalGenerationError)])
def test_offset_commit_checks_generation(world: World, group: str, error: type[TxnStoreError]) -> None:
    """OFF-06, OFF-08: without a generation it is accepted, also in a new group; an unknown member is refused."""
    client = world.client("a")
    world.commit_offset(1, group="known")
    wrong = client.append(offsets=offsets({T0: 5}, group, generation=3))
    world.refuse(error, wrong)
    world.refuse(error, CommitOffsets(offsets({T0: 5}, group, generation=0)))
    client.send_offsets({T0: 5}, group)
    client.commit()
    assert world.offset(group=group) == 5


def test_stable_fetch_refuses_partition_with_pending_offset(world: World) -> None:
    """TST-17, OFF-09 (D3: by partition): the other partition is answered; afterwards the outcome shows."""
    client = world.client("a")
    world.commit_offset(10)
    world.commit_offset(11, T1)
    client.send_offsets({T0: 20})
    with pytest.raises(UnstableOffsetCommitError, match="t-0"):
        committed(world.state, "g", T0)
    assert world.offset(T1, require_stable=True) == 11
    assert world.offset(T0) == 10
    client.abort()
    assert world.offset(require_stable=True) == 10
    client.send_offsets({T0: 30})
    client.commit()
    assert world.offset(require_stable=True) == 30


def test_an_unknown_group_has_no_offset(world: World) -> None:
    assert committed(world.state, "nobody", T0) is None
    world.commit_offset(1)
    assert committed(world.state, "g", T1) is None


def test_offset_with_later_position_wins(world: World) -> None:
    """TST-17, OFF-11: a plain commit after the transaction's write stays, though the transaction commits after it."""
    client = world.client("a")
    client.send_offsets({T0: 100})
    world.commit_offset(90)
    client.commit()
    assert world.offset() == 90


def test_offset_with_later_position_wins_over_pending_offset(world: World) -> None:
    """OFF-11: a transaction's write after the plain commit takes its place."""
    client = world.client("a")
    world.commit_offset(90)
    client.send_offsets({T0: 100})
    client.commit()
    assert world.offset() == 100


def test_in_one_transaction_the_last_offset_of_a_partition_wins(world: World) -> None:
    """OFF-12: partitions and groups are independent of each other."""
    client = world.client("a")
    client.send_offsets({T0: 10})
    client.send_offsets({T0: 20, T1: 5})
    client.send_offsets({T0: 7}, "g2")
    client.commit()
    assert [world.offset(T0), world.offset(T1), world.offset(T0, "g2")] == [20, 5, 7]
    assert world.offset(T1, "g2") is None


def test_pending_offsets_of_producers_are_separate(world: World) -> None:
    """TST-17, OFF-13: one commits, the other aborts; the partition is stable when both have ended."""
    one, two = world.client("a"), world.client("b")
    one.send_offsets({T0: 10})
    two.send_offsets({T0: 20})
    one.commit()
    assert world.offset() == 10
    with pytest.raises(UnstableOffsetCommitError):
        committed(world.state, "g", T0)
    two.abort()
    assert world.offset(require_stable=True) == 10


def test_a_marker_without_pending_offsets_changes_nothing(world: World) -> None:
    """OFF-14: also one that comes twice."""
    client = world.client("a")
    client.send_offsets({T0: 10})
    client.commit()
    before = world.state.groups
    for group in ("g", "unknown"):
        world.happen(GroupMarkerWritten(group=group, producer_id=client.producer_id, epoch=1, outcome=Outcome.COMMIT))
    assert world.state.groups == before


def test_metadata_and_leader_epoch_are_returned(world: World) -> None:
    """OFF-15: Kafka's vector (110, leader epoch 15, "some metadata")."""
    item = GroupOffset(topic="t", partition=0, offset=110, metadata="some metadata", leader_epoch=15)
    client = world.client("a")
    world.do(client.append(offsets=TxnOffsets("g", (item,))))
    client.commit()
    assert committed(world.state, "g", T0) == OffsetAndMetadata(110, "some metadata", 15)


def test_bad_offsets_are_refused_as_a_whole(world: World) -> None:
    """OFF-15: the metadata is measured in UTF-16 code units, as Java's ``String.length()``. Where Kafka answers by
    partition, nothing is committed at all.
    """
    good = GroupOffset(topic="t", partition=0, offset=1, metadata="é𝄞" + "é" * (MAX_METADATA_LENGTH - 3))
    bad = [
        (OffsetMetadataTooLargeError, GroupOffset(topic="t", partition=1, offset=1, metadata=good.metadata + "x")),
        (UnknownTopicOrPartitionError, GroupOffset(topic="t", partition=2, offset=1)),
        (UnknownTopicOrPartitionError, GroupOffset(topic="nope", partition=0, offset=1)),
        (InvalidConfigError, GroupOffset(topic="t", partition=1, offset=2**63)),
    ]
    client = world.client("a")
    for error, item in bad:
        world.refuse(error, CommitOffsets(TxnOffsets("g", (good, item))))
        world.refuse(error, client.append(client.numbered(), offsets=TxnOffsets("g", (good, item))))
    world.do(CommitOffsets(TxnOffsets("g", (good,))))
    assert world.offset() == 1


def test_a_negative_offset_is_none(world: World) -> None:
    """As Kafka's brokers take it, and its clients read it: kafkajs resets a group to its default so."""
    world.commit_offset(3)
    for number in (-1, -2, -(2**63)):
        world.do(CommitOffsets(TxnOffsets("g", (GroupOffset(topic="t", partition=0, offset=number),))))
        assert committed(world.state, "g", T0) is None
        assert world.state.groups["g"].offsets[T0].value.offset == number, "gateways answer what was committed"
        with pytest.raises(InvalidConfigError, match=f"offset {number} of t-0: it must be 0 to"):
            group_offset(T0, number)
    world.commit_offset(4)
    assert world.offset() == 4


def test_empty_offset_commit_emits_nothing(world: World) -> None:
    """API-20: an empty map begins no transaction and writes no entry."""
    client = world.client("a")
    entries = len(world.entries)
    world.do(client.append(offsets=TxnOffsets("g", ())))
    world.do(CommitOffsets(TxnOffsets("g", ())))
    assert len(world.entries) == entries


def test_topic_deletion_removes_its_offsets(world: World) -> None:
    """OFF-18: committed and pending; a topic of the same name gets none of them, also not by a commit under way."""
    client, other = world.client("a"), TopicPartition("u", 0)
    world.create("u")
    world.commit_offset(3)
    world.commit_offset(4, other)
    client.send_offsets({T0: 20, other: 21})
    world.do(DeleteTopic("t"))
    world.create("t", 2)
    client.commit()
    assert world.offset(T0, require_stable=True) is None
    assert world.offset(other) == 21


def test_group_records_last_committing_producer(world: World) -> None:
    """OFF-23: set by a commit, left alone by an abort."""
    one, two = world.client("a"), world.client("b")
    one.send_offsets({T0: 1})
    one.commit()
    first = (one.producer_id, 0)
    assert world.state.groups["g"].last_producer == first
    two.send_offsets({T0: 2})
    two.abort()
    assert world.state.groups["g"].last_producer == first
