"""Converts rows of any supported kind to a topic's schema, and rows of an older schema to the current one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import pyarrow as pa

from txnstore.errors import SchemaMismatchError
from txnstore.segment.schema import RECORD_SCHEMA, stored_schema
from txnstore.threads import load
from txnstore.values.arrays import array_of
from txnstore.values.casts import cast_column
from txnstore.values.maps import check_maps

T = TypeVar("T")


def normalize(data: object, schema: pa.Schema | None) -> pa.Table:
    """Convert the rows to a table of ``stored_schema(schema)``.

    Columns are matched by name, in any order. Missing nullable columns become null. Types are cast by the rules of
    :mod:`txnstore.values.casts`.

    Args:
        data: A pyarrow table, batch or reader, any object with ``__arrow_c_stream__`` or ``__arrow_c_array__`` (polars,
            DuckDB, …), a pandas DataFrame (a level of its index that has a name is a column), or a sequence of dicts.
        schema: The schema of the topic; None for Kafka records.

    Raises:
        SchemaMismatchError: A column is unknown, duplicate, missing, null or of a wrong type. The message names it.
    """
    target = RECORD_SCHEMA if schema is None else schema
    tables = [_normalize_part(part, target) for part in parts_of(data)]
    return pa.concat_tables(tables) if len(tables) != 1 else tables[0]


def parts_of(data: object) -> Iterator[object]:
    """Split the data into parts that :func:`normalize` takes, so that a stream may be larger than memory.

    The parts of a stream are an empty table, by which its columns can be checked before a batch is read, and its
    batches. Other data is one part.
    """
    is_table = isinstance(data, Sequence | pa.Table | pa.RecordBatch) or _is_pandas(data)
    if is_table or hasattr(data, "__arrow_c_array__") or not hasattr(data, "__arrow_c_stream__"):
        yield data
        return
    reader = data if isinstance(data, pa.RecordBatchReader) else pa.RecordBatchReader.from_stream(data)
    yield reader.schema.empty_table()
    for batch in reader:
        yield pa.Table.from_batches([batch])


def _normalize_part(data: object, target: pa.Schema) -> pa.Table:
    """Convert a part of the data to a table of the stored schema."""
    if isinstance(data, Sequence) and not isinstance(data, str | bytes | bytearray):
        return _fit_schema(_from_rows(data, target), target)
    if _is_pandas(data):
        return _fit_schema(_from_pandas(data, target), target)
    if isinstance(data, pa.Table):
        return _fit_schema(data, target)
    if isinstance(data, pa.RecordBatch) or hasattr(data, "__arrow_c_array__"):
        load("pandas")  # pa.table imports it, if it is installed.
        return _fit_schema(pa.table(data), target)
    raise SchemaMismatchError(
        f"cannot read rows from {type(data).__name__}; pass a pyarrow Table, RecordBatch or RecordBatchReader, an "
        "object with __arrow_c_stream__, a pandas DataFrame or a list of dicts",
    )


def copy_rows(table: pa.Table) -> pa.Table:
    """Copy the rows to memory of their own.

    Arrow shares memory with pandas, numpy and other libraries, whose owner may change it while the rows wait for their
    upload; whether memory is immutable cannot be seen.
    """
    # Concatenation is the copy that leaves out what is outside of a slice, also inside of nested columns.
    columns = [
        pa.chunked_array([pa.concat_arrays([chunk]) for chunk in column.chunks], column.type)
        for column in table.columns
    ]
    return pa.Table.from_arrays(columns, schema=table.schema)


def conform(table: pa.Table, schema: pa.Schema | None, columns: Sequence[str] | None = None) -> pa.Table:
    """Convert rows of an older schema of the topic to this schema, for reading.

    Columns that are missing become null, and narrower types are widened. Other columns of the table (``_offset``,
    ``_timestamp``) are dropped.

    Args:
        table: The rows of a segment.
        schema: The schema of the topic; None for Kafka records.
        columns: The columns to return, in this order; None for all.
    """
    target = stored_schema(schema)
    if columns is not None:
        target = pa.schema([target.field(name) for name in columns])
        if not columns:
            return table.select([])  # Keeps the number of rows.
    if table.schema.equals(target):
        return table
    return pa.Table.from_arrays([_stored_column(table, field) for field in target], schema=target)


def _fit_schema(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Convert the table to the stored schema, and check the not-null columns and the keys of maps."""
    target = stored_schema(schema)
    if table.schema.equals(target, check_metadata=True):
        collect_errors(schema, lambda field: _check_values(table[field.name], field))
        return table
    _check_columns(table.column_names, schema)
    columns = collect_errors(target, lambda field: _fill_column(table, field, schema.field(field.name)))
    return pa.Table.from_arrays(columns, schema=target)


def collect_errors(fields: Iterable[pa.Field], work: Callable[[pa.Field], T]) -> list[T]:
    """Return the results of work on each column; raise one error that names all wrong columns.

    Raises:
        SchemaMismatchError: The work raised it for at least one column.
    """
    results, errors = list[T](), list[SchemaMismatchError]()
    for field in fields:
        try:
            results.append(work(field))
        except SchemaMismatchError as error:
            errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise SchemaMismatchError("; ".join(map(str, errors))) from errors[0].__cause__
    return results


def _check_values(column: Any, field: pa.Field) -> None:
    """Refuse values that no reader could show: a null where none is declared, and a map with equal keys."""
    if not field.nullable and column.null_count:
        raise SchemaMismatchError(f"column {field.name!r} contains a null, but the topic declares it not null")
    check_maps(column, field.name)


def _fill_column(table: pa.Table, field: pa.Field, declared: pa.Field) -> Any:
    """Return the column in the stored type of a field, with values where the topic declares it not null."""
    if not declared.nullable and field.name not in table.column_names:
        raise SchemaMismatchError(f"column {field.name!r} is missing, but the topic declares it not null")
    column = _stored_column(table, field)
    _check_values(column, declared)
    return column


def _stored_column(table: pa.Table, field: pa.Field) -> Any:
    index = table.schema.get_field_index(field.name)
    if index < 0:
        return pa.chunked_array([pa.nulls(table.num_rows, field.type)])
    return cast_column(table.column(index), field)


def _check_columns(names: Sequence[object], schema: pa.Schema) -> None:
    """Raise for columns that the topic does not have, and for duplicate columns."""
    unknown = list(dict.fromkeys(repr(name) for name in names if name not in schema.names))
    if unknown:
        columns_text = f"column{'s' if len(unknown) > 1 else ''} {', '.join(unknown)}"
        raise SchemaMismatchError(f"the topic has no {columns_text}; it has {', '.join(schema.names)}")
    duplicates = [repr(name) for name, count in Counter(names).items() if count > 1]
    if duplicates:
        raise SchemaMismatchError(f"duplicate column{'s' if len(duplicates) > 1 else ''} {', '.join(duplicates)}")


def _from_rows(rows: Sequence[Any], schema: pa.Schema) -> pa.Table:
    """Convert dicts to a table with the columns that at least one of them has."""
    if not rows:
        return stored_schema(schema).empty_table()
    names: dict[object, None] = {}
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise SchemaMismatchError(f"row {number} is of type {type(row).__name__}; a row is a dict")
        names.update(dict.fromkeys(row))
    _check_columns(list(names), schema)
    if not names:
        # All dicts are empty: one column of nulls keeps the number of rows.
        names[schema.names[0]] = None
    arrays = collect_errors(
        map(schema.field, names), lambda field: array_of([row.get(field.name) for row in rows], field)
    )
    return pa.table(dict(zip(names, arrays, strict=True)))


def _from_pandas(frame: Any, schema: pa.Schema) -> pa.Table:
    """Convert a DataFrame's columns, and the levels of its index that have names, to a table; NaN and NaT become null.

    ``groupby`` and ``set_index`` make such levels. A column that is a level, too (``set_index(…, drop=False)``), is
    taken once.
    """
    names = list(frame.columns)
    levels = [name for name in frame.index.names if name is not None and name not in names]
    _check_columns([*levels, *names], schema)

    def convert(field: pa.Field) -> Any:
        is_level = field.name in levels
        return array_of(frame.index.get_level_values(field.name) if is_level else frame[field.name], field)

    arrays = collect_errors(map(schema.field, [*levels, *names]), convert)
    return pa.table(dict(zip([*levels, *names], arrays, strict=True)))


def _is_pandas(data: object) -> bool:
    """Whether the data is a pandas DataFrame; does not import pandas."""
    return type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns")
