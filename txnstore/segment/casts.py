"""Casts of columns to the types of their topic, by the rules of assignment in SQL.

Allowed: a number to a narrower type if it fits; rounding to the column's precision (a double to a float, microseconds
down to milliseconds); a string to its UTF-8 bytes; a timestamp without a zone to UTC. Refused: a number to a string,
binary to text, a timestamp with a zone to one without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from txnstore import compute as pc
from txnstore.errors import SchemaMismatchError
from txnstore.segment.schema import TIMESTAMP, as_milliseconds

#: The digits of a decimal128, and those that a 64-bit integer may need.
_MAX_DECIMAL = 38
_INT64_DIGITS = 19
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
        raise SchemaMismatchError(
            f"column {field.name!r} is of type {column.type}; the topic's column is of type {field.type}",
        )
    try:
        return pa.chunked_array([_cast(chunk, field.type) for chunk in _small_chunks(column)], field.type)
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
        return target == TIMESTAMP or _is_any(target, pt.is_integer, pt.is_floating, pt.is_decimal)
    if pt.is_floating(source):
        return _is_any(target, pt.is_floating, pt.is_integer)
    if pt.is_timestamp(source) and pt.is_timestamp(target):
        return target.tz is not None or source.tz is None
    if _is_string(source):
        return _is_string(target) or _is_binary(target)
    pairs = ((pt.is_decimal, pt.is_decimal), (pt.is_date, pt.is_date), (_is_binary, _is_binary))
    return any(before(source) and after(target) for before, after in pairs)


def _is_nested_castable(source: pa.DataType, target: pa.DataType) -> bool:
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


def _cast(array: Any, target: pa.DataType) -> Any:
    """Cast one array; raises an Arrow error if a value does not fit."""
    source = array.type
    if pt.is_dictionary(source) or pt.is_run_end_encoded(source):
        # Decoded, repeated text may exceed 32-bit offsets.
        decoded = pc.run_end_decode(array) if pt.is_run_end_encoded(source) else array.dictionary_decode()
        return _cast(decoded, target)
    if target == TIMESTAMP and not pt.is_null(source):
        return as_milliseconds(_to_int64(array) if pt.is_integer(source) else _whole_unit(array), "")
    if pt.is_integer(source) and pt.is_decimal(target) and target.scale <= _MAX_DECIMAL - _INT64_DIGITS:
        # Arrow requires room for 19 digits, however small the numbers are.
        return _to_int64(array).cast(pa.decimal128(_MAX_DECIMAL, target.scale)).cast(target)
    options = pc.CastOptions(target, allow_time_truncate=True)
    result = pc.cast(array, options=options)
    if pt.is_floating(source) and pt.is_floating(target) and target.bit_width < source.bit_width:
        _check_finite(array, result)
    return result


def _check_finite(before: Any, after: Any) -> None:
    lost = pc.and_(pc.is_finite(before), pc.is_inf(after))
    if pc.any(lost).as_py():
        raise pa.ArrowInvalid(f"{before.filter(lost)[0].as_py()} is out of the range of {after.type}")


def _to_int64(array: Any) -> Any:
    return array.cast(pa.int64())


def _whole_unit(array: Any) -> Any:
    """Convert seconds to milliseconds, and nanoseconds to microseconds, rounding down."""
    if array.type.unit == "s":
        return array.cast(pa.timestamp("ms", array.type.tz))
    if array.type.unit == "ns":
        bare = pc.floor_temporal(array.cast(pa.timestamp("ns")), unit="microsecond")
        return bare.cast(pa.timestamp("us"))
    return array


def _small_chunks(column: Any) -> list[Any]:
    """The chunks of the column, split to at most about ``_CHUNK_BYTES`` each."""
    result = []
    for chunk in column.chunks:
        pieces = min(max(1, -(-chunk.nbytes // _CHUNK_BYTES)), max(1, len(chunk)))
        rows = -(-len(chunk) // pieces)
        result += [chunk.slice(start, rows) for start in range(0, len(chunk), max(1, rows))]
    return result


def _is_string(data_type: pa.DataType) -> bool:
    return _is_any(data_type, pt.is_string, pt.is_large_string, pt.is_string_view)


def _is_binary(data_type: pa.DataType) -> bool:
    return _is_any(data_type, pt.is_binary, pt.is_large_binary, pt.is_fixed_size_binary, pt.is_binary_view)


def _is_list(data_type: pa.DataType) -> bool:
    # Without list views: pyarrow 26 casts them to lists with too few offsets.
    return _is_any(data_type, pt.is_list, pt.is_large_list, pt.is_fixed_size_list)


def _is_any(data_type: pa.DataType, *tests: Callable[[pa.DataType], bool]) -> bool:
    return any(test(data_type) for test in tests)
