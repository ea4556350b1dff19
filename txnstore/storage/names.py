"""What a key may look like, the same in every backend, so that no key works on one storage and escapes on another."""

from __future__ import annotations

import re

from txnstore.errors import StorageRefusedError

TEMPORARY = ".tmp-"
"""The start of the file names under which the local backend writes an object before it has its name."""

MAX_KEY_BYTES = 1024
"""S3's limit for a key, root included; the backends check the part that they see."""

_ILLEGAL = re.compile("[\x00-\x1f\x7f\\\\\ud800-\udfff]")


def check_key(key: str) -> str:
    """The key itself, if it is legal in every backend.

    Legal: ``/``-separated parts of UTF-8 text without control characters and backslashes; no part is empty, ``.``
    or ``..`` or starts with ``.tmp-``. Anything else raises :class:`~txnstore.errors.StorageRefusedError`, before
    any I/O: ``..`` and absolute paths would leave the root of a local store.
    """
    _check_text(key)
    for part in key.split("/"):
        if part in ("", ".", "..") or part.startswith(TEMPORARY):
            raise StorageRefusedError(f"The object key {key!r} is not legal: a part of it is {part!r}.")
    return key


def check_prefix(prefix: str) -> str:
    """The prefix itself, if objects could start with it. Its last part may be incomplete or empty."""
    _check_text(prefix)
    if any(part in ("", ".", "..") for part in prefix.split("/")[:-1]):
        raise StorageRefusedError(f"The key prefix {prefix!r} is not legal: no object can start with it.")
    return prefix


def check_range(key: str, start: int | None, end: int | None) -> tuple[int, int | None]:
    """The half-open byte range with its start filled in; an end of None means the end of the object."""
    first = 0 if start is None else start
    if first < 0 or (end is not None and end < 0):
        raise StorageRefusedError(f"The byte range [{start}, {end}) of {key!r} is not legal: it must not be negative.")
    return first, end


def legal_text(name: str) -> bool:
    """Whether a file name could be a part of a key: no control characters, backslashes or bytes outside UTF-8."""
    return _ILLEGAL.search(name) is None


def _check_text(key: str) -> None:
    if not legal_text(key):
        raise StorageRefusedError(
            f"The object key {key!r} is not legal: it holds control characters, backslashes or text that is not UTF-8."
        )
    size = len(key.encode("utf-8"))
    if size > MAX_KEY_BYTES:
        raise StorageRefusedError(f"The object key {key[:60]!r}… is not legal: {size} bytes, at most {MAX_KEY_BYTES}.")
