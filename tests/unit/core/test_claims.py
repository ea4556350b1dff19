"""Claims of compactors on partitions: who gets which, and when they end."""

from __future__ import annotations

import pytest

from tests.helpers.core import T0, T1, World
from txnstore.core.catalog.model import DeleteTopic
from txnstore.core.claims import MAX_CLAIM_MS, ClaimPartitions, ReleasePartitions, is_claimed
from txnstore.core.model import TopicPartition
from txnstore.errors import InvalidConfigError


@pytest.fixture
def world() -> World:
    return World(partitions=2)


def claim(world: World, owner: str, *partitions: TopicPartition, duration: int = 100) -> list[TopicPartition]:
    return [*world.do(ClaimPartitions(owner, partitions, duration))]


def test_a_partition_is_claimed_by_one_compactor(world: World) -> None:
    assert claim(world, "a", T1, T0) == [T1, T0]
    assert claim(world, "b", T0, T1) == []
    assert is_claimed(world.state, T0, "b", world.now)
    assert not is_claimed(world.state, T0, "a", world.now)


def test_each_gets_what_is_free(world: World) -> None:
    assert claim(world, "a", T0) == [T0]
    assert claim(world, "b", T0, T1, T1) == [T1]


def test_nothing_is_written_if_nothing_is_free(world: World) -> None:
    claim(world, "a", T0)
    before = len(world.entries)
    assert claim(world, "b", T0) == []
    world.do(ReleasePartitions("b"))
    assert len(world.entries) == before


def test_a_claim_ends_and_leaves_the_state(world: World) -> None:
    claim(world, "a", T0, duration=100)
    world.now += 98
    assert claim(world, "b", T0) == []
    assert claim(world, "b", T0, T1) == [T0, T1]
    assert {it.owner for it in world.state.claims.values()} == {"b"}
    world.now += 1_000
    assert claim(world, "c", T1) == [T1]
    assert set(world.state.claims) == {T1}


def test_its_owner_renews_a_claim(world: World) -> None:
    claim(world, "a", T0, duration=100)
    first = world.state.claims[T0].until
    assert claim(world, "a", T0, duration=100) == [T0]
    assert world.state.claims[T0].until > first


def test_released_partitions_are_free(world: World) -> None:
    claim(world, "a", T0, T1)
    world.do(ReleasePartitions("a"))
    assert not world.state.claims
    assert claim(world, "b", T0, T1) == [T0, T1]


def test_partitions_that_do_not_exist_are_left_out(world: World) -> None:
    assert claim(world, "a", TopicPartition("gone", 0), TopicPartition("t", 7), T0) == [T0]
    world.do(DeleteTopic("t"))
    assert claim(world, "b", T0) == []


def test_a_claim_is_advice(world: World) -> None:
    """A replacement does not depend on it: what the chain checks is that the replaced batches are there."""
    world.plain(1)
    world.plain(1)
    claim(world, "another", T0)
    world.compact()
    assert world.last_events() == ["SegmentsReplaced"]


@pytest.mark.parametrize("duration", [0, -1, MAX_CLAIM_MS + 1])
def test_a_claim_has_an_end(world: World, duration: int) -> None:
    world.refuse(InvalidConfigError, ClaimPartitions("a", (T0,), duration))
