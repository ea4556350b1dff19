"""Maps errors of the file system to :mod:`txnstore.errors`. ``s3_errors`` maps those of S3."""

from __future__ import annotations

import errno

from txnstore.errors import StorageError, StorageFullError, StorageRefusedError, UnknownOutcomeError, UnsafeStorageError

_FULL = {
    errno.ENOSPC: "the disk is full. Free some space there, then repeat the call",
    errno.EDQUOT: "the disk quota is used up. Free some space there, then repeat the call",
}
_REFUSED = {
    errno.EROFS: "the file system is read-only. Mount it writable or choose another folder",
    errno.EACCES: "permission denied. Give this user the right to read and write there, or choose another folder",
    errno.EPERM: "the operation is not permitted for this user. Choose another folder",
    errno.ENOTDIR: "a part of the path is a file, not a folder. Choose another folder",
    errno.EISDIR: "a folder has this name",
    errno.ENAMETOOLONG: "the name is too long for this file system. Choose a shorter folder or topic name",
    errno.ELOOP: "the path contains a loop of symbolic links",
    errno.EFBIG: "the file is too large for this file system or for the limit of this process",
}

_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK}


def map_os_error(error: OSError, action: str, path: str) -> StorageError:
    """Return the error for a failed ``action`` (``"read"``, ``"write"``, …) on ``path`` that had no effect.

    A full disk is a :class:`~txnstore.errors.StorageFullError`. Other failures that persist until their cause is
    repaired become a :class:`~txnstore.errors.StorageRefusedError`; the rest (an I/O error, too many open files, a lost
    network drive) a retriable :class:`~txnstore.errors.StorageError`.
    """
    full_reason = _FULL.get(error.errno or 0)
    if full_reason is not None:
        return StorageFullError(f"Cannot {action} {path}: {full_reason}.")
    reason = _REFUSED.get(error.errno or 0)
    if reason is not None:
        return StorageRefusedError(f"Cannot {action} {path}: {reason}.")
    return StorageError(f"Cannot {action} {path}: {error.strerror or type(error).__name__}.")


def not_a_folder(action: str, path: str) -> StorageRefusedError:
    """Return the error for a path that must be a folder and is a file."""
    return StorageRefusedError(f"Cannot {action} {path}: it is a file, not a folder. Choose another folder.")


def map_link_error(error: OSError, path: str) -> StorageError | UnsafeStorageError:
    """Return the error for a hard link that failed; except perhaps after EIO, the object was not published."""
    if error.errno in _NO_HARD_LINKS:
        return UnsafeStorageError(
            f"Cannot create {path}: the file system does not support hard links ({error.strerror}), "
            "and without them two writers could create the same object. Choose a folder on a local POSIX file system."
        )
    if error.errno == errno.EIO:
        return UnknownOutcomeError(f"Cannot tell whether {path} was created: {error.strerror}.")
    return map_os_error(error, "create", path)


def map_sync_error(error: OSError, path: str) -> UnknownOutcomeError:
    """Return the error for an object that exists, but whose name could not be flushed to disk."""
    return UnknownOutcomeError(
        f"Cannot tell whether {path} survives a crash: {error.strerror or type(error).__name__}."
    )
