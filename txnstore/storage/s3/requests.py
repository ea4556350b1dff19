"""Requests for the objects of a bucket through the client of botocore that s3fs made. Each is sent once.

s3fs's own coroutines repeat requests and replace the errors of the server, and those that run on its I/O thread have
private names. The client below them has neither fault: ``files.s3`` is a client of aiobotocore, with its methods.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Any, NamedTuple

from txnstore.storage.s3.errors import ForeignAnswerError, answer_of, check_absence

MIB = 1 << 20
#: The answer to a smaller write is compared with the MD5 of the bytes.
HASHED_BYTES = MIB
PART_BYTES = 32 * MIB
PAGE_KEYS = 1000
"""S3's limit of keys per list and per delete request."""
PARTS_AT_ONCE = 4
"""The parts of a multipart upload that are in memory."""


class Listed(NamedTuple):
    """An object in a list, by its key in the bucket."""

    key: str
    size: int
    modified: datetime


class S3fsRequests:
    """The requests of one bucket. Its coroutines run on the event loop of this process.

    Args:
        bucket: The name of the bucket.
        connect: Makes a connected ``s3fs.S3FileSystem``, at the first request that needs it; called once.
        files: One that is made already.
    """

    name = "s3fs"

    def __init__(self, bucket: str, connect: Callable[[], Any], files: Any = None) -> None:
        self.bucket = bucket
        #: The ``S3FileSystem``; None before the first request that needs it.
        self.files = files
        self._connect = connect
        self._connecting = asyncio.Lock()
        self._additional: dict[str, dict[str, Any]] = {}
        self._etags = ETags()

    def release(self) -> None:
        """Drop connections."""
        files, self.files = self.files, None
        if files is not None:
            files.close_session(files.loop, files.s3)

    async def client(self) -> Any:
        """The connected ``S3FileSystem``."""
        if self.files is None:
            async with self._connecting:
                if self.files is None:
                    self.files = await asyncio.to_thread(self._connect)
        return self.files

    async def call(self, operation: str, **arguments: Any) -> Any:
        """Send a request; ``operation`` is a method of botocore's client. Returns the answer as botocore parses it."""
        files = await self.client()
        s3 = await files.get_s3(self.bucket)
        additional = self._additional.get(operation)
        if additional is None:
            accepted, wanted = parameters(s3, operation), {**files.s3_additional_kwargs, **files.req_kw}
            additional = {name: value for name, value in wanted.items() if name in accepted}
            self._additional[operation] = additional
        return await getattr(s3, operation)(**{**additional, "Bucket": self.bucket, **arguments})

    async def list(self, prefix: str, after: str, limit: int | None) -> list[Listed]:
        """The first objects whose keys start with ``prefix`` and are greater than ``after``, at most ``limit``."""
        found: list[Listed] = []
        page = {"StartAfter": after} if after else {}
        while limit is None or len(found) < limit:
            size = PAGE_KEYS if limit is None else min(PAGE_KEYS, limit - len(found))
            answer = await self.call("list_objects_v2", Prefix=prefix, MaxKeys=size, **page)
            found += [
                Listed(each["Key"], int(each["Size"]), each["LastModified"]) for each in answer.get("Contents", ())
            ]
            if not answer.get("IsTruncated"):
                break
            page = {"ContinuationToken": answer["NextContinuationToken"]}
        return found

    async def read(self, key: str, first: int, last: int | None) -> bytes:
        """The bytes from ``first`` to ``last``, inclusive; none if the object ends before ``first``."""
        return (await self._read(key, first, last))[0]

    async def _read(self, key: str, first: int = 0, last: int | None = None) -> tuple[bytes, str]:
        """The bytes as :meth:`read` returns them, and the ETag of the object."""
        ranged = {} if first == 0 and last is None else {"Range": f"bytes={first}-{'' if last is None else last}"}
        try:
            answer = await self.call("get_object", Key=key, **ranged)
        except Exception as error:
            if ranged and answer_of(error).status == 416:
                return b"", ""
            check_absence(answer_of(error))
            raise
        async with answer["Body"] as stream:
            return bytes(await stream.read()), str(answer.get("ETag", ""))

    async def write(self, key: str, data: bytes) -> None:
        """Write an object in one request, and one more if the answer does not show that it was written."""
        answer = await self.call("put_object", Key=key, Body=bytes(data))
        await self._check_written(key, data, answer.get("ETag"))

    async def create(self, key: str, data: bytes) -> bool:
        """Create an object in one request, and one more if the answer does not show whose it is; False if it exists."""
        try:
            answer = await self.call("put_object", Key=key, Body=data, IfNoneMatch="*")
        except Exception as error:
            if answer_of(error).status == 412:
                return False
            raise
        await self._check_created(key, data, answer.get("ETag"))
        return True

    async def _check_created(self, key: str, data: bytes, etag: str | None) -> None:
        """Check that a success was answered by the store, and is about these bytes: else read the object.

        Anything between here and the store may answer 200: a proxy, a captive portal; and a library that follows a
        redirect reports the success of another request.

        Raises:
            ForeignAnswerError: The object is not there, or is another one, or could not be read.
        """
        if self._etags.fit(etag, data):
            return
        try:
            stored, actual = await self._read(key)
        except Exception as error:  # noqa: BLE001 - any of them leaves the outcome unknown
            # Not as the cause, whose class would tell what became of the create.
            raise ForeignAnswerError(f"{_not_ours(etag)}, and the object could not be read: {error}") from None
        if stored != data or not self._etags.learn(etag, actual):
            raise ForeignAnswerError(_not_ours(etag))

    async def _check_written(self, key: str, data: bytes, etag: str | None) -> None:
        """The same for an object that may replace another one, and may be large: its size and ETag are compared."""
        if self._etags.fit(etag, data):
            return
        try:
            head = await self.call("head_object", Key=key)
        except Exception as error:  # noqa: BLE001 - as above
            raise ForeignAnswerError(f"{_not_ours(etag)}, and the object was not found: {error}") from None
        if int(head["ContentLength"]) != len(data) or not self._etags.learn(etag, head.get("ETag")):
            raise ForeignAnswerError(_not_ours(etag))

    async def upload(self, key: str, data: bytes) -> None:
        """Write an object in parts. If this fails, neither an object nor parts remain, as far as the server answers."""
        upload = {"Key": key, "UploadId": (await self.call("create_multipart_upload", Key=key))["UploadId"]}
        gate = asyncio.Semaphore(PARTS_AT_ONCE)

        async def send(first: int) -> dict[str, Any]:
            number = first // PART_BYTES + 1
            async with gate:
                body = bytes(data[first : first + PART_BYTES])
                answer = await self.call("upload_part", PartNumber=number, Body=body, **upload)
            if not answer.get("ETag"):
                raise ForeignAnswerError(_not_ours(None))
            return {"PartNumber": number, "ETag": answer["ETag"]}

        sending = [asyncio.create_task(send(first)) for first in range(0, len(data), PART_BYTES)]
        try:
            parts = await asyncio.gather(*sending)
            done = await self.call("complete_multipart_upload", MultipartUpload={"Parts": parts}, **upload)
            await self._check_written(key, data, done.get("ETag"))
        except BaseException:
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)  # A part that arrives later would remain.
            with suppress(Exception):
                await self.call("abort_multipart_upload", **upload)
            raise


class ETags:
    """The form of the ETags in the answers of one bucket, as this process has learned it.

    The ETag of an object is the MD5 of its bytes, unless it is encrypted by KMS or with own keys, or was written in
    parts; then it is any text, unlike all others. The first answer with such an ETag counts if a request for the object
    returns the same one; from then on answers with ETags of the same length count.
    """

    def __init__(self) -> None:
        #: The length of an ETag that was compared with the object's and is no MD5; 0 until then.
        self._length = 0
        #: The ETag of the last answer.
        self._last = ""

    def fit(self, etag: str | None, data: bytes) -> bool:
        """Whether a success with this ETag shows that these bytes are stored."""
        text = _plain(etag)
        if len(data) <= HASHED_BYTES and text == hashlib.md5(data, usedforsecurity=False).hexdigest():
            return True
        if len(data) > HASHED_BYTES and _MD5.fullmatch(text):
            return True
        # A page of a proxy has the same ETag each time.
        is_new, self._last = text != self._last, text
        return is_new and 0 < len(text) == self._length

    def learn(self, etag: str | None, actual: str | None) -> bool:
        """Whether the ETag of an answer, if it had one, is that of the object."""
        text = self._last = _plain(etag)
        if text and text != _plain(actual):
            return False
        self._length = len(text) or self._length
        return True


#: The ETag of a large object; with a number of parts it is that of an upload in parts.
_MD5 = re.compile("[0-9a-f]{32}(-[0-9]+)?")


def _plain(etag: str | None) -> str:
    """The text of an ETag; a proxy that compresses answers makes it a weak one."""
    return (etag or "").removeprefix("W/").strip('"')


def _not_ours(etag: str | None) -> str:
    text = _plain(etag)
    return f"the ETag of the answer, {text}, is not that of the object" if text else "the answer has no ETag"


def parameters(s3: Any, operation: str) -> frozenset[str]:
    """The names of the parameters of an operation, such as ``put_object``."""
    meta = s3.meta
    return frozenset(meta.service_model.operation_model(meta.method_to_api_mapping[operation]).input_shape.members)
