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

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)")
_ZONED = re.compile(r"timestamp\[(ms|us),\s*UTC\]", re.IGNORECASE)
_DECIMAL = re.compile(r"decimal(?:128)?\((\d+),\s*(\d+)\)", re.IGNORECASE)
_LIST = re.compile(r"list<(.+)>", re.IGNORECASE)
_SIZE = re.compile(r"([0-9]{1,15}) ?(?:([KMGTkmgt])i?)?[Bb]?")


class Duration(click.ParamType[float]):
    """A duration in seconds, given as ``90s``, ``30m``, ``24h``, ``7d`` or ``0``."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        if str(value).strip() == "0":
            return 0.0
        match = _DURATION.fullmatch(str(value).strip())
        seconds = float(match[1]) * _UNITS[match[2]] if match is not None else math.inf
        if math.isinf(seconds):
            self.fail(f"{value!r} is not a duration: write 90s, 30m, 24h or 7d", param, ctx)
        return seconds


class Size(click.ParamType[int]):
    """A number of bytes, given as ``512MB``, ``1GiB`` or ``1000000``; units are binary, as in the output."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r} is not a size: write 512MB, 1GiB or a number of bytes", param, ctx)
        power: int = "BKMGT".index((match[2] or "B").upper())
        return int(match[1]) << 10 * power


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
    """An operation of a rule in Kafka's words: ``ALTER_CONFIGS``, in any case, or as in its tools ``AlterConfigs``."""

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
        if (earlier := _ago(text, now_ms)) is not None:
            return earlier
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


def parse_past(text: str, option: str, now_ms: int) -> Moment:
    """Parse an earlier snapshot: an entry, a time in ISO 8601, or ``-1h``; arguments as of :func:`parse_position`."""
    from txnstore.snapshot import parse_moment

    try:
        earlier = _ago(text, now_ms)
        return parse_moment(option, text if earlier is None else earlier.isoformat())
    except (InvalidConfigError, OverflowError, OSError, ValueError):
        msg = (
            f"{option} takes an entry (of several chains one each: 21,40,21), a time such as 2026-01-31T12:00:00Z, or "
            f"-1h for an hour ago, not {text!r}"
        )
        raise click.UsageError(msg) from None


def _ago(text: str, now_ms: int) -> datetime | None:
    """The time that ``-1h`` means; None for text of another form."""
    ago = _DURATION.fullmatch(text[1:].strip()) if text.startswith("-") else None
    return None if ago is None else datetime.fromtimestamp(now_ms / 1000 - float(ago[1]) * _UNITS[ago[2]], UTC)


def column(text: str) -> pa.Field:
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
    return pa.field(name.strip(), data_type(kind.strip().rstrip("!").strip()), nullable)


def data_type(text: str) -> pa.DataType:
    """Parse the name of an Arrow type, including its parameters."""
    import pyarrow as pa

    if match := _ZONED.fullmatch(text):
        return pa.timestamp(match[1].lower(), "UTC")
    if match := _LIST.fullmatch(text):
        return pa.list_(data_type(match[1].strip()))
    try:
        if match := _DECIMAL.fullmatch(text):
            return pa.decimal128(int(match[1]), int(match[2]))
        return pa.type_for_alias(text)
    except ValueError:
        types = (
            "int32, int64, double, bool, string, binary, date32, timestamp[ms, UTC], decimal128(10, 2), list<string>"
        )
        msg = f"there is no column type {text!r}; types are {types} and others of Arrow"
        raise click.UsageError(msg) from None
