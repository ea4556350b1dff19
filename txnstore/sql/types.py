"""Writes names, strings and Arrow types in DuckDB's SQL."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt

from txnstore.errors import UnsupportedFormatError

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


def quote(name: str) -> str:
    """Quote an identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Quote a string constant."""
    return "'" + text.replace("'", "''") + "'"


def duckdb_type(data_type: pa.DataType) -> str:
    """Return the type as which DuckDB reads a Parquet column of this Arrow type.

    Timestamps have microseconds in DuckDB, whatever their unit in Arrow; those with a zone are instants.

    Raises:
        UnsupportedFormatError: No topic can have a column of this type.
    """
    if data_type in _PLAIN:
        return _PLAIN[data_type]
    if pt.is_fixed_size_binary(data_type):
        return "BLOB"
    if pt.is_timestamp(data_type):
        return "TIMESTAMP" if data_type.tz is None else "TIMESTAMP WITH TIME ZONE"
    if pt.is_decimal128(data_type):
        return f"DECIMAL({data_type.precision}, {data_type.scale})"
    if pt.is_map(data_type):
        return f"MAP({duckdb_type(data_type.key_type)}, {duckdb_type(data_type.item_type)})"
    if pt.is_list(data_type):
        return f"{duckdb_type(data_type.value_type)}[]"
    if pt.is_struct(data_type):
        return f"STRUCT({', '.join(f'{quote(field.name)} {duckdb_type(field.type)}' for field in data_type)})"
    msg = f"DuckDB has no type for a column of type {data_type}"
    raise UnsupportedFormatError(msg)
