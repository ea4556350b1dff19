"""Frames and messages of Kafka's wire protocol, as typed values of kio."""

from __future__ import annotations

import dataclasses
import datetime as dt
import struct
import threading
import typing
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from io import BytesIO
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.schema.response_header.v1.header import ResponseHeader as FlexibleHeader
from kio.serial import entity_reader, entity_writer

from txnstore.gateway.apis import Api
from txnstore.gateway.frames import Frame, MalformedRequestError

#: The length of a frame, which precedes it.
PREFIX = struct.Struct(">i")
_CORRELATION_ID = struct.Struct(">i")
_MILLISECOND = dt.timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class Request:
    """A decoded request.

    Attributes:
        api: The number of its API.
        version: The version of it.
        correlation_id: The number by which the client recognizes the response.
        client_id: The name that the client gives itself; None if it gives none.
        body: The message, a dataclass of kio.
    """

    api: int
    version: int
    correlation_id: int
    client_id: str | None
    body: Any


def read_request(frame: Frame) -> Request:
    """Decode a request.

    Raises:
        MalformedRequestError: Its fields do not match the version.
    """
    start = frame.start
    try:
        read_header, read_body = _readers(start.api, start.version)
        header, size = read_header(frame.data, 0)
        body, _ = read_body(frame.data, size)
    except Exception as error:
        size = len(frame.data)
        msg = f"a frame of {size} bytes is no request of API {start.api}, version {start.version}: {error}"
        raise MalformedRequestError(msg) from error
    return Request(start.api, start.version, start.correlation_id, header.client_id, body)


@lru_cache(maxsize=512)
def _readers(api: int, version: int) -> tuple[Any, Any]:
    schema: Any = load_request_schema(api, version)
    return entity_reader(schema.__header_schema__), entity_reader(schema)


def has_error_code(api: int, version: int) -> bool:
    """Whether responses of this API and version have a code for the whole request."""
    return "error_code" in _fields_of(typing.cast("type", load_response_schema(api, version)))


def write_response(
    api: int, version: int, correlation_id: int, fields: Mapping[str, Any], errors: Counter[str] | None = None
) -> bytes:
    """Encode a response with its length.

    Args:
        api: The number of the API.
        version: The version of the request.
        correlation_id: The correlation id of the request.
        fields: The fields of the response under kio's names. Those that the version lacks are left out, so one set of
            fields serves all versions; missing ones have the default of the protocol.
        errors: Counts the codes of errors in the response by their names.
    """
    if api == Api.PRODUCE:  # Encoding takes a tenth of the processor time of a small request.
        response = _write_appended(version, correlation_id, fields)
        if response is not None:
            return response
    return _encode_response(api, version, correlation_id, fields, errors)


def _encode_response(
    api: int, version: int, correlation_id: int, fields: Mapping[str, Any], errors: Counter[str] | None
) -> bytes:
    """Return the bytes of a response, with its length and header, and count its error codes."""
    make, write, is_flexible = _writers(api, version)
    codes = _ERROR_CODES.codes = list[ErrorCode]()
    buffer = BytesIO()
    buffer.write(b"\0\0\0\0")  # The length, known at the end.
    buffer.write(_CORRELATION_ID.pack(correlation_id))
    if is_flexible:
        buffer.write(b"\0")  # No tagged fields.
    write(buffer, make(fields))
    size = buffer.tell() - PREFIX.size
    buffer.seek(0)
    buffer.write(PREFIX.pack(size))
    if errors is not None:
        errors.update(code.name for code in codes)
    return buffer.getvalue()  # Without a copy.


#: The numbers in which responses to a batch that was appended differ, with values that stand for them in a template.
_APPENDED = {
    "index": (struct.Struct(">i"), 0x7A8B9CAD),
    "base_offset": (struct.Struct(">q"), 0x7A8182838485868F),
    "log_start_offset": (struct.Struct(">q"), 0x7A9192939495969F),
}
_APPENDED_FIELDS = {*_APPENDED, "error_code", "log_append_time"}


def _write_appended(version: int, correlation_id: int, fields: Mapping[str, Any]) -> bytes | None:
    """Encode the response to a Produce request of one batch, which was appended; None if it is another one.

    Its numbers are written over those of a response to an earlier one.
    """
    try:
        ((topic,),) = fields.values()
        (partition,) = topic["partition_responses"]
    except ValueError:  # It has other fields, or several partitions.
        return None
    if partition.keys() != _APPENDED_FIELDS or partition["error_code"] is not ErrorCode.none:
        return None
    if partition["log_append_time"] is not None:
        return None
    template, places = _appended_template(version, topic["name"], topic["topic_id"])
    if places is None:
        return None
    response = bytearray(template)
    _CORRELATION_ID.pack_into(response, PREFIX.size, correlation_id)
    for name, place in places.items():
        _APPENDED[name][0].pack_into(response, place, partition[name])
    return bytes(response)


@lru_cache(maxsize=1024)
def _appended_template(version: int, name: str, topic_id: Any) -> tuple[bytes, dict[str, int] | None]:
    """A response, and the places of the numbers that this version has; None if a value is there more than once."""
    partition: dict[str, Any] = {number: mark for number, (_, mark) in _APPENDED.items()}
    partition |= {"error_code": ErrorCode.none, "log_append_time": None}
    topic = {"name": name, "topic_id": topic_id, "partition_responses": [partition]}
    template = _encode_response(Api.PRODUCE, version, 0, {"responses": [topic]}, None)
    marks = {number: packer.pack(mark) for number, (packer, mark) in _APPENDED.items()}
    if any(template.count(mark) > 1 for mark in marks.values()):
        return template, None
    return template, {number: template.index(mark) for number, mark in marks.items() if mark in template}


def with_correlation_id(response: bytes, correlation_id: int) -> bytes:
    """Return a response of :func:`write_response` to another request, which is the same but for its correlation id."""
    end = PREFIX.size + _CORRELATION_ID.size
    return b"".join((response[: PREFIX.size], _CORRELATION_ID.pack(correlation_id), memoryview(response)[end:]))


class _ErrorCodes(threading.local):
    """The error codes in the message that this thread builds."""

    codes: list[ErrorCode] = []  # noqa: RUF012 - Each message has a list of its own.


_ERROR_CODES = _ErrorCodes()


def _record_error_code(number: int) -> ErrorCode:
    """Convert an error code, and record it as one of the message."""
    code = ErrorCode(number)
    if code is not ErrorCode.none:
        _ERROR_CODES.codes.append(code)
    return code


@lru_cache(maxsize=512)
def _writers(api: int, version: int) -> tuple[Callable[[Mapping[str, Any]], Any], Any, bool]:
    schema: Any = load_response_schema(api, version)
    return partial(build, schema), entity_writer(schema), schema.__header_schema__ is FlexibleHeader


def field_value(message: Any, name: str, default: Any = None) -> Any:
    """The value of a field of a message, or the default if its version has no such field."""
    return getattr(message, name, default)


# Building messages ----------------------------------------------------------------------------------------------------


def build(schema: type, fields: Mapping[str, Any]) -> Any:
    """Build a message of a kio class: nested mappings become messages, milliseconds become durations, and so on."""
    values = {}
    for name, (convert, value_if_missing) in _fields_of(schema).items():
        if name in fields:
            values[name] = convert(fields[name])
        elif value_if_missing is not _USES_DEFAULT:
            values[name] = value_if_missing
    return schema(**values)


_USES_DEFAULT = object()
_Convert = Callable[[Any], Any]


@lru_cache(maxsize=2048)
def _fields_of(schema: type) -> dict[str, tuple[_Convert, Any]]:
    """Return for each field of a message how to convert its value, and the value if it is missing."""
    hints = typing.get_type_hints(schema)
    conversions = {}
    for field in dataclasses.fields(schema):
        convert, value_if_missing = _conversion(hints[field.name])
        has_default = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        conversions[field.name] = convert, _USES_DEFAULT if has_default else value_if_missing
    return conversions


def _conversion(hint: Any) -> tuple[_Convert, Any]:
    """Return the conversion of a value to this type, and the value that stands for a missing one."""
    arguments = typing.get_args(hint)
    if type(None) in arguments:
        (inner_type,) = (argument for argument in arguments if argument is not type(None))
        convert, _ = _conversion(inner_type)
        return (lambda item: None if item is None else convert(item)), None
    if typing.get_origin(hint) is tuple:
        convert, _ = _conversion(arguments[0])
        return (lambda items: tuple(convert(item) for item in items)), ()
    if dataclasses.is_dataclass(hint):
        return partial(build, typing.cast("type", hint)), None
    return _plain_conversion(hint)


def _plain_conversion(hint: Any) -> tuple[_Convert, Any]:
    """Return how to convert a value to this type, and the value if it is missing."""
    if hint is ErrorCode:
        return _record_error_code, ErrorCode.none
    name = getattr(hint, "__name__", "")
    if name.endswith("Timedelta"):
        return (lambda milliseconds: milliseconds * _MILLISECOND), dt.timedelta(0)
    if name == "TZAware":
        return _datetime, _datetime(0)
    if hint is str or issubclass(hint, str):
        return str, ""
    if hint is bytes:
        return bytes, b""
    if hint is bool:
        return bool, False
    return (lambda item: item), 0


def _datetime(milliseconds: int) -> dt.datetime:
    return dt.datetime.fromtimestamp(0, dt.UTC) + milliseconds * _MILLISECOND
