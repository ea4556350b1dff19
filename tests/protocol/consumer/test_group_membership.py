"""OFF-06, OFF-07, CON-17: the members of a group: leases, generations, hand-over, static members (KIP-447, KIP-848)."""

from __future__ import annotations

from itertools import chain

import pytest

from tests.helpers.core import T0, World
from tests.helpers.groups import SESSION, group, join, settle
from txnstore.core.catalog.model import DeleteTopic
from txnstore.core.groups.commands import (
    CommitOffsets,
    DeleteGroup,
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    ResetOffsets,
    TxnOffsets,
)
from txnstore.core.groups.events import GroupOffset
from txnstore.core.model import Outcome
from txnstore.errors import (
    FencedInstanceError,
    GroupNotEmptyError,
    GroupNotFoundError,
    InvalidConfigError,
    InvalidTopicError,
    TxnStoreError,
    UnknownMemberError,
    UnknownTopicOrPartitionError,
)


@pytest.fixture
def world() -> World:
    return World(partitions=4)


# Sharing --------------------------------------------------------------------------------------------------------------


def test_first_member_gets_all_partitions_immediately(world: World) -> None:
    first = join(world, "a")
    assert (first.numbers, first.membership.generation) == ([0, 1, 2, 3], 1)
    assert world.last_events() == ["MemberJoined", "GroupRebalanced"]


def test_partition_moves_after_owner_releases_it(world: World) -> None:
    """No barrier: the old member reads on what stays with it, and the new one waits for what it gets."""
    first, second = join(world, "a"), join(world, "b")
    assert second.membership.generation == 2
    assert second.numbers == []
    assert first.look().numbers == [0, 1]
    assert second.beat().numbers == [], "it has not been given back yet"
    first.beat()
    assert world.last_events() == ["MemberSeen", "GroupRebalanced"]
    assert second.look().numbers == [2, 3], "learned from the entry of the other"
    assert group(world).generation == 2, "a hand-over changes no membership"


def test_owner_that_still_reads_releases_nothing(world: World) -> None:
    """A heartbeat that names a partition keeps it, however long that takes."""
    first, second = join(world, "a"), join(world, "b")
    for _ in range(3):
        world.do(first.heartbeat())
    assert second.look().numbers == []


def test_member_keeps_partition_that_it_does_not_know_yet(world: World) -> None:
    """Its heartbeat may have been on its way when the partition was given to it."""
    first, second = join(world, "a"), join(world, "b")
    stale = second.heartbeat()
    first.beat()
    second.membership = world.do(stale)
    assert second.numbers == [2, 3]


def test_leaving_member_releases_partitions_immediately(world: World) -> None:
    first, second = join(world, "a"), join(world, "b")
    assert settle(first, second) == [[0, 1], [2, 3]]
    first.leave()
    assert second.look().numbers == [0, 1, 2, 3]
    assert second.membership.generation == 3


def test_leaving_twice_has_no_effect(world: World) -> None:
    first = join(world, "a")
    first.leave()
    entries = len(world.entries)
    first.leave()
    assert len(world.entries) == entries
    assert not group(world).members


def test_expired_member_is_replaced(world: World) -> None:
    """By the time of the chain, when another member speaks."""
    first, second = join(world, "a"), join(world, "b")
    settle(first, second)
    world.now += SESSION - 10
    assert second.beat().numbers == [2, 3], "its lease has not run out"
    world.now += 20
    assert second.beat().numbers == [0, 1, 2, 3]
    assert world.last_events() == ["MemberSeen", "MemberLeft", "GroupRebalanced"]
    assert world.refuse(UnknownMemberError, first.heartbeat()).abortable
    world.refuse(UnknownMemberError, CommitOffsets(first.offsets({T0: 1})))


def test_joining_member_removes_expired_members(world: World) -> None:
    join(world, "a")
    world.now += SESSION + 10
    second = join(world, "b")
    assert second.numbers == [0, 1, 2, 3]
    assert world.last_events() == ["MemberLeft", "MemberJoined", "GroupRebalanced"]


def test_expired_lease_can_be_renewed_until_removal(world: World) -> None:
    """A member that was alone and slow has lost nothing."""
    first = join(world, "a")
    world.now += 10 * SESSION
    first.commit({T0: 1})
    assert first.beat().numbers == [0, 1, 2, 3]
    assert first.membership.generation == 1


def test_an_offset_commit_renews_the_lease(world: World) -> None:
    """As in Kafka: in a transaction or not, it is a sign of life."""
    first, second = join(world, "a"), join(world, "b")
    settle(first, second)
    client = world.client("id")
    for step in range(4):
        world.now += SESSION // 2
        second.beat()
        if step % 2:
            first.commit({T0: step})
        else:
            world.do(client.append(offsets=first.offsets({T0: step})))
    assert set(group(world).members) == {"a", "b"}


# What is read ---------------------------------------------------------------------------------------------------------


def test_new_partitions_are_shared_when_a_member_has_seen_them(world: World) -> None:
    first, second = join(world, "a"), join(world, "b")
    settle(first, second)
    first.beat((("t", 6),))
    assert group(world).generation == 3
    assert sorted(chain(*settle(first, second))) == [0, 1, 2, 3, 4, 5]


def test_deleted_partitions_are_dropped_after_all_members_have_seen_it(world: World) -> None:
    first, second = join(world, "a"), join(world, "b")
    settle(first, second)
    first.beat((("t", 2),))
    assert len(list(chain(*settle(first, second)))) == 4
    second.beat((("t", 2),))
    assert sorted(chain(*settle(first, second))) == [0, 1]


def test_members_read_different_topics(world: World) -> None:
    world.create("u", 2)
    first = join(world, "a")
    second = join(world, "b", 2, "u")
    assert settle(first, second) == [[0, 1, 2, 3], [0, 1]]
    world.refuse(InvalidConfigError, second.heartbeat((("t", 4),)))


def test_member_with_new_topics_releases_other_partitions(world: World) -> None:
    world.create("u", 2)
    first = join(world, "a")
    second = join(world, "b")
    settle(first, second)
    second.command = JoinGroup("g", "b", (("u", 2),), session_timeout_ms=SESSION)
    second.membership = world.do(second.command)
    assert settle(first, second) == [[0, 1, 2, 3], [0, 1]]


def test_assignor_is_chosen_by_majority(world: World) -> None:
    """KIP-848: so a group changes its assignor one member at a time; a draw goes to the first by name."""
    first = join(world, "a", assignor="range")
    second = join(world, "b", assignor="cooperative-sticky")
    third = join(world, "c", assignor="range")
    assert settle(first, second, third) == [[0, 1], [2], [3]]


# Static members -------------------------------------------------------------------------------------------------------


def test_static_member_gets_its_partitions_back(world: World) -> None:
    """KIP-345: within its session timeout, without a rebalance; the old process is fenced."""
    old, other = join(world, "a", instance_id="one"), join(world, "b")
    settle(old, other)
    new = join(world, "a2", instance_id="one")
    assert (new.numbers, new.membership.generation) == ([0, 1], 2)
    assert world.last_events() == ["MemberJoined"]
    assert world.refuse(FencedInstanceError, old.heartbeat()).abortable
    world.refuse(FencedInstanceError, CommitOffsets(old.offsets({T0: 1})))
    world.refuse(FencedInstanceError, LeaveGroup("g", "a", "one"))
    new.commit({T0: 1})


def test_static_member_returns_after_expiry_before_removal(world: World) -> None:
    old = join(world, "a", instance_id="one")
    world.now += SESSION + 10
    new = join(world, "a2", instance_id="one")
    assert (new.numbers, new.membership.generation) == (old.numbers, 1)


def test_expired_static_member_is_replaced(world: World) -> None:
    join(world, "a", instance_id="one")
    other = join(world, "b")
    world.now += SESSION + 10
    assert other.beat().numbers == [0, 1, 2, 3]
    back = join(world, "a2", instance_id="one")
    assert group(world).generation == 4
    assert settle(back, other) == [[2, 3], [0, 1]]


def test_a_static_member_is_removed_by_its_name(world: World) -> None:
    """Kafka: ``removeMembersFromConsumerGroup``."""
    join(world, "a", instance_id="one")
    world.do(LeaveGroup("g", instance_id="two"))
    assert set(group(world).members) == {"a"}
    world.do(LeaveGroup("g", instance_id="one"))
    assert not group(world).members


def test_a_static_member_keeps_its_name(world: World) -> None:
    first = join(world, "a", instance_id="one")
    world.refuse(InvalidConfigError, JoinGroup("g", "a", (("t", 4),), instance_id="two"))
    assert first.beat().numbers == [0, 1, 2, 3]


# Resetting and deleting -----------------------------------------------------------------------------------------------


def test_offsets_can_be_reset_only_without_members(world: World) -> None:
    member = join(world, "a")
    member.commit({T0: 3})
    reset = ResetOffsets(TxnOffsets("g", (GroupOffset(topic="t", partition=0, offset=1),)))
    world.refuse(GroupNotEmptyError, reset)
    world.now += SESSION + 10
    world.do(reset)
    assert world.offset() == 1
    world.do(ResetOffsets(TxnOffsets("g", ())))


def test_reset_wins_over_open_transaction(world: World) -> None:
    """OFF-11: it comes later in the log."""
    client = world.client("id")
    client.send_offsets({T0: 9})
    world.do(ResetOffsets(TxnOffsets("g", (GroupOffset(topic="t", partition=0, offset=1),))))
    client.commit()
    assert world.offset() == 1


def test_off_17_open_transaction_does_not_restore_deleted_group(world: World) -> None:
    """Pending offsets go with it; the commit of their transaction brings none back."""
    client = world.client("id")
    world.commit_offset(10)
    client.send_offsets({T0: 20})
    world.do(DeleteGroup("g"))
    client.commit()
    assert world.offset(require_stable=True) is None


def test_a_group_with_live_members_is_not_deleted(world: World) -> None:
    world.refuse(GroupNotFoundError, DeleteGroup("g"))
    member = join(world, "a")
    world.refuse(GroupNotEmptyError, DeleteGroup("g"))
    member.leave()
    world.do(DeleteGroup("g"))
    assert "g" not in world.state.groups
    world.refuse(UnknownMemberError, member.heartbeat())


def test_off_18_offset_of_recreated_topic_is_refused(world: World) -> None:
    """It was read from another topic: its id tells."""
    old = world.state.topics["t"].topic_id
    late = GroupOffset(topic="t", partition=0, offset=5, topic_id=old)
    client = world.client("id")
    world.do(CommitOffsets(TxnOffsets("g", (late,))))
    world.do(client.append(offsets=TxnOffsets("g", (late,))))
    world.do(DeleteTopic("t"))
    world.create("t", 4)
    world.refuse(UnknownTopicOrPartitionError, CommitOffsets(TxnOffsets("g", (late,))))
    world.refuse(UnknownTopicOrPartitionError, client.append(offsets=TxnOffsets("g", (late,))))
    world.do(client.end(Outcome.COMMIT))
    assert world.offset(require_stable=True) is None


# Bad input ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "command"),
    [
        (InvalidConfigError, JoinGroup("", "a", (("t", 1),))),
        (InvalidConfigError, JoinGroup("g", "", (("t", 1),))),
        (InvalidConfigError, JoinGroup("g", "a", ())),
        (InvalidConfigError, JoinGroup("g", "a", (("t", -1),))),
        (InvalidConfigError, JoinGroup("g", "a", (("t", 1),), assignor="round")),
        (InvalidConfigError, JoinGroup("g", "a", (("t", 1),), session_timeout_ms=0)),
        (InvalidConfigError, JoinGroup("g", "a", (("t", 1),), session_timeout_ms=1_800_001)),
        (InvalidConfigError, JoinGroup("g", "a", (("t", 1),), instance_id="")),
        (InvalidTopicError, JoinGroup("g", "a", (("t/", 1),))),
        (UnknownMemberError, Heartbeat("g", "a", ())),
        (UnknownMemberError, Heartbeat("unknown", "a", ())),
    ],
)
def test_invalid_membership_commands_are_refused(
    world: World, error: type[TxnStoreError], command: JoinGroup | Heartbeat
) -> None:
    world.refuse(error, command)
