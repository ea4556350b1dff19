"""The columns of a topic: those in segments, those that reads add, and the timestamp of each row."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from txnstore import compute as pc
from txnstore.errors import CorruptionError, SchemaMismatchError
from txnstore.threads import load
from txnstore.values.casts import MILLISECONDS, floor_to_milliseconds
from txnstore.values.kinds import is_storable

TIMESTAMP = MILLISECONDS
#: Headers of a Kafka record: an ordered list; names may repeat.
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))

#: The columns of a topic without a declared schema: those of a Kafka record.
RECORD_SCHEMA = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        pa.field("headers", HEADERS),
        pa.field("timestamp", TIMESTAMP),
    ],
)

#: The columns that every read adds. Only compacted segments store ``_offset`` and ``_timestamp``.
TOPIC_FIELD = pa.field("_topic", pa.string())
PARTITION_FIELD = pa.field("_partition", pa.int32())
OFFSET_FIELD = pa.field("_offset", pa.int64())
TIMESTAMP_FIELD = pa.field("_timestamp", TIMESTAMP)
RESERVED_FIELDS = (TOPIC_FIELD, PARTITION_FIELD, OFFSET_FIELD, TIMESTAMP_FIELD)
#: A column of cleaned segments of topics with tombstones, which reads do not show: the time from which a clean may
#: remove this tombstone, in milliseconds; null in other records.
HORIZON_FIELD = pa.field("_timestamp_delete_horizon", pa.int64())

#: The units of a timestamp column that can be the event time.
_TIMESTAMP_UNITS = ("ms", "us")

#: A record: key, value, headers, timestamp in milliseconds since the epoch. None where Kafka allows null.
RecordTuple = tuple[bytes | None, bytes | None, Sequence[tuple[str, bytes | None]] | None, int | None]


def is_reserved(name: str) -> bool:
    """Whether the name is reserved, because it starts with the name of a column that reads add.

    The comparison ignores case, because DuckDB and Spark treat ``_Offset`` and ``_offset`` as equal.
    """
    return name.lower().startswith(tuple(field.name for field in RESERVED_FIELDS))


@lru_cache(maxsize=256)
def stored_schema(schema: pa.Schema | None) -> pa.Schema:
    """Return the schema of a topic's segments: every column nullable, no metadata.

    Not-null columns are checked when rows are written. So all segments have the same nullability, whichever engine
    wrote them.

    Args:
        schema: The schema of the topic; None for Kafka records (:data:`RECORD_SCHEMA`).
    """
    if schema is None:
        return RECORD_SCHEMA
    return pa.schema([pa.field(field.name, field.type) for field in schema])


def tombstones(table: pa.Table, column: str) -> Any:
    """Return which rows are tombstones, as booleans without nulls: the one rule, for all topics.

    Args:
        table: The rows.
        column: Of Kafka records their value, which a tombstone lacks. Of a typed topic its ``tombstone.column``, a
            boolean, which is true in a tombstone.
    """
    values = table.column(column)
    return pc.fill_null(values, False) if pa.types.is_boolean(values.type) else values.is_null()


def records_to_table(records: Sequence[RecordTuple], now_ms: int) -> pa.Table:
    """Convert records to a table of :data:`RECORD_SCHEMA`.

    Args:
        now_ms: The timestamp of a record without one, in milliseconds since the epoch.

    Raises:
        SchemaMismatchError: A part of a record is of a wrong type; the message names it.
    """
    if not records:
        return RECORD_SCHEMA.empty_table()
    keys, values, headers, timestamps = zip(*records, strict=True)
    moments = [now_ms if timestamp is None else timestamp for timestamp in timestamps]
    load("pandas")  # pa.array imports it, if it is installed.
    columns = []
    for field, column in zip(RECORD_SCHEMA, (keys, values, headers, moments), strict=True):
        if column.count(None) == len(column):
            columns.append(pa.nulls(len(column), field.type))
            continue
        try:
            columns.append(pa.array(column, field.type))
        except (pa.ArrowException, OverflowError) as error:
            raise SchemaMismatchError(f"the {field.name} of a record is not {field.type}: {error}") from error
    return pa.table(columns, schema=RECORD_SCHEMA)


def timestamps_of(table: pa.Table, column: str | None, default_ms: int | np.ndarray) -> Any:
    """Return the ``_timestamp`` of each row: a (chunked) array of ``timestamp[ms, UTC]`` without nulls.

    Args:
        table: The rows. A stored ``_timestamp`` column (compacted segments) takes precedence over ``column``.
        column: The event time column of the topic (``timestamp`` for Kafka records); None if it has none.
        default_ms: The value where the columns are missing or null: the batch's append time. An array has one for
            each row.
    """
    if TIMESTAMP_FIELD.name in table.column_names:
        moments = table[TIMESTAMP_FIELD.name]
    elif column is not None and column in table.column_names:
        moments = as_milliseconds(table[column], column)
    else:
        default = _default_times(default_ms)
        return default if isinstance(default, pa.Array) else pa.repeat(default, table.num_rows)
    return pc.fill_null(moments, _default_times(default_ms)) if moments.null_count else moments


def timestamp_ranges(
    table: pa.Table, column: str | None, default_ms: int, parts: Sequence[int]
) -> list[tuple[int, int]]:
    """Return the minimum and maximum of :func:`timestamps_of` in milliseconds, for each part of a table.

    Args:
        table: The rows.
        column: The event time column.
        default_ms: The value where it is missing or null, and of a part without rows.
        parts: The number of rows of each part.
    """
    if table.num_rows == 0 or (column is None and TIMESTAMP_FIELD.name not in table.column_names):
        return [(default_ms, default_ms)] * len(parts)
    # In numpy, or Python: for the segments of small commits, a kernel of Arrow costs more than the comparison.
    moments = timestamps_of(table, column, default_ms).to_numpy().view(np.int64)
    if len(moments) == 1:
        moment = int(moments[0])
        return [(moment, moment) if rows else (default_ms, default_ms) for rows in parts]
    if len(parts) == 1:
        return [(int(moments.min()), int(moments.max()))]
    filled_parts = [rows for rows in parts if rows]
    starts = np.cumsum([0, *filled_parts[:-1]])
    ranges = zip(
        np.minimum.reduceat(moments, starts).tolist(), np.maximum.reduceat(moments, starts).tolist(), strict=True
    )
    return [next(ranges) if rows else (default_ms, default_ms) for rows in parts]


def fill_timestamps(table: pa.Table, column: str, now_ms: int) -> pa.Table:
    """Replace nulls in the event time column by ``now_ms`` (an int64 column counts milliseconds)."""
    index = table.schema.get_field_index(column)
    if not table[column].null_count:
        return table
    field = table.schema.field(index)
    now = _as_scalar(now_ms, pa.timestamp("ms")).cast(pa.int64() if field.type == pa.int64() else field.type)
    return table.set_column(index, field, pc.fill_null(table[column], now))


def _as_scalar(moment_ms: int, data_type: pa.DataType) -> pa.Scalar:
    load("pandas")  # pa.scalar imports it for a time, if it is installed.
    return pa.scalar(moment_ms, data_type)


def _default_times(default_ms: int | np.ndarray) -> pa.Scalar | pa.Array:
    """Return a time for all rows, or one for each."""
    if isinstance(default_ms, np.ndarray):
        return pa.array(default_ms, pa.int64()).cast(TIMESTAMP)
    return _as_scalar(default_ms, TIMESTAMP)


def is_timestamp_type(data_type: pa.DataType) -> bool:
    """Whether a column of this type can be the event time: an int64 counts milliseconds since the epoch."""
    return data_type == pa.int64() or (pa.types.is_timestamp(data_type) and data_type.unit in _TIMESTAMP_UNITS)


def as_milliseconds(values: Any, column: str) -> Any:
    """Convert event times to ``timestamp[ms, UTC]``: round finer units down, and take a missing zone as UTC."""
    data_type = values.type
    if data_type == TIMESTAMP:
        return values
    if not is_timestamp_type(data_type):
        raise SchemaMismatchError(
            f"column {column!r} is of type {data_type} and cannot be the timestamp; use int64, timestamp[ms] or "
            "timestamp[us]"
        )
    if data_type == pa.int64():
        return values.cast(TIMESTAMP)
    return floor_to_milliseconds(values)


def schema_to_text(schema: pa.Schema) -> str:
    """Serialize names, types and nullability, without metadata, to base64 of the Arrow IPC schema message.

    Deterministic: equal schemas give equal texts.
    """
    bare = pa.schema([pa.field(field.name, field.type, field.nullable) for field in schema])
    return base64.b64encode(bare.serialize().to_pybytes()).decode("ascii")


def schema_from_text(text: str) -> pa.Schema:
    """Parse a schema from :func:`schema_to_text`.

    Raises:
        CorruptionError: The text is another one, there are no columns, or one has a name or a type that no topic can
            have.
    """
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text, validate=True)))
    except (binascii.Error, ValueError, OSError, pa.ArrowException) as error:
        msg = f"cannot read the schema of a topic in the chain: {error}"
        raise CorruptionError(msg) from error
    problem = _schema_problem(schema)
    if problem is not None:
        msg = f"cannot read the schema of a topic in the chain: {problem}"
        raise CorruptionError(msg)
    return schema


def _schema_problem(schema: pa.Schema) -> str | None:
    """Describe why no topic can have this schema: its columns would be ambiguous or impossible to read."""
    if not len(schema):
        return "it has no columns"
    names = set[str]()
    for field in schema:
        if field.name in names or is_reserved(field.name):
            return f"column {field.name!r} is {'a duplicate' if field.name in names else 'one that reads add'}"
        if not is_storable(field.type):
            return f"column {field.name!r} is of type {field.type}"
        names.add(field.name)
    return None
