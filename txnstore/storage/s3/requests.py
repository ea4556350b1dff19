"""The requests of a bucket, each sent once by either library, and what the answer to a write proves."""

from __future__ import annotations

import asyncio
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from datetime import datetime
from typing import ClassVar, NamedTuple

from txnstore.storage.s3.errors import ForeignAnswerError, answer_of

MIB = 1 << 20
PART_BYTES = 32 * MIB
MULTIPART_FROM_BYTES = 64 * MIB
"""A larger write is a multipart upload. A create never is: few servers check conditions on parts."""
PARTS_AT_ONCE = 4
"""The parts of a multipart upload that are in memory."""
PAGE_KEYS = 1000
"""S3's limit of keys per list and per delete request."""


class Found(NamedTuple):
    """An object in a list or in the answer to a HEAD, with its key in the bucket."""

    key: str
    size: int
    modified: datetime
    etag: str = ""


class Requests(ABC):
    """The requests of one bucket. Its coroutines run on the event loop of this process."""

    #: The library that sends them.
    name: ClassVar[str]

    def __init__(self, bucket: str) -> None:
        self.bucket = bucket
        #: Whether the ETags of this bucket are no MD5: its objects are encrypted by KMS, or with own keys.
        self._has_own_etags = False

    @abstractmethod
    async def get(self, key: str, first_byte: int = 0, last_byte: int | None = None) -> tuple[bytes, str]:
        """Read the bytes ``first_byte`` to ``last_byte``, inclusive, none behind the end; also the ETag, if known."""

    @abstractmethod
    async def put(self, key: str, data: bytes, *, absent: bool = False) -> str:
        """Write an object in one request (``absent``: only a new one); return the ETag or an empty text."""

    @abstractmethod
    async def upload(self, key: str, data: bytes) -> str:
        """Write an object in parts. If this fails, neither an object nor parts remain, if the server answers."""

    @abstractmethod
    async def head(self, key: str) -> Found: ...

    @abstractmethod
    async def list(self, prefix: str, start_after: str, limit: int | None) -> Sequence[Found]:
        """Return at most ``limit`` objects whose keys start with ``prefix`` and are greater than ``start_after``."""

    @abstractmethod
    async def delete(self, keys: Sequence[str]) -> Sequence[tuple[str, str]]:
        """Delete up to :data:`PAGE_KEYS` objects; return the keys that the server refused, with its error codes."""

    @abstractmethod
    async def date(self) -> str | None:
        """Return the header ``Date`` of an answer of the server."""

    @abstractmethod
    def release(self) -> None:
        """Drop connections."""

    async def write(self, key: str, data: bytes) -> None:
        """Write an object, and look it up if the answer does not prove that it was written."""
        in_parts = len(data) > MULTIPART_FROM_BYTES
        write_call = self.upload(key, data) if in_parts else self.put(key, data)
        etag, expected_etag = await _hash_parts(data, write_call, in_parts)
        if self._proves_content(etag, expected_etag):
            return
        try:
            stored_object = await self.head(key)
        except Exception as error:  # noqa: BLE001 - any of them leaves the outcome unknown
            # Not as the cause, whose class would tell what became of the write.
            raise ForeignAnswerError(f"{_foreign_object_error(etag)}, and the object was not found: {error}") from None
        self._check_etag(etag, stored_object.etag, stored_object.size == len(data))

    async def create(self, key: str, data: bytes) -> bool:
        """Create an object in one request; read it if the answer does not prove whose it is. False if it exists.

        Anything between here and the store may answer 200: a proxy, a captive portal; and a library that follows a
        redirect reports the success of another request.
        """
        try:
            etag, expected_etag = await _hash_parts(data, self.put(key, data, absent=True))
        except Exception as error:
            if answer_of(error).status == 412:
                return False
            raise
        if not self._proves_content(etag, expected_etag):
            try:
                stored_data, stored_etag = await self.get(key)
            except Exception as error:  # noqa: BLE001 - as above
                raise ForeignAnswerError(
                    f"{_foreign_object_error(etag)}, and the object could not be read: {error}"
                ) from None
            self._check_etag(etag, stored_etag, stored_data == data)
        return True

    def _proves_content(self, etag: str, expected_etag: str) -> bool:
        return etag == expected_etag or (self._has_own_etags and bool(etag))

    def _check_etag(self, etag: str, stored_etag: str, has_same_bytes: bool) -> None:
        """Compare the ETag that a write returned, if any, with that of the object; the bytes may be the same."""
        if not has_same_bytes or (etag and etag != plain_etag(stored_etag)):
            raise ForeignAnswerError(_foreign_object_error(etag))
        self._has_own_etags = self._has_own_etags or bool(etag)


def etag_of(data: bytes, *, in_parts: bool = False) -> str:
    """Return the ETag of an object that is not encrypted, or that S3 encrypts with its own keys.

    ``in_parts``: as uploaded by multipart: the MD5 of the parts' MD5s, and their number.
    """
    if not in_parts:
        return hashlib.md5(data, usedforsecurity=False).hexdigest()
    view = memoryview(data)
    parts = [
        hashlib.md5(view[start : start + PART_BYTES], usedforsecurity=False).digest()
        for start in range(0, len(data), PART_BYTES)
    ]
    return f"{hashlib.md5(b''.join(parts), usedforsecurity=False).hexdigest()}-{len(parts)}"


async def _hash_parts(data: bytes, write_call: Awaitable[str], in_parts: bool = False) -> tuple[str, str]:
    """Return the ETag of an answer, and that of the bytes."""
    if len(data) <= MIB:
        return plain_etag(await write_call), etag_of(data)
    hash_task = asyncio.create_task(asyncio.to_thread(etag_of, data, in_parts=in_parts))
    try:
        etag = await write_call
    finally:
        expected_etag = await hash_task  # The caller may close what is hashed.
    return plain_etag(etag), expected_etag


def plain_etag(etag: str) -> str:
    """Return the text of an ETag; a proxy that compresses answers makes it a weak one."""
    return etag.removeprefix("W/").strip('"')


def _foreign_object_error(etag: str) -> str:
    return f"the ETag of the answer, {etag}, is not that of the object" if etag else NO_ETAG


NO_ETAG = "the answer has no ETag"
