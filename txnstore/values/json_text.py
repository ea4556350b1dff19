"""JSON as text: parsed without a change of its numbers, and written from Python values. Imports no engine."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

#: Integers with more digits stay text: no column holds them, and Python takes long to convert them.
_MAX_INTEGER_DIGITS = 1_000


class Number(str):
    """A JSON number with a fraction or an exponent, as it was written, until its column's type converts it."""

    __slots__ = ()


def parse_json(text: str, *, exact: bool = True) -> Any:
    """Parse JSON by RFC 8259, strictly.

    Args:
        exact: Whether numbers with a fraction or an exponent are a :class:`Number`, else a ``float``.

    Raises:
        ValueError: The text is no JSON, contains NaN or an infinite number, repeats a name in an object, or is nested
            too deeply.
    """
    try:
        return (_EXACT_DECODER if exact else _PLAIN_DECODER).decode(text)
    except RecursionError:
        msg = "it is nested too deeply"
        raise ValueError(msg) from None


def parse_setting(text: str) -> Any:
    """Parse a value that is given as text: JSON for true, false, an object or a list, else the text itself.

    Raises:
        ValueError: It begins as JSON, and is none. The message contains no value, which may be secret.
    """
    return parse_json(text, exact=False) if text in ("true", "false") or text.startswith(("{", "[")) else text


def _parse_integer(text: str) -> int | Number:
    # -0 stays text: it is a float, for an integer has no sign of zero.
    return Number(text) if len(text) > _MAX_INTEGER_DIGITS or text == "-0" else int(text)


def _refuse_constant(text: str) -> Any:
    msg = f"{text} is no JSON number"
    raise ValueError(msg)


def _parse_finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        msg = "a number is out of the range of a double"
        raise ValueError(msg)
    return number


def _object_of_distinct_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        repeated = next(name for name, count in counts.items() if count > 1)
        msg = f"the name {repeated!r} occurs twice in an object"
        raise ValueError(msg)
    return members


_EXACT_DECODER = json.JSONDecoder(
    parse_constant=_refuse_constant,
    parse_float=Number,
    parse_int=_parse_integer,
    object_pairs_hook=_object_of_distinct_names,
)
_PLAIN_DECODER = json.JSONDecoder(
    parse_constant=_refuse_constant, parse_float=_parse_finite, object_pairs_hook=_object_of_distinct_names
)


def bytes_from_json(value: Any) -> bytes | None:
    """Convert a key, value or header: a string, ``{"base64": "…"}``, null, or other JSON, which stays JSON text."""
    if value is None:
        return None
    if isinstance(value, str) and not isinstance(value, Number):
        return value.encode()
    encoded = base64_of(value)
    if encoded is None:
        return _json_as_written(value).encode()
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        msg = "invalid base64"
        raise ValueError(msg) from None


def base64_of(value: Any) -> str | None:
    """The text in ``{"base64": "…"}``; None for other values."""
    if isinstance(value, dict) and set(value) == {"base64"} and type(value["base64"]) is str:
        return str(value["base64"])
    return None


def _json_as_written(value: Any) -> str:
    """Format a parsed value as JSON, with its numbers as they were written."""
    if isinstance(value, Number):
        return str(value)
    if isinstance(value, dict):
        return (
            "{" + ",".join(f"{_json_as_written(name)}:{_json_as_written(item)}" for name, item in value.items()) + "}"
        )
    if isinstance(value, list):
        return "[" + ",".join(map(_json_as_written, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


# Writing --------------------------------------------------------------------------------------------------------------


def to_json(value: Any) -> str:
    """Format a value as one line of JSON: bytes are text if they are UTF-8, else ``{"base64": "…"}``."""
    return json.dumps(plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def plain(value: Any) -> Any:
    """Convert a Python value to a value that JSON has."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else float_name(value)
    if isinstance(value, bytes | bytearray | memoryview):
        data = bytes(value)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(data).decode()}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat().replace("+00:00", "Z") if value.tzinfo else value.isoformat()
    if isinstance(value, date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Iterable):
        return [plain(item) for item in value]
    return str(value)


def float_name(number: float) -> str:
    """The text for a float that JSON has no number for; columns of floats accept it."""
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"


def map_as_json(entries: Iterable[tuple[Any, Any]]) -> Any:
    """Convert a map of Arrow: an object if its keys are distinct strings, else a list of entries."""
    pairs = list(entries)
    members = dict(pairs) if all(type(key) is str for key, _ in pairs) else {}
    if len(members) == len(pairs):
        return members
    return [{"key": key, "value": item} for key, item in pairs]


def row_as_json(value: Any) -> Any:
    """Convert the maps in a value that Arrow has converted to Python, by :func:`map_as_json`.

    A list of tuples is a map: Arrow makes tuples of nothing else.
    """
    if isinstance(value, Mapping):
        return {name: row_as_json(item) for name, item in value.items()}
    if isinstance(value, list):
        if value and type(value[0]) is tuple:
            return map_as_json((row_as_json(key), row_as_json(item)) for key, item in value)
        return [row_as_json(item) for item in value]
    return value
