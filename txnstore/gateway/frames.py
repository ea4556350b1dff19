"""What a frame claims is checked before anything decodes it: each length and count against the bytes that follow it.

The native reader of kio reserves memory for all items that an array claims before it reads the first one, and a process
ends whose native code cannot reserve memory. So a frame is walked by the schema of its API and version first, without
making a value. The walk passes the same bytes as kio, which must hold for each frame that both accept: else a count
could hide where the walk sees something else.
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
_START = struct.Struct(">hhi")
#: The bytes of the shortest request.
START_SIZE = _START.size
#: The most values in a request, fields and items of arrays; and in one of Produce, each of whose partitions, with three
#: values, takes much more memory when it is carried out.
MOST_VALUES, MOST_PRODUCED_VALUES = 1_000_000, 100_000
#: The bytes of memory that a decoded value takes at most, beside its bytes in the frame (measured by a test).
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
        MalformedRequestError: The frame is shorter than they are.
    """
    if len(data) < START_SIZE:
        raise MalformedRequestError(f"a frame of {len(data)} bytes is too short for a request")
    return Start(*_START.unpack_from(data))


def checked_frame(data: bytes) -> Frame:
    """Check the lengths and counts of a frame, of an API and a version that kio knows.

    Raises:
        MalformedRequestError: One of them does not fit the bytes that follow, an array is null that must be there, or
            there are more values than a client sends.
    """
    start = read_start(data)
    walk = _Walk(data, MOST_PRODUCED_VALUES if start.api == Api.PRODUCE else MOST_VALUES)
    try:
        at = _request_step(start.api, start.version)(walk, 0)
    except (struct.error, IndexError):
        at = len(data) + 1
    except MalformedRequestError as error:
        raise MalformedRequestError(f"{_named(data, start)}: {error}") from None
    if at > len(data):  # Bytes may follow, as librdkafka sends them after Metadata: brokers allow it.
        raise MalformedRequestError(f"{_named(data, start)}: it ends in the middle of a field")
    return Frame(data, start, walk.values * VALUE_SIZE)


def _named(data: bytes, start: Start) -> str:
    return f"a frame of {len(data)} bytes is no request of API {start.api}, version {start.version}"


# Walking --------------------------------------------------------------------------------------------------------------


class _Walk:
    """A walk through one frame.

    Attributes:
        data: The frame.
        size: Its bytes.
        values: The values that were passed.
    """

    __slots__ = ("_most", "data", "size", "values")

    def __init__(self, data: bytes, most: int) -> None:
        self.data, self.size, self._most = data, len(data), most
        self.values = 0

    def count(self, values: int) -> None:
        self.values += values
        if self.values > self._most:
            raise MalformedRequestError(f"it has more than {self._most} values")

    def varint(self, at: int) -> tuple[int, int]:
        """A number of variable size, which is less than 2³¹ as in Kafka, and the place behind it."""
        byte = self.data[at]
        if byte < 0x80:
            return byte, at + 1
        number = shift = 0
        while byte >= 0x80:
            number |= (byte & 0x7F) << shift
            shift += 7
            if shift > 28:
                raise MalformedRequestError("a length has more than five bytes")
            at += 1
            byte = self.data[at]
        number |= byte << shift
        if number >= 1 << 31:
            raise MalformedRequestError(f"a length is {number}")
        return number, at + 1


#: Passes one field, or a group of them: from its place to the one behind it.
_Step = Callable[[_Walk, int], int]


class _Kind(NamedTuple):
    """What is passed by one step.

    Attributes:
        step: Passes it.
        least: The fewest bytes that it takes.
        values: The values that it is at least.
        is_fixed: Whether it always takes the fewest.
    """

    step: _Step
    least: int
    values: int = 1
    is_fixed: bool = False


@lru_cache(maxsize=512)
def _request_step(api: int, version: int) -> _Step:
    schema: Any = load_request_schema(api, version)
    header, body = _entity(schema.__header_schema__).step, _entity(schema).step
    return lambda walk, at: body(walk, header(walk, at))


@cache
def _entity(schema: Any) -> _Kind:
    """A message, or an item with fields: the fields without a tag in their order, then those with one."""
    hints = typing.get_type_hints(schema)
    ordered, tagged = list[_Kind](), dict[int, _Step]()
    for field in dataclasses.fields(schema):
        # Kafka has the client's id in the old form in all versions of the header.
        is_flexible = schema.__flexible__ and field.name != "client_id"
        kind = _field(field, hints[field.name], is_flexible=is_flexible)
        if (tag := field.metadata.get("tag")) is None:
            ordered.append(kind)
        else:
            tagged[tag] = kind.step
    if schema.__flexible__:
        ordered.append(_Kind(_tagged_step(tagged), least=1, values=len(tagged)))
    least, values = sum(kind.least for kind in ordered), 1 + sum(kind.values for kind in ordered)
    return _Kind(_one_after_the_other(ordered), least, values, all(kind.is_fixed for kind in ordered))


def _one_after_the_other(kinds: list[_Kind]) -> _Step:
    """Passes several, fields of fixed sizes beside each other at once."""
    steps, fixed = list[_Step](), 0
    for kind in kinds:
        if kind.is_fixed:
            fixed += kind.least
            continue
        if fixed:
            steps.append(_fixed_step(fixed))
            fixed = 0
        steps.append(kind.step)
    if fixed:
        steps.append(_fixed_step(fixed))

    def step(walk: _Walk, at: int) -> int:
        for each in steps:
            at = each(walk, at)
        return at

    return step


def _field(field: dataclasses.Field[Any], hint: Any, *, is_flexible: bool) -> _Kind:
    arguments, name = typing.get_args(hint), field.name
    is_nullable = type(None) in arguments
    if is_nullable:
        (hint,) = (each for each in arguments if each is not type(None))
    if typing.get_origin(hint) is tuple:
        item = _plain(field, typing.get_args(hint)[0], is_flexible=is_flexible, is_nullable=False)
        return _array(item, name, is_flexible=is_flexible, is_nullable=is_nullable)
    is_tagged = "tag" in field.metadata  # kio reads none of them as null: it is left out instead.
    kind = _plain(field, hint, is_flexible=is_flexible, is_nullable=is_nullable and not is_tagged)
    if is_nullable and dataclasses.is_dataclass(hint):
        return _Kind(_nullable_step(kind.step), least=1)
    return kind


def _plain(field: dataclasses.Field[Any], hint: Any, *, is_flexible: bool, is_nullable: bool) -> _Kind:
    """A field that is no array, or an item of one."""
    if dataclasses.is_dataclass(hint):
        return _entity(typing.cast("type", hint))
    name = field.metadata["kafka_type"]
    if name in _SIZES:
        return _Kind(_fixed_step(_SIZES[name]), _SIZES[name], is_fixed=True)
    if is_flexible:
        return _Kind(_compact_bytes_step(field.name, is_nullable=is_nullable), least=1)
    size = {"string": 2, "bytes": 4, "records": 4}[name]
    return _Kind(_bytes_step(field.name, size, is_nullable=is_nullable), least=size)


def _fixed_step(size: int) -> _Step:
    return lambda _, at: at + size


def _bytes_step(name: str, size: int, *, is_nullable: bool) -> _Step:
    unpack = _NUMBERS[size].unpack_from

    def step(walk: _Walk, at: int) -> int:
        (length,) = unpack(walk.data, at)
        at += size
        if 0 <= length <= walk.size - at:
            return at + int(length)
        return _without(walk, at, length, name, is_nullable=is_nullable)

    return step


def _compact_bytes_step(name: str, *, is_nullable: bool) -> _Step:
    def step(walk: _Walk, at: int) -> int:
        length, at = walk.varint(at)
        if 0 < length <= walk.size - at + 1:
            return at + length - 1
        return _without(walk, at, length - 1, name, is_nullable=is_nullable)

    return step


def _without(walk: _Walk, at: int, number: int, name: str, *, is_nullable: bool, what: str = "bytes") -> int:
    """Passes a length or count that no bytes follow for: null where that is allowed."""
    if number == -1:
        if is_nullable:
            return at
        raise MalformedRequestError(f"{name} is null")
    raise MalformedRequestError(f"{name} claims {number} {what}, and {max(walk.size - at, 0)} bytes follow")


def _array(item: _Kind, name: str, *, is_flexible: bool, is_nullable: bool) -> _Kind:
    unpack, width = _NUMBERS[4].unpack_from, _NUMBERS[4].size

    def step(walk: _Walk, at: int) -> int:
        if is_flexible:
            count, at = walk.varint(at)
            count -= 1
        else:
            (count,) = unpack(walk.data, at)
            at += width
        if not 0 <= count * item.least <= walk.size - at:
            return _without(walk, at, count, name, is_nullable=is_nullable, what="items")
        walk.count(count * item.values)
        if item.is_fixed:
            return at + count * item.least
        for _ in range(count):
            at = item.step(walk, at)
        return at

    return _Kind(step, least=1 if is_flexible else width)


def _nullable_step(entity: _Step) -> _Step:
    return lambda walk, at: at + 1 if walk.data[at] == _NULL_ENTITY else entity(walk, at + 1)


def _tagged_step(known: dict[int, _Step]) -> _Step:
    """Passes fields with tags (KIP-482), which ascend; their lengths are those that their values have."""

    def step(walk: _Walk, at: int) -> int:
        if walk.data[at] == 0:
            return at + 1
        count, at = walk.varint(at)
        last = -1
        for _ in range(count):
            tag, at = walk.varint(at)
            if tag <= last or tag not in known:
                raise MalformedRequestError(f"a field has the tag {tag}")
            last = tag
            length, at = walk.varint(at)
            end = at + length
            at = known[tag](walk, at)
            if at != end:
                raise MalformedRequestError(f"the field of tag {tag} does not take its {length} bytes")
        return at

    return step
