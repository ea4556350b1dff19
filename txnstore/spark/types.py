"""Converts Arrow types to those that Spark accepts, and gives their names in Spark SQL.

Spark accepts exactly one Arrow type for each of its types, and fails the read if a schema differs in any detail (names
of list elements, nullability). So every batch is rebuilt with the mapping of this module.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from txnstore.errors import SchemaMismatchError

#: The maximum rows and bytes of a record batch for Spark (measured: no difference between 64k and 128k rows).
BATCH_ROWS = 128 * 1024
_BATCH_BYTES = 32 << 20

_SAME = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
    pa.null(): "void",
}
_BY_NAME = {name: data_type for data_type, name in _SAME.items()}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_SHORTER = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}


def spark_schema(schema: pa.Schema) -> pa.Schema:
    """Return the Arrow schema that Spark expects for these columns: all nullable, timestamps in microseconds."""
    return pa.schema([pa.field(field.name, _spark_type(field.type, field.name)) for field in schema])


def ddl(schema: pa.Schema) -> str:
    """Return the columns of a :func:`spark_schema` as DDL of Spark SQL."""
    return ", ".join(f"{quoted_name(field.name)} {type_name(field.type, quote=True)}" for field in schema)


def type_name(data_type: pa.DataType, *, quote: bool = False) -> str:
    """Return the name of a type of a :func:`spark_schema`, as ``DataType.simpleString`` gives it.

    ``quote``: put the names of struct fields in backquotes, as DDL requires.
    """
    if data_type in _SAME:
        return _SAME[data_type]
    if pt.is_decimal(data_type):
        return f"decimal({data_type.precision},{data_type.scale})"
    if pt.is_map(data_type):
        return f"map<{type_name(data_type.key_type, quote=quote)},{type_name(data_type.item_type, quote=quote)}>"
    if pt.is_list(data_type):
        return f"array<{type_name(data_type.value_type, quote=quote)}>"
    fields = [
        f"{quoted_name(field.name) if quote else field.name}:{type_name(field.type, quote=quote)}"
        for field in data_type
    ]
    return f"struct<{','.join(fields)}>"


def arrow_type(name: str) -> pa.DataType:
    """Return the Arrow type in which Spark sends a column of this ``simpleString``; null for nested types."""
    decimal = _DECIMAL.fullmatch(name)
    return pa.decimal128(int(decimal[1]), int(decimal[2])) if decimal else _BY_NAME.get(name, pa.null())


def to_batches(tables: Iterator[pa.Table], target: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Convert tables to record batches of the target schema: concatenates small tables and splits large ones."""
    pending_tables: list[pa.Table] = []
    rows = size = 0
    for table in tables:
        pending_tables.append(table)
        rows += table.num_rows
        size += table.nbytes
        if rows >= BATCH_ROWS or size >= _BATCH_BYTES:
            yield from _split_table(pending_tables, rows, size, target)
            pending_tables, rows, size = [], 0, 0
    if rows:
        yield from _split_table(pending_tables, rows, size, target)


def _split_table(tables: list[pa.Table], rows: int, size: int, target: pa.Schema) -> Iterator[pa.RecordBatch]:
    table = pa.concat_tables(tables)
    count = min(BATCH_ROWS, max(1, rows * _BATCH_BYTES // max(1, size)))
    for first_row in range(0, rows, count):
        yield _to_batch(table.slice(first_row, count), target)


def _to_batch(table: pa.Table, target: pa.Schema) -> pa.RecordBatch:
    """Cast a table to exactly these fields; raises SchemaMismatchError for nulls in a column that is not nullable."""
    arrays = []
    for field in target:
        column = table.column(field.name)
        if column.type != field.type:
            column = pc.cast(column, options=pc.CastOptions(field.type, allow_time_truncate=True))
        if not field.nullable and column.null_count:
            msg = f"column {field.name!r} holds nulls, but the schema of the read declares it not null"
            raise SchemaMismatchError(msg)
        arrays.append(column.combine_chunks() if column.num_chunks != 1 else column.chunk(0))
    exact = [_cast_exactly(array, field) for array, field in zip(arrays, target, strict=True)]
    return pa.RecordBatch.from_arrays(exact, schema=target)


def _cast_exactly(array: pa.Array, field: pa.Field) -> pa.Array:
    """Return the array with exactly the field's type: equal types may differ in the names of list elements."""
    return array if array.type.equals(field.type, check_metadata=True) else array.cast(field.type)


def _spark_type(data_type: pa.DataType, column: str) -> pa.DataType:
    """Return the Arrow type that Spark expects; the catalog refuses topics with any other type."""
    if data_type in _SAME or pt.is_decimal128(data_type):
        return data_type
    if data_type in _SHORTER:
        return _SHORTER[data_type]
    if pt.is_fixed_size_binary(data_type):
        return pa.binary()
    if pt.is_timestamp(data_type):
        return pa.timestamp("us", "UTC" if data_type.tz is not None else None)
    if pt.is_map(data_type):
        key, item = _spark_type(data_type.key_type, column), _spark_type(data_type.item_type, column)
        return pa.map_(pa.field("key", key, nullable=False), pa.field("value", item))
    if pt.is_list(data_type):
        return pa.list_(pa.field("element", _spark_type(data_type.value_type, column)))
    if pt.is_struct(data_type):
        return pa.struct([pa.field(field.name, _spark_type(field.type, column)) for field in data_type])
    msg = f"column {column!r} is of type {data_type}, which Spark does not support; exclude it with the option columns"
    raise SchemaMismatchError(msg)


def quoted_name(name: str) -> str:
    """Quote a column name for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"
