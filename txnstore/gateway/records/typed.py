"""Records of topics with a schema: the value of a record is the row as one JSON object.

JSON has fewer types than a topic. Binary is base64, a time or a date is ISO 8601, a decimal is a string; a float may be
``"NaN"``, ``"Infinity"`` or ``"-Infinity"``. A map is an object if its keys are strings, else, and where keys repeat
(which an older release accepted), an array of ``{"key": …, "value": …}``; both are read. The key of a record is that of
:func:`~txnstore.segment.partition.key_bytes`: what Kafka's serializers make of the key column, by which clients choose
the partition, and so do txnstore's producers. A tombstone, which has no value, is a row whose ``tombstone.column`` is
true, in both directions.

Values are read by the rules of :mod:`txnstore.values.scalars`. Rows are parsed one by one: ``pyarrow.json`` reads a
stream of objects, in which a record could hold two objects, or the half of one. They are written by column.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from txnstore import compute as pc
from txnstore.catalog.writing import TopicWriter
from txnstore.gateway.records.batch import InvalidBatchError, RecordError
from txnstore.producer.records import column_of_tombstones
from txnstore.segment.partition import key_bytes, key_from_bytes
from txnstore.segment.schema import stored_schema, tombstones
from txnstore.values.columns import columns_of
from txnstore.values.json_text import parse_json
from txnstore.values.printing import json_texts

# Reading --------------------------------------------------------------------------------------------------------------


def rows_from_json(
    values: pa.Array | pa.ChunkedArray, keys: pa.Array | pa.ChunkedArray, schema: pa.Schema, key_column: str | None
) -> pa.Table:
    """Parse the rows of a batch into a table of the stored schema.

    A missing field is null, and an unknown one is refused. A record may have a key, which then must be that of its row.

    Args:
        values: The values of the records; null is refused. Those of tombstones are :func:`tombstone_values`.
        schema: The schema of the topic.
        key_column: The column that chooses the partition; None if there is none, so that no record has a key.

    Raises:
        InvalidBatchError: A record does not fit; the error lists them.
    """
    errors: dict[int, str] = {}
    names = set(schema.names)
    rows = [_parse_row(number, text, names, errors) for number, text in enumerate(values.to_pylist())]
    columns = columns_of(rows, schema, errors, text=False)
    if not errors:
        table = pa.Table.from_arrays(columns, schema=stored_schema(schema))
        _check_keys(keys, table, key_column, errors)
        if not errors:
            return table
    raise InvalidBatchError.of_records([RecordError(number, errors[number]) for number in sorted(errors)])


def tombstone_values(records: pa.Table, writer: TopicWriter) -> pa.Array:
    """Return the values of records with a row, as JSON, in the place of each null: that of a tombstone.

    The row has the key of the record, in the topic's event time that of the record, ``tombstone.column`` as true, and
    nulls in the other columns.

    Args:
        records: The columns ``key``, ``value`` and ``timestamp``.
        writer: A typed topic with ``tombstone.column``.

    Raises:
        SchemaMismatchError: The topic has another column that is not null.
        InvalidBatchError: A key is missing, or is no value of the key column.
    """
    column, key_column = column_of_tombstones(writer), writer.key_column
    assert key_column is not None
    kind = writer.stored.field(key_column).type
    values = _as_array(records["value"])
    numbers = np.flatnonzero(values.is_null())
    keys: list[Any] = []
    errors: list[RecordError] = []
    for number, key in zip(numbers.tolist(), _as_array(records["key"]).take(numbers).to_pylist(), strict=True):
        try:
            keys.append(None if key is None else key_from_bytes(key, kind))
        except ValueError as error:
            errors.append(RecordError(number, f"its key is no value of column {key_column!r}: {error}"))
        if key is None:
            errors.append(RecordError(number, "it has neither a value nor a key: a tombstone deletes a key"))
    if errors:
        raise InvalidBatchError.of_records(errors)
    rows = {key_column: pa.array(keys, kind), column: pa.repeat(True, len(keys))}
    if writer.event_time is not None:
        times = _as_array(records["timestamp"]).take(numbers)
        rows[writer.event_time] = _as_event_times(times, writer.stored.field(writer.event_time).type)
    return pc.replace_with_mask(values, values.is_null(), json_texts(pa.table(rows)).cast(pa.binary()))


def _as_event_times(times: pa.Array, kind: pa.DataType) -> pa.Array:
    """Times of Kafka records in the type of an event time column."""
    return times.cast(kind) if pa.types.is_integer(kind) else times.cast(pa.timestamp(kind.unit, "UTC")).cast(kind)


def _parse_row(number: int, text: bytes | None, names: set[str], errors: dict[int, str]) -> dict[str, Any]:
    """Parse the object of a record; empty, with an error in ``errors``, if it has other fields or is none."""
    if text is None:
        errors[number] = "it has no value, and a topic with a schema has tombstones only if it has tombstone.column"
        return {}
    try:
        row = parse_json(text.decode())
    except ValueError as error:
        errors[number] = f"its value is no JSON: {error}"
        return {}
    if type(row) is not dict:
        errors[number] = "its value is no JSON object"
        return {}
    if not row.keys() <= names:
        unknown_names = ", ".join(repr(name) for name in row if name not in names)
        errors[number] = f"the topic has no column {unknown_names}"
        return {}
    return row


def _check_keys(keys: Any, table: pa.Table, key_column: str | None, errors: dict[int, str]) -> None:
    """Add errors for records whose key differs from that of their row."""
    if keys.null_count == len(keys):
        return
    if key_column is None:
        rows_with_key = np.flatnonzero(_as_array(keys).is_valid())
        errors.update(dict.fromkeys(rows_with_key.tolist(), "it has a key, and the topic has no key column"))
        return
    expected_keys = _as_array(key_bytes(table[key_column], key_column)).cast(pa.binary())
    is_same = pc.fill_null(pc.equal(expected_keys, _as_array(keys)), False)
    wrong_rows = np.flatnonzero(pc.and_(_as_array(keys).is_valid(), pc.invert(is_same)))
    errors.update(dict.fromkeys(wrong_rows.tolist(), f"its key is not that of its column {key_column!r}"))


def check_keyed(table: pa.Table, key_column: str) -> None:
    """Refuse rows without a key, for a compacted topic."""
    keyless = np.flatnonzero(table[key_column].is_null())
    if len(keyless):
        message = f"its column {key_column!r} is null, and the topic is compacted by key"
        raise InvalidBatchError.of_records([RecordError(number, message) for number in keyless.tolist()])


def _as_array(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


# Writing --------------------------------------------------------------------------------------------------------------


def json_rows(
    table: pa.Table, key_column: str | None, tombstone_column: str | None = None
) -> tuple[pa.Array, pa.Array]:
    """Return the keys and values of records for rows, as binary arrays; the inverse of :func:`rows_from_json`.

    Args:
        table: The columns of the topic.
        key_column: The column that chooses the partition; None for null keys.
        tombstone_column: The ``tombstone.column`` of the topic; the value of a tombstone is null. None: there are none.
    """
    values = json_texts(table).cast(pa.binary())
    if tombstone_column is not None:
        values = pc.if_else(_as_array(tombstones(table, tombstone_column)), None, values)
    if key_column is None:
        return pa.nulls(table.num_rows, pa.binary()), values
    return key_bytes(_as_array(table[key_column]), key_column).cast(pa.binary()), values
