"""Validates schemas of topics and their changes.

The allowed types are those that Parquet, DuckDB and Spark all read back unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pyarrow as pa
import pyarrow.types as pt

from txnstore.errors import InvalidConfigError, SchemaMismatchError
from txnstore.segment.convert import collect_errors
from txnstore.segment.partition import is_key_type
from txnstore.segment.schema import is_reserved, is_timestamp_type, schema_from_text, schema_to_text
from txnstore.values.kinds import children, is_plain

__all__ = [
    "check_key",
    "check_schema",
    "check_timestamp",
    "check_tombstone",
    "check_topic_schema",
    "evolve_schema",
    "is_wider",
    "schema_from_text",
    "schema_to_text",
]

#: The maximum depth of a column's type; a plain column has depth 1. Parquet readers refuse types some 50 levels deep,
#: the Arrow format 125, and DuckDB takes seconds for a query on lists 24 deep.
MAX_DEPTH = 16

#: The replacements that errors suggest for types that an engine does not support.
_REPLACEMENTS = (
    (pt.is_unsigned_integer, "a signed integer"),
    (pt.is_float16, "float32"),
    (pt.is_date64, "date32"),
    (pt.is_dictionary, "its value type: segments encode repeated values automatically"),
    (pt.is_run_end_encoded, "its value type"),
    (pt.is_string_view, "string"),
    (pt.is_binary_view, "binary"),
    (pt.is_decimal, "decimal128"),
    (pt.is_time, "an integer or a timestamp"),
    (pt.is_duration, "int64"),
    (pt.is_large_list, "list"),
    (pt.is_fixed_size_list, "list"),
    (pt.is_list_view, "list"),
    (pt.is_large_list_view, "list"),
)

#: The types that each type may be widened to.
_WIDER_TYPES: dict[pa.DataType, tuple[pa.DataType, ...]] = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64()),
    pa.int16(): (pa.int32(), pa.int64()),
    pa.int32(): (pa.int64(),),
    pa.float32(): (pa.float64(),),
    pa.string(): (pa.large_string(),),
    pa.binary(): (pa.large_binary(),),
}

_ALLOWED_CHANGES = (
    "allowed are: new nullable columns, not null to nullable, another order, int8 to int16 to int32 to int64, float "
    "to double, string to large_string, binary to large_binary, and a larger precision of a decimal"
)


def check_topic_schema(schema: pa.Schema | None, key: str | None, timestamp: str | None) -> None:
    """Validate the schema, key and timestamp column of a topic.

    Args:
        schema: The schema; None for a topic of Kafka records.
        key: The column whose value chooses the partition; None for no key.
        timestamp: The column with the event time; None for the append time.

    Raises:
        SchemaMismatchError: One of them is not allowed; the message names the column.
    """
    if schema is None:
        for role, column in (("key", key), ("timestamp", timestamp)):
            if column is not None:
                raise SchemaMismatchError(
                    f"{role}={column!r} needs a schema: a topic without one has Kafka's key and timestamp",
                )
        return
    check_schema(schema)
    check_key(schema, key)
    check_timestamp(schema, timestamp)


def check_schema(schema: pa.Schema) -> None:
    """Raise :class:`SchemaMismatchError` for names and types that segments, DuckDB or Spark do not support."""
    if not isinstance(schema, pa.Schema):
        raise SchemaMismatchError(f"a schema is a pyarrow.Schema, not {type(schema).__name__}")
    if not len(schema):
        raise SchemaMismatchError("a schema needs at least one column")
    _check_names("", schema)
    collect_errors(schema, _check_field)


def _check_field(field: pa.Field) -> None:
    """Refuse a column with a reserved name, a type that is not supported, or too many levels."""
    if is_reserved(field.name):
        raise SchemaMismatchError(
            f"column {field.name!r} has a reserved name: reads add _topic, _partition, _offset and _timestamp",
        )
    _check_depth(field.name, field.type)
    _check_type(field.name, field.type)


def check_key(schema: pa.Schema, key: str | None) -> None:
    """Raise :class:`SchemaMismatchError` if the key column does not exist, or is of a type that cannot be a key."""
    _check_column(schema, "key", key, is_key_type, "a string, binary, int16, int32, int64, float or double")


def check_timestamp(schema: pa.Schema, timestamp: str | None) -> None:
    """Raise :class:`SchemaMismatchError` if the timestamp column does not exist, or is of another type."""
    allowed = "a timestamp in ms or us, or an int64 of milliseconds"
    _check_column(schema, "timestamp", timestamp, is_timestamp_type, allowed)


def check_tombstone(schema: pa.Schema | None, key: str | None, timestamp: str | None, column: str) -> None:
    """Validate the setting ``tombstone.column`` of a topic; the other arguments are those of the topic.

    Raises:
        InvalidConfigError: The topic cannot have it; the message says why.
    """
    if schema is None:
        problem = "needs a schema: in a topic without one a record with a null value is a tombstone"
    elif key is None:
        problem = "needs a key column, whose value a tombstone deletes: create the topic with key=COLUMN"
    elif column not in schema.names:
        problem = f"must be one of the columns of the topic, {', '.join(schema.names)}"
    elif column in (key, timestamp):
        problem = f"must be another column than the {'key' if column == key else 'timestamp'}"
    elif not pt.is_boolean(schema.field(column).type):
        problem = f"must be a boolean column, not one of type {schema.field(column).type}"
    else:
        return
    raise InvalidConfigError(f"tombstone.column={column!r} {problem}")


def evolve_schema(old: pa.Schema, new: pa.Schema, key: str | None = None) -> None:
    """Check that segments of the old schema can be read with the new one.

    The type of a primitive ``key`` column cannot change: its bytes choose the partition, so records of one key would
    be spread over two partitions.

    Args:
        old: The current schema of the topic.
        key: The key column, if there is one.

    Raises:
        SchemaMismatchError: The change is not allowed. The message names the column and lists the allowed changes.
    """
    problems = [
        f"column {name!r} {problem}"
        for name in dict.fromkeys([*old.names, *new.names])
        if (problem := _change_problem(old, new, name, key)) is not None
    ]
    if problems:
        raise SchemaMismatchError(f"{'; '.join(problems)}; {_ALLOWED_CHANGES}")


def _change_problem(old: pa.Schema, new: pa.Schema, name: str, key: str | None) -> str | None:
    """The reason why a column cannot change as it does between two schemas; None if it can."""
    if name not in old.names:
        return None if new.field(name).nullable else "is new and not null, but existing rows do not have it"
    if name not in new.names:
        return "cannot be dropped"
    old_field, new_field = old.field(name), new.field(name)
    if old_field.nullable and not new_field.nullable:
        return "cannot become not null, because existing rows may contain a null"
    if not is_wider(old_field.type, new_field.type):
        return f"cannot change from {old_field.type} to {new_field.type}"
    if name == key and pt.is_primitive(old_field.type) and old_field.type != new_field.type:
        return f"is the key and cannot change from {old_field.type} to {new_field.type}"
    return None


def is_wider(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether a column may change from one type to another, or keeps its type."""
    if old == new or new in _WIDER_TYPES.get(old, ()):
        return True
    are_decimals = pt.is_decimal128(old) and pt.is_decimal128(new)
    return bool(are_decimals and old.scale == new.scale and old.precision < new.precision)


def _check_column(
    schema: pa.Schema, role: str, column: str | None, is_allowed: Callable[[pa.DataType], bool], allowed: str
) -> None:
    """Raise if the column that serves as ``role`` does not exist, or is of another type than those ``allowed``."""
    if column is None:
        return
    if column not in schema.names:
        raise SchemaMismatchError(f"the {role} column {column!r} is not in the schema, which has {schema.names}")
    data_type = schema.field(column).type
    if not is_allowed(data_type):
        raise SchemaMismatchError(
            f"column {column!r} is of type {data_type} and cannot be the {role}; it must be {allowed}",
        )


def _check_names(path: str, fields: Iterable[pa.Field]) -> None:
    """Raise for empty names, and for names that are equal except for case, as they are for DuckDB and Spark."""
    names: dict[str, str] = {}
    for name in [field.name for field in fields]:
        if not name:
            raise SchemaMismatchError(f"column {path}'' has no name")
        if name.lower() in names:
            other_name = names[name.lower()]
            problem = "is a duplicate" if other_name == name else f"differs from {path + other_name!r} in case only"
            raise SchemaMismatchError(f"column {path + name!r} {problem}")
        names[name.lower()] = name


def _check_depth(column: str, data_type: pa.DataType) -> None:
    """Raise for a type that is nested too deeply. Level by level: a recursion would exceed Python's limit."""
    level = [data_type]
    for _ in range(MAX_DEPTH):
        level = [inner_type for outer_type in level if pt.is_nested(outer_type) for inner_type in children(outer_type)]
        if not level:
            return
    raise SchemaMismatchError(
        f"column {column!r} is nested more than {MAX_DEPTH} levels deep, which not every reader can show; flatten it",
    )


def _check_type(path: str, data_type: pa.DataType) -> None:
    """Raise for a type, or a field of a nested type, that one of the engines does not support."""
    if pt.is_decimal128(data_type) and not 0 <= data_type.scale <= data_type.precision:
        raise SchemaMismatchError(
            f"column {path!r} cannot be of type {data_type}: the scale of a decimal is from 0 to its precision",
        )
    if pt.is_struct(data_type):
        _check_struct(path, data_type)
    elif pt.is_map(data_type):
        _check_type(f"{path}.key", data_type.key_type)
        _check_nested(path, "value", data_type.item_field)
    elif pt.is_list(data_type):
        _check_nested(path, "item", data_type.value_field)
    elif not is_plain(data_type):
        raise SchemaMismatchError(f"column {path!r} cannot be of type {data_type}; use {_replacement(data_type)}")


def _check_struct(path: str, data_type: pa.DataType) -> None:
    if data_type.num_fields == 0:
        raise SchemaMismatchError(f"column {path!r} is a struct without fields, which Parquet does not support")
    _check_names(f"{path}.", data_type)
    for field in data_type:
        _check_nested(path, field.name, field)


def _check_nested(path: str, name: str, field: pa.Field) -> None:
    if not field.nullable:
        raise SchemaMismatchError(f"column '{path}.{name}' must be nullable: only top-level columns can be not null")
    _check_type(f"{path}.{name}", field.type)


def _replacement(data_type: pa.DataType) -> str:
    """The type to suggest instead of an unsupported one."""
    if pt.is_timestamp(data_type):
        return "timestamp('us', 'UTC') or timestamp('ms', 'UTC'), or one of them without a zone"
    return next(
        (replacement for test, replacement in _REPLACEMENTS if test(data_type)), "a plain, list, struct or map type"
    )
