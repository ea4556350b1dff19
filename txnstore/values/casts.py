"""Casts of columns to the types of their topic, by the rules of assignment in SQL.

Allowed: a number to a narrower type if it fits; rounding to the column's precision (a double to a float, microseconds
down to milliseconds); a string to its UTF-8 bytes. Refused: a number to a string, binary to text, a timestamp with a
zone to one without, and one without a zone to one with it, because its time zone is unknown.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from txnstore import compute as pc
from txnstore.errors import SchemaMismatchError

#: Kafka's resolution of time. An integer in a column of this type is milliseconds since the epoch.
MILLISECONDS = pa.timestamp("ms", "UTC")
#: The units of times, coarsest first, with the names that Arrow's functions have for them.
_UNIT_NAMES = {"s": "second", "ms": "millisecond", "us": "microsecond", "ns": "nanosecond"}
_UNITS = tuple(_UNIT_NAMES)
#: The digits of a decimal that holds every integer beside the largest scale of a decimal128.
_WIDE_DECIMAL = 76
#: Bytes of a column that are cast at a time, because a larger column of strings may exceed 32-bit offsets.
_CHUNK_BYTES = 1 << 30


def cast_column(column: Any, field: pa.Field) -> Any:
    """Cast the chunked array to the field's type.

    Raises:
        SchemaMismatchError: The cast is not allowed, or a value does not fit. The message names the column.
    """
    if column.type == field.type:
        return column
    if not is_castable(column.type, field.type):
        if 0 < column.null_count == len(column):  # A column of missing times in pandas.
            return pa.chunked_array([pa.nulls(len(column), field.type)])
        raise SchemaMismatchError(
            f"column {field.name!r} is of type {column.type}; the topic's column is of type {field.type}"
            f"{_time_zone_advice(column.type, field.type)}",
        )
    try:
        return pa.chunked_array([_cast_array(chunk, field.type) for chunk in _small_chunks(column)], field.type)
    except (pa.ArrowException, OverflowError) as error:
        raise SchemaMismatchError(f"column {field.name!r} does not fit {field.type}: {error}") from error


def is_castable(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether the rules allow a cast from the source type to the target type; single values may still not fit."""
    if source == target or pt.is_null(source):
        return True
    if pt.is_dictionary(source) or pt.is_run_end_encoded(source):
        return is_castable(source.value_type, target)
    if pt.is_nested(source) or pt.is_nested(target):
        return _is_nested_castable(source, target)
    if pt.is_integer(source):
        return target == MILLISECONDS or _is_any(target, pt.is_integer, pt.is_floating, pt.is_decimal)
    if pt.is_floating(source):
        return _is_any(target, pt.is_floating, pt.is_integer)
    if pt.is_timestamp(source) and pt.is_timestamp(target):
        return (target.tz is None) == (source.tz is None)
    if _is_string(source):
        return _is_string(target) or _is_binary(target)
    pairs = ((pt.is_decimal, pt.is_decimal), (pt.is_date, pt.is_date), (_is_binary, _is_binary))
    return any(is_source(source) and is_target(target) for is_source, is_target in pairs)


def _time_zone_advice(source: pa.DataType, target: pa.DataType) -> str:
    """The end of the error for times without a zone; empty for other casts."""
    if not (pt.is_timestamp(source) and pt.is_timestamp(target) and source.tz is None):
        return ""
    return (
        ". Nothing says in which time zone its times are: give them one, for UTC in pandas by .dt.tz_localize('UTC'), "
        "in Arrow by pyarrow.compute.assume_timezone(column, 'UTC')"
    )


def _is_nested_castable(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether a list, map or struct type can be cast: its members can, and no field of a struct is lost."""
    if _is_list(source) and _is_list(target):
        return is_castable(source.value_type, target.value_type)
    if pt.is_map(source) and pt.is_map(target):
        return is_castable(source.key_type, target.key_type) and is_castable(source.item_type, target.item_type)
    if not (pt.is_struct(source) and pt.is_struct(target)):
        return False
    names = [field.name for field in source]
    types = {field.name: field.type for field in target}
    return len(set(names)) == len(names) and all(
        field.name in types and is_castable(field.type, types[field.name]) for field in source
    )


def _cast_array(array: Any, target: pa.DataType) -> Any:
    """Cast one array; raises an Arrow error if a value does not fit."""
    source = array.type
    if source == target:
        return array
    if pt.is_nested(source) and pt.is_nested(target):
        return _cast_nested(array, target)
    if pt.is_dictionary(source) or pt.is_run_end_encoded(source):
        # Decoded, repeated text may exceed 32-bit offsets.
        decoded = pc.run_end_decode(array) if pt.is_run_end_encoded(source) else array.dictionary_decode()
        return _cast_array(decoded, target)
    if pt.is_timestamp(source) and pt.is_timestamp(target):
        return floor_times(array, target)
    if pt.is_integer(source) and pt.is_timestamp(target):
        return array.cast(pa.int64()).cast(target)
    if pt.is_integer(source) and pt.is_decimal(target):
        # Arrow requires room for all digits of the integer's type, however small the numbers are.
        return array.cast(pa.decimal256(_WIDE_DECIMAL, target.scale)).cast(target)
    if pt.is_integer(source) and pt.is_floating(target):
        return _exact_floats(array, target)
    result = array.cast(target)
    if pt.is_floating(source) and pt.is_floating(target) and target.bit_width < source.bit_width:
        _check_finite(array, result)
    return result


def _cast_nested(array: Any, target: pa.DataType) -> Any:
    """Cast inner values like columns of their own: Arrow would round times up, and make floats infinite."""
    source, is_null = array.type, array.is_null()
    if pt.is_struct(target):
        inner_arrays = dict(zip((field.name for field in source), array.flatten(), strict=True))
        columns = [
            _cast_array(inner_arrays[field.name], field.type)
            if field.name in inner_arrays
            else pa.nulls(len(array), field.type)
            for field in target
        ]
        return pa.StructArray.from_arrays(columns, fields=list(target), mask=is_null)
    # Lists of each kind, and maps, as plain lists of their inner values.
    is_map = pt.is_map(source)
    inner_type = pa.struct([("key", source.key_type), ("value", source.item_type)]) if is_map else source.value_type
    lists = array.cast(pa.list_(inner_type))
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    offsets = pa.array(np.cumsum([0, *lengths]).astype(np.int32))
    inner_values = lists.flatten()  # Without those of null lists.
    if not is_map:
        values = _cast_array(inner_values, target.value_type)
        return pa.ListArray.from_arrays(offsets, values, type=target, mask=is_null)
    keys, items = inner_values.flatten()
    keys, items = _cast_array(keys, target.key_type), _cast_array(items, target.item_type)
    return pa.MapArray.from_arrays(offsets, keys, items, type=target, mask=is_null)


def _exact_floats(array: Any, target: pa.DataType) -> Any:
    """Convert integers to floats, if floats hold them exactly; Arrow refuses each above 2**53, even 2**60."""
    floats = array.cast(target, safe=False)
    # The cast back raises where the float is out of range: that of 2**63 - 1 is 2**63.
    inexact = pc.not_equal(floats.cast(array.type), array)
    if pc.any(inexact).as_py():
        raise pa.ArrowInvalid(f"no {target} holds {array.filter(inexact)[0].as_py()}")
    return floats


def _check_finite(source: Any, result: Any) -> None:
    overflowed = pc.and_(pc.is_finite(source), pc.is_inf(result))
    if pc.any(overflowed).as_py():
        raise pa.ArrowInvalid(f"{source.filter(overflowed)[0].as_py()} is out of the range of {result.type}")


def floor_to_milliseconds(values: Any) -> Any:
    """Convert times to :data:`MILLISECONDS`, rounded down; those without a zone count as UTC."""
    return floor_times(values, MILLISECONDS)


def floor_times(values: Any, target: pa.DataType) -> Any:
    """Convert times to another unit, rounded down; Arrow would round those before 1970 up."""
    unit = values.type.unit
    times = values.cast(pa.timestamp(unit))  # Rounding in a zone would require a time zone database.
    if _UNITS.index(unit) > _UNITS.index(target.unit):
        times = pc.floor_temporal(times, unit=_UNIT_NAMES[target.unit])
    return times.cast(pa.timestamp(target.unit)).cast(pa.int64()).cast(target)


def _small_chunks(column: Any) -> list[Any]:
    """Split the chunks of a column into slices of about ``_CHUNK_BYTES`` at most."""
    slices = []
    for chunk in column.chunks:
        pieces = min(max(1, -(-chunk.nbytes // _CHUNK_BYTES)), max(1, len(chunk)))
        rows = -(-len(chunk) // pieces)
        slices += [chunk.slice(start, rows) for start in range(0, len(chunk), max(1, rows))]
    return slices


def _is_string(data_type: pa.DataType) -> bool:
    return _is_any(data_type, pt.is_string, pt.is_large_string, pt.is_string_view)


def _is_binary(data_type: pa.DataType) -> bool:
    return _is_any(data_type, pt.is_binary, pt.is_large_binary, pt.is_fixed_size_binary, pt.is_binary_view)


def _is_list(data_type: pa.DataType) -> bool:
    # Without list views: pyarrow 26 casts them to lists with too few offsets.
    return _is_any(data_type, pt.is_list, pt.is_large_list, pt.is_fixed_size_list)


def _is_any(data_type: pa.DataType, *tests: Callable[[pa.DataType], bool]) -> bool:
    return any(test(data_type) for test in tests)
