"""S3 and what speaks its protocol, with s3fs as the transport and nothing else of s3fs.

s3fs by itself repeats writes, caches listings, and recognises a refused create only on some servers. So its retries
and caches are off, a call here is one request (``call_s3``), and errors are judged by their HTTP status.
"""

# ruff: noqa: SLF001 - s3fs's coroutines have an underscore; only they can read a streamed body on the I/O thread.

from __future__ import annotations

import copy
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from txnstore.errors import InvalidConfigError, ObjectNotFoundError, StorageError, StorageRefusedError, TxnStoreError
from txnstore.storage.base import ObjectInfo
from txnstore.storage.forklock import ForkLock
from txnstore.storage.names import check_key, check_prefix, check_range
from txnstore.storage.redact import redact
from txnstore.storage.s3_errors import Kind, answer_of, from_code, map_s3_error, scrub
from txnstore.storage.s3_session import single_attempt_session

MIB = 1 << 20
MULTIPART_FROM_BYTES = 64 * MIB
"""A ``put`` of more goes in parts. A ``put_if_absent`` never does: servers check conditions on parts badly."""
PART_BYTES = 32 * MIB
PAGE_KEYS = 1000
"""S3's limit of keys for one list and for one delete request."""

T = TypeVar("T")


class S3Store:
    """An :class:`~txnstore.storage.base.ObjectStore` in a bucket below a prefix.

    ``storage_options`` go to ``s3fs.S3FileSystem`` as they are. One client a process, made at the first request, so
    the store may be used after a fork; it pickles with its options, and shows them nowhere else.

    One call is one request, except for lists and deletes of more than 1,000 keys and a ``put`` of more than 64 MiB.
    Modification times have the resolution of S3, one second.
    """

    def __init__(self, bucket: str, prefix: str = "", *, storage_options: Mapping[str, Any] | None = None) -> None:
        self.bucket = bucket
        self.prefix = prefix.strip("/")
        self._root = f"{self.prefix}/" if self.prefix else ""
        self._options: dict[str, Any] = copy.deepcopy(dict(storage_options or {}))
        self._secrets = frozenset(_secrets_in(self._options))
        _check_endpoint(self._options)
        self._lock = ForkLock()
        # A child keeps its parent's client, unused: to collect it would close sockets that the parent uses.
        self._clients: dict[int, Any] = {}

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def identity(self) -> str:
        """What tells this store from one of the same URL at another endpoint."""
        client = self._options.get("client_kwargs") or {}
        return (
            f"{self.url} at {self._options.get('endpoint_url') or client.get('endpoint_url') or 'the default endpoint'}"
        )

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        full = self._full(key)
        first, limit = check_range(key, start, end)
        # HTTP cannot ask for zero bytes, so an empty range asks for one: a missing object is to be told in any case.
        last = None if limit is None else max(limit - 1, first)
        wanted = {} if first == 0 and last is None else {"Range": f"bytes={first}-{'' if last is None else last}"}

        async def read(client: Any) -> bytes:
            try:
                response = await client._call_s3("get_object", Bucket=self.bucket, Key=full, **wanted, **client.req_kw)
            except Exception as error:
                if wanted and answer_of(error).status == 416:
                    return b""  # the range starts at or behind the end of the object
                raise
            async with response["Body"] as stream:
                return bytes(await stream.read())

        data = self._run(Kind.READ, key, read)
        return data if limit is None else data[: max(0, limit - first)]

    def put(self, key: str, data: bytes) -> None:
        full = self._full(key)
        if len(data) > MULTIPART_FROM_BYTES:
            path = f"{self.bucket}/{full}"
            self._run(Kind.WRITE, key, lambda client: client._pipe_file(path, data, chunksize=PART_BYTES))
        else:
            self._call(Kind.WRITE, key, "put_object", Key=full, Body=data)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        full = self._full(key)

        async def create(client: Any) -> bool:
            try:
                await client._call_s3(
                    "put_object", Bucket=self.bucket, Key=full, Body=data, IfNoneMatch="*", **client.req_kw
                )
            except Exception as error:
                if answer_of(error).status == 412:
                    return False
                raise
            return True

        return self._run(Kind.CREATE, key, create)

    def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> Sequence[ObjectInfo]:
        check_prefix(prefix)
        found: list[ObjectInfo] = []
        page: dict[str, Any] = {"StartAfter": self._root + start_after} if start_after else {}
        while limit is None or len(found) < limit:
            wanted = PAGE_KEYS if limit is None else min(PAGE_KEYS, limit - len(found))
            answer = self._call(
                Kind.READ, prefix, "list_objects_v2", Prefix=self._root + prefix, MaxKeys=wanted, **page
            )
            found.extend(self._infos(answer.get("Contents", ())))
            if not answer.get("IsTruncated"):
                break
            page = {"ContinuationToken": answer["NextContinuationToken"]}
        return found

    def delete(self, keys: Sequence[str]) -> None:
        names = [self._full(key) for key in keys]
        for first in range(0, len(names), PAGE_KEYS):
            batch = [{"Key": name} for name in names[first : first + PAGE_KEYS]]
            answer = self._call(Kind.WRITE, keys[first], "delete_objects", Delete={"Objects": batch, "Quiet": True})
            for failed in answer.get("Errors", ()):
                if failed.get("Code") != "NoSuchKey":
                    raise from_code(
                        failed.get("Code", ""), Kind.WRITE, self.bucket, f"s3://{self.bucket}/{failed.get('Key')}"
                    )

    def stat(self, key: str) -> ObjectInfo:
        answer = self._call(Kind.READ, key, "head_object", Key=self._full(key))
        return ObjectInfo(key, int(answer["ContentLength"]), _milliseconds(answer["LastModified"]))

    def now_ms(self) -> int:
        """The server's clock, from the ``Date`` of an answer to HEAD of the bucket. Whole seconds."""
        try:
            answer = self._call(Kind.READ, "", "head_bucket")
        except ObjectNotFoundError:  # the answer to a HEAD has no body that could say what is not there
            raise from_code("NoSuchBucket", Kind.READ, self.bucket, self.url) from None
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        if date is None:
            raise StorageError(f"Cannot read the clock of {self.url}: the server's answers have no Date header.")
        return _milliseconds(parsedate_to_datetime(date))

    def close(self) -> None:
        with self._lock.own:
            client = self._clients.pop(os.getpid(), None)
        if client is not None:
            client.close_session(client.loop, client._s3creator)

    def __repr__(self) -> str:
        return f"S3Store({self.url!r})"

    def __reduce__(self) -> tuple[Callable[..., S3Store], tuple[str, str, dict[str, Any]]]:
        return (_unpickle, (self.bucket, self.prefix, self._options))

    def _full(self, key: str) -> str:
        return self._root + check_key(key)

    def _infos(self, contents: Sequence[Mapping[str, Any]]) -> Iterator[ObjectInfo]:
        for item in contents:
            key = item["Key"][len(self._root) :]
            try:
                check_key(key)
            except StorageRefusedError:
                continue  # the "folder/" markers of some tools: no object of ours can have such a name
            yield ObjectInfo(key, int(item["Size"]), _milliseconds(item["LastModified"]))

    def _call(self, kind: Kind, key: str, method: str, **arguments: Any) -> Any:
        return self._run(
            kind, key, lambda client: client._call_s3(method, Bucket=self.bucket, **arguments, **client.req_kw)
        )

    def _run(self, kind: Kind, key: str, request: Callable[[Any], Awaitable[T]]) -> T:
        """Run the coroutine on the I/O thread of fsspec; every error that comes out is one of ours."""
        from fsspec.asyn import sync

        client = self._client()
        try:
            answer: T = sync(client.loop, request, client)
            return answer
        except Exception as error:  # noqa: BLE001 - every foreign error is mapped
            url = f"{self.url}/{key}" if key else self.url
            problem: TxnStoreError = map_s3_error(error, kind, self.bucket, url, self._secrets)
        # Raised outside of the handler: else the foreign error, which may show a secret, would hang on as the context.
        raise problem

    def _client(self) -> Any:
        pid = os.getpid()
        client = self._clients.get(pid)
        if client is None:
            with self._lock.own:
                client = self._clients.get(pid)
                if client is None:
                    client = self._clients[pid] = self._connect()
        return client

    def _connect(self) -> Any:
        try:
            import s3fs
        except ImportError:
            raise InvalidConfigError("s3:// URLs need the package s3fs: install txnstore[s3].") from None
        options = copy.deepcopy(self._options)
        config = {
            "max_pool_connections": 64,
            "http_session_cls": single_attempt_session(),
            **options.pop("config_kwargs", {}),
            "retries": {"total_max_attempts": 1},
        }
        fixed = {"use_listings_cache": False, "skip_instance_cache": True, "asynchronous": False, "loop": None}
        try:
            client = s3fs.S3FileSystem(**{**options, **fixed}, config_kwargs=config)
            client.retries = 1
            client.connect()
            return client
        except Exception as error:  # noqa: BLE001 - whatever the options made it raise
            message = scrub(f"{type(error).__name__}: {error}", self._secrets)
        raise InvalidConfigError(f"Cannot make a client for {self.url}: {message}. Check storage_options.")


def _unpickle(bucket: str, prefix: str, options: dict[str, Any]) -> S3Store:
    return S3Store(bucket, prefix, storage_options=options)


def _check_endpoint(options: Mapping[str, Any]) -> None:
    client = options.get("client_kwargs") or {}
    for endpoint in (options.get("endpoint_url"), client.get("endpoint_url")):
        if endpoint and redact(endpoint) != endpoint:
            raise InvalidConfigError(
                f"The endpoint_url {redact(endpoint)} holds credentials or a query. "
                "Pass key and secret as storage_options."
            )


def _milliseconds(time: datetime) -> int:
    return round(time.timestamp() * 1000)


_SECRET_NAMES = {"key", "secret", "token", "username", "password", "aws_access_key_id", "aws_secret_access_key",
                 "aws_session_token"}  # fmt: skip


def _secrets_in(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _secrets_in(value)
        elif name in _SECRET_NAMES and isinstance(value, str) and value:
            yield value
