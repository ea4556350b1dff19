"""Parses values of the command line: column types, durations, sizes, positions."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, get_args

import click

from txnstore.core.authorization.model import Operation
from txnstore.errors import InvalidConfigError
from txnstore.times import parse_time
from txnstore.validation import is_unicode

if TYPE_CHECKING:
    import pyarrow as pa

    from txnstore.snapshot import Moment

_SECONDS_PER_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION_PATTERN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_UTC_TIMESTAMP = re.compile(r"timestamp\[(ms|us),\s*UTC\]", re.IGNORECASE)
_DECIMAL_PATTERN = re.compile(r"decimal(?:128)?\((\d+),\s*(\d+)\)", re.IGNORECASE)
_LIST_PATTERN = re.compile(r"list<(.+)>", re.IGNORECASE)
_SIZE_PATTERN = re.compile(r"([0-9]{1,15}) ?(?:([KMGTkmgt])i?)?[Bb]?")


class Duration(click.ParamType[float]):
    """A duration in seconds, given as ``90s``, ``30m``, ``24h``, ``7d`` or ``0``."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        if str(value).strip() == "0":
            return 0.0
        match = _DURATION_PATTERN.fullmatch(str(value).strip())
        seconds = float(match[1]) * _SECONDS_PER_UNIT[match[2]] if match is not None else math.inf
        if math.isinf(seconds):
            self.fail(f"{value!r} is not a duration: write 90s, 30m, 24h or 7d", param, ctx)
        return seconds


class Size(click.ParamType[int]):
    """A number of bytes, given as ``512MB``, ``1GiB`` or ``1000000``; units are binary, as in the output."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = _SIZE_PATTERN.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r} is not a size: write 512MB, 1GiB or a number of bytes", param, ctx)
        power: int = "BKMGT".index((match[2] or "B").upper())
        return int(match[1]) << 10 * power  # Each unit is 1,024 of the one before.


class Integer(click.IntRange):
    """A whole number in a range: click's type, whose errors and help call it by the name of the range."""

    name = "integer"


class Principal(click.ParamType[str]):
    """A principal: ``User:`` and a name."""

    name = "principal"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from txnstore.core.authorization.changes import check_principal

        try:
            check_principal(str(value))
        except InvalidConfigError as error:
            self.fail(str(error), param, ctx)
        return str(value)


class AclOperation(click.ParamType[str]):
    """An operation of a rule by Kafka's name: ``ALTER_CONFIGS``, in any case, or ``AlterConfigs`` as in its tools."""

    name = "operation"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        names: dict[str, str] = {name.replace("_", ""): name for name in get_args(Operation)}
        word = str(value).upper().replace("_", "").replace("-", "")
        if word not in names:
            self.fail(f"{value!r} is not an operation: they are {', '.join(names.values())}", param, ctx)
        return names[word]


def parse_position(text: str, option: str, now_ms: int) -> str | int | datetime:
    """Parse a position: ``earliest``, ``latest``, an offset, a time in ISO 8601, or ``-1h`` for an hour ago.

    Args:
        option: The option, for the message.
        now_ms: The current time, in milliseconds since the epoch.
    """
    if text in ("earliest", "latest"):
        return text
    if text.isdecimal() and text.isascii():
        return int(text)
    try:
        if (time_ago := _parse_ago(text, now_ms)) is not None:
            return time_ago
        moment = parse_time(text)
    except (ValueError, OverflowError, OSError):
        moment = None
    if moment is None:
        msg = (
            f"{option} takes earliest, latest, an offset, a time such as 2026-01-31T12:00:00Z, or -1h for an hour ago, "
            f"not {text!r}"
        )
        raise click.UsageError(msg)
    return moment


def parse_earlier_snapshot(text: str, option: str, now_ms: int) -> Moment:
    """Parse an earlier snapshot: an entry, a time in ISO 8601, or ``-1h``; arguments as of :func:`parse_position`."""
    from txnstore.snapshot import parse_moment

    try:
        time_ago = _parse_ago(text, now_ms)
        return parse_moment(option, text if time_ago is None else time_ago.isoformat())
    except (InvalidConfigError, OverflowError, OSError, ValueError):
        msg = (
            f"{option} takes an entry (of several chains one each: 21,40,21), a time such as 2026-01-31T12:00:00Z, or "
            f"-1h for an hour ago, not {text!r}"
        )
        raise click.UsageError(msg) from None


def _parse_ago(text: str, now_ms: int) -> datetime | None:
    """Parse ``-1h`` as the time an hour ago; None for text of another form."""
    match = _DURATION_PATTERN.fullmatch(text[1:].strip()) if text.startswith("-") else None
    return (
        None
        if match is None
        else datetime.fromtimestamp(now_ms / 1000 - float(match[1]) * _SECONDS_PER_UNIT[match[2]], UTC)
    )


def parse_column(text: str) -> pa.Field:
    """Parse a column ``NAME:TYPE`` with Arrow's names of types; ``!`` after the type means not null."""
    import pyarrow as pa

    name, separator, kind = text.partition(":")
    if not separator or not name.strip() or not kind.strip():
        msg = f"--column takes NAME:TYPE, such as id:int64 or at:timestamp[ms, UTC], not {text!r}"
        raise click.UsageError(msg)
    if not is_unicode(name):
        msg = f"--column takes a name in UTF-8, not {name!r}"
        raise click.UsageError(msg)
    nullable = not kind.rstrip().endswith("!")
    return pa.field(name.strip(), parse_data_type(kind.strip().rstrip("!").strip()), nullable)


def parse_data_type(text: str) -> pa.DataType:
    """Parse the name of an Arrow type, including its parameters."""
    import pyarrow as pa

    if match := _UTC_TIMESTAMP.fullmatch(text):
        return pa.timestamp(match[1].lower(), "UTC")
    if match := _LIST_PATTERN.fullmatch(text):
        return pa.list_(parse_data_type(match[1].strip()))
    try:
        if match := _DECIMAL_PATTERN.fullmatch(text):
            return pa.decimal128(int(match[1]), int(match[2]))
        return pa.type_for_alias(text)
    except ValueError:
        types = (
            "int32, int64, double, bool, string, binary, date32, timestamp[ms, UTC], decimal128(10, 2), list<string>"
        )
        msg = f"there is no column type {text!r}; types are {types} and others of Arrow"
        raise click.UsageError(msg) from None
