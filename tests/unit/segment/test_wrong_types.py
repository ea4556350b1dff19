"""A value of a wrong type never reaches the storage: commands are checked, and entries compare types when written."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator
from enum import StrEnum
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from tests.helpers import keys
from txnstore.chain.codec import LONG, Entry, check, decode, encode
from txnstore.core.commands import COMMANDS
from txnstore.core.events import Event
from txnstore.errors import InvalidConfigError

KEY = keys.entry(0, 1)
#: Values that a member of each plain type must not have.
WRONG: dict[type, tuple[object, ...]] = {
    int: (None, True, 1.0, "1", b"1", [1]),
    str: (None, 1, b"x", ["x"]),
    bool: (None, 1, 0, "true"),
    bytes: (None, 1, "x", [b"x"]),
}


def members(of: type) -> dict[str, Any] | None:
    """The types of the members of a dataclass or named tuple; None for other types."""
    return get_type_hints(of) if dataclasses.is_dataclass(of) or hasattr(of, "_fields") else None


def sample(of: Any) -> Any:
    """A value of a type."""
    origin, arguments = get_origin(of), get_args(of)
    if origin in {typing.Union, types.UnionType}:
        return sample(arguments[0])
    if origin is Literal:
        return arguments[0]
    if origin is tuple:
        return tuple(sample(each) for each in arguments if each is not ...)
    if origin is list:
        return [sample(arguments[0])]
    if origin is dict:
        return {sample(arguments[0]): sample(arguments[1])}
    if issubclass(of, StrEnum):
        return next(iter(of))
    inner = members(of)
    if inner is None:
        return {int: 1, str: "x", bool: True, bytes: b"x"}[of]
    return of(**{name: sample(each) for name, each in inner.items()})


def broken(of: Any, path: str = "") -> Iterator[tuple[str, object, Any]]:
    """Values of a type in which one value has a wrong type: the place of that value, it alone, and the whole."""
    origin, arguments = get_origin(of), get_args(of)
    if origin in {typing.Union, types.UnionType}:
        optional = type(None) in arguments
        yield from (case for case in broken(arguments[0], path) if case[1] is not None or not optional)
        return
    inner = members(of)
    if inner is not None and not path:
        wrongs: tuple[object, ...] = ()
    elif origin in {tuple, list, dict} or inner is not None:
        wrongs = (None, 1, "x", object())
    else:
        wrongs = WRONG.get(of, (None, 1, "nothing"))
    yield from ((path, wrong, wrong) for wrong in wrongs)
    if origin in {tuple, list}:
        places = [each for each in arguments if each is not ...]
        for at, each in enumerate(places):
            right = [sample(place) for place in places]
            for where, wrong, value in broken(each, f"{path}.{at}"):
                yield where, wrong, origin([*right[:at], value, *right[at + 1 :]])
    elif origin is dict:
        key = sample(arguments[0])
        yield from ((where, wrong, {key: value}) for where, wrong, value in broken(arguments[1], f"{path}.{key}"))
    for number, (name, each) in enumerate((inner or {}).items()):
        if name != "type":
            place = name if dataclasses.is_dataclass(of) else number
            right_values = {other: sample(hint) for other, hint in (inner or {}).items() if other != name}
            for where, wrong, value in broken(each, f"{path}.{place}"):
                yield where, wrong, of(**right_values, **{name: value})


def entry(event: Any, count: int = 1) -> Entry:
    return Entry(
        sequence=1,
        entry_id="id",
        writer_id="writer",
        timestamp=1,
        previous="",
        payload=None,
        requires=None,
        principals=None,
        events=[event] * count,
    )


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.__name__)
def test_a_command_with_a_value_of_a_wrong_type_is_refused(command: type) -> None:
    check(sample(command))
    cases = list(broken(command))
    assert cases
    for where, _, command_with_it in cases:
        with pytest.raises(InvalidConfigError, match=f"wrong type: {command.__name__}{where}"):
            check(command_with_it)


@pytest.mark.parametrize("count", [1, LONG])
@pytest.mark.parametrize("event", get_args(Event), ids=lambda event: event.__name__)
def test_an_entry_with_a_value_of_a_wrong_type_is_not_written(event: type, count: int) -> None:
    """The second line of defence: the core has made the event. It does not compare names, nor None."""
    assert decode(Entry, KEY, encode(entry(sample(event), count))) == entry(sample(event), count)
    refused = 0
    for where, wrong, event_with_it in broken(event):
        if wrong is None or wrong == "nothing":
            continue
        try:
            data = encode(entry(event_with_it, count))
        except InvalidConfigError:
            refused += 1
        else:
            assert decode(Entry, KEY, data).sequence == 1, where
    assert refused > 0
