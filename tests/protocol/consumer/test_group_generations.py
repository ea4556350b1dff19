"""OFF-06, OFF-07, OFF-08, CON-17: generations of a group, and commits that they fence."""

from __future__ import annotations

import pytest

from tests.helpers.core import T0, T1, World
from tests.helpers.groups import SESSION, group, join, settle
from txnstore.core.groups.commands import (
    CommitOffsets,
    TxnOffsets,
)
from txnstore.core.groups.events import GroupOffset
from txnstore.core.log.commands import Append
from txnstore.core.model import TopicPartition
from txnstore.errors import (
    FencedInstanceError,
    IllegalGenerationError,
    TxnStoreError,
    UnknownMemberError,
)


@pytest.fixture
def world() -> World:
    return World(partitions=4)


def test_off_06_membership_change_fences_members_with_old_generation(world: World) -> None:
    first = join(world, "a")
    first.commit({T0: 1})
    join(world, "b")
    stale = first.offsets({T0: 2})
    world.refuse(IllegalGenerationError, CommitOffsets(stale))
    first.look()
    first.commit({T0: 2})
    assert world.offset() == 2


def test_off_06_a_rebalance_in_an_open_transaction(world: World) -> None:
    """The zombie's offsets are refused, its abort works, and nothing of its transaction is visible."""
    zombie, client = join(world, "a"), world.client("id")
    client.send()
    world.do(client.append(offsets=zombie.offsets({T0: 5})))
    world.now += SESSION + 10
    join(world, "b")
    world.refuse(UnknownMemberError, client.append(offsets=zombie.offsets({T0: 6})))
    client.abort()
    assert world.offset() is None


def test_fen_08_group_fences_two_transactional_ids_of_one_task(world: World) -> None:
    """Different transactional ids do not fence each other; the old generation does not get its offsets in."""
    old, old_client = join(world, "old"), world.client("worker-1")
    new = join(world, "new", instance_id=None)
    old_client.send()
    stale = old_client.append(offsets=old.offsets({T0: 3}))
    error = world.refuse(IllegalGenerationError, stale)
    assert error.abortable
    assert not error.fatal
    old_client.abort()
    settle(old, new)
    new_client = world.client("worker-2")
    new_client.send()
    world.do(new_client.append(offsets=new.offsets({TopicPartition("t", 3): 3})))
    new_client.commit()
    assert world.offset(TopicPartition("t", 3)) == 3


@pytest.mark.parametrize("transactional", [False, True])
def test_off_07_each_part_of_a_membership_is_checked(world: World, transactional: bool) -> None:
    """OFF-06, OFF-07: as in Kafka's tests IllegalGenerationId, UnknownMemberId and FencedInstanceId."""
    join(world, "a", instance_id="one")
    current = join(world, "a2", instance_id="one")
    assert current.membership.generation == 1, "a static member comes back without a rebalance"
    client = world.client("id")

    def refuse(error: type[TxnStoreError], generation: int, member_id: str, instance_id: str | None) -> None:
        item = GroupOffset(topic="t", partition=0, offset=1)
        wrong = TxnOffsets("g", (item,), generation, member_id, instance_id)
        assert world.refuse(error, client.append(offsets=wrong) if transactional else CommitOffsets(wrong)).abortable

    refuse(IllegalGenerationError, 0, "a2", "one")
    refuse(IllegalGenerationError, 2, "a2", None)
    refuse(UnknownMemberError, 1, "nobody", None)
    refuse(UnknownMemberError, 1, "", None)
    refuse(UnknownMemberError, 1, "a", None)
    refuse(UnknownMemberError, 1, "a2", "two")
    refuse(FencedInstanceError, 1, "a", "one")


def test_off_08_commit_without_membership(world: World) -> None:
    """A plain commit only in an empty group; one of a transaction always."""
    client = world.client("id")
    world.commit_offset(1)
    member = join(world, "a")
    world.refuse(UnknownMemberError, CommitOffsets(TxnOffsets("g", (GroupOffset(topic="t", partition=0, offset=2),))))
    client.send_offsets({T0: 3})
    client.commit()
    assert world.offset() == 3
    member.leave()
    world.commit_offset(4)
    assert world.offset() == 4


@pytest.mark.parametrize("transactional", [False, True])
def test_off_08_commit_without_generation_needs_no_membership_in_empty_group(world: World, transactional: bool) -> None:
    """As in Kafka, before the group is known, and after its last member; a generation is checked even then."""
    client = world.client("id")

    def commit(offset: int, generation: int, member_id: str, instance_id: str | None = None) -> CommitOffsets | Append:
        item = GroupOffset(topic="t", partition=0, offset=offset)
        claim = TxnOffsets("g", (item,), generation, member_id, instance_id)
        return client.append(offsets=claim) if transactional else CommitOffsets(claim)

    world.do(commit(1, -1, "nobody"))
    member = join(world, "a")
    world.refuse(UnknownMemberError, commit(2, -1, "nobody"))
    world.refuse(UnknownMemberError, commit(2, -1, "", "one"))
    world.refuse(IllegalGenerationError, commit(2, -1, "a"))
    member.leave()
    world.refuse(UnknownMemberError, commit(2, group(world).generation, "a"))
    world.do(commit(3, -1, "a"))
    world.do(commit(4, -1, "", "one"))
    if transactional:
        client.commit()
    assert world.offset() == 4


def test_off_08_expired_member_is_not_a_member(world: World) -> None:
    join(world, "a")
    client = world.client("id")
    stranger = TxnOffsets("g", (GroupOffset(topic="t", partition=0, offset=2),), -1, "nobody")
    world.refuse(UnknownMemberError, client.append(offsets=stranger))
    world.now += SESSION + 10
    world.do(client.append(offsets=stranger))
    assert not group(world).members


def test_commit_outside_transaction_removes_expired_members(world: World) -> None:
    join(world, "a")
    world.now += SESSION + 10
    world.commit_offset(4)
    assert world.last_events() == ["MemberLeft", "GroupRebalanced", "OffsetsCommitted"]
    assert not group(world).members


def test_member_cannot_commit_partition_held_by_another(world: World) -> None:
    """Stricter than Kafka: the newest generation does not help with what was given back before."""
    first, second = join(world, "a"), join(world, "b")
    settle(first, second)
    world.refuse(IllegalGenerationError, CommitOffsets(first.offsets({T0: 1, TopicPartition("t", 3): 1})))
    first.commit({T0: 1, T1: 1})


def test_member_can_commit_partition_until_it_releases_it(world: World) -> None:
    """No other member may read it in between."""
    first, second = join(world, "a"), join(world, "b")
    last = TopicPartition("t", 3)
    first.look()
    first.commit({last: 7})
    world.refuse(IllegalGenerationError, CommitOffsets(second.offsets({last: 8})))
    assert world.offset(last) == 7


def test_con_17_the_generation_only_grows(world: World) -> None:
    """Over joins, changes of what is read, leaves, and times without a member."""
    generations = []
    first = join(world, "a")
    generations.append(group(world).generation)
    second = join(world, "b")
    generations.append(group(world).generation)
    world.create("u", 2)
    join(world, "b", 2, "u")
    generations.append(group(world).generation)
    for peer in (first, second):
        peer.leave()
        generations.append(group(world).generation)
    join(world, "c")
    generations.append(group(world).generation)
    assert generations == [1, 2, 3, 4, 5, 6]


def test_joining_again_unchanged_is_a_heartbeat(world: World) -> None:
    first, second = join(world, "a"), join(world, "b")
    settle(first, second)
    assert world.do(first.command) == first.membership
    assert group(world).generation == 2
