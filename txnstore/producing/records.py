"""Records and rows, checked before they are taken in: a wrong one fails alone and not its batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from txnstore.catalog.writing import TopicWriter
from txnstore.errors import RecordTooLargeError, SchemaMismatchError
from txnstore.segment.convert import normalize
from txnstore.segment.partition import key_bytes
from txnstore.segment.schema import as_milliseconds, fill_timestamps
from txnstore.validation import is_unicode

#: The years 1 to 9999 in milliseconds: all that Python, Spark and DuckDB can read. One row beyond would make its whole
#: topic unreadable there, and it is nearly always a time in another unit.
_MIN_TIMESTAMP, _MAX_TIMESTAMP = -62_135_596_800_000, 253_402_300_799_999


def check_record(
    topic: str,
    value: object,
    key: object,
    headers: Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]] | None,
    timestamp: int,
) -> tuple[Any, bytes | None, int]:
    """The tuple that a batch keeps, the key that chooses the partition, and the size.

    All of it is checked here, so that a wrong record fails alone and not its batch.
    """
    key, value = _bytes_or_none(topic, "key", key), _bytes_or_none(topic, "value", value)
    pairs: list[tuple[str, bytes | None]] | None = None
    size = len(key or b"") + len(value or b"")
    if headers:
        pairs = _headers(topic, headers)
        size += sum(len(name) + len(content or b"") for name, content in pairs)
    if type(timestamp) is not int or not 0 <= timestamp <= _MAX_TIMESTAMP:
        msg = (
            f"the timestamp of a record of topic {topic!r} must be milliseconds, 0 or more and before the year 10000, "
            f"not {timestamp!r}"
        )
        raise SchemaMismatchError(msg)
    return (key, value, pairs, timestamp), key, size


def _bytes_or_none(topic: str, what: str, data: object) -> bytes | None:
    if data is None or isinstance(data, bytes):
        return data
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    msg = f"the {what} of a record of topic {topic!r} must be bytes or None, not {type(data).__name__}: encode it first"
    raise SchemaMismatchError(msg)


def _headers(topic: str, headers: object) -> list[tuple[str, bytes | None]]:
    """The headers as pairs, in their order; a name may be there twice."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    try:
        found = [(name, _bytes_or_none(topic, f"header {name!r}", content)) for name, content in pairs]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        msg = f"the headers of a record of topic {topic!r} must be a mapping or pairs of name and bytes"
        raise SchemaMismatchError(msg) from None
    for name, _ in found:
        if not isinstance(name, str) or not is_unicode(name):
            msg = f"the name of a header of topic {topic!r} must be a string of Unicode characters, not {name!r}"
            raise SchemaMismatchError(msg)
    return found


def check_row(
    writer: TopicWriter, value: object, key: object, headers: object, timestamp: object, now_ms: int
) -> tuple[Any, bytes | None, int, int | None]:
    """A row of a typed topic, its key, size and event time; checked at once, so that a wrong one fails alone."""
    name = writer.topic.name
    if not isinstance(value, Mapping):
        msg = f"topic {name!r} has a schema: send a mapping of its columns, not {type(value).__name__}"
        raise SchemaMismatchError(msg)
    if key is not None or headers is not None or timestamp is not None:
        msg = f"topic {name!r} has a schema: its key and timestamp are columns, and it has no headers"
        raise SchemaMismatchError(msg)
    row = dict(value)
    table = normalize([row], writer.schema)
    check_rows(writer, table)
    column, moment = writer.event_time, None
    if column is not None:
        if table[column].null_count:
            table = fill_timestamps(table, column, now_ms)
            row[column] = table[column][0].as_py()
        moment = as_milliseconds(table[column], column).cast(pa.int64())[0].as_py()
    key_column = writer.topic.key
    encoded = key_bytes(table[key_column], key_column)[0].as_py() if key_column is not None else None
    return row, encoded, table.nbytes, moment


def check_size(writer: TopicWriter, size: int) -> None:
    limit = writer.config.max_message_bytes
    if size > limit:
        msg = f"a record of {size} bytes is over max.message.bytes ({limit}) of topic {writer.topic.name!r}"
        raise RecordTooLargeError(msg)


def check_rows(writer: TopicWriter, table: pa.Table) -> None:
    """Refuse rows that are too large, and times that no reader could show."""
    _check_row_sizes(writer, table)
    for name, column in zip(table.column_names, table.columns, strict=True):
        if pa.types.is_timestamp(column.type):
            _check_times(writer.topic.name, name, column, 1000 if column.type.unit == "us" else 1)
        elif name == writer.event_time:
            _check_times(writer.topic.name, name, column, 1)


def _check_times(topic: str, name: str, column: Any, per_ms: int) -> None:
    ends = pc.min_max(column.cast(pa.int64())).as_py()
    if ends["min"] is None or (_MIN_TIMESTAMP * per_ms <= ends["min"] and ends["max"] < (_MAX_TIMESTAMP + 1) * per_ms):
        return
    wrong = ends["min"] if ends["min"] < _MIN_TIMESTAMP * per_ms else ends["max"]
    kind = "milliseconds" if column.type == pa.int64() else str(column.type)
    msg = f"column {name!r} of topic {topic!r} holds a time outside the years 1 to 9999: {wrong} as {kind}"
    raise SchemaMismatchError(msg)


def _check_row_sizes(writer: TopicWriter, table: pa.Table) -> None:
    """A row is too large if one of its binary or string cells is; a whole table that is small needs no look."""
    if table.nbytes <= writer.config.max_message_bytes:
        return
    for column in table.columns:
        kind = column.type
        if pa.types.is_binary(kind) or pa.types.is_string(kind) or pa.types.is_large_binary(kind):
            longest = pc.max(pc.binary_length(column)).as_py()
            check_size(writer, longest or 0)
