"""Predicates on types of Arrow."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt

_PLAIN_TYPES = frozenset(
    {
        pa.bool_(),
        pa.int8(),
        pa.int16(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.large_binary(),
        pa.date32(),
        pa.timestamp("ms"),
        pa.timestamp("us"),
        pa.timestamp("ms", "UTC"),
        pa.timestamp("us", "UTC"),
    },
)


def is_plain(kind: pa.DataType) -> bool:
    """Whether a column of a topic may have this type, and it has no fields."""
    return bool(kind in _PLAIN_TYPES or pt.is_fixed_size_binary(kind) or pt.is_decimal128(kind))


def is_storable(kind: pa.DataType) -> bool:
    """Whether a column of a topic may have this type."""
    level = [kind]
    while level:
        if not all(pt.is_struct(kind) or pt.is_map(kind) or pt.is_list(kind) or is_plain(kind) for kind in level):
            return False
        level = [inner for outer in level if pt.is_nested(outer) for inner in children(outer)]
    return True


def children(data_type: pa.DataType) -> list[pa.DataType]:
    """The types of the fields of a nested type; for a map those of its keys and items."""
    if pt.is_map(data_type):
        return [data_type.key_type, data_type.item_type]
    return [data_type.field(number).type for number in range(data_type.num_fields)]


def is_binary(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind))


def is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind))
