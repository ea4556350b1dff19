"""The field ids by which Iceberg finds the columns of a file, and the fields in them.

Columns of a topic are never dropped nor renamed, so the path of names to a field is its identity, and its id is made
from the path alone. So a compaction and a publication give a field the same id, and need no state for that.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from txnstore.segment.schema import HORIZON_FIELD, OFFSET_FIELD, PARTITION_FIELD, TIMESTAMP_FIELD

#: The ids of the columns that txnstore adds to those of a topic. 1 is that of ``_partition_id``, which no file has.
ADDED_IDS: Mapping[str, int] = {
    OFFSET_FIELD.name: 2,
    TIMESTAMP_FIELD.name: 3,
    PARTITION_FIELD.name: 4,
    HORIZON_FIELD.name: 5,
}
#: The smallest id of a column of a topic, and how many there are. Iceberg has ids of its own close to 2**31.
_FIRST_ID, _ID_COUNT = 11, 1 << 30
#: The name by which Arrow writes the id of a field into a Parquet file.
_KEY = b"PARQUET:field_id"


def field_id(path: Sequence[str]) -> int:
    """Return the id of a field.

    Args:
        path: The names that lead to it, from the column on; ``element``, ``key`` and ``value`` in lists and maps.
    """
    if len(path) == 1 and path[0] in ADDED_IDS:
        return ADDED_IDS[path[0]]
    digest = hashlib.sha256(json.dumps(path).encode()).digest()
    return _FIRST_ID + int.from_bytes(digest[:8], "big") % _ID_COUNT


@lru_cache(maxsize=256)
def with_field_ids(schema: pa.Schema) -> pa.Schema:
    """Return a schema whose Parquet files have the id of each field, at all levels."""
    return pa.schema([_with_id((), field.name, field) for field in schema])


def _with_id(parent_path: tuple[str, ...], name: str, field: pa.Field) -> pa.Field:
    path = (*parent_path, name)
    return field.with_type(_with_ids(path, field.type)).with_metadata({_KEY: str(field_id(path))})


def _with_ids(path: tuple[str, ...], data_type: Any) -> pa.DataType:
    """Return the type with a field id, derived from its path, at each nested field."""
    if pt.is_struct(data_type):
        return pa.struct([_with_id(path, field.name, field) for field in data_type])
    if pt.is_map(data_type):
        key, value = _with_id(path, "key", data_type.key_field), _with_id(path, "value", data_type.item_field)
        return pa.map_(key, value, data_type.keys_sorted)
    if pt.is_list(data_type):
        return pa.list_(_with_id(path, "element", data_type.value_field))
    return data_type
