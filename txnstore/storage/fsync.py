"""Flushing files and folders to the disk, as far as the operating system can be told to."""

from __future__ import annotations

import fcntl
import os

# On macOS, fsync leaves the data in the drive's cache; only this call flushes that, too.
_FULL_FSYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)


def fsync_file(descriptor: int) -> None:
    """Return when the file's content and size are on the disk."""
    if _FULL_FSYNC is not None:
        try:
            fcntl.fcntl(descriptor, _FULL_FSYNC)
            return
        except OSError:
            pass  # a network drive that does not know the call: the plain flush below is what it has
    os.fsync(descriptor)


def fsync_folder(path: str) -> None:
    """Return when the names in the folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fsync_file(descriptor)
    finally:
        os.close(descriptor)
