"""Arrow values as Python values, for output. Values that Python lacks are text, as DuckDB writes and reads it.

Python lacks infinite times, times before the year 1 and after 9999, nanoseconds, and intervals.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from txnstore.threads import load
from txnstore.values.json_text import map_as_json

_EPOCH_DAY = date(1970, 1, 1).toordinal()
#: The numbers that DuckDB writes for infinite dates and times.
_INFINITE_DAYS, _INFINITE_UNITS = 2**31 - 1, 2**63 - 1
#: The years after which the calendar repeats, and their days.
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097
_DAY_SECONDS = 86_400
_UNITS_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def python_rows(batch: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """Convert rows like ``to_pylist``, but with text for values that Python lacks.

    A map is an object of JSON (:func:`~.json_text.map_as_json`).
    """
    if not batch.num_columns:
        return [{} for _ in range(batch.num_rows)]
    names = batch.schema.names
    columns = [python_values(column) for column in batch.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def python_values(array: Any) -> list[Any]:
    """Convert the values of a (chunked) array; see :func:`python_rows`."""
    load("pandas")  # to_pylist imports it for times, if it is installed.
    if isinstance(array, pa.ChunkedArray):
        return [value for chunk in array.chunks for value in python_values(chunk)]
    if isinstance(array, pa.ExtensionArray):
        return python_values(array.storage)
    kind = array.type
    if not _needs_conversion(kind):
        return array.to_pylist()  # type: ignore[no-any-return]
    if pt.is_dictionary(kind):
        return python_values(array.dictionary_decode())
    if pt.is_nested(kind):
        return _nested_values(array)
    if pt.is_interval(kind):
        return [value if value is None else _interval_text(*value) for value in array.to_pylist()]
    read = _time_converter(kind)
    integers = array.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    return [value if value is None else read(value) for value in integers.to_pylist()]


@lru_cache(maxsize=1024)
def _needs_conversion(kind: pa.DataType) -> bool:
    """Whether ``to_pylist`` does not suffice for values of a type, or for values inside of them."""
    if isinstance(kind, pa.BaseExtensionType):
        return _needs_conversion(kind.storage_type)
    if pt.is_dictionary(kind):
        return _needs_conversion(kind.value_type)
    if pt.is_map(kind):
        return True
    if pt.is_nested(kind):
        return any(_needs_conversion(kind.field(index).type) for index in range(kind.num_fields))
    return bool(pt.is_timestamp(kind) or pt.is_date(kind) or pt.is_time(kind) or pt.is_interval(kind))


def _nested_values(array: Any) -> list[Any]:
    """Return unions, structs, lists and maps as Python values, member by member."""
    kind = array.type
    if pt.is_union(kind):
        fields = [python_values(array.field(index)) for index in range(kind.num_fields)]
        codes = [kind.type_codes.index(code) for code in array.type_codes.to_pylist()]
        indexes = array.offsets.to_pylist() if kind.mode == "dense" else range(len(array))
        return [fields[code][index] for code, index in zip(codes, indexes, strict=True)]
    validity = array.is_valid().to_pylist()
    if pt.is_struct(kind):
        names = [field.name for field in kind]
        columns = [python_values(field) for field in array.flatten()]
        rows = zip(*columns, strict=True) if columns else ((),) * len(array)
        return [
            dict(zip(names, row, strict=True)) if is_valid else None
            for row, is_valid in zip(rows, validity, strict=True)
        ]
    if pt.is_map(kind):
        entries = array.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
        keys, items = (python_values(part) for part in entries.flatten().flatten())
        pairs = iter(list(zip(keys, items, strict=True)))
        lengths = entries.value_lengths().to_pylist()
        has_text_keys = pt.is_string(kind.key_type) or pt.is_large_string(kind.key_type)

        def map_value(length: int, *, is_valid: bool) -> Any:
            if not length and not (is_valid and has_text_keys):
                return [] if is_valid else None
            return map_as_json([next(pairs) for _ in range(length)])

        return [map_value(length, is_valid=is_valid) for length, is_valid in zip(lengths, validity, strict=True)]
    values = iter(python_values(array.flatten()))
    lengths = array.value_lengths().to_pylist()
    return [
        [next(values) for _ in range(length)] if is_valid else None
        for length, is_valid in zip(lengths, validity, strict=True)
    ]


# Times ----------------------------------------------------------------------------------------------------------------


def _time_converter(kind: pa.DataType) -> Callable[[int], Any]:
    """Return the conversion of a date's or time's integer to its Python value."""
    if pt.is_date32(kind):
        return lambda days: _date_value(days, infinity=_INFINITE_DAYS)
    if pt.is_date64(kind):
        return lambda moment: _date_value(moment // (_DAY_SECONDS * 1_000), infinity=2**63)
    unit = _UNITS_PER_SECOND[kind.unit]
    if pt.is_time(kind):
        return lambda units: _time_value(units, unit)
    return lambda units: _datetime_value(units, unit, zoned=kind.tz is not None)


def _date_value(days: int, *, infinity: int) -> date | str:
    if 1 <= days + _EPOCH_DAY <= date.max.toordinal():
        return date.fromordinal(days + _EPOCH_DAY)
    if abs(days) == infinity:
        return "infinity" if days > 0 else "-infinity"
    return _date_text(days)


def _date_text(days: int) -> str:
    """Format a date of any year, with at least four digits of the year."""
    cycles, day = divmod(days + _EPOCH_DAY - 1, _CYCLE_DAYS)
    date_in_cycle = date.fromordinal(day + 1)
    year = date_in_cycle.year + _CYCLE_YEARS * cycles
    text = f"{year if year > 0 else 1 - year:04}-{date_in_cycle.month:02}-{date_in_cycle.day:02}"
    return text if year > 0 else f"{text} (BC)"


def _time_value(units: int, per_second: int) -> time | str:
    seconds, fraction = divmod(units, per_second)
    nanoseconds = fraction * (10**9 // per_second)
    if nanoseconds % 1_000 or seconds >= _DAY_SECONDS:
        return _time_text(seconds, nanoseconds)
    return time(seconds // 3_600, seconds // 60 % 60, seconds % 60, nanoseconds // 1_000)


def _time_text(seconds: int, nanoseconds: int) -> str:
    text = f"{seconds // 3_600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    if not nanoseconds:
        return text
    return f"{text}.{nanoseconds:09}" if nanoseconds % 1_000 else f"{text}.{nanoseconds // 1_000:06}"


def _datetime_value(units: int, per_second: int, *, zoned: bool) -> datetime | str:
    """Return a time since the epoch as a datetime; as a text if that cannot hold it exactly."""
    if abs(units) == _INFINITE_UNITS:
        return "infinity" if units > 0 else "-infinity"
    seconds, fraction = divmod(units, per_second)
    nanoseconds = fraction * (10**9 // per_second)
    days, second = divmod(seconds, _DAY_SECONDS)
    if nanoseconds % 1_000 == 0 and 1 <= days + _EPOCH_DAY <= date.max.toordinal():
        day = datetime.fromordinal(days + _EPOCH_DAY)
        moment = day + timedelta(seconds=second, microseconds=nanoseconds // 1_000)
        return moment.replace(tzinfo=UTC) if zoned else moment
    text = _date_text(days)
    separator = " " if text.endswith(")") else "T"
    return f"{text}{separator}{_time_text(second, nanoseconds)}{'Z' if zoned else ''}"


def _interval_text(months: int, days: int, nanoseconds: int) -> str:
    """An interval as DuckDB writes it: ``1 year 2 months -3 days 04:05:06.789``."""
    years, remaining_months = divmod(abs(months), 12)
    sign = -1 if months < 0 else 1
    counts = ((sign * years, "year"), (sign * remaining_months, "month"), (days, "day"))
    parts = [f"{count} {name}{'' if abs(count) == 1 else 's'}" for count, name in counts if count]
    if nanoseconds or not parts:
        seconds, fraction = divmod(abs(nanoseconds), 10**9)
        text = _time_text(seconds, fraction)
        parts.append(("-" if nanoseconds < 0 else "") + (text.rstrip("0") if "." in text else text))
    return " ".join(parts)
