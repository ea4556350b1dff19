"""Questions about types of Arrow."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt


def children(data_type: pa.DataType) -> list[pa.DataType]:
    """The types of the fields of a nested type; of a map its keys and items."""
    if pt.is_map(data_type):
        return [data_type.key_type, data_type.item_type]
    return [data_type.field(number).type for number in range(data_type.num_fields)]


def is_binary(kind: pa.DataType) -> bool:
    return bool(pt.is_binary(kind) or pt.is_large_binary(kind) or pt.is_fixed_size_binary(kind))


def is_text(kind: pa.DataType) -> bool:
    return bool(pt.is_string(kind) or pt.is_large_string(kind))
