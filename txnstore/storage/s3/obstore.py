"""Requests through obstore, the binding of Rust's object_store.

What options, configuration files and credentials mean is :mod:`txnstore.storage.s3.settings`. obstore shows no headers
and takes no key that a path cannot have, so the clock is read without it, and a list with such a key is refused.

Rust's errors reach Python as text. Its first line has the HTTP status and the answer of the server, from which this
module makes an error that ``s3_errors`` maps like one of botocore. What it cannot read has an unknown outcome.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from html import unescape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from txnstore.storage.redact import redact
from txnstore.storage.s3.errors import (
    Answer,
    ForeignAnswerError,
    NotSecureError,
    NotSentError,
    TransportError,
    UnsupportedRequestError,
    check_absence,
    status_of_code,
)
from txnstore.storage.s3.requests import MIB, NO_ETAG, PAGE_KEYS, PART_BYTES, PARTS_AT_ONCE, Found, Requests
from txnstore.storage.s3.settings import Credentials, Settings, is_server, plain_settings, settings_of

T = TypeVar("T")

#: The options of s3fs that this module passes on, and those that have no effect on the requests of a store.
_OPTIONS = {
    "key", "username", "secret", "password", "token", "anon", "profile", "endpoint_url", "use_ssl", "client_kwargs",
    "config_kwargs", "s3_additional_kwargs", "requester_pays",
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


def unusable_reason() -> str | None:
    """Return why the package obstore cannot be used here; None if it can."""
    try:
        installed_version = version("obstore") or "unknown"  # Its metadata may be damaged.
    except PackageNotFoundError:
        return "not installed"
    if installed_version.split(".")[:2] != _VERSION.split("."):
        return f"version {installed_version}, not {_VERSION}"
    return None


def is_usable() -> bool:
    """Whether this process may use obstore: not if it was forked from one that has imported it.

    obstore starts threads, which a fork does not copy: requests of the child would wait forever. The child also shares
    the kernel object by which the parent waits for its sockets; sockets of the child there crash the parent.
    """
    return not _forked_from_user


class UnknownOptionError(Exception):
    """obstore does not have this setting; the text names it as the user wrote it."""


def supported_settings(options: Mapping[str, Any], bucket: str) -> Settings:
    """Return the settings of a client for a bucket. A wrong option raises any error, of botocore."""
    if bucket.endswith("--x-s3"):
        raise UnknownOptionError(f"bucket {bucket}")
    settings = plain_settings(options, os.environ)
    if settings is None:
        from fsspec.config import apply_config

        options = apply_config(_FsspecProtocol, options)
        _check_names(options)
        settings = settings_of(options)
    _check_parameters(settings.additional)
    if settings.config is not None:
        _check_config(settings.endpoint, settings.config)
    return settings


class _FsspecProtocol:
    """The names by which the configuration of fsspec gives defaults of the options."""

    protocol = ("s3", "s3a")


def _check_names(options: Mapping[str, Any]) -> None:
    """Raise UnknownOptionError for an option that obstore does not have."""
    for prefix, settings, known_names in (
        ("", options, _OPTIONS),
        ("client_kwargs ", options.get("client_kwargs") or {}, _CLIENT),
        ("config_kwargs ", options.get("config_kwargs") or {}, _CONFIG),
    ):
        for name in settings:
            if name not in known_names:
                raise UnknownOptionError(f"{prefix}{name}")


def _check_config(endpoint: str, config: Any) -> None:
    """Check what botocore has read, some of it in files and the environment."""
    if not is_server(endpoint):
        raise UnknownOptionError(f"endpoint_url {redact(endpoint)}")
    for name in ("use_dualstack_endpoint", "use_fips_endpoint"):
        if getattr(config, name, None):
            raise UnknownOptionError(f"config_kwargs {name}")
    for name, value in (config.s3 or {}).items():
        if value and name != "addressing_style":
            raise UnknownOptionError(f"config_kwargs s3 {name}")
    version = config.signature_version
    if isinstance(version, str) and version not in ("s3v4", "v4"):  # No text: requests are not signed.
        raise UnknownOptionError(f"signature_version {version}")


def _check_parameters(additional: Mapping[str, Any]) -> None:
    """Raise UnknownOptionError for a parameter of requests that obstore cannot send: all but encryption."""
    for name, value in additional.items():
        if name not in _ENCRYPTION:
            raise UnknownOptionError(f"s3_additional_kwargs {name}")
        if not isinstance(value, bool if name == "BucketKeyEnabled" else str) or (
            name == "ServerSideEncryption" and value not in _ALGORITHMS
        ):
            raise UnknownOptionError(f"s3_additional_kwargs {name} {value!r}")


class ObstoreRequests(Requests):
    """The requests of one bucket through obstore."""

    name = "obstore"

    def __init__(self, bucket: str, settings: Settings) -> None:
        super().__init__(bucket)
        self._settings = settings
        #: The stores of obstore by the MiB of the largest bodies that they send, with their credentials.
        self._stores: dict[int, tuple[Credentials | None, Any]] = {}
        self._store_lock = asyncio.Lock()

    def release(self) -> None:
        self._stores = {}

    async def get(self, key: str, first_byte: int = 0, last_byte: int | None = None) -> tuple[bytes, str]:
        try:
            if last_byte is not None:
                data = await self._send(lambda store: store.get_range_async(key, start=first_byte, end=last_byte + 1))
                return bytes(data), ""
            options = {"range": {"offset": first_byte}} if first_byte else None
            answer = await self._send(lambda store: store.get_async(key, options=options))
            return bytes(await self._send(lambda _: answer.bytes_async())), str(answer.meta["e_tag"] or "")
        except TransportError as problem:
            if problem.answer.status == 416:
                return b"", ""
            check_absence(problem.answer)
            raise

    async def put(self, key: str, data: bytes, *, absent: bool = False) -> str:
        # obstore takes one buffer for one request, and anything else, such as an mmap, for the lines of a file.
        body, mode = bytes(data), "create" if absent else "overwrite"
        mib = 1 << (max(len(data) - 1, 0) // MIB).bit_length()
        try:
            return await self._send_put(lambda store: store.put_async(key, body, mode=mode, use_multipart=False), mib)
        except TransportError as problem:
            if _MISSING_ETAG in str(problem):  # The server has stored the object.
                return ""
            raise

    async def upload(self, key: str, data: bytes) -> str:
        parts = (bytes(data[first_byte : first_byte + PART_BYTES]) for first_byte in range(0, len(data), PART_BYTES))
        options = {"use_multipart": True, "chunk_size": PART_BYTES, "max_concurrency": PARTS_AT_ONCE}
        try:
            return await self._send_put(lambda store: store.put_async(key, parts, **options), PART_BYTES // MIB)
        except TransportError as problem:
            if _MISSING_ETAG in str(problem):
                raise ForeignAnswerError(NO_ETAG) from None
            raise

    async def _send_put(self, request: Callable[[Any], Awaitable[Any]], mib: int) -> str:
        return str((await self._send(request, mib))["e_tag"] or "")

    async def head(self, key: str) -> Found:
        meta = await self._send(lambda store: store.head_async(key))
        return Found(key, meta["size"], meta["last_modified"], str(meta["e_tag"] or ""))

    async def list(self, prefix: str, start_after: str, limit: int | None) -> Sequence[Found]:
        folder = prefix[: prefix.rfind("/") + 1]
        start = start_after if prefix == folder else max(start_after, _list_start(prefix))

        async def begin(store: Any) -> Any:
            return store.list(folder or None, offset=start or None, chunk_size=limit or PAGE_KEYS)

        chunks = await self._send(begin)
        found_by_key: dict[str, Found] = {}
        # The requests are for whole pages, whatever the limit; no further one is sent once a chunk is full.
        while (chunk := await self._send(lambda _: anext(chunks, None))) is not None:
            for meta in chunk:
                key = meta["path"]
                if key > prefix and not key.startswith(prefix):
                    return [*found_by_key.values()]
                if key.startswith(prefix) and key > start_after and (meta["size"] or await self._object_exists(key)):
                    found_by_key.setdefault(key, Found(key, meta["size"], meta["last_modified"]))
                if len(found_by_key) == limit:
                    return [*found_by_key.values()]
        return [*found_by_key.values()]

    async def _object_exists(self, key: str) -> bool:
        """Whether an empty object exists: obstore drops the slash at the end of a key, as of a folder's marker."""
        try:
            await self.head(key)
        except TransportError as problem:
            if problem.answer.status == 404:
                return False
            raise
        return True

    async def delete(self, keys: Sequence[str]) -> Sequence[tuple[str, str]]:
        try:
            await self._send(lambda store: store.delete_async([*keys]))
        except TransportError as problem:
            refusal = _REFUSED.search(str(problem))
            if refusal is None:
                raise
            return [(refusal[1], refusal[2])]
        return []

    async def date(self) -> str | None:
        from obstore import sign_async

        if await self._settings.credentials() is None:
            endpoint, in_host = endpoint_of(self._settings.endpoint, self.bucket, self._settings.style)
            url = endpoint if in_host else f"{endpoint}/{self.bucket}"
        else:
            url = await self._send(lambda store: sign_async(store, "HEAD", "", timedelta(minutes=5)))
        return await asyncio.to_thread(_request_date, url, self._settings.verify, self._settings.read_timeout)

    async def _send(self, request: Callable[[Any], Awaitable[T]], mib: int = 1) -> T:
        """Send a request, whose body may have up to ``mib`` MiB, and translate its error."""
        store = await self._current_store(mib)
        try:
            return await request(store)
        except Exception as error:  # noqa: BLE001 - obstore's classes do not tell what happened
            problem = translate_error(error)
        raise problem

    async def _current_store(self, mib: int = 1) -> Any:
        """Return the store of obstore for the credentials that are valid now."""
        credentials = await self._settings.credentials()
        credentials_and_store = self._stores.get(mib)
        if credentials_and_store is None or credentials_and_store[0] != credentials:
            async with self._store_lock:
                credentials_and_store = self._stores.get(mib)
                if credentials_and_store is None or credentials_and_store[0] != credentials:
                    credentials_and_store = self._stores[mib] = (
                        credentials,
                        await asyncio.to_thread(self._make_store, credentials, mib),
                    )
        return credentials_and_store[1]

    def _make_store(self, credentials: Credentials | None, mib: int) -> Any:
        """Make obstore's store with all settings given, so that it takes none from the environment."""
        from obstore.store import S3Store

        settings = self._settings
        endpoint, in_host = endpoint_of(settings.endpoint, self.bucket, settings.style)
        # All is given, because obstore takes the rest from variables of the environment with names of its own.
        config = {
            "aws_endpoint_url_s3": endpoint,
            "virtual_hosted_style_request": in_host,
            "region": settings.region,
            "skip_signature": credentials is None,
            "conditional_put": "etag",
            "unsigned_payload": False,
            "s3_express": False,
            "request_payer": settings.requester_pays,
            **{
                obstore_name: settings.additional[s3_name]
                for s3_name, obstore_name in _ENCRYPTION.items()
                if s3_name in settings.additional
            },
        }
        client: dict[str, Any] = {
            "allow_http": endpoint.startswith("http://"),
            "connect_timeout": timedelta(seconds=settings.connect_timeout),
            # It includes the upload of the body, for which each further MiB adds a quarter: 4 s at the default.
            "read_timeout": timedelta(seconds=settings.read_timeout * (mib + 3) / 4),
            "timeout": timedelta(days=1),  # Of a whole request; its parts have those above.
            "http1_only": True,
            **self._certificate_options(),
        }
        return S3Store(
            self.bucket,
            config=config,
            client_options=client,
            retry_config={"max_retries": 0, "retry_timeout": timedelta(0)},
            **({} if credentials is None else {"credential_provider": _FixedCredentials(credentials)}),
        )

    def _certificate_options(self) -> dict[str, Any]:
        verify = self._settings.verify
        if verify is False:
            return {"allow_invalid_certificates": True}
        return {"root_certificate": Path(verify).read_bytes()} if isinstance(verify, str) else {}


class _FixedCredentials:
    """A provider of credentials. Given as options, they would be joined with a token from the environment."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def __call__(self) -> dict[str, Any]:
        key, secret, token = self._credentials
        return {"access_key_id": key, "secret_access_key": secret, "token": token, "expires_at": None}


def endpoint_of(url: str, bucket: str, style: str | None) -> tuple[str, bool]:
    """Return the endpoint for obstore, and whether its host has the bucket, by botocore's rules."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    is_address = ":" in host or host.replace(".", "").isdigit()
    on_aws = host.endswith((".amazonaws.com", ".amazonaws.com.cn"))
    in_host = (style == "virtual" or (on_aws and style != "path")) and not is_address
    if not in_host or "." in bucket:  # The certificate of AWS covers names without a dot.
        return url.rstrip("/"), False
    return f"{parts.scheme}://{bucket}.{parts.netloc}{parts.path}".rstrip("/"), True


def _list_start(prefix: str) -> str:
    """Return a text before the keys with this prefix, and as great as obstore takes as a start of a list."""
    character_before = chr(ord(prefix[-1]) - 1)
    return f"{prefix[:-1]}{character_before}\U0010ffff" if character_before.isalnum() else prefix[:-1]


def _request_date(url: str, verify: bool | str | None, timeout: float) -> str | None:
    """Return the header ``Date`` of the answer to a HEAD of a bucket, which may be refused."""
    import ssl
    from urllib.error import HTTPError, URLError
    from urllib.request import HTTPSHandler, Request, build_opener

    context = ssl.create_default_context(cafile=verify if isinstance(verify, str) else None)
    if verify is False:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    request = Request(url, method="HEAD")  # noqa: S310 - is_server has checked it
    try:
        answer = build_opener(HTTPSHandler(context=context)).open(request, None, timeout)
    except HTTPError as error:
        answer = error
    except URLError as error:
        raise (error.reason if isinstance(error.reason, OSError) else error) from None
    with answer:
        if answer.status not in (200, 401, 403):
            raise TransportError(str(answer.status), Answer(answer.status, ""))
        date: str | None = answer.headers["date"]
        return date


_MISSING_ETAG = "ETag Header missing from response"
_REFUSED = re.compile(r"DeleteObjects request failed for key (.*): .* \(code: (\w+)\)", re.DOTALL)
_BODY = re.compile(r"Server returned error response:(.*?)(?:\n\nDebug source:|\Z)", re.DOTALL)
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


def translate_error(error: Exception) -> TransportError:
    """Translate an error of obstore to one that ``s3_errors`` maps."""
    text = str(error)
    if isinstance(error, ValueError) or type(error).__name__ == "InvalidPathError":
        return UnsupportedRequestError(text)  # A path cannot have this key, of the request or of an answer.
    match = _STATUS.search(text)
    if match is not None:
        code, message = (_xml_element(name, match[2]) for name in ("Code", "Message"))
        return TransportError(f"{match[1]} {code}: {message}", Answer(int(match[1]), code, message))
    match = _BODY.search(text)  # The answer to DeleteObjects has the status 200 and errors in its body.
    if match is not None:
        code, message = (_xml_element(name, match[1]) for name in ("Code", "Message"))
        return TransportError(f"{code}: {message}", Answer(status_of_code(code), code, message))
    summary, _, details = text.partition("\n\nDebug source:")
    status = 301 if "redirect without LOCATION" in summary else _STATUS_OF.get(type(error).__name__)
    if status is not None:
        return TransportError(summary, Answer(status, ""))
    if "kind: Connect" in details:
        kind = NotSecureError if _INSECURE.search(details) else NotSentError
        cause = _CAUSE.search(details)
        return kind(f"{summary} ({cause[1] or cause[2]})" if cause else summary)
    return TransportError(summary)


def _xml_element(name: str, body: str) -> str:
    match = re.search(_ELEMENT.format(name), body)
    return unescape(match[1]).strip() if match else ""
