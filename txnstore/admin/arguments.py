"""What an operator asked for, checked before anything is looked up with it.

A name of a wrong type must not get as far as a map: bytes have the hash of the string that they spell, and the maps of
a state do not survive a key that equals none of theirs, nor differs from it.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable

from txnstore.core.model import TopicPartition, TxnState
from txnstore.core.names import check_id, check_names, check_topic_name
from txnstore.errors import InvalidConfigError


def partition_from(tp: TopicPartition) -> TopicPartition:
    """A partition as it can be looked up."""
    return TopicPartition(check_topic_name(tp.topic), integer_from("partition", tp.partition))


def ids_from(ids: Iterable[str]) -> list[str]:
    """Transactional ids."""
    return [check_id("transactional.id", name) for name in check_names("transactional_ids", ids)]


def integer_from(name: str, value: int, least: int | None = None) -> int:
    """An integer of any kind (those of numpy, too), of ``least`` at least."""
    try:
        if not isinstance(value, bool) and (least is None or value >= least):
            return operator.index(value)
    except TypeError:
        pass
    msg = f"{name} must be an integer{'' if least is None else f', at least {least}'}, not {value!r}"
    raise InvalidConfigError(msg)


def milliseconds_from(name: str, seconds: float) -> int:
    """A number of seconds in milliseconds."""
    number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not number or not math.isfinite(seconds) or seconds < 0:
        msg = f"{name} must be a number of seconds, 0 or more, not {seconds!r}"
        raise InvalidConfigError(msg)
    return math.ceil(seconds * 1000)


def state_from(name: str | None) -> TxnState | None:
    """A state of a transaction by its name."""
    if name is None:
        return None
    try:
        return TxnState[str(name).upper()]
    except KeyError:
        known = ", ".join(state.name for state in TxnState)
        msg = f"there is no transaction state {name!r}; there are {known}"
        raise InvalidConfigError(msg) from None


def expression_from(pattern: str | None) -> re.Pattern[str] | None:
    """A regular expression."""
    try:
        found = re.compile(pattern) if pattern is not None else None
        if found is not None:
            found.match("")  # One of bytes matches no string.
    except (re.error, TypeError) as error:
        msg = f"{pattern!r} is not a regular expression: {error}"
        raise InvalidConfigError(msg) from None
    return found
