"""Arrow values as Python values, for output. What Python has no value for is text, as DuckDB writes and reads it.

Those are infinite times, times before the year 1 and after 9999, nanoseconds, and intervals.
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
#: The days of 400 years, after which the calendar repeats.
_CYCLE = 146_097
_DAY = 86_400
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def python_rows(batch: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """The rows, as ``to_pylist`` gives them, but with text for what Python has no value for.

    A map is an object of JSON (:func:`~.json_text.map_as_json`).
    """
    if not batch.num_columns:
        return [{} for _ in range(batch.num_rows)]
    names = batch.schema.names
    columns = [python_values(column) for column in batch.columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


def python_values(array: Any) -> list[Any]:
    """The values of a (chunked) array; see :func:`python_rows`."""
    load("pandas")  # to_pylist imports it for times, if it is installed.
    if isinstance(array, pa.ChunkedArray):
        return [value for chunk in array.chunks for value in python_values(chunk)]
    if isinstance(array, pa.ExtensionArray):
        return python_values(array.storage)
    kind = array.type
    if not _is_special(kind):
        return array.to_pylist()  # type: ignore[no-any-return]
    if pt.is_dictionary(kind):
        return python_values(array.dictionary_decode())
    if pt.is_nested(kind):
        return _nested(array)
    if pt.is_interval(kind):
        return [value if value is None else _interval_text(*value) for value in array.to_pylist()]
    read = _reader(kind)
    integers = array.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    return [value if value is None else read(value) for value in integers.to_pylist()]


@lru_cache(maxsize=1024)
def _is_special(kind: pa.DataType) -> bool:
    """Whether values of the type need more than ``to_pylist``, or contain such values."""
    if isinstance(kind, pa.BaseExtensionType):
        return _is_special(kind.storage_type)
    if pt.is_dictionary(kind):
        return _is_special(kind.value_type)
    if pt.is_map(kind):
        return True
    if pt.is_nested(kind):
        return any(_is_special(kind.field(place).type) for place in range(kind.num_fields))
    return bool(pt.is_timestamp(kind) or pt.is_date(kind) or pt.is_time(kind) or pt.is_interval(kind))


def _nested(array: Any) -> list[Any]:
    kind = array.type
    if pt.is_union(kind):
        fields = [python_values(array.field(place)) for place in range(kind.num_fields)]
        codes = [kind.type_codes.index(code) for code in array.type_codes.to_pylist()]
        places = array.offsets.to_pylist() if kind.mode == "dense" else range(len(array))
        return [fields[code][place] for code, place in zip(codes, places, strict=True)]
    valid = array.is_valid().to_pylist()
    if pt.is_struct(kind):
        names = [field.name for field in kind]
        columns = [python_values(field) for field in array.flatten()]
        rows = zip(*columns, strict=True) if columns else ((),) * len(array)
        return [dict(zip(names, row, strict=True)) if there else None for row, there in zip(rows, valid, strict=True)]
    if pt.is_map(kind):
        entries = array.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)])))
        keys, items = (python_values(part) for part in entries.flatten().flatten())
        pairs = iter(list(zip(keys, items, strict=True)))
        lengths = entries.value_lengths().to_pylist()
        named = pt.is_string(kind.key_type) or pt.is_large_string(kind.key_type)
        return [
            map_as_json([next(pairs) for _ in range(length)]) if length or (there and named) else [] if there else None
            for length, there in zip(lengths, valid, strict=True)
        ]
    values = iter(python_values(array.flatten()))
    lengths = array.value_lengths().to_pylist()
    return [
        [next(values) for _ in range(length)] if there else None for length, there in zip(lengths, valid, strict=True)
    ]


# Times ----------------------------------------------------------------------------------------------------------------


def _reader(kind: pa.DataType) -> Callable[[int], Any]:
    """What makes the value of a date or a time of its integer."""
    if pt.is_date32(kind):
        return lambda days: _date(days, infinity=2**31 - 1)
    if pt.is_date64(kind):
        return lambda moment: _date(moment // (_DAY * 1_000), infinity=2**63)
    unit = _PER_SECOND[kind.unit]
    if pt.is_time(kind):
        return lambda units: _time(units, unit)
    return lambda units: _moment(units, unit, zoned=kind.tz is not None)


def _date(days: int, *, infinity: int) -> date | str:
    if 1 <= days + _EPOCH_DAY <= date.max.toordinal():
        return date.fromordinal(days + _EPOCH_DAY)
    if abs(days) == infinity:
        return "infinity" if days > 0 else "-infinity"
    return _date_text(days)


def _date_text(days: int) -> str:
    """A date of any year, with four digits or more."""
    cycles, day = divmod(days + _EPOCH_DAY - 1, _CYCLE)
    within = date.fromordinal(day + 1)
    year = within.year + 400 * cycles
    text = f"{year if year > 0 else 1 - year:04}-{within.month:02}-{within.day:02}"
    return text if year > 0 else f"{text} (BC)"


def _time(units: int, per_second: int) -> time | str:
    seconds, part = divmod(units, per_second)
    nanoseconds = part * (10**9 // per_second)
    if nanoseconds % 1_000 or seconds >= _DAY:
        return _time_text(seconds, nanoseconds)
    return time(seconds // 3_600, seconds // 60 % 60, seconds % 60, nanoseconds // 1_000)


def _time_text(seconds: int, nanoseconds: int) -> str:
    text = f"{seconds // 3_600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    if not nanoseconds:
        return text
    return f"{text}.{nanoseconds:09}" if nanoseconds % 1_000 else f"{text}.{nanoseconds // 1_000:06}"


def _moment(units: int, per_second: int, *, zoned: bool) -> datetime | str:
    if abs(units) == 2**63 - 1:
        return "infinity" if units > 0 else "-infinity"
    seconds, part = divmod(units, per_second)
    nanoseconds = part * (10**9 // per_second)
    days, second = divmod(seconds, _DAY)
    if nanoseconds % 1_000 == 0 and 1 <= days + _EPOCH_DAY <= date.max.toordinal():
        day = datetime.fromordinal(days + _EPOCH_DAY)
        moment = day + timedelta(seconds=second, microseconds=nanoseconds // 1_000)
        return moment.replace(tzinfo=UTC) if zoned else moment
    text = _date_text(days)
    between = " " if text.endswith(")") else "T"
    return f"{text}{between}{_time_text(second, nanoseconds)}{'Z' if zoned else ''}"


def _interval_text(months: int, days: int, nanoseconds: int) -> str:
    """An interval as DuckDB writes it: ``1 year 2 months -3 days 04:05:06.789``."""
    years, months = (abs(months) // 12 * (sign := -1 if months < 0 else 1), abs(months) % 12 * sign)
    counts = ((years, "year"), (months, "month"), (days, "day"))
    parts = [f"{count} {name}{'' if abs(count) == 1 else 's'}" for count, name in counts if count]
    if nanoseconds or not parts:
        seconds, rest = divmod(abs(nanoseconds), 10**9)
        text = _time_text(seconds, rest)
        parts.append(("-" if nanoseconds < 0 else "") + (text.rstrip("0") if "." in text else text))
    return " ".join(parts)
