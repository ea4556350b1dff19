"""The assignors: complete, even, sticky, the same in every process; and how a group behaves that uses them."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.core import World
from tests.helpers.groups import SESSION, Peer, group, join
from txnstore.core.groups import assignors
from txnstore.core.groups.assignors import ASSIGNORS, Assignment, range_assignor, sticky_assignor
from txnstore.core.groups.model import Member
from txnstore.core.model import TopicPartition

TOPICS = {"t": 5, "u": 3, "v": 1, "w": 0}


def _member(member_id: str, *topics: str, instance_id: str | None = None, partitions: int = 0) -> Member:
    counts = {name: partitions or TOPICS[name] for name in topics or ("t",)}
    return Member(member_id, counts, "range", SESSION, instance_id)


def _owners(assignment: Assignment) -> dict[TopicPartition, str]:
    return {tp: member_id for member_id, tps in assignment.items() for tp in tps}


def _names(assignment: Assignment) -> dict[str, str]:
    return {member_id: " ".join(map(str, tps)) for member_id, tps in assignment.items()}


# Kafka's examples -----------------------------------------------------------------------------------------------------


def test_range_assigns_contiguous_partitions_with_remainder_first() -> None:
    """``RangeAssignorTest.testTwoConsumersTwoTopicsSixPartitions`` and its like, with an odd count."""
    members = [_member("a", "t", "u"), _member("b", "t", "u")]
    assert _names(range_assignor(members, {})) == {"a": "t-0 t-1 t-2 u-0 u-1", "b": "t-3 t-4 u-2"}


def test_range_with_more_members_than_partitions() -> None:
    members = [_member("a", "v"), _member("b", "v")]
    assert _names(range_assignor(members, {})) == {"a": "v-0", "b": ""}


def test_range_with_different_subscriptions() -> None:
    """``testMultipleConsumersMixedTopicSubscriptions``."""
    members = [_member("a", "u"), _member("b", "u", "v"), _member("c", "u")]
    assert _names(range_assignor(members, {})) == {"a": "u-0", "b": "u-1 v-0", "c": "u-2"}


def test_range_orders_static_members_by_their_names() -> None:
    """``testStaticMemberRangeAssignmentPersistent``: a restart, which gives a new member id, changes nothing."""
    before = [_member("x", instance_id="1"), _member("y", instance_id="2"), _member("m")]
    after = [_member("zz", instance_id="1"), _member("y", instance_id="2"), _member("m")]
    first, second = range_assignor(before, {}), range_assignor(after, {})
    assert _names(first) == {"x": "t-0 t-1", "y": "t-2 t-3", "m": "t-4"}
    assert (second["zz"], second["y"], second["m"]) == (first["x"], first["y"], first["m"])


def test_sticky_moves_fewest_partitions() -> None:
    two = sticky_assignor([_member("a"), _member("b")], {})
    three = sticky_assignor([_member("a"), _member("b"), _member("c")], _owners(two))
    moved = [tp for tp, owner in _owners(three).items() if _owners(two)[tp] != owner]
    assert len(moved) == 1
    assert sorted(map(len, three.values())) == [1, 2, 2]
    back = sticky_assignor([_member("a"), _member("b")], _owners(three))
    assert all(set(three[name]) <= set(back[name]) for name in "ab")


def test_sticky_balances_over_a_third_member() -> None:
    """``a`` can give to ``b`` only, and ``b`` to ``c`` only: it takes both to get even."""
    members = [_member("a", "u"), _member("b", "u", "v"), _member("c", "v")]
    previous = {TopicPartition("u", 0): "a", TopicPartition("u", 1): "a", TopicPartition("u", 2): "a"}
    assignment = sticky_assignor(members, {**previous, TopicPartition("v", 0): "b"})
    assert sorted(len(tps) for tps in assignment.values()) == [1, 1, 2]
    assert assignment["c"] == (TopicPartition("v", 0),)


def test_sticky_moves_a_partition_that_moves_anyway_first() -> None:
    """``b`` newly gets u-0, and has v-0: it passes the new one on to ``c``, whose t-0 goes to ``a``."""
    members = [_member("a", "t", partitions=1), *(_member(name, "t", "u", "v", partitions=1) for name in "bc")]
    previous = {TopicPartition("t", 0): "c", TopicPartition("v", 0): "b"}
    assert _names(sticky_assignor(members, previous)) == {"a": "t-0", "b": "v-0", "c": "u-0"}


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
def test_largest_partition_count_is_used(name: str) -> None:
    members = [_member("a", partitions=2), _member("b", partitions=4)]
    assert len(_owners(ASSIGNORS[name](members, {}))) == 4


# Any group ------------------------------------------------------------------------------------------------------------

subscriptions = st.sets(st.sampled_from(sorted(TOPICS)), min_size=1).map(sorted)
groups = st.lists(subscriptions, min_size=1, max_size=6)


def _members(wanted: list[list[str]]) -> list[Member]:
    return [_member(f"m{number}", *topics) for number, topics in enumerate(wanted)]


@given(wanted=groups, name=st.sampled_from(sorted(ASSIGNORS)), seed=st.integers(0, 9))
def test_every_partition_has_one_owner_that_reads_its_topic(wanted: list[list[str]], name: str, seed: int) -> None:
    members = _members(wanted)
    assignment = ASSIGNORS[name](members, _some_owners(members, seed))
    everything = [tp for tps in assignment.values() for tp in tps]
    read = {topic for topics in wanted for topic in topics}
    assert sorted(everything) == sorted(TopicPartition(topic, n) for topic in read for n in range(TOPICS[topic]))
    assert all(tp.topic in member.topics for member in members for tp in assignment[member.member_id])
    shuffled = random.Random(seed).sample(members, len(members))
    assert ASSIGNORS[name](shuffled, _some_owners(members, seed)) == assignment, "the order of the members is nothing"


def _some_owners(members: list[Member], seed: int) -> dict[TopicPartition, str]:
    """Any earlier owners, also some that have left or read other topics now."""
    rng = random.Random(seed)
    names = [member.member_id for member in members] + ["gone"]
    return {
        TopicPartition(topic, n): rng.choice(names)
        for topic, count in TOPICS.items()
        for n in range(count + 1)
        if rng.random() < 0.8
    }


@given(count=st.integers(1, 7), seed=st.integers(0, 99))
def test_sticky_is_balanced_with_fewest_moves(count: int, seed: int) -> None:
    """All read the same: loads differ by one at most, and nothing moves from a member that had not too much."""
    members = [_member(f"m{number}", "t", "u", "v") for number in range(count)]
    previous = {tp: owner for tp, owner in _some_owners(members, seed).items() if tp.partition < TOPICS[tp.topic]}
    assignment = sticky_assignor(members, previous)
    loads = [len(tps) for tps in assignment.values()]
    assert max(loads) - min(loads) <= 1
    had = {member.member_id: {tp for tp, owner in previous.items() if owner == member.member_id} for member in members}
    for member_id, before in had.items():
        lost = before - set(assignment[member_id])
        assert not lost or len(assignment[member_id]) >= min(loads)
        assert len(lost) == max(0, len(before) - len(assignment[member_id])), (
            "it was given others in the place of its own"
        )
    assert sticky_assignor(members, _owners(assignment)) == assignment, "once even, it stays"


@given(wanted=groups, seed=st.integers(0, 99))
def test_sticky_is_balanced_as_subscriptions_allow(wanted: list[list[str]], seed: int) -> None:
    """No member has two partitions more than another that could read one of them; and it is stable."""
    members = _members(wanted)
    assignment = sticky_assignor(members, _some_owners(members, seed))
    for giver in members:
        for taker in members:
            could = any(tp.topic in taker.topics for tp in assignment[giver.member_id])
            assert not could or len(assignment[giver.member_id]) - len(assignment[taker.member_id]) <= 1
    assert sticky_assignor(members, _owners(assignment)) == assignment


# A group at work ------------------------------------------------------------------------------------------------------

STEPS = ("join", "join", "leave", "beat", "beat", "beat", "look", "silence", "grow")
work = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 3)), max_size=30)


class Readers:
    """What the members believe that they may read: the only thing that counts for who processes a record twice."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.peers: dict[str, Peer] = {}
        self.partitions = 4

    def step(self, kind: str, number: int) -> None:
        peer = self.peers.get(f"m{number}")
        if peer is not None and peer.member_id not in group(self.world).members:
            del self.peers[peer.member_id]  # Its heartbeat would be refused: it has to join again.
        elif kind == "join":
            assignor = sorted(ASSIGNORS)[number % 2]
            self.peers[f"m{number}"] = join(self.world, f"m{number}", self.partitions, assignor=assignor)
        elif kind == "silence":
            self.world.now += SESSION // 2
        elif kind == "grow":
            self.partitions = min(7, self.partitions + 1)
        elif peer is None:
            return
        elif kind == "leave":
            peer.leave()
            del self.peers[f"m{number}"]
        elif kind == "look":
            peer.look()
        else:
            peer.beat((("t", self.partitions),))

    def live(self) -> list[Peer]:
        """Those that the group still knows. A member whose lease was taken may read on, but commits nothing."""
        return [peer for peer in self.peers.values() if peer.member_id in group(self.world).members]


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(steps=work)
def test_no_partition_has_two_readers(steps: list[tuple[str, int]]) -> None:
    """At no step, whatever each has learned and when; in the end every partition has exactly one reader."""
    readers = Readers(World(partitions=4))
    readers.step("join", 0)
    for kind, number in steps:
        readers.step(kind, number)
        read = [tp for peer in readers.live() for tp in peer.membership.assigned]
        assert len(read) == len(set(read)), (kind, number, read)
    for peer in readers.live():
        if peer.member_id in group(readers.world).members:  # The first one may have been the end of others.
            peer.beat((("t", readers.partitions),))
    survivors, generation = readers.live(), group(readers.world).generation
    for _ in range(2):
        for peer in survivors:
            peer.beat((("t", readers.partitions),))
    numbers = [number for peer in survivors for number in peer.look().numbers]
    assert sorted(numbers) == (list(range(readers.partitions)) if survivors else [])
    assert group(readers.world).generation == generation, "the group has come to rest"


@pytest.mark.parametrize("topics", [{"t": 2_000}, {f"t{number}": 1 for number in range(2_000)}])
def test_a_large_group_is_balanced_without_a_search(topics: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """200 members, 2,000 partitions: members who read the same are balanced once the unowned ones are given out."""

    def search(*_: object) -> bool:
        raise AssertionError("no member has two more than another one")

    monkeypatch.setattr(assignors._Sticky, "_move_along_path", search)
    members = [Member(f"m{number:03}", topics, "cooperative-sticky", 1) for number in range(200)]
    first = sticky_assignor(members, {})
    assert {len(tps) for tps in first.values()} == {10}
    owners = {tp: member_id for member_id, tps in first.items() for tp in tps}
    left = sticky_assignor(members[20:], owners)
    assert {len(tps) for tps in left.values()} == {11, 12}
    assert all(set(first[member_id]) <= set(tps) for member_id, tps in left.items())
