"""Value classes are what dataclasses are, without their cost."""

from __future__ import annotations

import copy
import pickle
from dataclasses import astuple, dataclass, field, fields, replace
from typing import Any

import pytest

from txnstore.core.model import value_class


@value_class()
class Point:
    """A value."""

    x: int
    tags: tuple[str, ...] = ()
    data: bytes | None = field(default=None, repr=False, compare=False)


@value_class(kw_only=True)
class Named(Point):
    """A value of a class that inherits."""

    name: str

    def __repr__(self) -> str:
        return self.name


@value_class()
class Empty:
    """A value without members."""


@dataclass(frozen=True, slots=True)
class Plain:
    """What ``Point`` is as a dataclass."""

    x: int
    tags: tuple[str, ...] = ()
    data: bytes | None = field(default=None, repr=False, compare=False)


@pytest.mark.parametrize("arguments", [(1,), (1, ("a",)), (2, (), b"data")], ids=str)
def test_a_value_is_compared_hashed_and_printed_as_a_dataclass(arguments: Any) -> None:
    value: Any = Point(*arguments)
    plain: Any = Plain(*arguments)
    assert repr(value) == repr(plain).replace("Plain", "Point")
    others: list[Any] = [(1,), (2,), (1, ("a",)), (1, ("a",), b"x")]
    for other in others:
        assert (value == Point(*other)) == (plain == Plain(*other))
        assert (hash(value) == hash(Point(*other))) == (hash(plain) == hash(Plain(*other)))
    assert (value == plain) is (plain == value) is False
    assert astuple(value) == astuple(plain)
    assert [member.name for member in fields(value)] == [member.name for member in fields(plain)]
    assert not hasattr(value, "__dict__")


def test_a_value_is_copied_changed_pickled_and_matched_as_a_dataclass() -> None:
    value = Point(1, ("a",))
    assert pickle.loads(pickle.dumps(value)) == copy.copy(value) == copy.deepcopy(value) == value  # noqa: S301
    assert replace(value, x=2) == Point(2, ("a",)) != value
    match value:
        case Point(x, tags):
            assert (x, tags) == (1, ("a",))


def test_methods_of_a_class_are_kept_and_classes_are_told_apart() -> None:
    named = Named(1, name="n")
    assert repr(named) == "n"
    assert named != Point(1)
    assert named == Named(1, name="n") != Named(1, name="m")
    assert Empty() == Empty()
    assert hash(Empty()) == hash(Empty())
    assert repr(Empty()) == "Empty()"
