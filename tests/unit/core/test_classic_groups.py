"""The rules of groups whose members a gateway keeps: generations, commits, deletions, expiry (OFF-06, 08, 16, 17)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.helpers.core import T0, T1, World, offsets
from tests.helpers.groups import SESSION, client, consumer_data, generation, group, join
from txnstore.core.groups.classic import MAX_GENERATION, MAX_GENERATION_BYTES
from txnstore.core.groups.commands import (
    CommitOffsets,
    DeleteGroup,
    DeleteOffsets,
    Heartbeat,
    JoinGroup,
    ResetOffsets,
    StoreGeneration,
    TxnOffsets,
)
from txnstore.core.groups.consumer_protocol import assigned_partitions, subscribed_topics
from txnstore.core.groups.model import GROUPS
from txnstore.core.groups.offsets import OFFSETS_RETENTION_MS, expired_offsets, is_dead
from txnstore.core.model import TopicPartition
from txnstore.core.transactions.commands import EndTxn
from txnstore.errors import (
    FencedInstanceError,
    GroupNotEmptyError,
    GroupNotFoundError,
    IllegalGenerationError,
    InconsistentGroupProtocolError,
    InvalidConfigError,
    UnknownMemberError,
)

A, B = client("a", assignment=b"0"), client("b", assignment=b"1")
STATIC = client("s-1", instance_id="s", assignment=b"2")


@pytest.fixture
def world() -> World:
    return World(partitions=2)


def commit(number: int, member_id: str = "", instance_id: str | None = None, at: int = 5) -> TxnOffsets:
    """An offset of the first partition, with this membership."""
    return replace(offsets({T0: at}, "g", number), member_id=member_id, instance_id=instance_id)


# Generations ----------------------------------------------------------------------------------------------------------


def test_a_generation_is_one_event_and_needs_writers_that_know_it(world: World) -> None:
    assert world.state.requires.write == ()
    world.do(generation(1, B, A, expected=-1))
    assert world.last_events() == ["GenerationStored"]
    assert world.state.requires == GROUPS
    stored = group(world)
    assert (stored.kind, stored.generation, len(stored.members)) == ("classic", 1, 0)
    assert stored.classic is not None
    assert (stored.classic.protocol_type, stored.classic.protocol, stored.classic.leader) == ("consumer", "range", "b")
    assert stored.classic.members == (A, B)
    assert stored.classic.stored_at == world.now


def test_of_two_gateways_one_loses(world: World) -> None:
    world.do(generation(1, A, expected=-1))
    world.do(generation(2, A, B))
    for late in (generation(2, B), generation(3, B, expected=1), generation(1, A, expected=-1), generation(4, A)):
        world.refuse(IllegalGenerationError, late)
    assert group(world).generation == 2


def test_the_same_generation_again_succeeds_and_writes_nothing(world: World) -> None:
    """The answer to the first attempt was lost."""
    command = generation(1, A, B, expected=-1)
    world.do(command)
    entries = len(world.entries)
    world.now += 10
    assert world.do(command) is None
    assert world.do(replace(command, members=(B, A))) is None
    assert len(world.entries) == entries
    world.do(generation(2))
    entries = len(world.entries)
    world.do(replace(generation(2), protocol="range", leader="a"))
    assert len(world.entries) == entries
    world.refuse(IllegalGenerationError, command)


def test_generations_may_leave_numbers_out(world: World) -> None:
    """A gateway counts rebalances that end without an assignment, too."""
    world.do(generation(3, A, expected=-1))
    world.do(generation(7, B, expected=3))
    assert group(world).generation == 7


def test_an_emptied_group_has_neither_leader_nor_protocol(world: World) -> None:
    world.do(generation(1, A, expected=-1))
    world.do(generation(2, leader="a"))
    stored = group(world)
    assert (stored.kind, stored.emptied_at) == ("classic", world.now)
    assert stored.classic is not None
    assert (stored.classic.protocol_type, stored.classic.protocol, stored.classic.leader) == ("consumer", None, None)
    emptied_at = stored.emptied_at
    world.do(generation(3))
    assert group(world).emptied_at == emptied_at


@pytest.mark.parametrize(
    "wrong",
    [
        generation(0, A, expected=-1),
        generation(1, A, expected=2),
        generation(MAX_GENERATION + 1, A, expected=-1),
        generation(1, A, expected=-1, leader="z"),
        generation(1, A, expected=-1, leader=None),
        generation(1, A, expected=-1, protocol=None),
        generation(1, A, expected=-1, protocol_type=""),
        generation(1, A, A, expected=-1),
        generation(1, STATIC, replace(STATIC, member_id="s-2"), expected=-1),
        generation(1, client(""), expected=-1),
        generation(1, client("a", instance_id=""), expected=-1),
        generation(1, client("a", subscription=bytes(MAX_GENERATION_BYTES + 1)), expected=-1),
        StoreGeneration("", -1, 1, "consumer", "range", "a", (A,)),
    ],
)
def test_what_is_no_generation_is_refused(world: World, wrong: StoreGeneration) -> None:
    world.refuse(InvalidConfigError, wrong)


def test_the_largest_generation_is_stored(world: World) -> None:
    world.do(generation(1, client("a", subscription=bytes(MAX_GENERATION_BYTES)), expected=-1))
    world.do(generation(MAX_GENERATION, A, expected=1))


# Static members (KIP-345) ---------------------------------------------------------------------------------------------


def replaced(new_id: str, old_id: str, *others: Any, number: int = 1, **options: Any) -> StoreGeneration:
    new = replace(STATIC, member_id=new_id)
    return generation(number, new, *others, expected=number, replaces=(old_id,), **options)


def test_a_static_member_is_replaced_within_its_generation(world: World) -> None:
    world.do(generation(1, STATIC, A, expected=-1))
    world.do(replaced("s-2", "s-1", A))
    assert (group(world).generation, [member.member_id for member in group(world).classic_members]) == (1, ["a", "s-2"])
    world.refuse(FencedInstanceError, CommitOffsets(commit(1, "s-1", "s")))
    world.do(CommitOffsets(commit(1, "s-2", "s")))


def test_a_late_replacement_does_not_fence_a_newer_instance(world: World) -> None:
    """Two gateways replace the same static member: the second one has not seen what the first one stored."""
    world.do(generation(1, STATIC, A, expected=-1))
    world.do(replaced("s-2", "s-1", A))
    world.refuse(IllegalGenerationError, replaced("s-3", "s-1", A))
    world.do(replaced("s-2", "s-1", A))  # Its answer was lost.
    world.do(replaced("s-4", "s-2", A))
    world.refuse(IllegalGenerationError, replaced("s-2", "s-1", A))


def test_within_a_generation_nothing_else_changes(world: World) -> None:
    world.do(generation(1, STATIC, A, expected=-1))
    for other in (
        generation(1, STATIC, expected=1),
        generation(1, STATIC, A, B, expected=1),
        generation(1, replace(STATIC, assignment=b"?"), A, expected=1),
        generation(1, STATIC, replace(A, member_id="c"), expected=1, replaces=("a",)),
        generation(1, expected=1, replaces=("a", "s-1")),
        replaced("s-2", "s-1", B),
        replaced("s-2", "s-1", replace(A, assignment=b"?")),
        replaced("s-2", "s-1", A, protocol="sticky"),
        replaced("s-2", "s-1", A, protocol_type="connect"),
        generation(1, replace(STATIC, member_id="s-2"), A, expected=1),
    ):
        world.refuse(IllegalGenerationError, other)


def test_a_native_group_has_no_generation_to_replace_in(world: World) -> None:
    join(world, "n").leave()
    number = group(world).generation
    world.refuse(IllegalGenerationError, replaced("s-2", "s-1", number=number))


# Kinds ----------------------------------------------------------------------------------------------------------------


def test_a_group_has_members_of_one_kind(world: World) -> None:
    world.do(generation(1, A, expected=-1))
    error = world.refuse(InconsistentGroupProtocolError, JoinGroup("g", "n", (("t", 2),)))
    assert error.kafka_code == 23
    world.refuse(UnknownMemberError, Heartbeat("g", "a", None))
    world.do(generation(2))
    native = join(world, "n")
    assert (group(world).kind, native.membership.generation) == ("native", 3)
    world.refuse(InconsistentGroupProtocolError, generation(4, A))
    native.leave()
    number = group(world).generation
    world.refuse(IllegalGenerationError, generation(4, A))
    world.do(generation(number + 1, A))
    assert group(world).kind == "classic"


def test_native_members_whose_leases_are_over_make_room(world: World) -> None:
    join(world, "n")
    world.now += SESSION + 2
    world.do(generation(2, A))
    assert world.last_events() == ["MemberLeft", "GenerationStored"]
    assert (len(group(world).members), group(world).generation) == (0, 2)


def test_one_native_member_that_is_alive_keeps_its_group(world: World) -> None:
    join(world, "old")
    world.now += SESSION // 2
    join(world, "new")
    world.now += SESSION // 2 + 2
    world.refuse(InconsistentGroupProtocolError, generation(3, A))


# Commits (OFF-06, OFF-08; ClassicGroup.validateOffsetCommit) ----------------------------------------------------------


COMMITS: list[tuple[TxnOffsets, type[Exception] | None, type[Exception] | None]] = [
    # membership, refused alone, refused in a transaction
    (commit(2, "a"), None, None),
    (commit(2, "s-1", "s"), None, None),
    (commit(2, "s-1"), None, None),
    (commit(1, "a"), IllegalGenerationError, IllegalGenerationError),
    (commit(3, "a"), IllegalGenerationError, IllegalGenerationError),
    (commit(-1, "a"), IllegalGenerationError, IllegalGenerationError),
    (commit(2, "z"), UnknownMemberError, UnknownMemberError),
    (commit(2), UnknownMemberError, UnknownMemberError),
    (commit(2, "s-0", "s"), FencedInstanceError, FencedInstanceError),
    (commit(2, "a", "s"), FencedInstanceError, FencedInstanceError),
    (commit(2, "a", "unknown"), UnknownMemberError, UnknownMemberError),
    (commit(-1, "", "s"), FencedInstanceError, FencedInstanceError),
    (commit(-1), UnknownMemberError, None),
]


@pytest.mark.parametrize(("item", "alone", "within"), COMMITS)
def test_commits_are_checked_as_kafka_does(
    world: World, item: TxnOffsets, alone: type[Any] | None, within: type[Any] | None
) -> None:
    world.do(generation(2, A, STATIC, expected=-1))
    producer = world.client("tx")
    for command, refused in ((CommitOffsets(item), alone), (producer.append(offsets=item), within)):
        if refused is None:
            world.do(command)
        else:
            world.refuse(refused, command)


def test_any_member_commits_any_partition(world: World) -> None:
    """The chain does not know who reads what: it is for the clients to decide (KIP-447 fences by generation)."""
    world.do(generation(1, A, B, expected=-1))
    for member_id in ("a", "b"):
        world.do(CommitOffsets(commit(1, member_id)))


def test_an_empty_group_takes_commits_without_a_generation(world: World) -> None:
    world.do(generation(1, A, expected=-1))
    world.do(generation(2))
    world.do(CommitOffsets(commit(-1)))
    world.refuse(UnknownMemberError, CommitOffsets(commit(1, "a")))
    world.refuse(UnknownMemberError, CommitOffsets(commit(2, "a")))


def test_a_rebalance_fences_offsets_at_the_end_of_a_transaction(world: World) -> None:
    """OFF-06: the commit brings the offsets of a generation that another gateway has replaced meanwhile."""
    world.do(generation(1, A, expected=-1))
    producer = world.client("tx")
    producer.send()
    command = producer.end(outcome="COMMIT")  # type: ignore[arg-type]
    assert isinstance(command, EndTxn)
    world.do(generation(2, A, B))
    world.refuse(IllegalGenerationError, replace(command, offsets=(commit(1, "a"),)))
    world.do(replace(command, offsets=(commit(2, "a"),)))
    assert world.offset() == 5


# Time -----------------------------------------------------------------------------------------------------------------


def test_no_time_ends_the_members_of_a_gateway(world: World) -> None:
    world.do(generation(1, A, expected=-1))
    later = world.now + 2 * OFFSETS_RETENTION_MS
    assert not is_dead(group(world), later)
    world.do(CommitOffsets(commit(1, "a")))
    assert expired_offsets(group(world), later) == []
    world.now = later
    world.refuse(GroupNotEmptyError, DeleteGroup("g"))
    error = world.refuse(GroupNotEmptyError, ResetOffsets(offsets({T0: 0})))
    assert "1 members that a gateway keeps" in str(error)
    world.refuse(UnknownMemberError, CommitOffsets(commit(-1)))


def test_offsets_expire_a_week_after_the_group_became_empty(world: World) -> None:
    """OFF-16."""
    world.do(generation(1, A, expected=-1))
    world.do(CommitOffsets(commit(1, "a")))
    world.now += OFFSETS_RETENTION_MS
    world.do(generation(2))
    assert expired_offsets(group(world), world.now + OFFSETS_RETENTION_MS - 1) == []
    assert expired_offsets(group(world), world.now + OFFSETS_RETENTION_MS) == [T0]


def test_an_administrator_empties_a_group_whose_gateways_have_ended(world: World) -> None:
    world.do(generation(4, A, expected=-1))
    world.do(generation(5))
    world.do(ResetOffsets(offsets({T0: 1})))
    world.refuse(IllegalGenerationError, generation(6, A, expected=4))
    world.do(DeleteGroup("g"))
    assert "g" not in world.state.groups
    world.do(generation(1, A, expected=-1))


# Deleting offsets (KIP-496) -------------------------------------------------------------------------------------------


def test_offsets_of_topics_that_are_read_stay(world: World) -> None:
    world.create("u")
    u0 = TopicPartition("u", 0)
    world.do(CommitOffsets(offsets({T0: 1, T1: 1, u0: 1})))
    world.do(generation(1, client("a", ("t",)), client("b", ("other",)), expected=-1))
    assert world.do(DeleteOffsets("g", (u0, T1, T0))) == (T0, T1)
    assert world.last_events() == ["OffsetsDeleted"]
    assert sorted(group(world).offsets) == [T0, T1]
    world.do(generation(2))
    assert world.do(DeleteOffsets("g", (T0,))) == ()
    assert sorted(group(world).offsets) == [T1]


def test_pending_offsets_are_deleted_too(world: World) -> None:
    """OFF-17: the commit of the transaction does not restore them."""
    producer = world.client("tx")
    producer.send_offsets({T0: 7, T1: 7})
    assert world.do(DeleteOffsets("g", (T0,))) == ()
    producer.commit()
    assert (world.offset(T0), world.offset(T1)) == (None, 7)


def test_what_is_not_there_is_deleted_without_an_entry(world: World) -> None:
    world.refuse(GroupNotFoundError, DeleteOffsets("g", (T0,)))
    world.commit_offset(1)
    entries = len(world.entries)
    assert world.do(DeleteOffsets("g", (T1, TopicPartition("none", 9)))) == ()
    assert len(world.entries) == entries
    assert world.state.requires.write == ()


def test_offsets_of_a_native_group(world: World) -> None:
    world.commit_offset(1)
    join(world, "n")
    assert world.do(DeleteOffsets("g", (T0,))) == (T0,)
    world.now += SESSION + 2
    assert world.do(DeleteOffsets("g", (T0,))) == ()
    assert world.offset() is None


@pytest.mark.parametrize("data", [b"", b"\0", consumer_data("t")[:8], b"\0\0\xff\xff\xff\xff"])
def test_offsets_of_members_that_are_not_understood_stay(world: World, data: bytes) -> None:
    """As in Kafka; only that its answer is GROUP_SUBSCRIBED_TOPIC where the protocol type is ``consumer``."""
    world.commit_offset(1)
    world.do(generation(1, client("a", subscription=data), expected=-1))
    world.refuse(GroupNotEmptyError, DeleteOffsets("g", (T0,)))
    world.do(generation(2, A, protocol_type="connect"))
    world.refuse(GroupNotEmptyError, DeleteOffsets("g", (T0,)))


# Kafka's consumer protocol --------------------------------------------------------------------------------------------


def test_subscriptions_and_assignments_of_all_versions_are_read() -> None:
    assert subscribed_topics("consumer", consumer_data("t", "ü")) == ("t", "ü")
    assert subscribed_topics("consumer", consumer_data()) == ()
    assert subscribed_topics("connect", consumer_data("t")) is None
    assert assigned_partitions("consumer", consumer_data("u", "t", partitions=(1, 0))) == (
        T0,
        T1,
        TopicPartition("u", 0),
        TopicPartition("u", 1),
    )
    assert assigned_partitions("connect", consumer_data("t", partitions=(0,))) == ()
    assert assigned_partitions("consumer", b"") == ()
    assert assigned_partitions("consumer", consumer_data("t", partitions=(0, 1))[:14]) == ()


def test_what_clients_send_is_read() -> None:
    """Bytes that the client ``aiokafka`` sends."""
    subscription = b"\x00\x01\x00\x00\x00\x02\x00\x01t\x00\x01u\x00\x00\x00\x04data"
    assert subscribed_topics("consumer", subscription) == ("t", "u")
    assignment = b"\0\1\0\0\0\1\0\1t\0\0\0\2\0\0\0\1\0\0\0\0\0\0\0\0"
    assert assigned_partitions("consumer", assignment) == (T0, T1)
