"""Reads and writes of single objects, and lists of folders, through obstore, the binding of Rust's object_store.

What options, configuration files and credentials mean is :mod:`txnstore.storage.s3.settings`. obstore sends what is
frequent and needs only few features: GET, PUT, PUT with ``If-None-Match: *``, and lists of a folder. What is rare goes
through s3fs, which is loaded then: other lists, and those of objects whose keys obstore would change; deletes, HEAD,
the server's clock; and uploads that are large, since obstore's ``read_timeout`` ends one whose body alone takes that
long.

Rust's errors reach Python as text. Its first line has the HTTP status and the answer of the server, from which this
module makes an error that ``s3_errors`` maps like one of botocore. What it cannot read has an unknown outcome.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from xml.sax.saxutils import unescape

from txnstore.storage.redact import redact
from txnstore.storage.s3.errors import Answer, NotSecureError, NotSentError, TransportError, check_absence
from txnstore.storage.s3.requests import PAGE_KEYS, Listed, S3fsRequests
from txnstore.storage.s3.settings import Credentials, Settings, is_server

SMALL_BYTES = 1 << 20
"""A larger object is written through s3fs."""

#: The options of s3fs that this module passes on, and those that have no effect on the requests of a store.
_OPTIONS = {
    "key", "username", "secret", "password", "token", "anon", "profile", "endpoint_url", "use_ssl", "client_kwargs",
    "config_kwargs", "s3_additional_kwargs", "requester_pays", "session",
    "asynchronous", "default_block_size", "default_cache_type", "default_fill_cache", "fixed_upload_size",
    "listings_expiry_time", "loop", "max_concurrency", "max_paths", "skip_instance_cache", "use_listings_cache",
    "version_aware",
}  # fmt: skip
_CLIENT = {
    "aws_access_key_id", "aws_secret_access_key", "aws_session_token", "endpoint_url", "region_name", "use_ssl",
    "verify",
}  # fmt: skip
_CONFIG = {
    "connect_timeout", "read_timeout", "retries", "max_pool_connections", "region_name", "s3", "signature_version",
    "tcp_keepalive",
}  # fmt: skip
#: The ``s3_additional_kwargs`` that obstore knows, and its names for them; and the values of the first that it knows.
_ENCRYPTION = {
    "ServerSideEncryption": "server_side_encryption",
    "SSEKMSKeyId": "sse_kms_key_id",
    "BucketKeyEnabled": "sse_bucket_key_enabled",
}
_ALGORITHMS = ("AES256", "aws:kms", "aws:kms:dsse")

#: The one minor version whose errors, which are text, this module can read.
_VERSION = "0.12"
#: Whether an ancestor of this process may have used obstore: see :func:`is_usable`.
_forked_from_user = False


def _note_fork() -> None:
    global _forked_from_user  # noqa: PLW0603 - there is one per process
    _forked_from_user = _forked_from_user or "obstore" in sys.modules


os.register_at_fork(after_in_child=_note_fork)


def unfit() -> str | None:
    """Why the package obstore cannot be used here; None if it can."""
    try:
        installed = version("obstore") or "unknown"  # Its metadata may be damaged.
    except PackageNotFoundError:
        return "not installed"
    if installed.split(".")[:2] != _VERSION.split("."):
        return f"version {installed}, not {_VERSION}"
    return None


def is_usable() -> bool:
    """Whether this process may use obstore: not if it was forked from one that has imported it.

    obstore starts threads, which a fork does not copy: requests of the child would wait forever. The child also shares
    the kernel object by which the parent waits for its sockets; sockets of the child there crash the parent.
    """
    return not _forked_from_user


def unsupported(files: Any, options: Mapping[str, Any], bucket: str) -> str | None:
    """The name of the first setting that obstore does not have, as the user wrote it; None if it has all.

    Args:
        files: A connected ``s3fs.S3FileSystem``.
        options: The ``storage_options`` that it was made from.
        bucket: The name of the bucket.
    """
    for prefix, settings, supported in (
        ("", options, _OPTIONS),
        ("client_kwargs ", options.get("client_kwargs") or {}, _CLIENT),
        ("config_kwargs ", options.get("config_kwargs") or {}, _CONFIG),
    ):
        for name in settings:
            if name not in supported:
                return f"{prefix}{name}"
    parameter = unknown_parameter(files.s3_additional_kwargs)
    if parameter is not None:
        return f"s3_additional_kwargs {parameter}"
    if not is_server(files.s3.meta.endpoint_url):
        return f"endpoint_url {redact(files.s3.meta.endpoint_url)}"
    config = files.s3.meta.config
    for name in ("proxies", "proxies_config", "client_cert", "use_dualstack_endpoint", "use_fips_endpoint"):
        if getattr(config, name, None):
            return f"config_kwargs {name}"
    for name, value in (config.s3 or {}).items():
        if value and name != "addressing_style":
            return f"config_kwargs s3 {name}"
    if not files.anon and config.signature_version not in ("s3v4", "v4"):
        return f"signature_version {config.signature_version}"
    return f"bucket {bucket}" if bucket.endswith("--x-s3") else None


def unknown_parameter(additional: Mapping[str, Any]) -> str | None:
    """The first of the ``s3_additional_kwargs`` that obstore does not know, or whose value it does not know."""
    for name, value in additional.items():
        if name not in _ENCRYPTION:
            return name
        if not isinstance(value, bool if name == "BucketKeyEnabled" else str) or (
            name == "ServerSideEncryption" and value not in _ALGORITHMS
        ):
            return f"{name} {value!r}"
    return None


#: Keys that object_store takes as they are.
_PLAIN = re.compile(r"(?:[A-Za-z0-9._~=@+,-]+/)*[A-Za-z0-9._~=@+,-]*")


class ObstoreRequests(S3fsRequests):
    """The requests of one bucket, the frequent ones through obstore.

    Args:
        bucket: The name of the bucket.
        settings: The settings of the client.
        connect: Makes a connected ``s3fs.S3FileSystem`` for the other requests.
        files: One that is made already.
    """

    name = "obstore"

    def __init__(self, bucket: str, settings: Settings, connect: Callable[[], Any], files: Any = None) -> None:
        super().__init__(bucket, connect, files)
        self._settings = settings
        self._made: tuple[Credentials | None, Any] | None = None
        self._making = asyncio.Lock()

    def release(self) -> None:
        self._made = None
        super().release()

    async def list(self, prefix: str, after: str, limit: int | None) -> list[Listed]:
        if not prefix.endswith("/") or not _PLAIN.fullmatch(prefix) or not _is_offset(after):
            return await super().list(prefix, after, limit)
        objects = await self._objects()
        problem: TransportError | None = None
        found: list[Mapping[str, Any]] = []
        try:
            # The requests are for whole pages, whatever the limit; no further one is sent once a chunk is full.
            async for chunk in objects.list(prefix, offset=after or None, chunk_size=limit or PAGE_KEYS):
                found += chunk
                if limit is not None:
                    break
        except Exception as error:  # noqa: BLE001 - see read
            if type(error).__name__ != "InvalidPathError":
                problem = translated(error)
        else:
            # obstore drops the slash at the end of a key: that of the marker of a folder, which is empty.
            if all(each["size"] and each["path"].startswith(prefix) for each in found):
                return [Listed(each["path"], each["size"], each["last_modified"]) for each in found]
        if problem is not None:
            raise problem
        return await super().list(prefix, after, limit)

    async def read(self, key: str, first: int, last: int | None) -> bytes:
        objects = await self._objects()
        try:
            if last is not None:
                return bytes(await objects.get_range_async(key, start=first, end=last + 1))
            options = {"range": {"offset": first}} if first else None
            return bytes(await (await objects.get_async(key, options=options)).bytes_async())
        except Exception as error:  # noqa: BLE001 - obstore's classes do not tell what happened
            problem = translated(error)
        if problem.answer.status == 416:
            return b""
        check_absence(problem.answer)
        raise problem

    async def write(self, key: str, data: bytes) -> None:
        if len(data) > SMALL_BYTES:
            await super().write(key, data)
        else:
            await self._check_written(key, data, await self._put(key, data, "overwrite"))

    async def create(self, key: str, data: bytes) -> bool:
        if len(data) > SMALL_BYTES:
            return await super().create(key, data)
        try:
            etag = await self._put(key, data, "create")
        except TransportError as error:
            if error.answer.status == 412:
                return False
            raise
        await self._check_created(key, data, etag)
        return True

    async def _put(self, key: str, data: bytes, mode: str) -> str:
        objects = await self._objects()
        try:
            # obstore takes one buffer for one request, and anything else, such as an mmap, for the lines of a file.
            stored = await objects.put_async(key, bytes(data), mode=mode, use_multipart=False)
        except Exception as error:  # noqa: BLE001 - see read
            if _NO_ETAG in str(error):  # The server has stored the object.
                return ""
            problem = translated(error)
        else:
            return str(stored["e_tag"])
        raise problem

    async def _objects(self) -> Any:
        """The store of obstore for the credentials that are valid now."""
        credentials = await self._settings.credentials()
        made = self._made
        if made is None or made[0] != credentials:
            async with self._making:
                made = self._made
                if made is None or made[0] != credentials:
                    made = self._made = (credentials, await asyncio.to_thread(self._make, credentials))
        return made[1]

    def _make(self, credentials: Credentials | None) -> Any:
        from obstore.store import S3Store

        wanted = self._settings
        endpoint, in_host = endpoint_of(wanted.endpoint, self.bucket, wanted.style)
        # All is given, because obstore takes the rest from variables of the environment with names of its own.
        config = {
            "aws_endpoint_url_s3": endpoint,
            "virtual_hosted_style_request": in_host,
            "region": wanted.region,
            "skip_signature": credentials is None,
            "conditional_put": "etag",
            "unsigned_payload": False,
            "s3_express": False,
            "request_payer": wanted.requester_pays,
            **{ours: wanted.additional[theirs] for theirs, ours in _ENCRYPTION.items() if theirs in wanted.additional},
        }
        client: dict[str, Any] = {
            "allow_http": endpoint.startswith("http://"),
            "connect_timeout": timedelta(seconds=wanted.connect_timeout),
            "read_timeout": timedelta(seconds=wanted.read_timeout),
            "timeout": timedelta(days=1),  # Of a whole request; its parts have those above.
            "http1_only": True,
            **self._certificates(),
        }
        return S3Store(
            self.bucket,
            config=config,
            client_options=client,
            retry_config={"max_retries": 0, "retry_timeout": timedelta(0)},
            **({} if credentials is None else {"credential_provider": _Fixed(credentials)}),
        )

    def _certificates(self) -> dict[str, Any]:
        verify = self._settings.verify
        if verify is False:
            return {"allow_invalid_certificates": True}
        return {"root_certificate": Path(verify).read_bytes()} if isinstance(verify, str) else {}


class _Fixed:
    """A provider of credentials. Passed as options they would be joined with a token from the environment."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def __call__(self) -> dict[str, Any]:
        key, secret, token = self._credentials
        return {"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": None}


def _is_offset(after: str) -> bool:
    """Whether obstore lists what is after this text, and not after another one that it makes of it."""
    return not after or (_PLAIN.fullmatch(after) is not None and not after.endswith("/"))


def endpoint_of(url: str, bucket: str, style: str | None) -> tuple[str, bool]:
    """The endpoint that obstore needs, and whether the bucket is a part of its host name, by botocore's rules.

    Args:
        url: botocore's endpoint.
        bucket: The name of the bucket.
        style: The ``addressing_style``: path, virtual, or auto.
    """
    parts = urlsplit(url)
    host = parts.hostname or ""
    is_address = ":" in host or host.replace(".", "").isdigit()
    on_aws = host.endswith((".amazonaws.com", ".amazonaws.com.cn"))
    in_host = (style == "virtual" or (on_aws and style != "path")) and not is_address
    if not in_host or "." in bucket:  # The certificate of AWS covers names without a dot.
        return url.rstrip("/"), False
    return f"{parts.scheme}://{bucket}.{parts.netloc}{parts.path}".rstrip("/"), True


_NO_ETAG = "ETag Header missing from response"
_STATUS = re.compile(r"Server returned non-2xx status code: (\d{3})[^:]*:(.*?)(?:\n\nDebug source:|\Z)", re.DOTALL)
_ELEMENT = "<{0}>([^<]*)</{0}>"
_INSECURE = re.compile(
    r"Invalid(?:Certificate|Message)|NoCertificatesPresented|AlertReceived|Peer(?:Incompatible|Misbehaved)"
)
_CAUSE = re.compile(r'(?:message|error): "([^"]*)"|(Invalid\w+\(\s*\w+)')
#: The status by the name of the class, where the text is not as expected. A conflict may be 409 or 412.
_STATUS_OF = {
    "FileNotFoundError": 404,
    "NotFoundError": 404,
    "PermissionDeniedError": 403,
    "UnauthenticatedError": 401,
    "PreconditionError": 412,
}


def translated(error: Exception) -> TransportError:
    """An error of obstore as one that ``s3_errors`` maps."""
    text = str(error)
    match = _STATUS.search(text)
    if match is not None:
        code, message = (_element(name, match[2]) for name in ("Code", "Message"))
        return TransportError(f"{match[1]} {code}: {message}", Answer(int(match[1]), code, message))
    summary, _, details = text.partition("\n\nDebug source:")
    status = 301 if "redirect without LOCATION" in summary else _STATUS_OF.get(type(error).__name__)
    if status is not None:
        return TransportError(summary, Answer(status, ""))
    if "kind: Connect" in details:
        kind = NotSecureError if _INSECURE.search(details) else NotSentError
        cause = _CAUSE.search(details)
        return kind(f"{summary} ({cause[1] or cause[2]})" if cause else summary)
    return TransportError(summary)


def _element(name: str, body: str) -> str:
    match = re.search(_ELEMENT.format(name), body)
    return unescape(match[1]).strip() if match else ""
