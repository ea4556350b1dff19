"""Opens the object store for a URL."""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, cast
from urllib.parse import unquote

from txnstore.errors import InvalidConfigError
from txnstore.storage.base import ObjectStore
from txnstore.storage.local import LocalStore
from txnstore.storage.memory import MemoryStore
from txnstore.storage.redact import redact
from txnstore.storage.retry import RetryingStore
from txnstore.threads import load

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://(.*)$", re.DOTALL)
#: A URL with a missing slash, which would be the name of a folder; ``c:/`` is none.
_ONE_SLASH = re.compile(r"^(file|local|memory|s3a?|gs|gcs|az|abfss?|adl):/?(?!/)(.+)$", re.IGNORECASE | re.DOTALL)
_UNCHECKED = {
    "gs": "Google Cloud Storage", "gcs": "Google Cloud Storage", "az": "Azure Blob Storage",
    "abfs": "Azure Blob Storage", "abfss": "Azure Blob Storage", "adl": "Azure Blob Storage",
}  # fmt: skip


def open_store(
    url: str | os.PathLike[str],
    storage_options: Mapping[str, Any] | None = None,
    *,
    sleep: Callable[[float], None] = time.sleep,
    rng: random.Random | None = None,
) -> ObjectStore:
    """Open the object store at ``url``, wrapped in :class:`~txnstore.storage.retry.RetryingStore`. Makes no request.

    Args:
        url: A path, ``file:///path`` (percent-encoded), ``memory://name``, or ``s3://bucket/prefix`` (``s3a://``).
        storage_options: Passed unchanged to ``s3fs.S3FileSystem``: ``key``, ``secret``, ``token``, ``endpoint_url``,
            ``anon``, ``profile``, ``client_kwargs``, ``config_kwargs``, …; and ``transport``, the library that sends
            requests to S3: ``s3fs`` or ``obstore``. Other stores take no options.
        sleep: Pauses between retries, in seconds.
        rng: The source of randomness for the pauses.

    Raises:
        InvalidConfigError: The URL is of another kind, or a store that takes no options got some.
    """
    if not isinstance(cast("object", url), str | os.PathLike):
        msg = f"a store is named by a URL or a path, not by {url!r}"
        raise InvalidConfigError(msg)
    return RetryingStore(_make_backend(os.fspath(url), dict(storage_options or {})), sleep=sleep, rng=rng)


def _make_backend(url: str, options: dict[str, Any]) -> ObjectStore:
    """Return the store for a URL by its scheme, or say why there is none."""
    match = _SCHEME.match(url)
    if match is None or match[1].lower() in ("file", "local"):
        options.pop("auto_mkdir", None)  # An option of fsspec for local files: writes always create folders here.
        _refuse_options(url, options)
        path = _plain_path(url) if match is None else _path_of_file_url(url, match[2])
        if not path:
            raise InvalidConfigError("The URL of a store must not be empty: give a folder or s3://bucket/prefix.")
        return LocalStore(path)
    scheme, location = match[1].lower(), match[2]
    if scheme == "memory":
        _refuse_options(url, options)
        return MemoryStore.named(location.strip("/"))
    if scheme in ("s3", "s3a"):
        load("txnstore.storage.s3.store")
        from txnstore.storage.s3.store import S3Store

        return S3Store(*_bucket_and_prefix(url, location), storage_options=options)
    if scheme in _UNCHECKED:
        raise InvalidConfigError(
            f"{_UNCHECKED[scheme]} ({scheme}://) is not supported: its atomic create has not been verified yet. "
            "Use a local folder or s3://."
        )
    raise InvalidConfigError(
        f"txnstore cannot store anything at {scheme}:// URLs. Use a local folder, s3://bucket/prefix or memory://name."
    )


def _plain_path(path: str) -> str:
    """Return the path of a local folder; refuse a URL with one slash, such as s3:/bucket."""
    if _ONE_SLASH.match(path):
        raise InvalidConfigError(
            f"{redact(path)!r} is neither a URL nor clearly a folder: write // after the colon, as in "
            "s3://bucket/prefix, or ./ before the name of a folder."
        )
    return path


def _path_of_file_url(url: str, location: str) -> str:
    """Return the path of a file:// URL of this machine."""
    host, slash, path = location.partition("/")
    if host in ("localhost", "") and slash:
        return unquote(slash + path)
    raise InvalidConfigError(
        f"{redact(url)!r} is not the URL of a folder: write file:///absolute/path or a plain path."
    )


def _bucket_and_prefix(url: str, location: str) -> tuple[str, str]:
    """Split an S3 URL; refuse credentials, a port, a query, control characters and odd parts of the prefix."""
    bucket, _, prefix = location.partition("/")
    if "@" in bucket or ":" in bucket:
        raise InvalidConfigError(
            "The URL of the store contains credentials or a port. Write s3://bucket/prefix, and pass key, secret and "
            "endpoint_url in storage_options or set them in the environment."
        )
    prefix = prefix.strip("/")
    if not bucket:
        raise InvalidConfigError(f"{redact(url)!r} names no bucket: write s3://bucket/prefix.")
    if "?" in location or "#" in location:
        raise InvalidConfigError(f"{redact(url)} must be s3://bucket/prefix, without a query: use storage_options.")
    if any(ord(character) < 32 or ord(character) == 127 for character in location):
        # The libraries differ in how they send one: s3fs and obstore would not find the same objects.
        raise InvalidConfigError(f"The URL of the store {redact(url)!r} contains a control character: remove it.")
    if any(part in ("", ".", "..") for part in prefix.split("/")) and prefix:
        raise InvalidConfigError(f"The prefix of {redact(url)!r} is not legal: a part of it is empty, '.' or '..'.")
    return bucket, prefix


def _refuse_options(url: str, options: Mapping[str, Any]) -> None:
    if options:
        names = ", ".join(sorted(map(str, options)))
        raise InvalidConfigError(f"The store at {redact(url)} takes no storage_options, but got: {names}.")
