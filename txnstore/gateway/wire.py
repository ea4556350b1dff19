"""Frames and messages of Kafka's wire protocol, as typed values of kio."""

from __future__ import annotations

import dataclasses
import datetime as dt
import struct
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from io import BytesIO
from typing import Any, NamedTuple

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.response_header.v1.header import ResponseHeader as FlexibleHeader
from kio.serial import entity_reader, entity_writer

#: The bytes before a frame that give its length.
PREFIX = struct.Struct(">i")
#: The fields at the beginning of each request: API, version, correlation id.
_START = struct.Struct(">hhi")
_CORRELATION = struct.Struct(">i")
_MILLISECOND = dt.timedelta(milliseconds=1)


class MalformedRequestError(Exception):
    """A frame that is no request of Kafka's protocol. Its connection is closed, as a broker does."""


class Start(NamedTuple):
    """The first fields of a request, which have the same form in each version of the protocol."""

    api: int
    version: int
    correlation_id: int


@dataclass(frozen=True, slots=True)
class Request:
    """A decoded request.

    Attributes:
        api: The number of its API.
        version: The version of it.
        correlation_id: The number by which the client recognizes the response.
        client_id: How the client names itself; None if it does not.
        body: The message, a dataclass of kio.
    """

    api: int
    version: int
    correlation_id: int
    client_id: str | None
    body: Any


def read_start(frame: bytes) -> Start:
    """The first fields of a request.

    Raises:
        MalformedRequestError: The frame is shorter than they are.
    """
    if len(frame) < _START.size:
        raise MalformedRequestError(f"a frame of {len(frame)} bytes is too short for a request")
    return Start(*_START.unpack_from(frame))


def read_request(frame: bytes) -> Request:
    """Decode a request of an API and a version that kio knows.

    Raises:
        MalformedRequestError: Its fields do not match the version, or bytes follow them.
    """
    start = read_start(frame)
    try:
        read_header, read_body = _readers(start.api, start.version)
        header, size = read_header(frame, 0)
        body, body_size = read_body(frame, size)
    except Exception as error:
        msg = f"a frame of {len(frame)} bytes is no request of API {start.api}, version {start.version}: {error}"
        raise MalformedRequestError(msg) from error
    if size + body_size != len(frame):
        extra = len(frame) - size - body_size
        msg = f"{extra} bytes follow a request of API {start.api}, version {start.version}"
        raise MalformedRequestError(msg)
    return Request(start.api, start.version, start.correlation_id, header.client_id, body)


@lru_cache(maxsize=512)
def _readers(api: int, version: int) -> tuple[Any, Any]:
    schema: Any = load_request_schema(api, version)
    return entity_reader(schema.__header_schema__), entity_reader(schema)


def write_response(api: int, version: int, correlation_id: int, fields: Mapping[str, Any]) -> bytes:
    """Encode a response with its length.

    Args:
        api: The number of the API.
        version: The version of the request.
        correlation_id: That of the request.
        fields: The fields of the response under kio's names. Those that the version lacks are left out, so one set of
            fields serves all versions; those that are not given have the default of the protocol.
    """
    make, write, is_flexible = _writers(api, version)
    buffer = BytesIO()
    buffer.write(b"\0\0\0\0")
    buffer.write(_CORRELATION.pack(correlation_id))
    if is_flexible:
        buffer.write(b"\0")  # No tagged fields.
    write(buffer, make(fields))
    data = buffer.getbuffer()
    PREFIX.pack_into(data, 0, len(data) - PREFIX.size)
    return bytes(data)


@lru_cache(maxsize=512)
def _writers(api: int, version: int) -> tuple[Callable[[Mapping[str, Any]], Any], Any, bool]:
    schema: Any = load_response_schema(api, version)
    return partial(build, schema), entity_writer(schema), schema.__header_schema__ is FlexibleHeader


def value(message: Any, name: str, default: Any = None) -> Any:
    """A field of a message, or the default if its version has no such field."""
    return getattr(message, name, default)


# Building messages ----------------------------------------------------------------------------------------------------


def build(schema: type, fields: Mapping[str, Any]) -> Any:
    """A message of a class of kio: nested mappings become messages, milliseconds become durations, and so on."""
    values = {}
    for name, (convert, missing) in _fields_of(schema).items():
        if name in fields:
            values[name] = convert(fields[name])
        elif missing is not _HAS_DEFAULT:
            values[name] = missing
    return schema(**values)


_HAS_DEFAULT = object()
_Convert = Callable[[Any], Any]


@lru_cache(maxsize=2048)
def _fields_of(schema: type) -> dict[str, tuple[_Convert, Any]]:
    hints = typing.get_type_hints(schema)
    described = {}
    for field in dataclasses.fields(schema):
        convert, missing = _conversion(hints[field.name])
        has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        described[field.name] = convert, _HAS_DEFAULT if has_default else missing
    return described


def _conversion(hint: Any) -> tuple[_Convert, Any]:
    """How a value becomes one of this type, and the value that stands for a missing one."""
    arguments = typing.get_args(hint)
    if type(None) in arguments:
        (inner,) = (each for each in arguments if each is not type(None))
        convert, _ = _conversion(inner)
        return (lambda item: None if item is None else convert(item)), None
    if typing.get_origin(hint) is tuple:
        convert, _ = _conversion(arguments[0])
        return (lambda items: tuple(convert(item) for item in items)), ()
    if dataclasses.is_dataclass(hint):
        return partial(build, typing.cast("type", hint)), None
    return _plain_conversion(hint)


def _plain_conversion(hint: Any) -> tuple[_Convert, Any]:
    if hint is ErrorCode:
        return ErrorCode, ErrorCode.none
    name = getattr(hint, "__name__", "")
    if name.endswith("Timedelta"):
        return (lambda milliseconds: milliseconds * _MILLISECOND), dt.timedelta(0)
    if name == "TZAware":
        return _moment, _moment(0)
    if hint is str or issubclass(hint, str):
        return str, ""
    if hint is bytes:
        return bytes, b""
    if hint is bool:
        return bool, False
    return (lambda item: item), 0


def _moment(milliseconds: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(0, dt.UTC) + milliseconds * _MILLISECOND
