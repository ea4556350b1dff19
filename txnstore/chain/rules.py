"""The rules by which JSON is read and written, from the types of a dataclass and its members.

The core of pydantic applies the rules. Pydantic itself would derive them, too, but its import and its derivation take
longer than all else that a process does to open a store. ``schema_of`` knows the types that stored objects have.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from enum import StrEnum
from functools import cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic_core import SchemaSerializer, SchemaValidator, core_schema

T = TypeVar("T")

#: The metadata of a member that is read, but not written.
NOT_WRITTEN = {"written": False}

#: Types are strict, also in instances of dataclasses. Unknown members are of a later release, and change nothing. Bytes
#: that this library does not read are base64 in JSON, of the URL-safe alphabet, with its padding.
CONFIG = core_schema.CoreConfig(
    strict=True,
    revalidate_instances="always",
    extra_fields_behavior="ignore",
    ser_json_bytes="base64",
    val_json_bytes="base64",
)
_PLAIN: dict[Any, core_schema.CoreSchema] = {
    Any: core_schema.any_schema(),
    bool: core_schema.bool_schema(),
    bytes: core_schema.bytes_schema(),
    float: core_schema.float_schema(),
    int: core_schema.int_schema(),
    str: core_schema.str_schema(),
}


class Limits(NamedTuple):
    """The limits of a number, or the pattern of a text, in ``Annotated``; None: any."""

    ge: int | None = None
    le: int | None = None
    pattern: str | None = None


class Tagged(NamedTuple):
    """The member that names the class, in ``Annotated`` with a union of dataclasses."""

    member: str


def _once_for_each_type(function: Callable[[Any], T]) -> Callable[[Any], T]:
    """Remember the results; mypy does not take a class of values for an argument of ``cache``."""
    return cache(function)


@_once_for_each_type
def validator_of(kind: Any) -> SchemaValidator:
    """Return what reads and checks values of a type."""
    return SchemaValidator(schema_of(kind), CONFIG)


@_once_for_each_type
def serializer_of(kind: Any) -> SchemaSerializer:
    """Return what writes values of a type."""
    return SchemaSerializer(schema_of(kind), CONFIG)


@_once_for_each_type
def schema_of(kind: Any) -> core_schema.CoreSchema:
    """Return the rules of a type.

    Raises:
        TypeError: There are none for it.
    """
    arguments = get_args(kind)
    match get_origin(kind):
        case None:
            return _PLAIN[kind] if kind in _PLAIN else _class_schema(kind)
        case origin if origin is Annotated:
            return _annotated_schema(*arguments)
        case origin if origin is Literal:
            return core_schema.literal_schema(list(arguments))
        case origin if origin in {Union, UnionType}:
            return _union_schema(
                [schema_of(argument) for argument in arguments if argument is not NoneType], NoneType in arguments
            )
        case origin if origin is list:
            return core_schema.list_schema(schema_of(arguments[0]))
        case origin if origin is dict:
            return core_schema.dict_schema(schema_of(arguments[0]), schema_of(arguments[1]))
        case origin if origin is tuple:
            variadic = arguments.index(...) - 1 if ... in arguments else None
            members = [schema_of(argument) for argument in arguments if argument is not ...]
            return core_schema.tuple_schema(members, variadic_item_index=variadic)
    raise TypeError(f"no rules for {kind}")


def _annotated_schema(kind: Any, rule: Limits | Tagged) -> core_schema.CoreSchema:
    if isinstance(rule, Tagged):
        names = {get_args(_member_types(member)[rule.member])[0]: schema_of(member) for member in get_args(kind)}
        return core_schema.tagged_union_schema(names, rule.member)
    limits: Any = {name: limit for name, limit in rule._asdict().items() if limit is not None}
    limited: core_schema.CoreSchema = schema_of(kind) | limits
    return limited


def _union_schema(choices: list[core_schema.CoreSchema], optional: bool) -> core_schema.CoreSchema:
    choice = choices[0] if len(choices) == 1 else core_schema.union_schema([*choices])
    return core_schema.nullable_schema(choice) if optional else choice


def _class_schema(kind: Any) -> core_schema.CoreSchema:
    """Return the schema of a dataclass, a string enum, or a named tuple."""
    if dataclasses.is_dataclass(kind):
        return _dataclass_schema(kind)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        # The string itself is written: ``value`` is Python code, in which the core of pydantic drops an interrupt.
        written = core_schema.simple_ser_schema("str")
        return core_schema.enum_schema(kind, [*kind], sub_type="str", serialization=written)
    if isinstance(kind, type) and issubclass(kind, tuple):
        # In JSON it is an array.
        places = core_schema.tuple_schema([schema for _, schema in _member_schemas(kind)])
        return core_schema.no_info_after_validator_function(partial(tuple.__new__, kind), places)
    raise TypeError(f"no rules for {kind}")


def _dataclass_schema(kind: Any) -> core_schema.CoreSchema:
    """Return the schema of a dataclass, without members that are not written."""
    schemas = dict(_member_schemas(kind))
    members = [
        core_schema.dataclass_field(
            member.name,
            _with_default(member, schemas[member.name]),
            kw_only=bool(member.kw_only),
            serialization_exclude=member.metadata == NOT_WRITTEN or None,
        )
        for member in dataclasses.fields(kind)
    ]
    return core_schema.dataclass_schema(
        kind,
        core_schema.dataclass_args_schema(kind.__name__, members),
        [*schemas],
        slots=True,
        config=CONFIG,
    )


def _with_default(member: dataclasses.Field[Any], schema: core_schema.CoreSchema) -> core_schema.CoreSchema:
    if member.default is not dataclasses.MISSING:
        return core_schema.with_default_schema(schema, default=member.default)
    if member.default_factory is not dataclasses.MISSING:
        return core_schema.with_default_schema(schema, default_factory=member.default_factory)
    return schema


def _member_schemas(kind: Any) -> list[tuple[str, core_schema.CoreSchema]]:
    return [(name, schema_of(member_type)) for name, member_type in _member_types(kind).items()]


def _member_types(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)
