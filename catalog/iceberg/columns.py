"""The columns of a topic as the schema of an Iceberg table, with a field id at every level.

A table has ``_partition_id``, ``_offset`` and ``_timestamp``, then the columns of the topic.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.types as pt

from txnstore.core.catalog.model import CatalogTopic
from txnstore.errors import InvalidConfigError
from txnstore.segment.field_ids import ADDED_IDS, field_id
from txnstore.segment.schema import HORIZON_FIELD, RECORD_SCHEMA, schema_from_text
from txnstore.segment.schema import PARTITION_FIELD as SEGMENT_PARTITION

#: The columns that each table has before those of the topic, with their field ids and types.
PARTITION_ID, OFFSET, TIMESTAMP = "_partition_id", "_offset", "_timestamp"
PARTITION_FIELD, OFFSET_FIELD, TIMESTAMP_FIELD = 1, ADDED_IDS[OFFSET], ADDED_IDS[TIMESTAMP]
_LEADING_FIELDS = (
    (PARTITION_FIELD, PARTITION_ID, "int"),
    (OFFSET_FIELD, OFFSET, "long"),
    (TIMESTAMP_FIELD, TIMESTAMP, "timestamptz"),
)

#: Columns of some segments that no table has. They get field ids like dropped columns: pyiceberg refuses files with a
#: column that has none, and DuckDB reads nulls in all columns of such a file.
_HIDDEN_COLUMNS = (SEGMENT_PARTITION.name, HORIZON_FIELD.name)

#: The names of Iceberg's metadata columns, which engines add to each table.
RESERVED = frozenset(
    {
        "_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number",
        "_change_type", "_change_ordinal", "_commit_snapshot_id",
    }
)  # fmt: skip

_PLAIN_TYPES: dict[pa.DataType, str] = {
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


#: The names that lead to a field, from the column on.
_Path: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TableColumns:
    """The columns of a table.

    Attributes:
        fields: The fields of the schema, as in Iceberg's JSON.
    """

    fields: tuple[dict[str, Any], ...]

    @property
    def last_id(self) -> int:
        """The largest field id."""
        return max(number for _, number in self.ids())

    def ids(self) -> Iterator[tuple[_Path, int]]:
        """The id of each field, at all levels, by the names that lead to it."""
        return _field_ids((), {"type": "struct", "fields": self.fields})

    def name_mapping(self) -> str:
        """The property ``schema.name-mapping.default``: the field ids by name, for files without ids."""
        own_entries = [_name_mapping_entry(field["name"], field["id"], field["type"]) for field in self.fields]
        return json.dumps([*own_entries, *(_name_mapping_entry(name, ADDED_IDS[name], "") for name in _HIDDEN_COLUMNS)])


def table_columns(topic: CatalogTopic) -> TableColumns:
    """The columns of a topic's table."""
    schema = RECORD_SCHEMA if topic.schema is None else schema_from_text(topic.schema)
    return TableColumns((*leading_columns().fields, *(_field_document((), field.name, field.type) for field in schema)))


def leading_columns() -> TableColumns:
    """The columns that each table has before those of its topic."""
    return TableColumns(
        tuple({"id": number, "name": name, "required": False, "type": kind} for number, name, kind in _LEADING_FIELDS)
    )


def check_columns(topic: CatalogTopic) -> None:
    """Refuse a topic with columns that a table cannot have.

    Raises:
        InvalidConfigError: Iceberg reserves the name of a column, or engines confuse a column with a field of another.
    """
    schema = RECORD_SCHEMA if topic.schema is None else schema_from_text(topic.schema)
    for name in schema.names:
        if name.lower() in RESERVED:
            msg = (
                f"topic {topic.name!r} cannot have a table: Iceberg reserves the name of its column {name!r} for a "
                "metadata column, which engines add to each table"
            )
            raise InvalidConfigError(msg)
    paths_by_id: dict[int, str] = {}
    paths = set[str]()
    for names, number in table_columns(topic).ids():
        path = ".".join(names)
        if path in paths:
            msg = (
                f"topic {topic.name!r} cannot have a table: engines name two of its columns {path!r}, as a field and "
                "by a name with a dot"
            )
            raise InvalidConfigError(msg)
        if number in paths_by_id:
            msg = (
                f"topic {topic.name!r} cannot have a table: its columns {paths_by_id[number]!r} and {path!r} get the "
                "same field id, which is made from the name; another name helps"
            )
            raise InvalidConfigError(msg)
        paths_by_id[number] = path
        paths.add(path)


def _field_document(parent: _Path, name: str, data_type: pa.DataType) -> dict[str, Any]:
    path = (*parent, name)
    return {"id": field_id(path), "name": name, "required": False, "type": _type_document(path, data_type)}


def _type_document(path: _Path, data_type: pa.DataType) -> str | dict[str, Any]:
    """Return an Arrow type as Iceberg's metadata writes it, with the ids of nested fields."""
    if pt.is_struct(data_type):
        return {"type": "struct", "fields": [_field_document(path, field.name, field.type) for field in data_type]}
    if pt.is_map(data_type):
        key, value = (*path, "key"), (*path, "value")
        return {
            "type": "map",
            "key-id": field_id(key),
            "key": _type_document(key, data_type.key_type),
            "value-id": field_id(value),
            "value-required": False,
            "value": _type_document(value, data_type.item_type),
        }
    if pt.is_list(data_type):
        element = (*path, "element")
        return {
            "type": "list",
            "element-id": field_id(element),
            "element-required": False,
            "element": _type_document(element, data_type.value_type),
        }
    if pt.is_fixed_size_binary(data_type):
        return f"fixed[{data_type.byte_width}]"
    if pt.is_decimal(data_type):
        return f"decimal({data_type.precision}, {data_type.scale})"
    if pt.is_timestamp(data_type):
        return "timestamp" if data_type.tz is None else "timestamptz"
    return _PLAIN_TYPES[data_type]


def _inner_fields(data_type: Any) -> list[tuple[str, int, Any]]:
    """The name, id and type of each field of a type in Iceberg's JSON; none of a plain type."""
    if not isinstance(data_type, dict):
        return []
    if data_type["type"] == "struct":
        return [(field["name"], field["id"], field["type"]) for field in data_type["fields"]]
    names = ("element",) if data_type["type"] == "list" else ("key", "value")
    return [(name, data_type[f"{name}-id"], data_type[name]) for name in names]


def _field_ids(parent: _Path, data_type: Any) -> Iterator[tuple[_Path, int]]:
    """Yield the id of each field of a type, at all levels, by its path."""
    for name, number, inner_type in _inner_fields(data_type):
        path = (*parent, name)
        yield path, number
        yield from _field_ids(path, inner_type)


def _name_mapping_entry(name: str, number: int, data_type: Any) -> dict[str, Any]:
    entry: dict[str, Any] = {"field-id": number, "names": [name]}
    inner_entries = [_name_mapping_entry(*field) for field in _inner_fields(data_type)]
    return entry | ({"fields": inner_entries} if inner_entries else {})
