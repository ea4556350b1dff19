"""Validates keys by the same rules in every backend, so that a key is legal on all of them or on none."""

from __future__ import annotations

import re

from txnstore.errors import StorageRefusedError

TEMPORARY = ".tmp-"
"""The prefix of the names of the local backend's temporary files."""

MAX_KEY_BYTES = 1024
"""S3's limit for a key in UTF-8 bytes. S3 counts the store's prefix, too; :func:`check_key` does not."""

_ILLEGAL = re.compile("[\x00-\x1f\x7f\\\\\ud800-\udfff]")


def check_key(key: str) -> str:
    """Return the key if it is legal in every backend.

    A legal key consists of ``/``-separated parts of UTF-8 text without control characters and backslashes; no part is
    empty, ``.`` or ``..``, or starts with ``.tmp-``.

    Raises:
        StorageRefusedError: The key is illegal; for example, ``..`` would escape from the root of a local store.
    """
    _check_text(key)
    for part in key.split("/"):
        if part in ("", ".", "..") or part.startswith(TEMPORARY):
            raise StorageRefusedError(f"The object key {key!r} is not legal: a part of it is {part!r}.")
    return key


def check_prefix(prefix: str) -> str:
    """Return the prefix if a legal key could start with it. Its last part may be incomplete or empty."""
    _check_text(prefix)
    if any(part in ("", ".", "..") for part in prefix.split("/")[:-1]):
        raise StorageRefusedError(f"The key prefix {prefix!r} is not legal: no object can start with it.")
    return prefix


def check_range(key: str, start: int | None, end: int | None) -> tuple[int, int | None]:
    """Return the byte range ``[start, end)`` with 0 for a missing start; raises for negative numbers."""
    first = 0 if start is None else start
    if first < 0 or (end is not None and end < 0):
        raise StorageRefusedError(f"The byte range [{start}, {end}) of {key!r} is not legal: it must not be negative.")
    return first, end


def legal_text(name: str) -> bool:
    """Whether the text contains no control characters, backslashes or bytes outside UTF-8."""
    return _ILLEGAL.search(name) is None


def _check_text(key: str) -> None:
    if not legal_text(key):
        raise StorageRefusedError(
            f"The object key {key!r} is not legal: it contains control characters, backslashes or invalid UTF-8."
        )
    size = len(key.encode("utf-8"))
    if size > MAX_KEY_BYTES:
        raise StorageRefusedError(f"The object key {key[:60]!r}… is not legal: {size} bytes, at most {MAX_KEY_BYTES}.")
