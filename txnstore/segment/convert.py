"""Anything that holds rows, as a table of a topic's schema; and old rows, as rows of the schema of today."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from txnstore.errors import SchemaMismatchError
from txnstore.segment.casts import cast_column
from txnstore.segment.schema import HEADERS, RECORD_SCHEMA, TIMESTAMP, stored_schema

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def normalize(data: object, schema: pa.Schema | None) -> pa.Table:
    """The rows as a table of ``stored_schema(schema)``; ``schema`` None means Kafka's record.

    ``data``: a pyarrow table, batch or reader, anything with ``__arrow_c_stream__`` or ``__arrow_c_array__`` (polars,
    DuckDB, …), a pandas DataFrame (without its index), or a sequence of dicts. Columns are found by name, whatever
    their order; missing nullable ones become null; types are cast where :mod:`txnstore.segment.casts` allows it.
    Anything else is a :class:`SchemaMismatchError` that names the column.
    """
    tables = list(normalize_batches(data, schema))
    return pa.concat_tables(tables) if len(tables) != 1 else tables[0]


def normalize_batches(data: object, schema: pa.Schema | None) -> Iterator[pa.Table]:
    """What :func:`normalize` gives, piece by piece as a stream delivers it; at least one (maybe empty) table.

    A table comes as one piece, a reader as one piece a batch, so a stream larger than memory can be appended.
    """
    target = RECORD_SCHEMA if schema is None else schema
    if isinstance(data, Sequence) and not isinstance(data, str | bytes | bytearray):
        yield _fit(_from_rows(data, target), target)
    elif _is_pandas(data):
        yield _fit(_from_pandas(data, target), target)
    elif isinstance(data, pa.Table):
        yield _fit(data, target)
    elif isinstance(data, pa.RecordBatch) or hasattr(data, "__arrow_c_array__"):
        yield _fit(pa.table(data), target)
    elif hasattr(data, "__arrow_c_stream__"):
        reader = data if isinstance(data, pa.RecordBatchReader) else pa.RecordBatchReader.from_stream(data)
        # The columns are checked before the first batch, so that a wrong stream costs nothing.
        empty = _fit(reader.schema.empty_table(), target)
        none = True
        for batch in reader:
            none = False
            yield _fit(pa.table(batch), target)
        if none:
            yield empty
    else:
        raise SchemaMismatchError(
            f"cannot read rows from {type(data).__name__}; pass a pyarrow Table, RecordBatch or RecordBatchReader, an "
            "object with __arrow_c_stream__, a pandas DataFrame or a list of dicts",
        )


def conform(table: pa.Table, schema: pa.Schema | None, columns: Sequence[str] | None = None) -> pa.Table:
    """Rows of an older schema of the topic as rows of this one, for reading.

    Columns that did not exist yet are null, narrower types are widened. ``columns``: only these, in this order.
    Whatever else the table holds (``_offset``, ``_timestamp``) is left out.
    """
    target = stored_schema(schema)
    if columns is not None:
        target = pa.schema([target.field(name) for name in columns])
        if not columns:
            return table.select([])  # Keeps the number of rows.
    if table.schema.equals(target):
        return table
    return pa.Table.from_arrays([_column(table, field) for field in target], schema=target)


def _fit(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table in the stored schema, if it keeps to the topic's rules for writers."""
    target = stored_schema(schema)
    if table.schema.equals(target, check_metadata=True):
        result = table
    else:
        _check_columns(table.column_names, schema)
        result = pa.Table.from_arrays([_column(table, field) for field in target], schema=target)
    for field in schema:
        if field.nullable:
            continue
        if field.name not in table.column_names:
            raise SchemaMismatchError(f"column {field.name!r} is missing, but the topic says that it is not null")
        if result[field.name].null_count:
            raise SchemaMismatchError(f"column {field.name!r} holds a null, but the topic says that it is not null")
    return result


def _column(table: pa.Table, field: pa.Field) -> Any:
    index = table.schema.get_field_index(field.name)
    if index < 0:
        return pa.chunked_array([pa.nulls(table.num_rows, field.type)])
    return cast_column(table.column(index), field)


def _check_columns(names: Sequence[object], schema: pa.Schema) -> None:
    """Refuse columns that the topic does not have, and columns that are there twice."""
    seen: set[object] = set()
    for name in names:
        if name not in schema.names:
            known = ", ".join(schema.names)
            raise SchemaMismatchError(f"the topic has no column {name!r}; it has {known}")
        if name in seen:
            raise SchemaMismatchError(f"column {name!r} is there twice")
        seen.add(name)


def _from_rows(rows: Sequence[Any], schema: pa.Schema) -> pa.Table:
    """Dicts as a table with the columns that at least one of them has; no dicts, no rows."""
    if not rows:
        return stored_schema(schema).empty_table()
    names: dict[object, None] = {}
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise SchemaMismatchError(f"row {number} is of type {type(row).__name__}; a row is a dict")
        names.update(dict.fromkeys(row))
    _check_columns(list(names), schema)
    if not names:
        # Rows without a column: a table could not tell how many.
        names[schema.names[0]] = None
    return pa.table({name: _array([row.get(name) for row in rows], schema.field(name)) for name in names})


def _from_pandas(frame: Any, schema: pa.Schema) -> pa.Table:
    """A DataFrame's columns; NaN and NaT are nulls, as pandas itself has it."""
    names = list(frame.columns)
    _check_columns(names, schema)
    return pa.table({name: _array(frame[name], schema.field(name)) for name in names})


def _array(values: Any, field: pa.Field) -> Any:
    """Python or pandas values as an array of the type that they have, or of the field's where it needs the hint.

    The type is inferred first and cast then: ``pa.array([1.5], pa.int64())`` would cut the fraction off.
    """
    pandas = not isinstance(values, list)
    try:
        if field.type == HEADERS or pt.is_map(field.type):
            # Lists of pairs, which inference cannot read.
            return pa.array(values, field.type, from_pandas=pandas)
        if pt.is_temporal(field.type) and (not pandas or values.dtype == object):
            values = _without_integers(values, field)
        return pa.array(values, from_pandas=pandas)
    except (pa.ArrowException, OverflowError) as error:
        raise SchemaMismatchError(f"column {field.name!r} does not fit {field.type}: {error}") from error


def _without_integers(values: Any, field: pa.Field) -> Any:
    """Moments for integers that stand among moments, so that one means what it means alone: milliseconds, or nothing.

    Inference would read it in the unit of the others: microseconds beside a ``datetime``, days beside a ``date``.
    """
    kinds = set(map(type, values)) - {type(None)}
    if int not in kinds or len(kinds) == 1:
        return values
    if field.type != TIMESTAMP:
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise SchemaMismatchError(
            f"column {field.name!r} mixes values of types {names}; the topic holds {field.type} there"
        )
    return [_EPOCH + dt.timedelta(milliseconds=value) if type(value) is int else value for value in values]


def _is_pandas(data: object) -> bool:
    """Whether it is a pandas DataFrame, without importing pandas."""
    return type(data).__module__.partition(".")[0] == "pandas" and hasattr(data, "columns")
