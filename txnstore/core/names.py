"""The rules for the names that users choose: topics, transactional ids, groups."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from txnstore.errors import InvalidConfigError, InvalidTopicError

#: The longest name of a topic, a transactional id or a group (Kafka: ``Topic.MAX_NAME_LENGTH``).
MAX_NAME_LENGTH = 249

_ILLEGAL = re.compile(r"[^a-zA-Z0-9._-]")


def check_topic_name(name: str) -> str:
    """The name as a plain string, if Kafka accepts it for a topic, too; else :class:`InvalidTopicError` says why not.

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
    if found := _ILLEGAL.search(name):
        raise InvalidTopicError(
            f"the topic name {name!r} holds {found.group()!r}; only letters a-z and A-Z, digits, '.', '_' and '-' "
            "are allowed",
        )
    return str(name)


def check_id(kind: str, value: str) -> str:
    """The value as a plain string, if it can be a transactional id or a group; else :class:`InvalidConfigError`.

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
    """Several names as a list; one string is refused, because it would be taken for the names of its letters."""
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
