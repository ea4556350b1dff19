"""Each rule for the members of a group finds the damage that it is there for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.helpers.core import World
from tests.helpers.groups import join, settle
from txnstore.core.invariants.check import check, check_step
from txnstore.core.invariants.groups import GROUP_INVARIANTS, GROUP_STEPS
from txnstore.core.model import TopicPartition
from txnstore.core.state import State

FIRST, LAST = TopicPartition("t", 0), TopicPartition("t", 3)


@pytest.fixture(scope="module")
def sound() -> State:
    """``a`` (static: one) reads 0 and 1, ``b`` reads 2 and 3."""
    world = World(partitions=4)
    settle(join(world, "a", instance_id="one"), join(world, "b"))
    return world.state


def _member(state: State, member_id: str, **changes: Any) -> State:
    group = state.groups["g"]
    member = replace(group.members[member_id], **changes)
    return _group(state, members=group.members.insert(member_id, member))


def _group(state: State, **changes: Any) -> State:
    return replace(state, groups=state.groups.insert("g", replace(state.groups["g"], **changes)))


DAMAGE: list[tuple[str, str, Callable[[State], State]]] = [
    ("partitions_have_one_holder", "t-3 is held by 'a'", lambda s: _member(s, "a", held=(FIRST, LAST))),
    (
        "targets_cover_what_is_read",
        "t-3 is a target of 'a' and of 'b'",
        lambda s: _member(s, "a", target=(FIRST, LAST)),
    ),
    ("targets_cover_what_is_read", "t-2 is a target of no member", lambda s: _member(s, "b", target=(LAST,))),
    ("targets_cover_what_is_read", "does not read its topic", lambda s: _member(s, "b", topics={"u": 1})),
    ("free_partitions_are_given", "no member holds t-2", lambda s: _member(s, "b", held=(LAST,))),
    ("instance_names_unique", "two members", lambda s: _member(s, "b", instance_id="one")),
    ("instance_names_unique", "generation 0", lambda s: _group(s, generation=0)),
]
STEP_DAMAGE: list[tuple[str, str, Callable[[State], State]]] = [
    ("generations_never_go_back", "from 2 to 1", lambda s: _group(s, generation=1)),
    (
        "generations_never_go_back",
        "changed in generation 2",
        lambda s: _group(s, members=s.groups["g"].members.remove("b")),
    ),
]


@pytest.mark.parametrize(("name", "where", "damage"), DAMAGE, ids=[f"{item[0]}-{item[1]}" for item in DAMAGE])
def test_damage_is_found(sound: State, name: str, where: str, damage: Callable[[State], State]) -> None:
    assert check(sound) == []
    assert where in "; ".join(item.message for item in check(damage(sound)) if item.name == name)


@pytest.mark.parametrize(("name", "where", "damage"), STEP_DAMAGE, ids=[item[1] for item in STEP_DAMAGE])
def test_invalid_transition_is_found(sound: State, name: str, where: str, damage: Callable[[State], State]) -> None:
    assert check_step(sound, sound) == []
    assert where in "; ".join(item.message for item in check_step(sound, damage(sound)) if item.name == name)


def test_each_rule_is_shown_to_fail() -> None:
    assert {rule.__name__ for rule in GROUP_INVARIANTS} == {name for name, _, _ in DAMAGE}
    assert {rule.__name__ for rule in GROUP_STEPS} == {name for name, _, _ in STEP_DAMAGE}
