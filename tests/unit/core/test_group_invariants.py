"""Each rule for the members of a group finds the damage that it is there for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.helpers.core import World
from tests.helpers.groups import client, generation, join, settle
from txnstore.core.groups.model import ClassicGeneration, Member
from txnstore.core.invariants.check import check, check_step
from txnstore.core.invariants.groups import (
    GROUP_INVARIANTS,
    GROUP_STEPS,
    assignments_never_change,
    classic_generations_sound,
    epochs_sound,
    member_epochs_never_go_back,
)
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


@pytest.fixture(scope="module")
def classic() -> State:
    """A gateway keeps ``a`` (static: one), which leads, and ``b``, in generation 2."""
    world = World(partitions=4)
    world.do(generation(2, client("a", instance_id="one"), client("b"), expected=-1))
    return world.state


def _classic(state: State, **changes: Any) -> State:
    return _group(state, classic=replace(_stored(state), **changes))


def _stored(state: State) -> ClassicGeneration:
    stored = state.groups["g"].classic
    assert stored is not None
    return stored


CLASSIC_DAMAGE: list[tuple[str, Callable[[State], State]]] = [
    ("with leases", lambda s: _group(s, members=s.groups["g"].members.insert("x", Member("x", {}, "range", 1)))),
    ("stored generation 0", lambda s: _group(s, generation=0)),
    ("two members", lambda s: _classic(s, members=(client("a"), client("a")))),
    ("two members", lambda s: _classic(s, members=(client("a", instance_id="x"), client("b", instance_id="x")))),
    ("'c' leads it", lambda s: _classic(s, leader="c")),
    ("'a' leads it", lambda s: _classic(s, members=())),
]
CLASSIC_STEP_DAMAGE: list[tuple[str, Callable[[State], State]]] = [
    ("from 2 to 1", lambda s: _group(s, generation=1)),
    ("of generation 2 changed", lambda s: _classic(s, members=(_stored(s).members[0],))),
    ("of generation 2 changed", lambda s: _classic(s, members=(*_stored(s).members[:1], client("b", assignment=b"?")))),
]


@pytest.mark.parametrize(("where", "damage"), CLASSIC_DAMAGE)
def test_damage_of_a_classic_group_is_found(classic: State, where: str, damage: Callable[[State], State]) -> None:
    assert check(classic) == []
    found = [item.message for item in check(damage(classic)) if item.name == "classic_generations_sound"]
    assert where in "; ".join(found)


@pytest.mark.parametrize(("where", "damage"), CLASSIC_STEP_DAMAGE)
def test_changed_generation_is_found(classic: State, where: str, damage: Callable[[State], State]) -> None:
    assert check_step(classic, classic) == []
    found = [item.message for item in check_step(classic, damage(classic)) if item.name == "assignments_never_change"]
    assert where in "; ".join(found)


def test_damage_of_epochs_is_found() -> None:
    world = World(partitions=4)
    settle(join(world, "a", kind="consumer"), join(world, "b", kind="consumer"))
    state, group = world.state, world.state.groups["g"]
    assert (check(state), check_step(state, state)) == ([], [])
    assert group.epochs is not None
    for epochs in (group.epochs.remove("a"), group.epochs.insert("a", 9), group.epochs.insert("a", 0)):
        damaged = _group(state, epochs=epochs)
        assert {item.name for item in check(damaged)} == {epochs_sound.__name__}
    earlier = _group(state, epochs=group.epochs.insert("a", 1))
    assert {item.name for item in check_step(state, earlier)} == {member_epochs_never_go_back.__name__}


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
    classic = {classic_generations_sound, assignments_never_change, epochs_sound, member_epochs_never_go_back}
    assert {rule.__name__ for rule in {*GROUP_INVARIANTS} - classic} == {name for name, _, _ in DAMAGE}
    assert {rule.__name__ for rule in {*GROUP_STEPS} - classic} == {name for name, _, _ in STEP_DAMAGE}
