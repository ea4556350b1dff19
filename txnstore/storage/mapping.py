"""The one place where foreign errors become ours: those of the file system here, those of S3 in ``s3_errors``."""

from __future__ import annotations

import errno

from txnstore.errors import StorageError, StorageRefusedError, UnknownOutcomeError, UnsafeStorageError

_REFUSED = {
    errno.ENOSPC: "the disk is full. Free some space there, then repeat the call",
    errno.EDQUOT: "the disk quota is used up. Free some space there, then repeat the call",
    errno.EROFS: "the file system is read-only. Mount it writable or choose another folder",
    errno.EACCES: "permission denied. Give this user the right to read and write there, or choose another folder",
    errno.EPERM: "the operation is not permitted for this user. Choose another folder",
    errno.ENOTDIR: "a part of the path is a file, not a folder. Choose another folder",
    errno.EISDIR: "a folder has this name",
    errno.ENAMETOOLONG: "the name is too long for this file system. Choose a shorter folder or topic name",
    errno.ELOOP: "the path goes in circles through symbolic links",
    errno.EFBIG: "the file is too large for this file system or for the limit of this process",
}

_NO_HARD_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV, errno.EMLINK}


def map_os_error(error: OSError, action: str, path: str) -> StorageError:
    """The error to raise when ``action`` (``"read"``, ``"write"``, …) on ``path`` failed and nothing happened.

    What will fail again until somebody repairs it is a :class:`~txnstore.errors.StorageRefusedError`; the rest (an I/O
    error, too many open files, a lost network drive) is a plain, retriable :class:`~txnstore.errors.StorageError`.
    """
    reason = _REFUSED.get(error.errno or 0)
    if reason is not None:
        return StorageRefusedError(f"Cannot {action} {path}: {reason}.")
    return StorageError(f"Cannot {action} {path}: {error.strerror or type(error).__name__}.")


def not_a_folder(action: str, path: str) -> StorageRefusedError:
    """The error to raise when a file is where a folder is needed."""
    return StorageRefusedError(f"Cannot {action} {path}: it is a file, not a folder. Choose another folder.")


def map_link_error(error: OSError, path: str) -> StorageError | UnsafeStorageError:
    """The error to raise when the hard link that publishes an object could not be made, so that nothing happened."""
    if error.errno in _NO_HARD_LINKS:
        return UnsafeStorageError(
            f"Cannot create {path}: the file system does not support hard links ({error.strerror}), "
            "and without them a name could be taken twice. Choose a folder on a local POSIX file system."
        )
    if error.errno == errno.EIO:
        return UnknownOutcomeError(f"Cannot tell whether {path} was created: {error.strerror}.")
    return map_os_error(error, "create", path)


def map_sync_error(error: OSError, path: str) -> UnknownOutcomeError:
    """The error to raise when an object has its name, but the name could not be made durable."""
    return UnknownOutcomeError(
        f"Cannot tell whether {path} survives a crash: {error.strerror or type(error).__name__}."
    )
