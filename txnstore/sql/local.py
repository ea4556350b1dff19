"""The local folder of a store, where DuckDB can read segments directly, and the checks of the files in it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from txnstore.storage.base import ObjectStore, unwrapped
from txnstore.storage.local import LocalStore, open_at_once

#: The maximum number of files that are remembered as verified.
_MAX_VERIFIED = 1_000_000

#: The files whose bytes this process has verified, with their hash and their state at that moment.
_verified: dict[str, tuple[str, int, int, int, int]] = {}


def local_root(objects: ObjectStore) -> str | None:
    """Return the absolute folder of a local store; None for any other store.

    Args:
        objects: The object store; one behind a wrapper that must see every read has no folder.
    """
    store = unwrapped(objects)
    return store.root.rstrip("/") if isinstance(store, LocalStore) else None


def is_intact(path: str, sha256: str, size: int) -> bool:
    """Whether a file exists and has these bytes.

    The bytes are read once per process and state of the file; after that the answer costs one ``stat``.

    Args:
        path: The absolute path.
        sha256: The expected SHA-256 of the bytes, in hex.
        size: The expected number of bytes.
    """
    try:
        if _verified.get(path) == (sha256, *_file_state(Path(path).stat())):
            return True
        with open(path, "rb", opener=open_at_once) as file:
            # The state before the read: a change during the read makes the next call read again.
            state = _file_state(os.fstat(file.fileno()))
            if state[1] != size or hashlib.file_digest(file, "sha256").hexdigest() != sha256:
                return False
    except OSError:
        return False
    if len(_verified) >= _MAX_VERIFIED:
        _verified.clear()
    _verified[path] = (sha256, *state)
    return True


def _file_state(status: os.stat_result) -> tuple[int, int, int, int]:
    """What changes with the bytes of a file; a program can set all of it but the last, the time of the change."""
    return status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
