"""Requests through the client of botocore that s3fs made (``client``).

s3fs's own coroutines repeat requests and replace the errors of the server, and those that run on its I/O thread have
private names. The client below them has neither fault: ``files.s3`` is a client of aiobotocore, with its methods.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from txnstore.storage.s3.client import operation_parameters
from txnstore.storage.s3.errors import ForeignAnswerError, answer_of, check_absence
from txnstore.storage.s3.requests import NO_ETAG, PAGE_KEYS, PART_BYTES, PARTS_AT_ONCE, Found, Requests


class S3fsRequests(Requests):
    """The requests of one bucket through a connected ``s3fs.S3FileSystem``."""

    name = "s3fs"

    def __init__(self, bucket: str, files: Any) -> None:
        super().__init__(bucket)
        self.files = files
        self._additional: dict[str, dict[str, Any]] = {}

    def release(self) -> None:
        self.files.close_session(self.files.loop, self.files.s3)

    async def call(self, operation: str, **arguments: Any) -> Any:
        """Send a request; ``operation`` is a method of botocore's client. Returns the answer as botocore parses it."""
        s3 = await self.files.get_s3(self.bucket)
        additional = self._additional.get(operation)
        if additional is None:
            known_names = operation_parameters(s3, operation)
            all_additional = {**self.files.s3_additional_kwargs, **self.files.req_kw}
            additional = {name: value for name, value in all_additional.items() if name in known_names}
            self._additional[operation] = additional
        return await getattr(s3, operation)(**{**additional, "Bucket": self.bucket, **arguments})

    async def get(self, key: str, first_byte: int = 0, last_byte: int | None = None) -> tuple[bytes, str]:
        range_argument = {}
        if first_byte != 0 or last_byte is not None:
            range_argument["Range"] = f"bytes={first_byte}-{'' if last_byte is None else last_byte}"
        try:
            answer = await self.call("get_object", Key=key, **range_argument)
        except Exception as error:
            if range_argument and answer_of(error).status == 416:
                return b"", ""
            check_absence(answer_of(error))
            raise
        async with answer["Body"] as stream:
            return bytes(await stream.read()), str(answer.get("ETag", ""))

    async def put(self, key: str, data: bytes, *, absent: bool = False) -> str:
        condition = {"IfNoneMatch": "*"} if absent else {}
        return str((await self.call("put_object", Key=key, Body=bytes(data), **condition)).get("ETag", ""))

    async def upload(self, key: str, data: bytes) -> str:
        upload_arguments = {"Key": key, "UploadId": (await self.call("create_multipart_upload", Key=key))["UploadId"]}
        gate = asyncio.Semaphore(PARTS_AT_ONCE)

        async def send(first_byte: int) -> dict[str, Any]:
            part_number = first_byte // PART_BYTES + 1
            async with gate:
                body = bytes(data[first_byte : first_byte + PART_BYTES])
                answer = await self.call("upload_part", PartNumber=part_number, Body=body, **upload_arguments)
            return {"PartNumber": part_number, "ETag": _required_etag(answer)}

        part_tasks = [asyncio.create_task(send(first_byte)) for first_byte in range(0, len(data), PART_BYTES)]
        try:
            parts = await asyncio.gather(*part_tasks)
            return _required_etag(
                await self.call("complete_multipart_upload", MultipartUpload={"Parts": parts}, **upload_arguments)
            )
        except BaseException:
            for task in part_tasks:
                task.cancel()
            await asyncio.gather(*part_tasks, return_exceptions=True)  # A part that arrives later would remain.
            with suppress(Exception):
                await self.call("abort_multipart_upload", **upload_arguments)
            raise

    async def head(self, key: str) -> Found:
        answer = await self.call("head_object", Key=key)
        return Found(key, int(answer["ContentLength"]), answer["LastModified"], str(answer.get("ETag", "")))

    async def list(self, prefix: str, start_after: str, limit: int | None) -> Sequence[Found]:
        found_objects: list[Found] = []
        page = {"StartAfter": start_after} if start_after else {}
        while limit is None or len(found_objects) < limit:
            size = PAGE_KEYS if limit is None else min(PAGE_KEYS, limit - len(found_objects))
            answer = await self.call("list_objects_v2", Prefix=prefix, MaxKeys=size, **page)
            found_objects += [
                Found(item["Key"], int(item["Size"]), item["LastModified"]) for item in answer.get("Contents", ())
            ]
            if not answer.get("IsTruncated"):
                break
            page = {"ContinuationToken": answer["NextContinuationToken"]}
        return found_objects

    async def delete(self, keys: Sequence[str]) -> Sequence[tuple[str, str]]:
        deletion = {"Objects": [{"Key": key} for key in keys], "Quiet": True}
        answer = await self.call("delete_objects", Delete=deletion)
        return [(failure.get("Key", ""), failure.get("Code", "")) for failure in answer.get("Errors", ())]

    async def date(self) -> str | None:
        date: str | None = (await self.call("head_bucket"))["ResponseMetadata"]["HTTPHeaders"].get("date")
        return date


def _required_etag(answer: dict[str, Any]) -> str:
    """Return the ETag in the answer to a part or to the end of an upload, which S3 never leaves out."""
    if not answer.get("ETag"):
        raise ForeignAnswerError(NO_ETAG)
    return str(answer["ETag"])
