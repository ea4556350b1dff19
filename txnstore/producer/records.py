"""Checks of records and rows before they are added to a batch, so that an invalid one fails alone."""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from txnstore import compute as pc
from txnstore.catalog.writing import TopicWriter
from txnstore.errors import InvalidRecordError, RecordTooLargeError, SchemaMismatchError
from txnstore.segment.convert import normalize
from txnstore.segment.partition import key_bytes
from txnstore.segment.schema import as_milliseconds, fill_timestamps
from txnstore.threads import load
from txnstore.validation import is_unicode
from txnstore.values.kinds import children

#: The years 1 to 9999 in milliseconds: the range that Python, Spark and DuckDB can read. One row outside of it would
#: make its whole topic unreadable there, and is nearly always a time in another unit.
_MIN_TIMESTAMP, MAX_TIMESTAMP = -62_135_596_800_000, 253_402_300_799_999
_DAY_MS = 86_400_000
_MIN_DAY, _LIMIT_DAY = _MIN_TIMESTAMP // _DAY_MS, (MAX_TIMESTAMP + 1) // _DAY_MS


def check_record(
    topic: str,
    value: object,
    key: object,
    headers: Mapping[str, bytes | None] | Sequence[tuple[str, bytes | None]] | None,
    timestamp: int,
) -> tuple[Any, bytes | None, int]:
    """Check a record of a topic without a schema.

    Returns:
        The tuple that a batch keeps, the key that chooses the partition, and the size in bytes.

    Raises:
        SchemaMismatchError: A part of the record has a wrong type or value.
    """
    key, value = _bytes_or_none(topic, "key", key), _bytes_or_none(topic, "value", value)
    pairs: list[tuple[str, bytes | None]] | None = None
    size = len(key or b"") + len(value or b"")
    if headers:
        pairs = _header_pairs(topic, headers)
        size += sum(len(name) + len(content or b"") for name, content in pairs)
    if type(timestamp) is not int or not 0 <= timestamp <= MAX_TIMESTAMP:
        msg = (
            f"the timestamp of a record of topic {topic!r} must be milliseconds, 0 or more and before the year 10000, "
            f"not {timestamp!r}"
        )
        raise SchemaMismatchError(msg)
    return (key, value, pairs, timestamp), key, size


def _bytes_or_none(topic: str, part: str, data: object) -> bytes | None:
    if data is None or isinstance(data, bytes):
        return data
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    msg = f"the {part} of a record of topic {topic!r} must be bytes or None, not {type(data).__name__}: encode it first"
    raise SchemaMismatchError(msg)


def _header_pairs(topic: str, headers: object) -> list[tuple[str, bytes | None]]:
    """Return the headers as pairs, in their order; a name may occur several times."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    try:
        checked_pairs = [(name, _bytes_or_none(topic, f"header {name!r}", content)) for name, content in pairs]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        msg = f"the headers of a record of topic {topic!r} must be a mapping or pairs of name and bytes"
        raise SchemaMismatchError(msg) from None
    for name, _ in checked_pairs:
        if not isinstance(name, str) or not is_unicode(name):
            msg = f"the name of a header of topic {topic!r} must be a string of Unicode characters, not {name!r}"
            raise SchemaMismatchError(msg)
    return checked_pairs


class RowFormat:
    """Checks the rows of a typed topic one by one, and converts those of a batch together.

    A row whose values have the plain Python types of their columns is checked by one function per column, and kept as a
    tuple. Any other row is converted alone (:func:`normalize`) and kept as a table of one row. So an invalid row
    fails alone, and the conversion of a row does not depend on other rows.
    """

    __slots__ = ("_checks", "_event_time", "_key", "_pack", "_writer")

    def __init__(self, writer: TopicWriter) -> None:
        assert writer.schema is not None
        self._writer = writer
        names = writer.schema.names
        self._checks = [
            (field.name, field.nullable, value_check(field.type, is_time=field.name == writer.event_time))
            for field in writer.schema
        ]
        self._event_time = names.index(writer.event_time) if writer.event_time is not None else None
        self._key = names.index(writer.topic.key) if writer.topic.key is not None else None
        self._pack = _PACKERS.get(writer.schema.types[self._key]) if self._key is not None else None

    def check_sent(
        self, value: object, key: object, headers: object, timestamp: object, now_ms: int
    ) -> tuple[Any, bytes | None, int, int | None]:
        """Check what was sent: a row, or without a value the key of a tombstone.

        Returns:
            The row as a batch keeps it, its key, its size in bytes, and its event time in milliseconds.

        Raises:
            SchemaMismatchError: The row or the key does not fit the schema, or the topic has no tombstones.
        """
        if headers is not None or timestamp is not None or (key is not None and value is not None):
            name = self._writer.topic.name
            msg = f"topic {name!r} has a schema: its key and timestamp are columns, and it has no headers"
            raise SchemaMismatchError(msg)
        return self._check(value if value is not None else self._tombstone(key, now_ms), now_ms)

    def _check(self, value: object, now_ms: int) -> tuple[Any, bytes | None, int, int | None]:
        """Check a row."""
        if type(value) is dict:
            row = self._check_plain(value, now_ms)
            if row is not None:
                return row
        return self._convert_row(value, now_ms)

    def _tombstone(self, key: object, now_ms: int) -> dict[str, Any]:
        """The row that deletes a key; its other columns are null."""
        writer = self._writer
        column, key_column = column_of_tombstones(writer), str(writer.key_column)
        if key is None:
            msg = (
                f"a tombstone of topic {writer.topic.name!r} needs key=: the value of column {key_column!r} "
                "that it deletes"
            )
            raise SchemaMismatchError(msg)
        row = {key_column: key, column: True}
        if writer.event_time is not None:  # It may be declared not null.
            kind = writer.stored.field(writer.event_time).type
            origin = _EPOCH_UTC if pa.types.is_timestamp(kind) and kind.tz is not None else _EPOCH
            is_number = pa.types.is_integer(kind)
            row[writer.event_time] = now_ms if is_number else origin + dt.timedelta(milliseconds=now_ms)
        return row

    def _check_plain(self, row: dict[Any, Any], now_ms: int) -> tuple[Any, bytes | None, int, int | None] | None:
        """Check a row of plain values; None if a value is not plain, or the row does not fit the schema."""
        values: list[Any] = []
        size = column_count = 0
        for name, nullable, check in self._checks:
            value = row.get(name)
            if value is None:
                if not nullable:
                    return None
                column_count += name in row
                size += 8
                values.append(None)
                continue
            value_and_size = check(value) if check is not None else None
            if value_and_size is None:
                return None
            column_count += 1
            size += value_and_size[1]
            values.append(value_and_size[0])
        if column_count != len(row):
            return None
        moment = None
        if self._event_time is not None:
            moment = values[self._event_time]
            field = self._writer.stored.field(self._event_time)
            per_ms = 1000 if pa.types.is_timestamp(field.type) and field.type.unit == "us" else 1
            if moment is None:
                moment, values[self._event_time] = now_ms, now_ms * per_ms
            else:
                moment //= per_ms
        key = None
        if self._key is not None and values[self._key] is not None:
            key = values[self._key]
            if self._pack is not None:
                key = self._pack(key)
            elif type(key) is str:
                key = key.encode()
            elif type(key) is not bytes:
                return None
        return tuple(values), key, size, moment

    def _convert_row(self, value: object, now_ms: int) -> tuple[Any, bytes | None, int, int | None]:
        """Convert a row alone to a table of one row: one of its values is not plain, or does not fit."""
        writer = self._writer
        if not isinstance(value, Mapping):
            msg = f"topic {writer.topic.name!r} has a schema: send a mapping of its columns, not {type(value).__name__}"
            raise SchemaMismatchError(msg)
        try:
            table = normalize([dict(value)], writer.schema)
        except UnicodeError as error:
            msg = f"a text in a row for topic {writer.topic.name!r} is not Unicode: {error}"
            raise SchemaMismatchError(msg) from error
        check_rows(writer, table)
        column, moment = writer.event_time, None
        if column is not None:
            table = fill_timestamps(table, column, now_ms)
            moment = as_milliseconds(table[column], column).cast(pa.int64())[0].as_py()
        key = writer.topic.key
        key_value = key_bytes(table[key], key)[0].as_py() if key is not None else None
        return table, key_value, table.nbytes, moment

    def table(self, rows: Sequence[tuple[Any, ...]]) -> pa.Table:
        """Convert rows that :meth:`check_sent` returned as tuples to a table of the stored schema."""
        stored = self._writer.stored
        columns = zip(*rows, strict=True)
        load("pandas")  # pa.array imports it, if it is installed.
        arrays = [pa.array(values, field.type) for field, values in zip(stored, columns, strict=True)]
        return pa.Table.from_arrays(arrays, schema=stored)


def column_of_tombstones(writer: TopicWriter) -> str:
    """The ``tombstone.column`` of a typed topic to which a tombstone is written.

    Raises:
        SchemaMismatchError: It has none, or a tombstone would lack the value of a column that is declared not null.
    """
    column, name = writer.tombstone_column, writer.topic.name
    if column is None:
        msg = (
            f"topic {name!r} has a schema and no tombstone.column, so it has no tombstones: name a boolean column of "
            "it in that setting, or send a row"
        )
        raise SchemaMismatchError(msg)
    assert writer.schema is not None
    given = (writer.key_column, column, writer.event_time)
    required = [repr(field.name) for field in writer.schema if not field.nullable and field.name not in given]
    if required:
        msg = (
            f"a tombstone of topic {name!r} would have no value in {', '.join(required)}, which the topic declares not "
            f"null: send a whole row, with {column!r} true"
        )
        raise SchemaMismatchError(msg)
    return column


#: The value as Arrow takes it for the column's type, and its size in bytes; None: it is not plain, or does not fit.
_ValueCheck = Callable[[Any], tuple[Any, int] | None]

#: Keys of these types are numbers of big-endian bytes (:func:`~txnstore.segment.partition.key_bytes`).
_PACKERS = {
    pa.int16(): struct.Struct(">h").pack,
    pa.int32(): struct.Struct(">i").pack,
    pa.int64(): struct.Struct(">q").pack,
}

_EPOCH_UTC = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH = _EPOCH_UTC.replace(tzinfo=None)
_UNITS = {"ms": dt.timedelta(milliseconds=1), "us": dt.timedelta(microseconds=1)}


def value_check(kind: pa.DataType, *, is_time: bool) -> _ValueCheck | None:
    """Return the check of plain values of a column; None for types that are always converted row by row.

    ``is_time``: integers are times in milliseconds.
    """
    if pa.types.is_boolean(kind):
        return lambda value: (value, 1) if type(value) is bool else None
    if pa.types.is_integer(kind):
        return _integer_check(kind, is_time=is_time)
    if pa.types.is_float64(kind):
        return lambda value: (value, 8) if type(value) is float else None
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _check_text
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return lambda value: (value, 8 + len(value)) if type(value) is bytes else None
    if pa.types.is_timestamp(kind) and kind.unit in _UNITS:
        return _time_check(kind)
    if pa.types.is_date32(kind):
        return lambda value: (value, 4) if type(value) is dt.date else None
    return None


def _integer_check(kind: pa.DataType, *, is_time: bool) -> _ValueCheck:
    """Return a check that takes an int of the range of a type as it is; None for other values."""
    bits = kind.bit_width
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if pa.types.is_signed_integer(kind) else (0, 2**bits - 1)
    if is_time:
        low, high = max(low, _MIN_TIMESTAMP), min(high, MAX_TIMESTAMP)
    size = bits // 8
    return lambda value: (value, size) if type(value) is int and low <= value <= high else None


def _check_text(value: Any) -> tuple[Any, int] | None:
    if type(value) is not str:
        return None
    if value.isascii():
        return value, 8 + len(value)
    return (value, 8 + len(value.encode())) if is_unicode(value) else None


def _time_check(kind: pa.DataType) -> _ValueCheck:
    """Return a check that converts times to integers of the column's unit; the value needs a zone if the column has
    one.

    Tables round towards zero, so a time before 1970 between two units is left to the conversion of tables.
    """
    unit, zoned = _UNITS[kind.unit], kind.tz is not None

    def check(value: Any) -> tuple[Any, int] | None:
        """Return the units since the epoch, and their size, of a datetime that fits exactly; else None."""
        if type(value) is not dt.datetime:
            return None
        if zoned and value.tzinfo is dt.UTC:
            elapsed = value - _EPOCH_UTC
        elif not zoned and value.tzinfo is None:
            elapsed = value - _EPOCH
        else:
            return None
        units = elapsed // unit
        return (units, 8) if units >= 0 or units * unit == elapsed else None

    return check


def check_accepted(writer: TopicWriter, key: bytes | None, size: int) -> None:
    """Refuse a record that is too large, or that lacks the key of a compacted topic."""
    if key is None and writer.config.compacts:
        raise _missing_key_error(writer)
    check_size(writer, size)


def check_size(writer: TopicWriter, size: int) -> None:
    limit = writer.config.max_message_bytes
    if size > limit:
        msg = f"a record of {size} bytes is over max.message.bytes ({limit}) of topic {writer.topic.name!r}"
        raise RecordTooLargeError(msg)


def _missing_key_error(writer: TopicWriter) -> InvalidRecordError:
    """Return the error for a record without a key in a compacted topic (CMP-19)."""
    column = "key" if writer.schema is None else f"column {writer.key_column!r}"
    msg = f"topic {writer.topic.name!r} is compacted by key, so the {column} of a record must not be null"
    return InvalidRecordError(msg)


def check_rows(writer: TopicWriter, table: pa.Table) -> None:
    """Refuse rows that are too large or lack the key of a compacted topic, and times outside the years 1 to 9999."""
    _check_row_sizes(writer, table)
    check_values(writer, table)


def check_values(writer: TopicWriter, table: pa.Table) -> None:
    """Refuse rows that lack the key of a compacted topic, and times outside the years 1 to 9999; no sizes."""
    if writer.config.compacts and (writer.key_column is None or table.column(writer.key_column).null_count):
        raise _missing_key_error(writer)
    for name, column in zip(table.column_names, table.columns, strict=True):
        if has_times(column.type) or name == writer.event_time:
            _check_times(writer.topic.name, name, column)


@lru_cache(maxsize=1024)
def has_times(data_type: pa.DataType) -> bool:
    """Whether values of the type are, or contain, times or dates."""
    if pa.types.is_nested(data_type):
        return any(map(has_times, children(data_type)))
    return bool(pa.types.is_timestamp(data_type) or pa.types.is_date32(data_type))


def _check_times(topic: str, name: str, column: Any) -> None:
    """Refuse a column of times, or of nested values that contain times, with one outside the years 1 to 9999."""
    if not pa.types.is_nested(column.type):
        _check_flat_times(topic, name, column)
        return
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    for chunk in chunks:
        for field, values in _nested_values(chunk):
            if has_times(values.type):
                _check_times(topic, f"{name}.{field}", values)


def _check_flat_times(topic: str, name: str, column: Any) -> None:
    """Refuse a column of dates, of timestamps, or of integers that are milliseconds, as :func:`_check_times` does."""
    if pa.types.is_date32(column.type):
        numbers, unit = column.cast(pa.int32()), "days since 1970"
        minimum, limit = _MIN_DAY, _LIMIT_DAY
    else:
        numbers = column.cast(pa.int64())
        unit = "milliseconds" if column.type == pa.int64() else str(column.type)
        per_ms = 1000 if pa.types.is_timestamp(column.type) and column.type.unit == "us" else 1
        minimum, limit = _MIN_TIMESTAMP * per_ms, (MAX_TIMESTAMP + 1) * per_ms
    extremes = pc.min_max(numbers).as_py()
    least, greatest = extremes["min"], extremes["max"]
    if least is None:
        return  # All values are null.
    if least < minimum:
        wrong_time = least
    elif greatest >= limit:
        wrong_time = greatest
    else:
        return
    msg = f"column {name!r} of topic {topic!r} holds a time outside the years 1 to 9999: {wrong_time} as {unit}"
    raise SchemaMismatchError(msg)


def _nested_values(array: Any) -> list[tuple[str, Any]]:
    """Return the values inside a nested array by field name, without those of null rows."""
    if pa.types.is_struct(array.type):
        return list(zip([field.name for field in array.type], array.flatten(), strict=True))
    if not pa.types.is_map(array.type):
        return [("item", array.flatten())]
    first, limit = array.offsets[0].as_py(), array.offsets[-1].as_py()
    return [("key", array.keys.slice(first, limit - first)), ("value", array.items.slice(first, limit - first))]


def _check_row_sizes(writer: TopicWriter, table: pa.Table) -> None:
    """Refuse rows with a binary or string cell over the limit; a table below the limit needs no check."""
    if table.nbytes <= writer.config.max_message_bytes:
        return
    for column in table.columns:
        kind = column.type
        if pa.types.is_binary(kind) or pa.types.is_string(kind) or pa.types.is_large_binary(kind):
            longest = pc.max(pc.binary_length(column)).as_py()
            check_size(writer, longest or 0)
