"""Writes names, strings and Arrow types in DuckDB's SQL."""

from __future__ import annotations

import re

import pyarrow as pa
import pyarrow.types as pt

from txnstore.catalog.schemas import MAX_DEPTH
from txnstore.errors import UnsupportedFormatError
from txnstore.runtime import LATEST_MS


def shown_ms(milliseconds: int) -> int:
    """A time as SQL shows it: a time after the year 9999, from a clock that was wrong, is shown as its end."""
    return max(-LATEST_MS, min(milliseconds, LATEST_MS))


_PLAIN = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.large_string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.large_binary(): "BLOB",
    pa.date32(): "DATE",
}


#: What ends a line for some program, and what a terminal does not show.
_BREAKS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def quote(name: str) -> str:
    """Quote an identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Quote a string constant."""
    return "'" + text.replace("'", "''") + "'"


def comment(text: str) -> str:
    """Write a comment of one line; a line break in the text, which would end it, is shown as an escape."""
    return f"-- {_BREAKS.sub(lambda match: repr(match.group())[1:-1], text)}"


def duckdb_type(data_type: pa.DataType, levels: int = MAX_DEPTH) -> str:
    """Return the type as which DuckDB reads a Parquet column of this Arrow type, of at most ``levels`` levels.

    Timestamps have microseconds in DuckDB, whatever their unit in Arrow; those with a zone are instants.

    Raises:
        UnsupportedFormatError: DuckDB has no such type; no new topic can have a column of it.
    """
    if levels == 0:
        msg = f"a column is nested more than {MAX_DEPTH} levels deep"
        raise UnsupportedFormatError(msg)
    if data_type in _PLAIN:
        return _PLAIN[data_type]
    if pt.is_fixed_size_binary(data_type):
        return "BLOB"
    if pt.is_timestamp(data_type):
        return "TIMESTAMP" if data_type.tz is None else "TIMESTAMP WITH TIME ZONE"
    if pt.is_decimal128(data_type) and 0 <= data_type.scale <= data_type.precision:
        return f"DECIMAL({data_type.precision}, {data_type.scale})"
    if pt.is_map(data_type):
        return f"MAP({duckdb_type(data_type.key_type, levels - 1)}, {duckdb_type(data_type.item_type, levels - 1)})"
    if pt.is_list(data_type):
        return f"{duckdb_type(data_type.value_type, levels - 1)}[]"
    if pt.is_struct(data_type):
        fields = (f"{quote(field.name)} {duckdb_type(field.type, levels - 1)}" for field in data_type)
        return f"STRUCT({', '.join(fields)})"
    msg = f"DuckDB has no type for a column of type {data_type}"
    raise UnsupportedFormatError(msg)
