"""Flushes files and folders to disk, with the strongest flush that the operating system offers."""

from __future__ import annotations

import fcntl
import os

# On macOS, fsync leaves the data in the drive's cache; F_FULLFSYNC also flushes the cache.
_FULL_FSYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)


def fsync_file(descriptor: int) -> None:
    """Flush the file's content and size to disk."""
    if _FULL_FSYNC is not None:
        try:
            fcntl.fcntl(descriptor, _FULL_FSYNC)
            return
        except OSError:
            pass  # Network file systems may not support F_FULLFSYNC: fall back to fsync.
    os.fsync(descriptor)


def fsync_folder(path: str) -> None:
    """Flush the directory entries of the folder to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fsync_file(descriptor)
    finally:
        os.close(descriptor)
