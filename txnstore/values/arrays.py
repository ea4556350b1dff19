"""Python and pandas values as arrays of Arrow.

Values inside of lists, structs and maps are converted like a column of their own. So the rules of :mod:`.casts` hold
for each, and no value is changed: with a type, ``pa.array([1.5], pa.int64())`` drops the fraction in silence.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from txnstore.errors import SchemaMismatchError
from txnstore.threads import load
from txnstore.times import without_zone
from txnstore.values.casts import MILLISECONDS, cast_column
from txnstore.values.scalars import exact_float, text_in_error

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
#: The names of pandas' types of missing values. A NaN is a value.
_MISSING_TYPE_NAMES = {"NaTType", "NAType"}


def array_of(values: Any, field: pa.Field) -> Any:
    """Convert Python or pandas values to an array, which :func:`~.casts.cast_column` casts to the field's type.

    Args:
        values: A list of Python values, or a pandas Series or Index, in which a NaN is null, too.
        field: The column.

    Raises:
        SchemaMismatchError: A value does not fit the column.
    """
    load("pandas")  # pa.array imports it, if it is installed.
    from_pandas = not isinstance(values, list)
    try:
        if from_pandas and values.dtype != object:
            return pa.array(values, from_pandas=True)
        return _convert_values(list(values), field, from_pandas=from_pandas)
    except (
        pa.ArrowException,
        OverflowError,
        TypeError,
        ValueError,
    ) as error:  # Arrow passes on some of Python's errors.
        raise SchemaMismatchError(f"column {field.name!r} does not fit {field.type}: {error}") from error


def _convert_values(values: Sequence[Any], field: pa.Field, *, from_pandas: bool) -> Any:
    """Convert Python values to an Arrow array, exactly; values that Arrow takes wrongly are converted before."""
    kinds = {kind.__name__: kind for kind in set(map(type, values))}
    if not _MISSING_TYPE_NAMES.isdisjoint(kinds):
        # Arrow refuses most missing values of pandas, and takes a NaT among dates for the first day of year 1.
        values = [None if type(value).__name__ in _MISSING_TYPE_NAMES else value for value in values]
    if pt.is_nested(field.type):
        return _convert_nested(values, field, from_pandas=from_pandas)
    if pt.is_temporal(field.type):
        values = _check_times(_nan_as_none(values) if from_pandas else values, field)
    elif "int" in kinds and pt.is_decimal(field.type):
        values = [Decimal(value) if type(value) is int else value for value in values]
    elif not {"int", "bool"}.isdisjoint(kinds) and pt.is_floating(field.type):
        # Arrow takes a bool among floats for 0 or 1.
        values = [exact_float(value, field.type) if type(value) in {int, bool} else value for value in values]
    return pa.array(values, from_pandas=from_pandas)


def _check_times(values: Sequence[Any], field: pa.Field) -> Sequence[Any]:
    """Check that times or dates are of one kind, all with a zone or all without; return them.

    Arrow would take a ``datetime`` without a zone for UTC, drop the zone of one among others without, and drop the time
    of one among dates. An integer among times counts milliseconds; Arrow would infer the unit of the other values:
    microseconds for a ``datetime``, days for a date.
    """
    kinds = {_time_class(kind) for kind in set(map(type, values))} - {type(None)}
    if len(kinds) > 1 and (kinds != {int, dt.datetime} or field.type != MILLISECONDS):
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise SchemaMismatchError(
            f"column {field.name!r} mixes values of types {names}; the topic's column is of type {field.type}"
        )
    if dt.datetime in kinds and pt.is_timestamp(field.type):
        for value in values:
            _check_zone(value, field)
    if len(kinds) == 1:
        return values
    return [_EPOCH + dt.timedelta(milliseconds=value) if type(value) is int else value for value in values]


def _time_class(kind: type) -> type:
    """The class of Python from which the class of a time, such as one of pandas, is derived."""
    return next((base for base in (dt.datetime, dt.date) if issubclass(kind, base)), kind)


def _check_zone(value: Any, field: pa.Field) -> None:
    if not isinstance(value, dt.datetime) or (value.tzinfo is None) == (field.type.tz is None):
        return
    fault = without_zone(value) if value.tzinfo is None else f"{value}: the column has no time zone"
    raise SchemaMismatchError(f"a value of column {field.name!r} is {fault}")


def _nan_as_none(values: Sequence[Any]) -> Sequence[Any]:
    """Replace NaN, which is null in pandas, by None."""
    return [None if isinstance(value, float | np.floating) and math.isnan(value) else value for value in values]


# Nested types ---------------------------------------------------------------------------------------------------------


def _convert_nested(values: Sequence[Any], field: pa.Field, *, from_pandas: bool) -> pa.Array:
    """Convert Python values to structs, lists or maps, member by member."""
    kind = field.type
    if from_pandas:
        values = _nan_as_none(values)
    is_null = pa.array([value is None for value in values], pa.bool_())

    def convert_inner(items: Sequence[Any], data_type: pa.DataType) -> pa.Array:
        part = pa.field(field.name, data_type)
        array = _convert_values(items, part, from_pandas=from_pandas)
        column = array if isinstance(array, pa.ChunkedArray) else pa.chunked_array([array])
        return cast_column(column, part).combine_chunks()

    if pt.is_struct(kind):
        rows = [_struct_members(value, field) for value in values]
        columns = [convert_inner([row.get(member.name) for row in rows], member.type) for member in kind]
        return pa.StructArray.from_arrays(columns, fields=list(kind), mask=is_null)
    lists = [_list_items(value, field) for value in values]
    offsets = pa.array(np.cumsum([0, *map(len, lists)]).astype(np.int32))
    items = [item for values in lists for item in values]
    if not pt.is_map(kind):
        return pa.ListArray.from_arrays(offsets, convert_inner(items, kind.value_type), type=kind, mask=is_null)
    pairs = [_map_pair(item, field) for item in items]
    keys, map_items = (
        convert_inner([pair[index] for pair in pairs], data_type)
        for index, data_type in enumerate((kind.key_type, kind.item_type))
    )
    return pa.MapArray.from_arrays(offsets, keys, map_items, type=kind, mask=is_null)


def _struct_members(value: Any, field: pa.Field) -> Mapping[str, Any]:
    """The members of a struct; a pair stands for a header."""
    names = [member.name for member in field.type]
    if value is None:
        return {}
    if names == ["key", "value"] and isinstance(value, tuple) and len(value) == 2:
        return dict(zip(names, value, strict=True))
    if not isinstance(value, Mapping) or not value.keys() <= set(names):
        raise _mismatch_error(value, field)
    return value


def _list_items(value: Any, field: pa.Field) -> Sequence[Any]:
    """The items of a list, or the pairs of a map, which may be a mapping."""
    if value is None:
        return ()
    if pt.is_map(field.type) and isinstance(value, Mapping):
        return list(value.items())
    if isinstance(value, str | bytes | bytearray | memoryview | Mapping) or not isinstance(value, Iterable):
        raise _mismatch_error(value, field)
    return list(value)


def _map_pair(item: Any, field: pa.Field) -> Sequence[Any]:
    """The key and value of a map's entry; the key must not be null."""
    if isinstance(item, Mapping) and item.keys() == {"key", "value"}:
        item = (item["key"], item["value"])
    if not isinstance(item, tuple | list) or len(item) != 2 or item[0] is None:
        raise _mismatch_error(item, field)
    return item


def _mismatch_error(value: Any, field: pa.Field) -> SchemaMismatchError:
    return SchemaMismatchError(f"column {field.name!r} does not fit {field.type}: {text_in_error(value)} is none")
