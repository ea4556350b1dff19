"""Columns of JSON values, and of cells of CSV files, as columns of Arrow. Errors name the row, column and value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from txnstore import compute as pc
from txnstore.threads import load
from txnstore.values.kinds import is_binary, is_text
from txnstore.values.maps import first_wrong_key
from txnstore.values.scalars import Reader, cell_reader, json_reader

#: Texts of numbers that Arrow and :mod:`.scalars` read alike. Arrow also reads others, such as 0x1F.
_INTEGERS = "^-?[0-9]{1,18}$"
_FLOATS = r"^-?([0-9]{1,15}|[0-9]{1,99}\.[0-9]{1,99}([eE][+-]?[0-9]{1,2})?)$"

#: The first day of year 1 in days since 1970, and the seconds of a day.
_YEAR_ONE_DAYS, _DAY_SECONDS = -719_162, 86_400


def columns_of(
    rows: Sequence[Mapping[str, Any]], schema: pa.Schema, errors: dict[int, str], *, text: bool
) -> list[pa.Array]:
    """Convert JSON objects to columns; a missing member is null.

    Args:
        rows: The objects, as :func:`~.json_text.parse_json` gives them, with members of the schema only.
        schema: The columns.
        errors: Errors by row, to which new ones are added; rows with an error are null.
        text: Whether a string in a binary column is its text, else base64.
    """
    load("pandas")  # pa.array imports it, if it is installed.
    return [_convert_column([row.get(field.name) for row in rows], field, errors, text=text) for field in schema]


def _convert_column(values: list[Any], field: pa.Field, errors: dict[int, str], *, text: bool) -> pa.Array:
    if field.nullable or None not in values:
        column = _convert_at_once(field.type, values)
        if column is not None:
            return column
    return _convert_one_by_one(values, field, json_reader(field.type, text=text), errors)


def _convert_one_by_one(values: Sequence[Any], field: pa.Field, read: Reader, errors: dict[int, str]) -> pa.Array:
    """Convert values that may not fit, and add the errors of their rows."""
    converted = []
    for number, value in enumerate(values):
        converted_value = None
        if number in errors:
            pass
        elif value is None:
            if not field.nullable:
                errors[number] = f"column {field.name!r} is null or missing, but the topic declares it not null"
        else:
            try:
                converted_value = read(value)
            except ValueError as error:
                errors[number] = f"column {field.name!r}: {error}"
        converted.append(converted_value)
    column = pa.array(converted, field.type)
    bad_key = first_wrong_key(column)
    if bad_key is not None:
        errors.setdefault(bad_key.row, f"column {field.name!r} has {bad_key}")
    return column


def _convert_at_once(kind: pa.DataType, values: list[Any]) -> pa.Array | None:
    """Convert all values by Arrow, if it reads each as :mod:`.scalars` does; else None."""
    if pt.is_integer(kind):
        python_type: type = int
    elif pt.is_boolean(kind):
        python_type = bool
    elif is_text(kind) or pt.is_timestamp(kind):
        python_type = str
    else:
        return None
    if not set(map(type, values)) <= {python_type, type(None)}:
        return None
    try:
        return _parse_times(pa.array(values, pa.string()), kind) if pt.is_timestamp(kind) else pa.array(values, kind)
    except (pa.ArrowException, OverflowError, UnicodeError):
        return None


def _parse_times(texts: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Parse texts as times or dates; None if one is before year 1, which Python lacks."""
    column = texts.cast(kind)
    earliest = pc.min(column.cast(pa.int32() if pt.is_date32(kind) else pa.int64())).as_py()
    units = {"ms": 1_000, "us": 1_000_000}
    year_one = _YEAR_ONE_DAYS if pt.is_date32(kind) else _YEAR_ONE_DAYS * _DAY_SECONDS * units[kind.unit]
    return column if earliest is None or earliest >= year_one else None


# Cells of CSV files ---------------------------------------------------------------------------------------------------


def column_of_cells(
    cells: pa.Array, field: pa.Field, errors: dict[int, str], *, milliseconds: bool = False
) -> pa.Array:
    """Convert the cells of a CSV file to a column.

    Args:
        cells: The cells, as binary. An empty one is null in a column of another type than text and binary.
        field: The column.
        errors: As for :func:`columns_of`.
        milliseconds: As for :func:`~.scalars.cell_reader`.
    """
    kind = field.type
    if not (is_text(kind) or is_binary(kind)):
        cells = pc.if_else(pc.equal(cells, b""), None, cells)
    if field.nullable or not cells.null_count:
        column = _convert_cells_at_once(cells, kind)
        if column is not None:
            return column
    return _convert_one_by_one(cells.to_pylist(), field, cell_reader(kind, milliseconds=milliseconds), errors)


def _convert_cells_at_once(cells: pa.Array, kind: pa.DataType) -> pa.Array | None:
    """Convert all cells by Arrow, if it reads each as :mod:`.scalars` does; else None."""
    if pt.is_nested(kind) or pt.is_boolean(kind) or pt.is_float32(kind):
        return None
    try:
        if is_text(kind) or is_binary(kind):
            return cells.cast(kind)
        texts = cells.cast(pa.string())
        pattern = _number_pattern(kind)
        if pattern is not None and not _all_match(texts, pattern):
            return None
        return _parse_times(texts, kind) if pt.is_timestamp(kind) or pt.is_date32(kind) else texts.cast(kind)
    except (pa.ArrowException, OverflowError):
        return None


def _number_pattern(kind: pa.DataType) -> str | None:
    """The pattern of texts that Arrow reads as :mod:`.scalars` does; None if it reads all texts alike."""
    if pt.is_decimal(kind):
        # Only decimals that need no rounding.
        whole, scale = kind.precision - kind.scale, kind.scale
        fraction = f"([.][0-9]{{1,{scale}}})?" if scale else ""
        return f"^-?[0-9]{{1,{whole}}}{fraction}$" if whole else "^$"
    return _INTEGERS if pt.is_integer(kind) else _FLOATS if pt.is_float64(kind) else None


def _all_match(texts: pa.Array, pattern: str) -> bool:
    return pc.all(pc.match_substring_regex(texts, pattern)).as_py() is not False
