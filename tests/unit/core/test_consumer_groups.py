"""The rules of groups of the kind ``consumer``, whose members a gateway keeps (KIP-848): epochs, commits (OFF-07)."""

from __future__ import annotations

import pytest

from tests.helpers.core import T0, T1, World, offsets
from tests.helpers.groups import SESSION, Peer, client, generation, group, join
from txnstore.core.groups.commands import CommitOffsets, DeleteGroup, DeleteOffsets, Heartbeat, JoinGroup, LeaveGroup
from txnstore.core.groups.model import GROUPS
from txnstore.core.groups.offsets import OFFSETS_RETENTION_MS, expired_offsets, is_dead
from txnstore.errors import (
    GroupNotEmptyError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidConfigError,
    UnknownMemberError,
)


@pytest.fixture
def world() -> World:
    world = World(partitions=2)
    world.blind = True  # No lease ends: a gateway names the expired members.
    return world


def keep(world: World, member_id: str, instance_id: str | None = None) -> Peer:
    """A client of a gateway that has joined."""
    return join(world, member_id, partitions=2, kind="consumer", instance_id=instance_id)


def epochs(world: World) -> dict[str, int]:
    stored = group(world).epochs
    assert stored is not None
    return dict(stored.items())


def test_a_member_gets_its_first_epoch_when_it_joins(world: World) -> None:
    first = keep(world, "a")
    assert (group(world).kind, epochs(world), world.state.requires) == ("consumer", {"a": 1}, GROUPS)
    assert (first.membership.generation, first.numbers) == (1, [0, 1])


def test_a_heartbeat_that_changes_nothing_writes_nothing(world: World) -> None:
    keep(world, "a")
    entries = len(world.entries)
    world.now += 10 * SESSION
    assert world.do(Heartbeat("g", "a", (T0, T1))).generation == 1
    assert len(world.entries) == entries


def test_off_07_a_member_commits_in_its_epoch_until_it_has_reconciled(world: World) -> None:
    """It reads on in the old epoch until it has released what it loses; then commits of that epoch are refused."""
    first = keep(world, "a")
    second = keep(world, "b")
    assert (epochs(world), second.numbers) == ({"a": 1, "b": 2}, [])
    first.commit({T0: 1, T1: 1})
    answer = world.do(Heartbeat("g", "a", (T0, T1)))
    assert (answer.generation, answer.assigned) == (1, (T0,))
    entries = len(world.entries)
    assert world.do(Heartbeat("g", "a", (T0, T1))) == answer
    assert len(world.entries) == entries
    answer = world.do(Heartbeat("g", "a", (T0,)))
    assert (answer.generation, epochs(world)) == (2, {"a": 2, "b": 2})
    world.refuse(IllegalGenerationError, CommitOffsets(first.offsets({T0: 2}, 1)))
    world.do(CommitOffsets(first.offsets({T0: 2}, 2)))
    assert second.look().numbers == [1]
    world.refuse(IllegalGenerationError, CommitOffsets(first.offsets({T1: 2}, 2)))  # b holds it.
    world.refuse(IllegalGenerationError, CommitOffsets(first.offsets({T0: 2}, 3)))


def test_a_rebalance_that_takes_nothing_from_a_member_does_not_fence_it_at_once(world: World) -> None:
    """Its next heartbeat tells it the new epoch; until then it commits in the one that it knows."""
    first, second = keep(world, "a"), keep(world, "b")
    world.do(Heartbeat("g", "a", (T0,)))
    world.do(LeaveGroup("g", "b"))
    assert epochs(world) == {"a": 2}
    world.do(CommitOffsets(first.offsets({T0: 2}, 2)))
    assert world.do(Heartbeat("g", "a", (T0,))).generation == 3
    world.refuse(IllegalGenerationError, CommitOffsets(first.offsets({T0: 2}, 2)))
    world.refuse(UnknownMemberError, CommitOffsets(second.offsets({T1: 2}, 2)))


def test_off_07_transactions_are_fenced_by_the_epoch(world: World) -> None:
    first = keep(world, "a")
    producer = world.client("tx")
    world.do(producer.append(offsets=first.offsets({T0: 1}, 1)))
    keep(world, "b")
    world.do(Heartbeat("g", "a", (T0,)))
    world.refuse(IllegalGenerationError, producer.append(offsets=first.offsets({T0: 2}, 1)))
    world.do(producer.append(offsets=first.offsets({T0: 2}, 2)))
    world.do(producer.append(offsets=offsets({T0: 3})))  # OFF-08: without a membership.


def test_a_gateway_names_the_expired_members(world: World) -> None:
    """No time in the chain ends a member; and none that has joined again since is removed."""
    first, second = keep(world, "a"), keep(world, "b")
    seen = group(world).members["a"].seen_at
    world.now += 2 * OFFSETS_RETENTION_MS
    assert not is_dead(group(world), world.now)
    first.commit({T0: 1})
    assert expired_offsets(group(world), world.now + 2 * OFFSETS_RETENTION_MS) == []
    world.refuse(GroupNotEmptyError, DeleteGroup("g"))
    world.do(Heartbeat("g", "b", (), expired=(("a", seen),)))
    assert "a" in epochs(world)
    ended = (("a", group(world).members["a"].seen_at),)
    answer = world.do(Heartbeat("g", "b", (), expired=ended))
    assert (answer.assigned, epochs(world)) == ((T0, T1), {"b": answer.generation})
    second.leave()
    assert (group(world).kind, epochs(world)) == ("consumer", {})
    world.do(DeleteGroup("g"))


def test_expired_members_leave_without_a_command_of_another(world: World) -> None:
    keep(world, "a")
    second = keep(world, "b")
    seen = {member_id: member.seen_at for member_id, member in group(world).members.items()}
    keep(world, "b")
    entries = len(world.entries)
    world.do(LeaveGroup("g", expired=(("b", seen["b"]),)))  # It has joined again since.
    assert len(world.entries) == entries
    world.do(LeaveGroup("g", expired=(("a", seen["a"]), ("b", seen["b"]))))
    assert list(epochs(world)) == ["b"]
    assert second.look().numbers == [0, 1]
    assert group(world).generation == 3


def test_a_member_may_read_no_topic_yet(world: World) -> None:
    """Its regular expression matches none."""
    world.do(JoinGroup("g", "a", (), kind="consumer"))
    assert keep(world, "b").numbers == [0, 1]
    assert world.do(JoinGroup("g", "a", (("t", 2),), kind="consumer")).assigned == ()
    world.do(Heartbeat("g", "b", (T0,)))
    assert world.do(Heartbeat("g", "a", ())).assigned == (T1,)
    world.refuse(InvalidConfigError, JoinGroup("n", "a", ()))


def test_a_static_member_takes_over_the_epoch_and_the_partitions(world: World) -> None:
    keep(world, "a-1", "a")
    keep(world, "b")
    assert epochs(world) == {"a-1": 1, "b": 2}
    again = keep(world, "a-2", "a")
    assert (epochs(world), again.numbers) == ({"a-2": 1, "b": 2}, [0])
    assert world.do(Heartbeat("g", "a-2", (T0,), instance_id="a")).generation == 2


def test_a_group_has_members_of_one_kind(world: World) -> None:
    keep(world, "a")
    world.refuse(InconsistentGroupProtocolError, JoinGroup("g", "n", (("t", 2),)))
    world.refuse(InconsistentGroupProtocolError, generation(2, client("c")))
    assert world.do(DeleteOffsets("g", (T0,))) == (T0,)
    world.do(LeaveGroup("g", "a"))
    join(world, "n")
    assert group(world).kind == "native"
    world.refuse(InconsistentGroupProtocolError, JoinGroup("g", "a", (("t", 2),), kind="consumer"))
    world.do(LeaveGroup("g", "n"))
    number = group(world).generation
    world.do(generation(number + 1, client("c")))
    world.refuse(InconsistentGroupProtocolError, JoinGroup("g", "a", (("t", 2),), kind="consumer"))
    world.do(generation(number + 2))
    keep(world, "a")
    assert (group(world).kind, epochs(world)) == ("consumer", {"a": number + 3})
