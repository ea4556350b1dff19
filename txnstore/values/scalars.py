"""The JSON values, and cells of CSV files, that each type of Arrow accepts.

Each reader converts one value, without a loss, to one that :func:`pyarrow.array` takes for the type. It refuses others
with a ``ValueError`` that names the value and the type.
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

#: Converts a value that is not null; raises ``ValueError`` with the fault.
Reader = Callable[[Any], Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_UNITS = {"ms": timedelta(milliseconds=1), "us": timedelta(microseconds=1)}
#: Python's parsers accept more forms of ISO 8601, some of which could be times in milliseconds: 1712011230000.
_DATE_PATTERN = re.compile(r"\d{4}-\d\d-\d\d|\d{8}", re.ASCII)
_TIME_PATTERN = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d(:\d\d(:\d\d([.,]\d+)?)?)?(Z|[+-]\d\d(:?\d\d)?)?)?", re.ASCII)
_INTEGER_PATTERN = re.compile(r"[+-]?\d{1,400}", re.ASCII)
_NUMBER_PATTERN = re.compile(r"[+-]?(\d{1,400}(\.\d{0,400})?|\.\d{1,400})([eE][+-]?\d{1,3})?", re.ASCII)
_SPECIAL_FLOATS = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
#: The least number that is rounded to an infinite float.
_FLOAT32_LIMIT = 2.0**128 - 2.0**103
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
#: Texts of special floats by pandas, numpy, Java and spreadsheets, in small letters and without a plus sign.
_CELL_FLOATS = {
    "nan": "NaN", "inf": "Infinity", "-inf": "-Infinity", "infinity": "Infinity", "-infinity": "-Infinity"
}  # fmt: skip
_MAX_SHOWN_CHARS = 80


def json_reader(kind: pa.DataType, *, text: bool) -> Reader:
    """Return the reader of JSON values, as :func:`~.json_text.parse_json` returns them, for a type.

    Args:
        text: Whether a string in a binary column is its UTF-8 text; else it is base64. ``{"base64": "…"}`` is taken in
            either case.
    """
    if pt.is_map(kind):
        return _map_reader(kind, text=text)
    if pt.is_struct(kind):
        return _struct_reader(kind, text=text)
    if pt.is_list(kind):
        read = nullable_reader(json_reader(kind.value_type, text=text))
        return lambda value: [read(item) for item in value] if type(value) is list else refuse(value, kind)
    if is_binary(kind):
        read_bytes = _text_bytes if text else _base64_bytes
        return lambda value: read_bytes(value, kind)
    for test, read_plain in _READERS:
        if test(kind):
            return lambda value: read_plain(value, kind)
    raise AssertionError(kind)  # The catalog has refused a topic with another type.


def nullable_reader(read: Reader) -> Reader:
    return lambda value: None if value is None else read(value)


def refuse(value: Any, kind: pa.DataType, reason: str = "") -> NoReturn:
    """Raise the error of a value."""
    raise ValueError(f"{text_in_error(value)} is not {kind}{reason}")


def text_in_error(value: Any) -> str:
    """The text of a value in an error, cut to a bounded length."""
    text = str(value) if isinstance(value, Number) else ascii(value)
    return text if len(text) <= _MAX_SHOWN_CHARS else text[: _MAX_SHOWN_CHARS - 3] + "..."


def _read_boolean(value: Any, kind: pa.DataType) -> bool:
    return value if type(value) is bool else refuse(value, kind)


def _read_integer(value: Any, kind: pa.DataType) -> int:
    """Read an integer, which may be written with a fraction of zeros or an exponent."""
    number = value
    if type(value) is Number:
        exact = _decimal_of(value)
        if exact is not None and exact.adjusted() < kind.bit_width and exact == exact.to_integral_value():
            number = int(exact)
    bound = 2 ** (kind.bit_width - 1)
    return number if type(number) is int and -bound <= number < bound else refuse(value, kind)


def _read_float(value: Any, kind: pa.DataType) -> float:
    """Read the nearest float of a fraction; an integer only if a float represents it exactly."""
    if type(value) is str and value in _SPECIAL_FLOATS:
        return _SPECIAL_FLOATS[value]
    if type(value) not in {int, Number}:
        refuse(value, kind)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    is_single = pt.is_float32(kind)
    if abs(number) >= (_FLOAT32_LIMIT if is_single else math.inf):
        refuse(value, kind)
    if type(value) is int and not _is_represented(number, value, single=is_single):
        refuse(value, kind, ": no float of this type holds it")
    return number


def _is_represented(number: float, integer: int, *, single: bool) -> bool:
    """Whether a float equals an integer, or its shortest text, padded with zeros, is the integer (1e23)."""
    rounded = struct.unpack("f", struct.pack("f", number))[0] if single else number
    return int(rounded) == integer or Decimal(str(np.float32(rounded)) if single else repr(rounded)) == integer


def exact_float(integer: int, kind: pa.DataType) -> float:
    """Convert an integer to a float that represents it exactly.

    Raises:
        ValueError: No float of the type represents it.
    """
    return _read_float(integer, kind)


def _read_string(value: Any, kind: pa.DataType) -> str:
    return value if type(value) is str and is_unicode(value) else refuse(value, kind)


def _read_date(value: Any, kind: pa.DataType) -> date:
    if type(value) is not str or not _DATE_PATTERN.fullmatch(value):
        refuse(value, kind)
    try:
        return date.fromisoformat(value)
    except ValueError:
        refuse(value, kind)


def _read_time(value: Any, kind: pa.DataType) -> int:
    """Read a time in units of the column, rounded down; it must have a zone exactly if the column has one."""
    if type(value) is int and kind == MILLISECONDS and abs(value) < 2**63:
        return value
    if type(value) is not str or not _TIME_PATTERN.fullmatch(value):
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


def _read_decimal(value: Any, kind: pa.DataType) -> Decimal:
    """Read a number, or one in a text, as a decimal of the type; refuse it if digits were lost."""
    number = Number(value) if type(value) is str else value
    exact = _decimal_of(number) if type(number) is Number and _NUMBER_PATTERN.fullmatch(number) else None
    if type(number) is int:
        exact = Decimal(number)
    if exact is not None:
        try:
            return exact.quantize(Decimal((0, (1,), -kind.scale)), context=_decimal_context(kind.precision))
        except (Inexact, InvalidOperation):
            pass
    refuse(value, kind)


@lru_cache(maxsize=38)
def _decimal_context(precision: int) -> Context:
    return Context(prec=precision, Emax=9999, Emin=-9999, traps=[Inexact, InvalidOperation])


def _decimal_of(text: str) -> Decimal | None:
    """Parse a number; None if its exponent is beyond those of decimals."""
    try:
        return Decimal(text, _TRAPPING)
    except InvalidOperation:
        return None


_TRAPPING = Context(traps=[InvalidOperation])


def _text_bytes(value: Any, kind: pa.DataType) -> bytes:
    if type(value) is str and is_unicode(value):
        return check_size(value.encode(), value, kind)
    return _decode_base64(base64_of(value), value, kind)


def _base64_bytes(value: Any, kind: pa.DataType) -> bytes:
    return _decode_base64(value if type(value) is str else base64_of(value), value, kind)


def _decode_base64(encoded: str | None, value: Any, kind: pa.DataType) -> bytes:
    try:
        data = base64.b64decode(encoded, validate=True) if encoded is not None else None
    except (binascii.Error, ValueError):
        data = None
    return refuse(value, kind) if data is None else check_size(data, value, kind)


def check_size(data: bytes, value: Any, kind: pa.DataType) -> bytes:
    """Return bytes if they have the size of a fixed-size type."""
    if pt.is_fixed_size_binary(kind) and len(data) != kind.byte_width:
        refuse(value, kind)
    return data


def _struct_reader(kind: pa.DataType, *, text: bool) -> Reader:
    """Return the reader of an object whose members are fields of the struct; a missing one is null."""
    fields = {field.name: nullable_reader(json_reader(field.type, text=text)) for field in kind}

    def read(value: Any) -> Any:
        if type(value) is not dict or not value.keys() <= fields.keys():
            refuse(value, kind)
        return {name: read_field(value.get(name)) for name, read_field in fields.items()}

    return read


def _map_reader(kind: pa.DataType, *, text: bool) -> Reader:
    """Return a reader of maps: an object with string keys, a list of ``{"key": …, "value": …}``, or of pairs."""
    read_key = json_reader(kind.key_type, text=text)
    read_item = nullable_reader(json_reader(kind.item_type, text=text))

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
    (pt.is_boolean, _read_boolean),
    (pt.is_integer, _read_integer),
    (pt.is_floating, _read_float),
    (is_text, _read_string),
    (pt.is_date, _read_date),
    (pt.is_timestamp, _read_time),
    (pt.is_decimal, _read_decimal),
)


# Cells of CSV files ---------------------------------------------------------------------------------------------------


def cell_reader(kind: pa.DataType, *, milliseconds: bool = False) -> Reader:
    """Return the reader of cells of a CSV file, which are bytes, for a type.

    For text and binary, the value is the cell itself. For other types, spaces around it are stripped; nested types are
    JSON.

    Args:
        milliseconds: Whether an integer is a time; else it is refused: it may be a year, or a date without hyphens.
    """
    if is_binary(kind):
        return lambda cell: check_size(cell, cell, kind)
    read = json_reader(kind, text=True)
    if is_text(kind):
        return lambda cell: read(_decode_text(cell, kind))
    parse = _cell_parser(kind, milliseconds=milliseconds)

    def read_cell(cell: bytes) -> Any:
        text = _decode_text(cell, kind).strip(" \t")
        try:
            value = parse(text)
        except ValueError as error:
            refuse(text, kind, f": not valid JSON ({error})")
        return refuse(text, kind) if value is None else read(value)

    return read_cell


def _cell_parser(kind: pa.DataType, *, milliseconds: bool) -> Callable[[str], Any]:
    """Return the parser of a cell's text to a JSON value for the type's reader; it returns None for no value."""
    if pt.is_nested(kind):
        return parse_json
    if pt.is_boolean(kind):
        return lambda text: _BOOLEANS.get(text.lower())
    if pt.is_integer(kind):
        return lambda text: int(text) if _INTEGER_PATTERN.fullmatch(text) else None
    if pt.is_floating(kind):
        return _cell_float
    if milliseconds:
        return lambda text: int(text) if _INTEGER_PATTERN.fullmatch(text) else text
    return lambda text: text


def _cell_float(text: str) -> Any:
    """Return the number in a cell of CSV, or the name of a special value; None if it is neither."""
    name = _CELL_FLOATS.get(text.lower().removeprefix("+"))
    if name is not None:
        return name
    if _INTEGER_PATTERN.fullmatch(text) and int(text):
        return int(text)
    return Number(text) if _NUMBER_PATTERN.fullmatch(text) else None


def _decode_text(cell: bytes, kind: pa.DataType) -> str:
    try:
        return cell.decode()
    except UnicodeDecodeError:
        refuse(cell, kind, ": it is not UTF-8")
