"""Checks of a frame before it is decoded: each length and count is compared with the bytes that follow.

The native reader of kio reserves memory for all items that an array claims before it reads the first one, and a process
ends whose native code cannot reserve memory. So a frame is walked by the schema of its API and version first, without
making a value. For each frame that both accept, the walk must pass the same bytes as kio: else a count could hide where
the walk sees another field.
"""

from __future__ import annotations

import dataclasses
import struct
import typing
from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any, NamedTuple

from kio.index import load_request_schema

from txnstore.gateway.apis import Api

#: The fields at the beginning of each request: API, version, correlation id.
_START_FORMAT = struct.Struct(">hhi")
#: The bytes of the shortest request.
START_SIZE = _START_FORMAT.size
#: The most values in a request, fields and items of arrays; and in one of Produce, each of whose partitions, with three
#: values, takes much more memory when it is carried out.
MOST_VALUES, MOST_PRODUCED_VALUES = 1_000_000, 100_000
#: The most memory that a decoded value takes beside its bytes in the frame (measured by a test).
VALUE_SIZE = 48
#: The bytes of fields of a fixed size, by kio's names of their types.
_SIZES = {
    "bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uint8": 1, "uint16": 2, "uint32": 4, "uint64": 8,
    "float64": 8, "uuid": 16, "error_code": 2, "timedelta_i32": 4, "timedelta_i64": 8, "datetime_i64": 8,
}  # fmt: skip
_NUMBERS = {2: struct.Struct(">h"), 4: struct.Struct(">i")}
_NULL_ENTITY = 0xFF


class MalformedRequestError(Exception):
    """A frame that is no request of Kafka's protocol. Its connection is closed, as a broker does."""


class Start(NamedTuple):
    """The first fields of a request, which have the same form in each version of the protocol."""

    api: int
    version: int
    correlation_id: int


class Frame(NamedTuple):
    """A frame whose lengths and counts fit its bytes.

    Attributes:
        start: Its first fields.
        decoded_size: The bytes of memory that its values may take once they are decoded, beside those of the frame.
    """

    data: bytes
    start: Start
    decoded_size: int


def read_start(data: bytes) -> Start:
    """The first fields of a request.

    Raises:
        MalformedRequestError: The frame is too short.
    """
    if len(data) < START_SIZE:
        raise MalformedRequestError(f"a frame of {len(data)} bytes is too short for a request")
    return Start(*_START_FORMAT.unpack_from(data))


def check_frame(data: bytes) -> Frame:
    """Check the lengths and counts of a frame, of an API and a version that kio knows.

    Raises:
        MalformedRequestError: One of them does not fit the bytes that follow, an array is null that must be there, or
            there are more values than a client sends.
    """
    start = read_start(data)
    walk = _Walk(data, MOST_PRODUCED_VALUES if start.api == Api.PRODUCE else MOST_VALUES)
    try:
        position = _request_step(start.api, start.version)(walk, 0)
    except (struct.error, IndexError):
        position = len(data) + 1
    except MalformedRequestError as error:
        raise MalformedRequestError(f"{_description(data, start)}: {error}") from None
    if position > len(data):  # Bytes may follow, as librdkafka sends them after Metadata: brokers allow it.
        raise MalformedRequestError(f"{_description(data, start)}: it ends in the middle of a field")
    return Frame(data, start, walk.values * VALUE_SIZE)


def _description(data: bytes, start: Start) -> str:
    return f"a frame of {len(data)} bytes is no request of API {start.api}, version {start.version}"


# Walking --------------------------------------------------------------------------------------------------------------


class _Walk:
    """A walk through one frame.

    Attributes:
        data: The frame.
        size: Its bytes.
        values: The number of values that were passed.
    """

    __slots__ = ("_max_values", "data", "size", "values")

    def __init__(self, data: bytes, max_values: int) -> None:
        self.data, self.size, self._max_values = data, len(data), max_values
        self.values = 0

    def count(self, values: int) -> None:
        self.values += values
        if self.values > self._max_values:
            raise MalformedRequestError(f"it has more than {self._max_values} values")

    def varint(self, position: int) -> tuple[int, int]:
        """A number of variable size, less than 2³¹ as in Kafka, and the position behind it."""
        byte = self.data[position]
        if byte < 0x80:
            return byte, position + 1
        number = shift = 0
        while byte >= 0x80:
            number |= (byte & 0x7F) << shift
            shift += 7
            if shift > 28:  # Five groups of seven bits hold any length.
                raise MalformedRequestError("a length has more than five bytes")
            position += 1
            byte = self.data[position]
        number |= byte << shift
        if number >= 1 << 31:
            raise MalformedRequestError(f"a length is {number}")
        return number, position + 1


#: Passes a field, or several: takes its position, and returns the one behind it.
_Step = Callable[[_Walk, int], int]


class _FieldType(NamedTuple):
    """A type of field, or of several fields that one step passes.

    Attributes:
        step: Passes a value of the type.
        min_size: The fewest bytes of a value.
        values: The fewest values in it, itself included.
        is_fixed: Whether each value has ``min_size`` bytes.
    """

    step: _Step
    min_size: int
    values: int = 1
    is_fixed: bool = False


@lru_cache(maxsize=512)
def _request_step(api: int, version: int) -> _Step:
    schema: Any = load_request_schema(api, version)
    header, body = _entity_type(schema.__header_schema__).step, _entity_type(schema).step
    return lambda walk, position: body(walk, header(walk, position))


@cache
def _entity_type(schema: Any) -> _FieldType:
    """The type of a message, or of an item with fields: untagged fields in order, then the tagged ones."""
    hints = typing.get_type_hints(schema)
    untagged_types, tagged_steps = list[_FieldType](), dict[int, _Step]()
    for field in dataclasses.fields(schema):
        # Kafka has the client's id in the old form in all versions of the header.
        is_flexible = schema.__flexible__ and field.name != "client_id"
        kind = _field_type(field, hints[field.name], is_flexible=is_flexible)
        if (tag := field.metadata.get("tag")) is None:
            untagged_types.append(kind)
        else:
            tagged_steps[tag] = kind.step
    if schema.__flexible__:
        untagged_types.append(_FieldType(_tagged_step(tagged_steps), min_size=1, values=len(tagged_steps)))
    min_size = sum(kind.min_size for kind in untagged_types)
    values = 1 + sum(kind.values for kind in untagged_types)
    return _FieldType(_sequence_step(untagged_types), min_size, values, all(kind.is_fixed for kind in untagged_types))


def _sequence_step(kinds: list[_FieldType]) -> _Step:
    """Return a step that passes several fields; adjacent fields of fixed sizes are passed at once."""
    steps, fixed_size = list[_Step](), 0
    for kind in kinds:
        if kind.is_fixed:
            fixed_size += kind.min_size
            continue
        if fixed_size:
            steps.append(_fixed_step(fixed_size))
            fixed_size = 0
        steps.append(kind.step)
    if fixed_size:
        steps.append(_fixed_step(fixed_size))

    def step(walk: _Walk, position: int) -> int:
        for pass_field in steps:
            position = pass_field(walk, position)
        return position

    return step


def _field_type(field: dataclasses.Field[Any], hint: Any, *, is_flexible: bool) -> _FieldType:
    """Return how to check a field of a message by its type hint: item, array, nullable or tagged."""
    arguments, name = typing.get_args(hint), field.name
    is_nullable = type(None) in arguments
    if is_nullable:
        (hint,) = (argument for argument in arguments if argument is not type(None))
    if typing.get_origin(hint) is tuple:
        item = _item_type(field, typing.get_args(hint)[0], is_flexible=is_flexible, is_nullable=False)
        return _array_type(item, name, is_flexible=is_flexible, is_nullable=is_nullable)
    is_tagged = "tag" in field.metadata  # kio reads no tagged field as null: it is left out instead.
    kind = _item_type(field, hint, is_flexible=is_flexible, is_nullable=is_nullable and not is_tagged)
    if is_nullable and dataclasses.is_dataclass(hint):
        return _FieldType(_nullable_step(kind.step), min_size=1)
    return kind


def _item_type(field: dataclasses.Field[Any], hint: Any, *, is_flexible: bool, is_nullable: bool) -> _FieldType:
    """The type of a field that is no array, or of an item of one."""
    if dataclasses.is_dataclass(hint):
        return _entity_type(typing.cast("type", hint))
    name = field.metadata["kafka_type"]
    if name in _SIZES:
        return _FieldType(_fixed_step(_SIZES[name]), _SIZES[name], is_fixed=True)
    if is_flexible:
        return _FieldType(_compact_bytes_step(field.name, is_nullable=is_nullable), min_size=1)
    size = {"string": 2, "bytes": 4, "records": 4}[name]
    return _FieldType(_bytes_step(field.name, size, is_nullable=is_nullable), min_size=size)


def _fixed_step(size: int) -> _Step:
    return lambda _, position: position + size


def _bytes_step(name: str, size: int, *, is_nullable: bool) -> _Step:
    """Return the step over a string or bytes with a fixed-width length of ``size`` bytes."""
    unpack = _NUMBERS[size].unpack_from

    def step(walk: _Walk, position: int) -> int:
        (length,) = unpack(walk.data, position)
        position += size
        if 0 <= length <= walk.size - position:
            return position + int(length)
        return _null_or_refuse(walk, position, length, name, is_nullable=is_nullable)

    return step


def _compact_bytes_step(name: str, *, is_nullable: bool) -> _Step:
    """Return the step over a string or bytes with a varint length plus one; 0 is null."""

    def step(walk: _Walk, position: int) -> int:
        length, position = walk.varint(position)
        if 0 < length <= walk.size - position + 1:
            return position + length - 1
        return _null_or_refuse(walk, position, length - 1, name, is_nullable=is_nullable)

    return step


def _null_or_refuse(
    walk: _Walk, position: int, length: int, name: str, *, is_nullable: bool, unit: str = "bytes"
) -> int:
    """Pass a null where it is allowed; refuse any other length or count that the bytes do not hold."""
    if length == -1:
        if is_nullable:
            return position
        raise MalformedRequestError(f"{name} is null")
    raise MalformedRequestError(f"{name} claims {length} {unit}, and {max(walk.size - position, 0)} bytes follow")


def _array_type(item: _FieldType, name: str, *, is_flexible: bool, is_nullable: bool) -> _FieldType:
    """Return how to check an array: its count must fit into the rest of the frame before any item is read."""
    unpack, width = _NUMBERS[4].unpack_from, _NUMBERS[4].size

    def step(walk: _Walk, position: int) -> int:
        if is_flexible:
            count, position = walk.varint(position)
            count -= 1
        else:
            (count,) = unpack(walk.data, position)
            position += width
        if not 0 <= count * item.min_size <= walk.size - position:
            return _null_or_refuse(walk, position, count, name, is_nullable=is_nullable, unit="items")
        walk.count(count * item.values)
        if item.is_fixed:
            return position + count * item.min_size
        for _ in range(count):
            position = item.step(walk, position)
        return position

    return _FieldType(step, min_size=1 if is_flexible else width)


def _nullable_step(entity: _Step) -> _Step:
    return lambda walk, position: position + 1 if walk.data[position] == _NULL_ENTITY else entity(walk, position + 1)


def _tagged_step(steps_by_tag: dict[int, _Step]) -> _Step:
    """Return a step that passes tagged fields (KIP-482), which ascend, and whose lengths must be right."""

    def step(walk: _Walk, position: int) -> int:
        if walk.data[position] == 0:
            return position + 1
        count, position = walk.varint(position)
        last_tag = -1
        for _ in range(count):
            tag, position = walk.varint(position)
            if tag <= last_tag or tag not in steps_by_tag:
                raise MalformedRequestError(f"a field has the tag {tag}")
            last_tag = tag
            length, position = walk.varint(position)
            end = position + length
            position = steps_by_tag[tag](walk, position)
            if position != end:
                raise MalformedRequestError(f"the field of tag {tag} does not take its {length} bytes")
        return position

    return step
