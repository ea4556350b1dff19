"""Checks of arguments: each kind of value has one check, which returns the value or raises an error that names it.

A value of a wrong type must not reach a map of a state: bytes have the hash of the string that they spell, and the
persistent maps do not survive a key that equals none of theirs, nor differs from it. So every function that looks up a
name checks it first. This module imports nothing but the errors, so that the core can use it, too.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from txnstore.errors import InvalidConfigError, InvalidTopicError, ReadOnlyError

S = TypeVar("S", bound=str)

#: The longest name of a topic, a transactional id or a group (Kafka: ``Topic.MAX_NAME_LENGTH``).
MAX_NAME_LENGTH = 249

_ILLEGAL = re.compile(r"[^a-zA-Z0-9._-]")

# Numbers --------------------------------------------------------------------------------------------------------------


def check_integer(name: str, value: object, least: int | None = None, most: int | None = None) -> int:
    """Return the value as a plain ``int``, if it is an integer of any kind from ``least`` to ``most``.

    Raises:
        InvalidConfigError: It is no integer (a bool is none), or out of range.
    """
    number = as_integer(value)
    if number is None or (least is not None and number < least) or (most is not None and number > most):
        msg = f"{name} must be an integer{_describe_range(least, most)}, not {_describe_value(value)}"
        raise InvalidConfigError(msg)
    return number


def as_integer(value: object) -> int | None:
    """Return the value as a plain ``int``; None if it is no integer. A bool is none."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def check_number(
    name: str,
    value: object,
    *,
    above: float | None = None,
    least: float | None = None,
    most: float | None = None,
    unit: str = "",
) -> float:
    """Return the value as a plain number, if it is one within its bounds.

    Args:
        name: The name of the argument, for the message.
        value: An integer of any kind (those of numpy, too) or a ``float``; a bool is neither.
        above: The number must be larger.
        least: The number must not be smaller.
        most: The number must not be larger.
        unit: The unit of the number, for the message.

    Raises:
        InvalidConfigError: It is no number, out of range, or NaN where there is a range.
    """
    number = value if isinstance(value, float) else as_integer(value)
    if (
        number is None
        or (above is not None and not number > above)
        or (least is not None and not number >= least)
        or (most is not None and not number <= most)
    ):
        bounds = _describe_range(least, most)
        if above is not None:
            bounds = f" above {above}{'' if most is None else f' and up to {most}'}"
        what = f"a number of {unit}" if unit else "a number"
        msg = f"{name} must be {what}{bounds}, not {_describe_value(value)}"
        raise InvalidConfigError(msg)
    return number


def _describe_value(value: object) -> str:
    """Return a wrong value for a message. Of a mapping only the type: it may be storage options with secrets."""
    return f"a {type(value).__name__}" if isinstance(value, Mapping) else repr(value)


def check_seconds(
    name: str, value: object, *, above: float | None = None, least: float | None = 0, most: float | None = None
) -> float:
    """Check a duration in seconds; the bounds are those of :func:`check_number`."""
    return check_number(name, value, above=above, least=least, most=most, unit="seconds")


def check_milliseconds(name: str, seconds: object, *, least: float | None = 0) -> int:
    """Convert a finite duration in seconds, at least ``least``, to milliseconds, rounded up.

    Raises:
        InvalidConfigError: It is no finite number, or below the bound.
    """
    number = check_seconds(name, seconds, least=least)
    if not math.isfinite(number):
        msg = f"{name} must be a finite number of seconds, not {seconds!r}"
        raise InvalidConfigError(msg)
    return math.ceil(round(number * 1000, 6))  # 0.07 s are 70 ms, although 0.07 * 1000 is a little more.


def _describe_range(least: float | None, most: float | None) -> str:
    if least is not None and most is not None:
        return f" from {least} to {most}"
    if least is not None:
        return f", {least} or more"
    return "" if most is None else f", {most} or less"


# Choices --------------------------------------------------------------------------------------------------------------


def check_choice(name: str, value: object, choices: Iterable[S]) -> S:
    """Return the choice that equals the value: a string, or the member of an enumeration of strings.

    Raises:
        InvalidConfigError: There is none; the message lists all of them.
    """
    names = []
    for choice in choices:
        if isinstance(value, str) and choice == value:
            return choice
        names.append(repr(str(choice)))
    listing = " or ".join(names) if len(names) == 2 else f"one of {', '.join(names)}"
    msg = f"{name} must be {listing}, not {value!r}"
    raise InvalidConfigError(msg)


def check_expression(pattern: str | None) -> re.Pattern[str] | None:
    """Compile a regular expression for strings; None for None.

    Raises:
        InvalidConfigError: It is not a regular expression for strings.
    """
    try:
        compiled = re.compile(pattern) if pattern is not None else None
        if compiled is not None:
            compiled.match("")  # A pattern of bytes cannot match a string.
    except (re.error, TypeError) as error:
        msg = f"{pattern!r} is not a regular expression: {error}"
        raise InvalidConfigError(msg) from None
    return compiled


# Names ----------------------------------------------------------------------------------------------------------------


def check_topic_name(name: str) -> str:
    """Return the name as a plain string, if Kafka accepts it for a topic, too.

    Kafka's rule (``Topic.validate``): 1 to 249 of ``a-z A-Z 0-9 . _ -``, but neither ``.`` nor ``..``. A topic is a
    folder below ``topics/``, so the rule also keeps every key inside the store.
    """
    if not isinstance(name, str):
        raise InvalidTopicError(f"a topic name is a string, not {type(name).__name__}")
    if not name:
        raise InvalidTopicError("a topic name must not be empty")
    if name in {".", ".."}:
        raise InvalidTopicError(f"a topic cannot be named {name!r}")
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidTopicError(
            f"the topic name {name[:40]!r}… has {len(name)} characters; at most {MAX_NAME_LENGTH} are allowed",
        )
    if illegal := _ILLEGAL.search(name):
        raise InvalidTopicError(
            f"the topic name {name!r} holds {illegal.group()!r}; only letters a-z and A-Z, digits, '.', '_' and '-' "
            "are allowed",
        )
    return str(name)


def is_topic_name(name: str) -> bool:
    """Whether a topic can have this name."""
    try:
        check_topic_name(name)
    except InvalidTopicError:
        return False
    return True


def check_id(kind: str, value: str) -> str:
    """Return the value as a plain string, if it can be a transactional id or a group.

    ``kind`` is the setting as the user knows it (``transactional.id``, ``group.id``). 1 to 249 printable characters
    of any script. Kafka refuses the empty string in every coordinator call (COORD-06); that ids are short and
    printable is our rule, because they stand in entries, logs and tables.
    """
    if not isinstance(value, str):
        raise InvalidConfigError(f"{kind} is a string, not {type(value).__name__}")
    if not value:
        raise InvalidConfigError(f"{kind} must not be empty")
    if len(value) > MAX_NAME_LENGTH:
        raise InvalidConfigError(
            f"{kind} {value[:40]!r}… has {len(value)} characters; at most {MAX_NAME_LENGTH} are allowed",
        )
    if not value.isprintable():
        raise InvalidConfigError(f"{kind} {value!r} holds a character that cannot be printed")
    return str(value)


def check_names(kind: str, names: object) -> list[Any]:
    """Return several names as a list; refuse one string, which would be taken for the names of its letters."""
    if isinstance(names, str | bytes) or not isinstance(names, Iterable):
        raise InvalidConfigError(f"{kind} must be a list of names, not {names!r}")
    return list(names)


def is_unicode(text: str) -> bool:
    """Whether a string can be stored: UTF-8 has no lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


# Others ---------------------------------------------------------------------------------------------------------------


def check_mapping(name: str, value: object) -> Mapping[Any, Any]:
    """Return the value if it is a mapping."""
    if not isinstance(value, Mapping):
        raise InvalidConfigError(f"{name} must be a mapping by TopicPartition, not {value!r}")
    return value


def check_callable(name: str, value: object, *, optional: bool = False) -> None:
    """Refuse a value that is not callable: it would fail later, in the middle of something else.

    Args:
        name: The name of the argument, for the message.
        value: A callable; with ``optional`` also None.
        optional: Whether None is allowed.

    Raises:
        InvalidConfigError: It is neither.
    """
    if not callable(value) and not (optional and value is None):
        raise InvalidConfigError(f"{name} must be callable{' or None' if optional else ''}, not {value!r}")


def check_bool(name: str, value: object) -> bool:
    """Return the value if it is True or False."""
    if not isinstance(value, bool):
        raise InvalidConfigError(f"{name} must be True or False, not {value!r}")
    return value


def check_query(value: object) -> str:
    """Return the text of a query, if it is a string and not empty."""
    if not isinstance(value, str):
        raise InvalidConfigError(f"a query must be a string of SQL, not {value!r}")
    if not value.strip():
        raise InvalidConfigError("the query is empty")
    return value


def check_writable(read_only: bool, url: str, consequence: str) -> None:
    """Check that a store may be changed.

    Args:
        read_only: Whether the store was opened with ``read_only=True``.
        consequence: The end of the message: what cannot be done.

    Raises:
        ReadOnlyError: The store was opened with ``read_only=True``.
    """
    if read_only:
        msg = f"the store {url} was opened read_only, so {consequence}"
        raise ReadOnlyError(msg)


def check_pair(value: object) -> tuple[str, int]:
    """Return the partition of a pair of topic and number.

    Raises:
        InvalidConfigError: It is no pair, or the number is no integer.
        InvalidTopicError: The topic cannot be the name of a topic.
    """
    if isinstance(value, str | bytes) or not isinstance(value, Sequence) or len(value) != 2:
        raise InvalidConfigError(f"a partition is given by a TopicPartition or (topic, number), not by {value!r}")
    topic, number = value
    name = check_topic_name(topic)
    return name, check_integer(f"the partition of {name!r}", number)


def nearest(name: object, names: Iterable[str]) -> str:
    """Return ``"; did you mean 'orders'?"`` for an unknown name; empty if none is close."""
    import difflib

    close = difflib.get_close_matches(str(name), names, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


class UnmaintainedStoreWarning(UserWarning):
    """A topic was created, or altered, with a setting that takes effect when its store is maintained, and it is not.

    That is ``retention.ms``, ``retention.bytes``, or a ``cleanup.policy`` with ``compact``, and no process has
    maintained the store for an hour (docs/howto/day-two.md).
    """


class BlockedReadWarning(UserWarning):
    """Committed records cannot be read yet: they wait behind an open transaction in their partition.

    Issued once per open store, transactional id and reason: the transaction is open, or past its timeout in a store
    that may not end it, or prepared, or unknown to its coordinator.
    """
