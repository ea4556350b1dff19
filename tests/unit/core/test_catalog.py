"""What the creation of a topic looks at, and which names collide."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType

import pytest

from tests.helpers.shell import topic
from txnstore.core.catalog.model import CopyTopic, CreateTopic, DeleteTopic, alike
from txnstore.core.decide import decide
from txnstore.core.model import Command
from txnstore.core.state import State, begin_entry, first_state
from txnstore.errors import InvalidTopicError


def _after(state: State, *commands: Command) -> State:
    state = begin_entry(state, state.timestamp + 1)
    for command in commands:
        state = decide(state, command).state
    return state


def _with_topics(count: int) -> State:
    return _after(first_state(), *(CreateTopic(topic(f"t{number}")) for number in range(count)))


def _calls(work: Callable[[], object]) -> int:
    """The calls and resumptions of Python functions, which iterations over objects in Python are."""
    seen = [0]

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        seen[0] += event == "call"

    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(None)
    return seen[0]


def test_a_topic_is_created_by_as_many_steps_among_many_topics_as_among_few() -> None:
    """It compares its name by an index, not with each other name."""
    steps = []
    for count in (10, 2_000):
        state, command = _with_topics(count), CreateTopic(topic("another"))
        _after(state, CreateTopic(topic("once")))
        steps.append(_calls(lambda state=state, command=command: _after(state, command)))  # type: ignore[misc]
    assert steps[0] == steps[1] < 100


@pytest.mark.parametrize("name", ["A.b", "a_b", "A_B", "a.B"])
def test_names_that_something_cannot_tell_apart_collide_until_one_is_deleted(name: str) -> None:
    state = _after(_with_topics(3), CreateTopic(topic("a.b")))
    with pytest.raises(InvalidTopicError, match=r"collides with topic 'a\.b'"):
        _after(state, CreateTopic(topic(name)))
    state = _after(_after(state, DeleteTopic("a.b")), CreateTopic(topic(name)))
    assert state.alike == alike(state.topics)


def test_topics_of_an_older_release_with_names_alike_are_all_known() -> None:
    """They come as copies, which are not checked; each that is left still collides."""
    copies = [CopyTopic(name, topic(name), number) for number, name in enumerate(("b.c", "B_c", "b_c"), 1)]
    state = _after(first_state(1, 2), *copies)
    assert state.alike == alike(state.topics) == alike(["b.c", "B_c", "b_c"])
    assert state.alike["b_c"] == ("B_c", "b.c", "b_c")
    state = _after(state, CopyTopic("b.c", None, 9))
    assert state.alike == alike(state.topics)
