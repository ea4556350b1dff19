"""Requests written by the schemas of kio, field by field, with the place of each length and count.

Written apart from kio's writers and from the gateway's walk, which are compared with it.
"""

from __future__ import annotations

import dataclasses
import struct
import typing
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from kio.index import load_request_schema

from txnstore.gateway.apis import VERSIONS

_FIXED = {
    "bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uuid": 16, "timedelta_i32": 4, "timedelta_i64": 8,
}  # fmt: skip
#: All APIs and versions that a gateway serves.
SERVED = [(api, version) for api, (first, last) in VERSIONS.items() for version in range(first, last + 1)]


class Place(NamedTuple):
    """Where a frame has a length or a count.

    Attributes:
        name: The fields that lead to it.
        at: The place of its first byte.
        size: Its bytes.
        is_compact: Whether it is a varint of one more.
        is_array: Whether it counts items; else bytes.
        is_nullable: Whether the schema has null for it.
    """

    name: str
    at: int
    size: int
    is_compact: bool
    is_array: bool
    is_nullable: bool

    def encoded(self, number: int) -> bytes:
        """A length or count as the frame has it; one of variable size modulo 2³², -1 for null."""
        if self.is_compact:
            return varint((number + 1) % (1 << 32))
        return (number % (1 << 8 * self.size)).to_bytes(self.size, "big")


class Written(NamedTuple):
    """A request, without the length of the frame, and its places."""

    data: bytes
    places: list[Place]

    def replaced(self, place: Place, number: int) -> bytes:
        """The request with another number at a place."""
        return self.data[: place.at] + place.encoded(number) + self.data[place.at + place.size :]


def varint(number: int) -> bytes:
    """A number of variable size."""
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


@dataclasses.dataclass
class FrameWriter:
    """Writes a request.

    Attributes:
        count: The number of items of the array at a path such as ``topics.partitions``; None: null.
        text: The bytes of a string or of bytes at a path; None: null.
        number: The value of an integer at a path.
        has_tags: Whether fields with tags are written.
        has_entities: Whether entities that may be null are written.
    """

    count: Callable[[str], int | None] = lambda _: 1
    text: Callable[[str], bytes | None] = lambda _: b"x"
    number: Callable[[str], int] = lambda _: 0
    has_tags: bool = True
    has_entities: bool = True

    def write(self, api: int, version: int, correlation: int = 1) -> Written:
        """A request with the values that the attributes give."""
        schema: Any = load_request_schema(api, version)
        header: Any = schema.__header_schema__
        self._data, self._places = bytearray(struct.pack(">hhi", api, version, correlation)), list[Place]()
        self._bytes("client_id", "client_id", is_flexible=False, size=2, is_nullable=True)
        if header.__flexible__:
            self._data += b"\0"
        self._entity(schema, "")
        return Written(bytes(self._data), self._places)

    def _entity(self, schema: Any, path: str) -> None:
        hints = typing.get_type_hints(schema)
        fields = dataclasses.fields(schema)
        for field in fields:
            if "tag" not in field.metadata:
                self._field(field, hints[field.name], path, is_flexible=schema.__flexible__)
        if schema.__flexible__:
            tagged = sorted((f for f in fields if "tag" in f.metadata), key=lambda each: int(each.metadata["tag"]))
            self._tagged(tagged if self.has_tags else [], hints, path)

    def _tagged(self, fields: list[Any], hints: dict[str, Any], path: str) -> None:
        self._data += varint(len(fields))
        for field in fields:
            inner = FrameWriter(self.count, lambda of: self.text(of) or b"", self.number)
            inner._data, inner._places = bytearray(), []
            inner._field(field, hints[field.name], path, is_flexible=True)
            self._data += varint(field.metadata["tag"])
            size = varint(len(inner._data))
            name = f"{path}{field.name} of the tag"
            self._places.append(
                Place(name, len(self._data), len(size), is_compact=True, is_array=False, is_nullable=False)
            )
            self._data += size
            self._places += [place._replace(at=place.at + len(self._data)) for place in inner._places]
            self._data += inner._data

    def _field(self, field: Any, hint: Any, path: str, *, is_flexible: bool) -> None:
        name = f"{path}{field.name}"
        is_nullable = type(None) in typing.get_args(hint)
        if is_nullable:
            (hint,) = (each for each in typing.get_args(hint) if each is not type(None))
        if typing.get_origin(hint) is not tuple:
            if is_nullable and dataclasses.is_dataclass(hint):
                self._data += b"\1" if self.has_entities else b"\xff"
                if not self.has_entities:
                    return
            self._item(field, hint, name, is_flexible=is_flexible, is_nullable=is_nullable)
            return
        count = self.count(name)
        self._length(name, -1 if count is None else count, 4, is_flexible, is_array=True, is_nullable=is_nullable)
        for _ in range(count or 0):
            self._item(field, typing.get_args(hint)[0], name, is_flexible=is_flexible, is_nullable=False)

    def _item(self, field: Any, hint: Any, name: str, *, is_flexible: bool, is_nullable: bool) -> None:
        if dataclasses.is_dataclass(hint):
            self._entity(hint, f"{name}.")
            return
        kind = field.metadata["kafka_type"]
        if kind in _FIXED:
            size = _FIXED[kind]
            self._data += (self.number(name) % (1 << 8 * size)).to_bytes(size, "big") if kind != "bool" else b"\0"
            return
        size = 2 if kind == "string" else 4
        self._bytes(name, name, is_flexible=is_flexible, size=size, is_nullable=is_nullable)

    def _bytes(self, name: str, path: str, *, is_flexible: bool, size: int, is_nullable: bool) -> None:
        text = self.text(path)
        if text is None and not is_nullable:
            text = b""
        self._length(
            name, -1 if text is None else len(text), size, is_flexible, is_array=False, is_nullable=is_nullable
        )
        self._data += text or b""

    def _length(
        self, name: str, number: int, size: int, is_flexible: bool, *, is_array: bool, is_nullable: bool
    ) -> None:
        place = Place(name, len(self._data), size, is_flexible, is_array, is_nullable)
        encoded = place.encoded(number)
        self._places.append(place._replace(size=len(encoded)))
        self._data += encoded


#: Numbers that no small frame holds.
_HOSTILE = (2**31 - 1, 2**31 - 2, 2**32 - 2, 2**32 - 3, 2**31, 2**30, 2**20, 2**15 - 1, 1000, -2, -(2**15), -(2**31))


def hostile(written: Written) -> Iterator[tuple[Place, int]]:
    """Each place of a request with each number that it can hold and that is no length or count there."""
    for place in written.places:
        bits = 8 * place.size - 1
        for number in _HOSTILE if place.is_nullable else (*_HOSTILE, -1):
            if place.is_compact or -(1 << bits) <= number < 1 << bits:
                yield place, number
