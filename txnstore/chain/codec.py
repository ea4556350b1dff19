"""Entries and other small JSON objects: strict models, a version, a checksum of their own.

The last member of every such object is ``"checksum"``: the SHA-256 of the bytes before it, closed with ``}``. So a
truncated or altered object is told apart from a good one without another object, and stays plain JSON.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticSerializationError

from txnstore.core.events import Event
from txnstore.errors import CorruptionError, InvalidConfigError, UnsupportedFormatError

#: The format that this release writes; it reads this one and older ones, and refuses newer ones.
FORMAT_VERSION = 1

_MARK = b',"checksum":"'
_SUFFIX = len(_MARK) + 64 + 2


class Stored(BaseModel):
    """A JSON object on storage: exact types, no unknown members."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    version: int = FORMAT_VERSION


class StoreDocument(Stored):
    """``store.json``: the identity of a store."""

    store_id: str
    chains: int
    created_at: int


class LatestDocument(Stored):
    """``latest.json``: a hint to the newest checkpoint. May be stale or missing."""

    sequence: int


class Entry(Stored):
    """One entry of a chain."""

    sequence: int
    entry_id: str
    writer_id: str
    timestamp: int
    previous: str
    events: list[Annotated[Event, Field(discriminator="type")]]


M = TypeVar("M", bound=Stored)


def encode(document: Stored) -> bytes:
    """The bytes of a document, with its checksum.

    The reader's rules hold here, too: what is written once into a chain stays there. So a value of a wrong type is an
    :class:`InvalidConfigError`.
    """
    try:
        body = document.model_dump_json(warnings=False).encode()
        type(document).model_validate_json(body)
    except (PydanticSerializationError, UnicodeEncodeError, ValidationError) as error:
        msg = f"a value of a wrong type cannot be written: {error}"
        raise InvalidConfigError(msg) from error
    return _sealed(body)


def decode(model: type[M], key: str, data: bytes) -> M:
    """The document in ``data``, which was read from ``key``.

    Raises :class:`UnsupportedFormatError` for a newer version and :class:`CorruptionError` for anything that was not
    written this way.
    """
    body = data[:-_SUFFIX] + b"}"
    intact = data == _sealed(body)
    version = _version(data)
    if version is not None and version > FORMAT_VERSION:
        msg = f"{key} has format version {version}; this txnstore reads up to {FORMAT_VERSION}"
        raise UnsupportedFormatError(msg)
    if not intact:
        what = "altered" if version is not None else "truncated or altered"
        msg = f"{key} is {what}: its bytes do not match the checksum in it ({len(data)} bytes)"
        raise CorruptionError(msg)
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in problem["loc"])
        msg = f"{key} is not a valid {model.__name__}: {where}: {problem['msg']}"
        raise CorruptionError(msg) from error


def content_hash(data: bytes) -> str:
    """The hex SHA-256 that names an object's bytes: in the next entry, or in a segment's reference."""
    return hashlib.sha256(data).hexdigest()


def _sealed(body: bytes) -> bytes:
    """A JSON object with its checksum as the last member."""
    return body[:-1] + _MARK + hashlib.sha256(body).hexdigest().encode() + b'"}'


def _version(data: bytes) -> int | None:
    try:
        document: Any = json.loads(data)
    except (ValueError, RecursionError):
        return None
    version = document.get("version") if isinstance(document, dict) else None
    return version if isinstance(version, int) else None
