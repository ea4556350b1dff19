"""An object store on S3 and S3-compatible servers, with s3fs as the transport.

By default s3fs repeats writes, caches listings, and recognizes a refused create only on some servers. Therefore its
retries and caches are disabled, each call makes one request (``call_s3``), and ``s3_errors`` maps errors by their HTTP
status.
"""

# ruff: noqa: SLF001 - Only the private coroutines of s3fs can read a streamed body on the I/O thread.

from __future__ import annotations

import copy
import difflib
import os
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar

from txnstore.errors import InvalidConfigError, ObjectNotFoundError, StorageError, StorageRefusedError
from txnstore.storage.base import ObjectInfo, check_key, check_prefix, check_range
from txnstore.storage.bucket import BucketSettings, rules_of
from txnstore.storage.redact import redact
from txnstore.storage.s3_errors import Kind, answer_of, from_code, map_s3_error, scrub
from txnstore.storage.s3_loop import run_on
from txnstore.storage.s3_session import single_attempt_session
from txnstore.threads import ForkLock, in_thread

MIB = 1 << 20
MULTIPART_FROM_BYTES = 64 * MIB
"""A larger ``put`` is a multipart upload. A ``put_if_absent`` never is: few servers check conditions on parts."""
PART_BYTES = 32 * MIB
PARTS_AT_ONCE = 4
"""The parts of a multipart upload that are in memory."""
PAGE_KEYS = 1000
"""S3's limit of keys per list and per delete request."""

T = TypeVar("T")


class S3Store:
    """An :class:`~txnstore.storage.base.ObjectStore` in an S3 bucket, below a prefix.

    One call is one request, except for lists and deletes of more than 1,000 keys and a ``put`` of more than 64 MiB.
    Modification times have S3's resolution of one second. Each process creates its own client at its first request,
    so the store can be used after a fork. A pickled copy contains the options, including credentials; messages and
    ``repr`` never do.

    Args:
        bucket: The name of the bucket.
        prefix: The prefix of all keys.
        storage_options: Passed unchanged to ``s3fs.S3FileSystem``.

    Raises:
        InvalidConfigError: The ``endpoint_url`` contains credentials or a query, or is no URL.
    """

    def __init__(self, bucket: str, prefix: str = "", *, storage_options: Mapping[str, Any] | None = None) -> None:
        self.bucket = bucket
        self.prefix = prefix.strip("/")
        self._root = f"{self.prefix}/" if self.prefix else ""
        self._options: dict[str, Any] = copy.deepcopy(dict(storage_options or {}))
        self._secrets = frozenset(_secrets_in(self._options))
        _check_endpoint(self._options)
        self._lock = ForkLock()
        # A forked child keeps its parent's client without using it: collecting it would close the parent's sockets.
        self._clients: dict[int, Any] = {}

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def identity(self) -> str:
        """The URL with the endpoint and the user, who may have no permission to write there.

        It identifies the store in :func:`txnstore.storage.probe.probe_once`.
        """
        client = self._options.get("client_kwargs") or {}
        endpoint = self._options.get("endpoint_url") or client.get("endpoint_url") or "the default endpoint"
        user = [
            *(self._options.get(name) for name in ("key", "username", "profile", "anon")),
            client.get("aws_access_key_id"),
            *(os.environ.get(name) for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE")),
        ]
        return f"{self.url} at {endpoint} by {user}"

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        full = self._full(key)
        first, limit = check_range(key, start, end)
        # HTTP cannot request zero bytes. An empty range requests one byte, so that a missing object still raises.
        last = None if limit is None else max(limit - 1, first)
        wanted = {} if first == 0 and last is None else {"Range": f"bytes={first}-{'' if last is None else last}"}

        async def read(client: Any) -> bytes:
            try:
                response = await client._call_s3("get_object", Bucket=self.bucket, Key=full, **wanted, **client.req_kw)
            except Exception as error:
                if wanted and answer_of(error).status == 416:
                    return b""  # The range starts at or beyond the end of the object.
                raise
            async with response["Body"] as stream:
                return bytes(await stream.read())

        data = self._run(Kind.READ, key, read)
        return data if limit is None else data[: max(0, limit - first)]

    def put(self, key: str, data: bytes) -> None:
        full = self._full(key)
        if len(data) > MULTIPART_FROM_BYTES:
            path = f"{self.bucket}/{full}"
            sent = {"chunksize": PART_BYTES, "max_concurrency": PARTS_AT_ONCE}
            self._run(Kind.WRITE, key, lambda client: client._pipe_file(path, data, **sent))
        else:
            self._call(Kind.WRITE, key, "put_object", Key=full, Body=bytes(data))

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
        """Return the server's clock, from the ``Date`` header of a HEAD response; its resolution is one second."""
        try:
            answer = self._call(Kind.READ, "", "head_bucket")
        except ObjectNotFoundError:  # A HEAD response has no body with an error code: only the bucket can be missing.
            raise from_code("NoSuchBucket", Kind.READ, self.bucket, self.url) from None
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        if date is None:
            raise StorageError(f"Cannot read the clock of {self.url}: the server's responses have no Date header.")
        return _milliseconds(parsedate_to_datetime(date))

    def bucket_settings(self) -> BucketSettings:
        """The versioning and the lifecycle rules of the bucket; two requests. A refused one is part of the result."""
        found = BucketSettings(self._root)
        try:
            state = self._call(Kind.READ, "", "get_bucket_versioning").get("Status") or "Off"
            found = replace(found, versioning=state)
        except StorageError as error:
            found = replace(found, versioning_refused=str(error))
        try:
            rules = rules_of(self._call(Kind.READ, "", "get_bucket_lifecycle_configuration"))
            return replace(found, rules=rules)
        except ObjectNotFoundError:  # NoSuchLifecycleConfiguration
            return replace(found, rules=())
        except StorageError as error:
            return replace(found, rules_refused=str(error))

    def close(self) -> None:
        with self._lock.own:
            client = self._clients.pop(os.getpid(), None)
        if client is not None:
            in_thread(lambda: client.close_session(client.loop, client._s3creator))

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
                continue  # Some tools create "folder/" markers; txnstore never creates such keys.
            yield ObjectInfo(key, int(item["Size"]), _milliseconds(item["LastModified"]))

    def _call(self, kind: Kind, key: str, method: str, **arguments: Any) -> Any:
        return self._run(
            kind, key, lambda client: client._call_s3(method, Bucket=self.bucket, **arguments, **client.req_kw)
        )

    def _run(self, kind: Kind, key: str, request: Callable[[Any], Awaitable[T]]) -> T:
        """Run the coroutine on fsspec's I/O thread and map every error to :mod:`txnstore.errors`."""
        client = self._client()
        answer = run_on(client.loop, lambda: request(client))
        error = answer.exception()
        if error is None:
            return answer.result()
        if not isinstance(error, Exception):
            raise error
        url = f"{self.url}/{key}" if key else self.url
        # Raised outside of a handler: otherwise the original error, which may contain a secret, would be its context.
        raise map_s3_error(error, kind, self.bucket, url, self._secrets)

    def _client(self) -> Any:
        pid = os.getpid()
        client = self._clients.get(pid)
        if client is None:
            with self._lock.own:
                client = self._clients.get(pid)
                if client is None:
                    client = self._clients[pid] = in_thread(self._connect)  # It starts fsspec's thread.
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
            unknown_name = _not_a_parameter(client, options.get("s3_additional_kwargs") or {})
            client.s3.meta.events.register("before-call.s3.HeadBucket", _never_redirected)
            if unknown_name is None:
                return client
            message = f"unexpected keyword argument '{unknown_name}'"
        except Exception as error:  # noqa: BLE001 - Invalid options can make s3fs raise any class.
            message = scrub(f"{type(error).__name__}: {error}", self._secrets)
        unknown = _UNKNOWN_OPTION.search(message)
        if unknown is not None:
            name = unknown[1]
            raise InvalidConfigError(f"There is no storage option {name!r} for {self.url}. {_meant_by(name)}")
        raise InvalidConfigError(f"Cannot create a client for {self.url}: {message}. Check storage_options.")


_UNKNOWN_OPTION = re.compile(r"unexpected keyword argument '([^']*)'")
#: What was meant by options that s3fs does not have.
_REGION_HINT = "Write client_kwargs={'region_name': …}, or set AWS_DEFAULT_REGION."
_MEANT = {
    "region": _REGION_HINT,
    "region_name": _REGION_HINT,
    "aws_region": _REGION_HINT,
    "endpoint": "Write endpoint_url=….",
    "access_key": "Write key=….",
    "aws_access_key_id": "Write key=….",
    "secret_key": "Write secret=….",
    "aws_secret_access_key": "Write secret=….",
    "session_token": "Write token=….",
    "aws_session_token": "Write token=….",
}


_OPTIONS = ("key", "secret", "token", "endpoint_url", "anon", "profile", "client_kwargs", "config_kwargs", "use_ssl")


def _meant_by(name: str) -> str:
    close = difflib.get_close_matches(name, _OPTIONS, n=1)
    return _MEANT.get(name) or (f"Did you mean {close[0]}?" if close else "Its options are those of s3fs.S3FileSystem.")


def _not_a_parameter(client: Any, names: Mapping[str, Any]) -> str | None:
    """A name in ``s3_additional_kwargs`` that no request for an object has; s3fs would ignore it."""
    model = client.s3.meta.service_model
    known = {
        name
        for operation in ("PutObject", "GetObject", "ListObjectsV2", "DeleteObjects", "CreateMultipartUpload")
        for name in model.operation_model(operation).input_shape.members
    }
    return next((name for name in names if name not in known), None)


def _never_redirected(params: dict[str, Any], **_: object) -> None:
    """Keep botocore from following a redirect of the request by which it follows redirects.

    It asks for the region of a bucket by HeadBucket; a server that answers this with 301, and without a region, would
    be asked again until the stack is exhausted.
    """
    params["context"].setdefault("s3_redirect", {})["redirected"] = True


def _unpickle(bucket: str, prefix: str, options: dict[str, Any]) -> S3Store:
    return S3Store(bucket, prefix, storage_options=options)


def _check_endpoint(options: Mapping[str, Any]) -> None:
    client = options.get("client_kwargs") or {}
    for endpoint in (options.get("endpoint_url"), client.get("endpoint_url")):
        if endpoint and redact(endpoint) != endpoint:
            raise InvalidConfigError(
                f"The endpoint_url {redact(endpoint)} contains credentials or a query. "
                "Pass key and secret as storage_options."
            )
        if endpoint and not str(endpoint).lower().startswith(("http://", "https://")):
            host = str(endpoint).rpartition("//")[2]
            raise InvalidConfigError(f"The endpoint_url {endpoint} is no URL: write http://{host} or https://{host}.")


def _milliseconds(time: datetime) -> int:
    return round(time.timestamp() * 1000)


_SECRET_NAMES = {"key", "secret", "token", "username", "password", "aws_access_key_id", "aws_secret_access_key",
                 "aws_session_token", "SSECustomerKey"}  # fmt: skip


def _secrets_in(options: Mapping[str, Any]) -> Iterator[str]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _secrets_in(value)
        elif name in _SECRET_NAMES and isinstance(value, str) and value:
            yield value
