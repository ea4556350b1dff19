"""The values of a type of Arrow: what JSON, and a cell of a CSV file, may write for them.

Each reader takes one value and returns what :func:`pyarrow.array` takes for the type, without a loss. What it cannot
take it refuses with a ``ValueError`` that names the value and the type.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from txnstore.validation import is_unicode
from txnstore.values.casts import MILLISECONDS
from txnstore.values.json_text import Number, base64_of, parse_json
from txnstore.values.kinds import is_binary, is_text

#: Converts a value that is not null; raises ``ValueError`` with what is wrong with it.
Reader = Callable[[Any], Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = {"ms": timedelta(milliseconds=1), "us": timedelta(microseconds=1)}
#: Python's parsers take other forms of ISO 8601, some of which are times in milliseconds as well: 1712011230000.
_DATE = re.compile(r"\d{4}-\d\d-\d\d|\d{8}", re.ASCII)
_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d(:\d\d(:\d\d([.,]\d+)?)?)?(Z|[+-]\d\d(:?\d\d)?)?)?", re.ASCII)
_INTEGER = re.compile(r"[+-]?\d{1,400}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(\d{1,400}(\.\d{0,400})?|\.\d{1,400})([eE][+-]?\d{1,3})?", re.ASCII)
_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
#: The least number that is rounded to an infinite float.
_FLOAT32_LIMIT = 2.0**128 - 2.0**103
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
#: As pandas, numpy, Java and spreadsheets write them, in small letters and without a plus sign.
_CELL_FLOATS = {
    "nan": "NaN", "inf": "Infinity", "-inf": "-Infinity", "infinity": "Infinity", "-infinity": "-Infinity"
}  # fmt: skip
_SHOWN = 80


def reader(kind: pa.DataType, *, text: bool) -> Reader:
    """What reads a JSON value as :func:`~.json_text.parse_json` gives it.

    Args:
        text: Whether a string in a binary column is its UTF-8 text; else it is base64. ``{"base64": "…"}`` is taken in
            either case.
    """
    if pt.is_map(kind):
        return _map_reader(kind, text=text)
    if pt.is_struct(kind):
        return _struct_reader(kind, text=text)
    if pt.is_list(kind):
        read = or_null(reader(kind.value_type, text=text))
        return lambda value: [read(item) for item in value] if type(value) is list else refuse(value, kind)
    if is_binary(kind):
        read_bytes = _text_bytes if text else _base64_bytes
        return lambda value: read_bytes(value, kind)
    for test, read_plain in _READERS:
        if test(kind):
            return lambda value: read_plain(value, kind)
    raise AssertionError(kind)  # The catalog has refused a topic with another type.


def or_null(read: Reader) -> Reader:
    return lambda value: None if value is None else read(value)


def refuse(value: Any, kind: pa.DataType, why: str = "") -> NoReturn:
    """Raise the error of a value."""
    raise ValueError(f"{shown(value)} is not {kind}{why}")


def shown(value: Any) -> str:
    """A value as errors show it."""
    text = str(value) if isinstance(value, Number) else ascii(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."


def _boolean(value: Any, kind: pa.DataType) -> bool:
    return value if type(value) is bool else refuse(value, kind)


def _integer(value: Any, kind: pa.DataType) -> int:
    """An integer, also one that is written with a fraction of zeros or an exponent."""
    number = value
    if type(value) is Number:
        exact = _decimal_of(value)
        if exact is not None and exact.adjusted() < kind.bit_width and exact == exact.to_integral_value():
            number = int(exact)
    most = 2 ** (kind.bit_width - 1)
    return number if type(number) is int and -most <= number < most else refuse(value, kind)


def _float(value: Any, kind: pa.DataType) -> float:
    """The nearest float of a fraction; an integer only if the float holds it, or is written so (1e23 as digits)."""
    if type(value) is str and value in _FLOATS:
        return _FLOATS[value]
    if type(value) not in {int, Number}:
        refuse(value, kind)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    single = pt.is_float32(kind)
    if abs(number) >= (_FLOAT32_LIMIT if single else math.inf):
        refuse(value, kind)
    if type(value) is int and not _holds(number, value, single=single):
        refuse(value, kind, ": no float of this type holds it")
    return number


def _holds(number: float, integer: int, *, single: bool) -> bool:
    """Whether the float is the integer, or its shortest text, padded with zeros, is that of the integer."""
    rounded = struct.unpack("f", struct.pack("f", number))[0] if single else number
    return int(rounded) == integer or Decimal(str(np.float32(rounded)) if single else repr(rounded)) == integer


def exact_float(integer: int, kind: pa.DataType) -> float:
    """The float of an integer of Python.

    Raises:
        ValueError: No float of the type holds it.
    """
    return _float(integer, kind)


def _string(value: Any, kind: pa.DataType) -> str:
    return value if type(value) is str and is_unicode(value) else refuse(value, kind)


def _date(value: Any, kind: pa.DataType) -> date:
    if type(value) is not str or not _DATE.fullmatch(value):
        refuse(value, kind)
    try:
        return date.fromisoformat(value)
    except ValueError:
        refuse(value, kind)


def _time(value: Any, kind: pa.DataType) -> int:
    """The time in units of the column, rounded down: one with a zone for a column that has one, else one without."""
    if type(value) is int and kind == MILLISECONDS and abs(value) < 2**63:
        return value
    if type(value) is not str or not _TIME.fullmatch(value):
        refuse(value, kind)
    try:
        moment = datetime.fromisoformat(value)
    except ValueError:
        refuse(value, kind)
    if moment.tzinfo is None and kind.tz is not None:
        refuse(value, kind, f": it has no time zone; write {moment.isoformat()}Z for a time in UTC")
    if moment.tzinfo is not None and kind.tz is None:
        refuse(value, kind, ": the column has no time zone")
    try:
        return (moment.replace(tzinfo=moment.tzinfo or UTC) - _EPOCH) // _UNITS[kind.unit]
    except OverflowError:
        refuse(value, kind)


def _decimal(value: Any, kind: pa.DataType) -> Decimal:
    number = Number(value) if type(value) is str else value
    exact = _decimal_of(number) if type(number) is Number and _NUMBER.fullmatch(number) else None
    if type(number) is int:
        exact = Decimal(number)
    if exact is not None:
        try:
            return exact.quantize(Decimal((0, (1,), -kind.scale)), context=_context(kind.precision))
        except (Inexact, InvalidOperation):
            pass
    refuse(value, kind)


@lru_cache(maxsize=38)
def _context(precision: int) -> Context:
    return Context(prec=precision, Emax=9999, Emin=-9999, traps=[Inexact, InvalidOperation])


def _decimal_of(text: str) -> Decimal | None:
    """The number that the text is; None if its exponent is beyond those of decimals."""
    try:
        return Decimal(text, _TRAPPING)
    except InvalidOperation:
        return None


_TRAPPING = Context(traps=[InvalidOperation])


def _text_bytes(value: Any, kind: pa.DataType) -> bytes:
    if type(value) is str and is_unicode(value):
        return sized(value.encode(), value, kind)
    return _of_base64(base64_of(value), value, kind)


def _base64_bytes(value: Any, kind: pa.DataType) -> bytes:
    return _of_base64(value if type(value) is str else base64_of(value), value, kind)


def _of_base64(encoded: str | None, value: Any, kind: pa.DataType) -> bytes:
    try:
        data = base64.b64decode(encoded, validate=True) if encoded is not None else None
    except (binascii.Error, ValueError):
        data = None
    return refuse(value, kind) if data is None else sized(data, value, kind)


def sized(data: bytes, value: Any, kind: pa.DataType) -> bytes:
    """The bytes, if a fixed size is theirs."""
    if pt.is_fixed_size_binary(kind) and len(data) != kind.byte_width:
        refuse(value, kind)
    return data


def _struct_reader(kind: pa.DataType, *, text: bool) -> Reader:
    fields = {field.name: or_null(reader(field.type, text=text)) for field in kind}

    def read(value: Any) -> Any:
        if type(value) is not dict or not value.keys() <= fields.keys():
            refuse(value, kind)
        return {name: read_field(value.get(name)) for name, read_field in fields.items()}

    return read


def _map_reader(kind: pa.DataType, *, text: bool) -> Reader:
    """An object, if its keys are written as strings; a list of ``{"key": …, "value": …}``, or of pairs."""
    read_key, read_item = reader(kind.key_type, text=text), or_null(reader(kind.item_type, text=text))

    def pair(entry: Any) -> tuple[Any, Any]:
        if type(entry) is list and len(entry) == 2:
            entry = {"key": entry[0], "value": entry[1]}
        if type(entry) is not dict or not entry.keys() <= {"key", "value"} or entry.get("key") is None:
            refuse(entry, kind)
        return read_key(entry["key"]), read_item(entry.get("value"))

    def read(value: Any) -> Any:
        if type(value) is dict:
            return [(read_key(name), read_item(item)) for name, item in value.items()]
        return [pair(entry) for entry in value] if type(value) is list else refuse(value, kind)

    return read


_READERS: tuple[tuple[Callable[[pa.DataType], bool], Callable[[Any, pa.DataType], Any]], ...] = (
    (pt.is_boolean, _boolean),
    (pt.is_integer, _integer),
    (pt.is_floating, _float),
    (is_text, _string),
    (pt.is_date, _date),
    (pt.is_timestamp, _time),
    (pt.is_decimal, _decimal),
)


# Cells of CSV files ---------------------------------------------------------------------------------------------------


def cell_reader(kind: pa.DataType, *, milliseconds: bool = False) -> Reader:
    """What reads a cell of a CSV file, which is bytes.

    A text and bytes are the cell itself. Other types leave spaces around the value out; a nested type is JSON.

    Args:
        milliseconds: Whether an integer is a time. In general it is as likely a year, or a date without hyphens.
    """
    if is_binary(kind):
        return lambda cell: sized(cell, cell, kind)
    read = reader(kind, text=True)
    if is_text(kind):
        return lambda cell: read(_decoded(cell, kind))
    parse = _cell_parser(kind, milliseconds=milliseconds)

    def read_cell(cell: bytes) -> Any:
        text = _decoded(cell, kind).strip(" \t")
        try:
            value = parse(text)
        except ValueError as error:
            refuse(text, kind, f": not valid JSON ({error})")
        return refuse(text, kind) if value is None else read(value)

    return read_cell


def _cell_parser(kind: pa.DataType, *, milliseconds: bool) -> Callable[[str], Any]:
    """What makes of the text of a cell the JSON value that the type's reader takes; None if there is none."""
    if pt.is_nested(kind):
        return parse_json
    if pt.is_boolean(kind):
        return lambda text: _BOOLEANS.get(text.lower())
    if pt.is_integer(kind):
        return lambda text: int(text) if _INTEGER.fullmatch(text) else None
    if pt.is_floating(kind):
        return _cell_float
    if milliseconds:
        return lambda text: int(text) if _INTEGER.fullmatch(text) else text
    return lambda text: text


def _cell_float(text: str) -> Any:
    name = _CELL_FLOATS.get(text.lower().removeprefix("+"))
    if name is not None:
        return name
    if _INTEGER.fullmatch(text) and int(text):
        return int(text)
    return Number(text) if _NUMBER.fullmatch(text) else None


def _decoded(cell: bytes, kind: pa.DataType) -> str:
    try:
        return cell.decode()
    except UnicodeDecodeError:
        refuse(cell, kind, ": it is not UTF-8")
