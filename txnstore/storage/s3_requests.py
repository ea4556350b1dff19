"""Requests for the objects of a bucket through the client of botocore that s3fs made. Each is sent once.

s3fs's own coroutines repeat requests and replace the errors of the server, and those that run on its I/O thread have
private names. The client below them has neither fault: ``files.s3`` is a client of aiobotocore, with its methods.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from txnstore.storage.s3_errors import answer_of

MIB = 1 << 20
PART_BYTES = 32 * MIB
PARTS_AT_ONCE = 4
"""The parts of a multipart upload that are in memory."""


class S3fsRequests:
    """The requests of one bucket. Its coroutines run on the event loop of ``files``.

    Args:
        files: A connected ``s3fs.S3FileSystem``.
        bucket: The name of the bucket.
    """

    name = "s3fs"

    def __init__(self, files: Any, bucket: str) -> None:
        self.files = files
        self.bucket = bucket
        self._wanted = {**files.s3_additional_kwargs, **files.req_kw}
        self._additional: dict[str, dict[str, Any]] = {}

    def release(self) -> None:
        """Drop connections other than those of ``files``, which its owner closes."""

    async def call(self, operation: str, **arguments: Any) -> Any:
        """Send a request; ``operation`` is a method of botocore's client. Returns the answer as botocore parses it."""
        s3 = await self.files.get_s3(self.bucket)
        additional = self._additional.get(operation)
        if additional is None:
            known = parameters(s3, operation)
            additional = {name: value for name, value in self._wanted.items() if name in known}
            self._additional[operation] = additional
        return await getattr(s3, operation)(**{**additional, "Bucket": self.bucket, **arguments})

    async def read(self, key: str, first: int, last: int | None) -> bytes:
        """The bytes from ``first`` to ``last``, inclusive; none if the object ends before ``first``."""
        ranged = {} if first == 0 and last is None else {"Range": f"bytes={first}-{'' if last is None else last}"}
        try:
            answer = await self.call("get_object", Key=key, **ranged)
        except Exception as error:
            if ranged and answer_of(error).status == 416:
                return b""
            raise
        async with answer["Body"] as stream:
            return bytes(await stream.read())

    async def write(self, key: str, data: bytes) -> None:
        """Write an object in one request."""
        await self.call("put_object", Key=key, Body=bytes(data))

    async def create(self, key: str, data: bytes) -> bool:
        """Create an object in one request; False if it exists."""
        try:
            await self.call("put_object", Key=key, Body=data, IfNoneMatch="*")
        except Exception as error:
            if answer_of(error).status == 412:
                return False
            raise
        return True

    async def upload(self, key: str, data: bytes) -> None:
        """Write an object in parts. If this fails, neither an object nor parts remain, as far as the server answers."""
        upload = {"Key": key, "UploadId": (await self.call("create_multipart_upload", Key=key))["UploadId"]}
        gate = asyncio.Semaphore(PARTS_AT_ONCE)

        async def send(first: int) -> dict[str, Any]:
            number = first // PART_BYTES + 1
            async with gate:
                body = bytes(data[first : first + PART_BYTES])
                answer = await self.call("upload_part", PartNumber=number, Body=body, **upload)
            return {"PartNumber": number, "ETag": answer["ETag"]}

        sending = [asyncio.create_task(send(first)) for first in range(0, len(data), PART_BYTES)]
        try:
            parts = await asyncio.gather(*sending)
            await self.call("complete_multipart_upload", MultipartUpload={"Parts": parts}, **upload)
        except BaseException:
            for task in sending:
                task.cancel()
            await asyncio.gather(*sending, return_exceptions=True)  # A part that arrives later would remain.
            with suppress(Exception):
                await self.call("abort_multipart_upload", **upload)
            raise


def parameters(s3: Any, operation: str) -> frozenset[str]:
    """The names of the parameters of an operation, such as ``put_object``."""
    meta = s3.meta
    return frozenset(meta.service_model.operation_model(meta.method_to_api_mapping[operation]).input_shape.members)
