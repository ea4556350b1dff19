"""The columns of a topic as the schema of an Iceberg table, with a field id at every level.

A table has ``_partition_id``, ``_offset`` and ``_timestamp``, then the columns of the topic. Columns of a topic are
never dropped nor renamed, so the path of a column's names finds the id that it got when it was new.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.types as pt

from txnstore.core.catalog.model import CatalogTopic
from txnstore.errors import InvalidConfigError
from txnstore.segment.schema import HORIZON_FIELD, RECORD_SCHEMA, schema_from_text
from txnstore.segment.schema import PARTITION_FIELD as SEGMENT_PARTITION

#: The columns that each table has before those of the topic, with their field ids and types.
PARTITION_ID, OFFSET, TIMESTAMP = "_partition_id", "_offset", "_timestamp"
PARTITION_FIELD, OFFSET_FIELD, TIMESTAMP_FIELD = 1, 2, 3
_LEADING = (
    (PARTITION_FIELD, PARTITION_ID, "int"),
    (OFFSET_FIELD, OFFSET, "long"),
    (TIMESTAMP_FIELD, TIMESTAMP, "timestamptz"),
)
#: The first field id of a column of a topic.
FIRST_FIELD = 11

#: Columns of some segments that no table shows. They have field ids like columns that a table has no more: pyiceberg
#: refuses files with a column that has none, and DuckDB reads nulls in all columns of such a file.
_UNSHOWN = {SEGMENT_PARTITION.name: 4, HORIZON_FIELD.name: 5}

#: The names of Iceberg's metadata columns, which engines add to each table.
RESERVED = frozenset(
    {
        "_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number",
        "_change_type", "_change_ordinal", "_commit_snapshot_id",
    }
)  # fmt: skip

_PLAIN: dict[pa.DataType, str] = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.string(): "string",
    pa.large_string(): "string",
    pa.binary(): "binary",
    pa.large_binary(): "binary",
    pa.date32(): "date",
}


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of a table.

    Attributes:
        fields: Those of its schema, as in Iceberg's JSON.
        last_id: The largest field id that was ever given.
    """

    fields: tuple[dict[str, Any], ...]
    last_id: int

    def name_mapping(self) -> str:
        """The property ``schema.name-mapping.default``: the field ids by name, for files without ids."""
        own = [_mapped(field["name"], field["id"], field["type"]) for field in self.fields]
        return json.dumps([*own, *(_mapped(name, number, "") for name, number in _UNSHOWN.items())])


def table_columns(topic: CatalogTopic, before: Columns | None = None) -> Columns:
    """The columns of a topic's table.

    Args:
        topic: The topic.
        before: Those of its earlier versions, whose columns keep their ids; None: it has none.
    """
    schema = RECORD_SCHEMA if topic.schema is None else schema_from_text(topic.schema)
    known = dict(_ids((), {"type": "struct", "fields": before.fields})) if before is not None else {}
    ids = _Ids(known, before.last_id if before is not None else FIRST_FIELD - 1)
    own = tuple(_field((), field.name, field.type, ids) for field in schema)
    return Columns((*leading_columns().fields, *own), ids.last)


def leading_columns() -> Columns:
    """The columns that each table has before those of its topic."""
    fields = ({"id": number, "name": name, "required": False, "type": kind} for number, name, kind in _LEADING)
    return Columns(tuple(fields), FIRST_FIELD - 1)


def check_columns(topic: CatalogTopic) -> None:
    """Refuse a topic with columns that a table cannot have.

    Raises:
        InvalidConfigError: Iceberg reserves the name of a column, or engines take one for a field of another.
    """
    schema = RECORD_SCHEMA if topic.schema is None else schema_from_text(topic.schema)
    for name in schema.names:
        if name.lower() in RESERVED:
            msg = (
                f"topic {topic.name!r} cannot have a table: Iceberg reserves the name of its column {name!r} for a "
                "metadata column, which engines add to each table"
            )
            raise InvalidConfigError(msg)
    paths = Counter(".".join(path) for path, _ in _ids((), {"type": "struct", "fields": table_columns(topic).fields}))
    if doubled := [path for path, count in paths.items() if count > 1]:
        msg = (
            f"topic {topic.name!r} cannot have a table: engines name two of its columns "
            f"{doubled[0]!r}, as a field and by a name with a dot"
        )
        raise InvalidConfigError(msg)


#: The names that lead to a field, from the column on.
_Path: TypeAlias = tuple[str, ...]


class _Ids:
    """The field ids of a schema in the making: known ones by path, and new ones after the last."""

    def __init__(self, known: Mapping[_Path, int], last: int) -> None:
        self._known, self.last = known, last

    def of(self, path: _Path) -> int:
        number = self._known.get(path)
        if number is None:
            number = self.last = self.last + 1
        return number


def _field(above: _Path, name: str, data_type: pa.DataType, ids: _Ids) -> dict[str, Any]:
    path = (*above, name)
    number = ids.of(path)
    return {"id": number, "name": name, "required": False, "type": _type(path, data_type, ids)}


def _type(path: _Path, data_type: pa.DataType, ids: _Ids) -> str | dict[str, Any]:
    if pt.is_struct(data_type):
        return {"type": "struct", "fields": [_field(path, field.name, field.type, ids) for field in data_type]}
    if pt.is_map(data_type):
        key, value = ids.of((*path, "key")), ids.of((*path, "value"))
        return {
            "type": "map",
            "key-id": key,
            "key": _type((*path, "key"), data_type.key_type, ids),
            "value-id": value,
            "value-required": False,
            "value": _type((*path, "value"), data_type.item_type, ids),
        }
    if pt.is_list(data_type):
        return {
            "type": "list",
            "element-id": ids.of((*path, "element")),
            "element-required": False,
            "element": _type((*path, "element"), data_type.value_type, ids),
        }
    if pt.is_fixed_size_binary(data_type):
        return f"fixed[{data_type.byte_width}]"
    if pt.is_decimal(data_type):
        return f"decimal({data_type.precision}, {data_type.scale})"
    if pt.is_timestamp(data_type):
        return "timestamp" if data_type.tz is None else "timestamptz"
    return _PLAIN[data_type]


def _inner(data_type: Any) -> list[tuple[str, int, Any]]:
    """The name, the id and the type of each field of a type in Iceberg's JSON; none of a plain one."""
    if not isinstance(data_type, dict):
        return []
    if data_type["type"] == "struct":
        return [(field["name"], field["id"], field["type"]) for field in data_type["fields"]]
    names = ("element",) if data_type["type"] == "list" else ("key", "value")
    return [(name, data_type[f"{name}-id"], data_type[name]) for name in names]


def _ids(above: _Path, data_type: Any) -> Iterator[tuple[_Path, int]]:
    """The id of each field of a type by its path, at all levels."""
    for name, number, inner in _inner(data_type):
        path = (*above, name)
        yield path, number
        yield from _ids(path, inner)


def _mapped(name: str, number: int, data_type: Any) -> dict[str, Any]:
    mapped: dict[str, Any] = {"field-id": number, "names": [name]}
    inner = [_mapped(*each) for each in _inner(data_type)]
    return mapped | ({"fields": inner} if inner else {})
