"""A crash-safe object store in a local folder.

``put_if_absent`` returns early if the name is taken, as a writer that comes late finds it. Else it writes the object to
a temporary file in the same folder, flushes it to disk, and links it to its final name: ``link(2)`` is atomic, fails if
the name exists, and publishes complete content. It then flushes the folder, so that an acknowledged name survives a
power failure. ``rename`` would overwrite an existing object, and ``O_EXCL`` on the final name would expose partial
content.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import secrets
import stat
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from txnstore.errors import (
    ObjectNotFoundError,
    StorageError,
    StorageFullError,
    StorageRefusedError,
    StorageReplacedError,
    UnsafeStorageError,
)
from txnstore.storage.base import (
    TEMPORARY,
    ObjectInfo,
    check_key,
    check_prefix,
    check_range,
    is_legal_text,
    is_temporary,
)
from txnstore.storage.os_errors import map_link_error, map_os_error, map_sync_error, not_a_folder

#: Opens a folder only to identify it, without the permission to list it, where the system can do that.
_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_CLOEXEC


class RootFolder:
    """The folder ``path`` as it was at the first check that it existed.

    It is kept open, so that its inode number, which identifies it, is not given to another folder. A pickled copy has
    not checked the folder yet.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._path_of = Path(path)
        #: The open folder; None before the first check, and after :meth:`forget`.
        self._descriptor: int | None = None
        #: Closes that descriptor, once; set and unset together with it.
        self._close: Callable[[], object] | None = None

    def check(self) -> None:
        """Check that the folder is still the same; the first check that can open it keeps it open.

        Raises:
            StorageReplacedError: It was deleted, or deleted and created again.
        """
        descriptor = self._descriptor
        try:
            if descriptor is None:
                self._remember_folder(os.open(self.path, _FLAGS))
                return
            if os.path.samestat(os.fstat(descriptor), self._path_of.stat()) or self._descriptor != descriptor:
                return  # In the second case another thread has closed the store, and the number may be another file's.
            change = "deleted and created again"
        except FileNotFoundError:
            if descriptor is None:
                return
            change = "deleted"
        except OSError:
            return  # The request itself reports it.
        raise StorageReplacedError(f"The folder {self.path} was {change} while it was in use.")

    def forget(self) -> None:
        """Let the next check remember the folder again."""
        self._descriptor, close = None, self._close
        if close is not None:
            close()

    def _remember_folder(self, descriptor: int) -> None:
        self._close = finalizer = weakref.finalize(self, os.close, descriptor)
        # Not before the last use: producers end their transactions, and consumers leave, when the interpreter exits.
        finalizer.atexit = False
        self._descriptor = descriptor

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, Any]) -> None:
        RootFolder.__init__(self, state["path"])


def open_at_once(path: str, flags: int) -> int:
    """Open a file like :func:`os.open`, but do not wait for a writer if the object's name is a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


# On macOS, fsync leaves the data in the drive's cache; F_FULLFSYNC also flushes the cache.
_FULL_FSYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)


def fsync_file(descriptor: int) -> None:
    """Flush the file's content and size to disk."""
    _flush_to_disk(descriptor)


def fsync_folder(path: str) -> None:
    """Flush the directory entries of the folder to disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _flush_to_disk(descriptor)
    finally:
        os.close(descriptor)


def _flush_to_disk(descriptor: int) -> None:
    """Flush to disk, with the strongest flush that the operating system offers."""
    if _FULL_FSYNC is not None:
        try:
            fcntl.fcntl(descriptor, _FULL_FSYNC)
            return
        except OSError:
            pass  # Network file systems may not support F_FULLFSYNC: fall back to fsync.
    os.fsync(descriptor)


HOUR_MS = 3_600_000
#: How often a write makes its folder again that deletions remove at the same time.
_RACES = 8
#: The bytes that are written with one call.
_WRITE_BYTES = 8 << 20


class LocalStore:
    """An :class:`~txnstore.storage.base.ObjectStore` in the folder ``root``. Only writes create the folder.

    After the first request that finds the folder, a folder of that name that was deleted, or deleted and created again,
    is refused until :meth:`close`: what it contains is not what was read before.

    Safe for concurrent use by threads and processes, and after a fork. The file system must support hard links;
    without them ``put_if_absent`` raises :class:`~txnstore.errors.UnsafeStorageError`.

    Args:
        root: The path of the folder; ``~`` is expanded.

    Raises:
        StorageRefusedError: ``root`` is empty or contains a NUL character.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        path = os.fspath(root)
        if not path or "\0" in path:
            raise StorageRefusedError(f"{path!r} is not the path of a folder.")
        self.root = os.path.abspath(os.path.expanduser(path))
        # Threads change these sets without a lock, by operations that are atomic.
        #: The folders whose names are flushed.
        self._durable_folders: set[str] = set()
        #: The folders above the root that this store has made and not flushed yet.
        self._unflushed_folders: set[str] = set()
        self._folder = RootFolder(self.root)

    @property
    def url(self) -> str:
        # File URLs are percent-encoded; encoding "%" alone is enough for open_store(url) to find the same folder.
        return f"file://{self.root.replace('%', '%25')}"

    def space(self) -> tuple[int, int]:
        """Return the free bytes and all bytes of the file system, for a process without privileges."""
        try:
            volume = os.statvfs(self.root)
        except OSError as error:
            raise map_os_error(error, "read", self.root) from error
        return volume.f_bavail * volume.f_frsize, volume.f_blocks * volume.f_frsize

    @property
    def identity(self) -> str:
        """The identity of the store in this process; see :func:`txnstore.storage.probe.probe_once`."""
        return self.url

    @property
    def place(self) -> str:
        """The folder itself, whatever its path; see :func:`txnstore.storage.base.place_of`."""
        try:
            status = os.stat(self.root)
        except OSError:
            return self.url
        return f"folder {status.st_dev} {status.st_ino}"

    def get(self, key: str, start: int | None = None, end: int | None = None) -> bytes:
        path = self._path_of(key)
        first_byte, limit = check_range(key, start, end)
        self._folder.check()
        try:
            with open(path, "rb", opener=open_at_once) as file:
                if first_byte:
                    file.seek(first_byte)
                return file.read() if limit is None else file.read(max(0, limit - first_byte))
        except OSError as error:
            raise self._map_read_error(error, path) from error

    def put(self, key: str, data: bytes) -> None:
        path = self._path_of(key)
        temporary_path = self._write_temporary(path, data)
        try:
            os.replace(temporary_path, path)
        except OSError as error:
            _unlink_quietly(temporary_path)
            raise map_os_error(error, "write", path) from error
        self._sync_name(path)

    def put_if_absent(self, key: str, data: bytes) -> bool:
        path = self._path_of(key)
        # A writer that comes late finds the name taken, and flushes no bytes that nothing will link.
        is_created = not self._object_exists(path) and self._publish(path, data)
        # A call that lost flushes, too: the caller will depend on the object that exists, whose writer may have
        # failed to flush it, and may be an earlier attempt of this caller.
        if not is_created:
            self._flush_folders(path)
            self._sync_content(path)
        self._sync_name(path)
        return is_created

    def sync(self, keys: Sequence[str]) -> None:
        """Flush objects, their names and those of their folders to disk; a missing object is ignored.

        Raises:
            UnknownOutcomeError: A flush failed.
        """
        paths = [self._path_of(key) for key in keys]
        for path in paths:
            self._sync_content(path)
        folders: set[str] = set()
        for path in paths:
            while len(path := os.path.dirname(path)) >= len(self.root):
                folders.add(path)
        for folder in sorted(folders):
            self._sync_folder(folder)

    def list(self, prefix: str, start_after: str = "", limit: int | None = None) -> Sequence[ObjectInfo]:
        check_prefix(prefix)
        infos: list[ObjectInfo] = []
        if limit is not None and limit <= 0:
            return infos
        for info in self._list_folder(prefix[: prefix.rfind("/") + 1], prefix, start_after):
            infos.append(info)
            if len(infos) == limit:
                break
        return infos

    def delete(self, keys: Sequence[str]) -> None:
        paths = [self._path_of(key) for key in keys]
        for path in paths:
            try:
                os.unlink(path)
            except (FileNotFoundError, NotADirectoryError):
                pass
            except OSError as error:
                if not os.path.isdir(path):  # A folder is not an object: there is nothing to delete.
                    raise map_os_error(error, "delete", path) from error
        # Also the folders of missing objects: an earlier attempt may have deleted one, and failed before its flush.
        for folder in sorted({os.path.dirname(path) for path in paths}):
            self._sync_folder(folder)
            self._remove_empty(folder)

    def _remove_empty(self, folder: str) -> None:
        """Remove a folder that deletions have emptied, and its parents up to the second level below the root.

        A writer that has just made the folder makes it again.
        """
        while folder.startswith(f"{self.root}/") and "/" in folder[len(self.root) + 1 :]:
            try:
                os.rmdir(folder)
            except OSError:
                return  # It is not empty, or another process has removed it.
            self._durable_folders.discard(folder)
            folder = os.path.dirname(folder)

    def stat(self, key: str) -> ObjectInfo:
        path = self._path_of(key)
        try:
            status = os.stat(path)
            if os.path.isdir(path):
                raise FileNotFoundError
        except OSError as error:
            raise self._map_read_error(error, path) from error
        return ObjectInfo(key, status.st_size, status.st_mtime_ns // 1_000_000)

    def now_ms(self) -> int:
        """Return the file system's clock: the modification time of a new temporary file in the root, in milliseconds.

        On a network drive the server sets this time, as it sets every ``modified_ms``. On a full disk, which takes no
        new file, the call touches the root itself.

        Raises:
            ObjectNotFoundError: The root does not exist; the call does not create it.
            StorageError: The root is not writable.
        """
        path = self._temporary_in(self.root)
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
        except FileNotFoundError as error:
            raise ObjectNotFoundError(f"There is no folder {self.root}.") from error
        except OSError as error:
            problem = map_os_error(error, "read the clock of the file system in", self.root)
            if isinstance(problem, StorageFullError):
                with suppress(OSError):  # Only the owner of a folder may touch it.
                    os.utime(self.root)
                    return os.stat(self.root).st_mtime_ns // 1_000_000
            raise problem from error
        try:
            return os.fstat(descriptor).st_mtime_ns // 1_000_000
        finally:
            os.close(descriptor)
            _unlink_quietly(path)

    def check_names(self) -> None:
        """Check that the file system keeps the names of files as they are given, upper and lower case apart.

        Keys are names of files. Some file systems cut a dot at the end (shares of Windows); a list would then name
        objects that do not exist, and a vacuum would delete them. One that ignores case is no harm: it keeps the case
        of a name, and no two keys of a store differ in case only.

        Raises:
            UnsafeStorageError: It changes names.
            StorageError: The root is not writable.
        """
        folder = self.root
        name = f"{TEMPORARY}{os.getpid()}-{secrets.token_hex(8)}.Name."
        self._ensure_folder(folder)
        path = f"{folder}/{name}"
        try:
            os.close(_create_file(path))
            try:
                is_name_kept = name in os.listdir(folder)
            finally:
                _unlink_quietly(path)
        except OSError as error:
            raise map_os_error(error, "write", path) from error
        if not is_name_kept:
            raise UnsafeStorageError(
                f"The file system of {folder} changes the names of files, so that objects could be mistaken for "
                "others. Choose a folder on a local POSIX file system."
            )

    def close(self) -> None:
        """Forget which folder the root is. No file stays open between calls."""
        self._folder.forget()
        self._durable_folders.clear()

    def sweep(self, older_than_ms: int = HOUR_MS) -> int:
        """Delete temporary files that crashed writers left behind; return their number.

        Args:
            older_than_ms: The minimum age in milliseconds by the file system's clock. It must exceed the duration of
                any write.
        """
        if not os.path.isdir(self.root):
            return 0
        limit_ms = self.now_ms() - older_than_ms
        count = 0
        for folder, _, names in os.walk(self.root, followlinks=True):
            for path in [os.path.join(folder, name) for name in names if is_temporary(name)]:
                try:
                    if os.stat(path).st_mtime_ns // 1_000_000 < limit_ms:
                        os.unlink(path)
                        count += 1
                except FileNotFoundError:
                    pass  # Its writer finished, or a concurrent sweep deleted it.
                except OSError as error:
                    raise map_os_error(error, "delete", path) from error
        return count

    def __repr__(self) -> str:
        return f"LocalStore({self.root!r})"

    def _path_of(self, key: str) -> str:
        return f"{self.root}/{check_key(key)}"

    def _temporary_in(self, folder: str) -> str:
        return f"{folder}/{TEMPORARY}{os.getpid()}-{secrets.token_hex(8)}"

    def _object_exists(self, path: str) -> bool:
        """Whether an object has the name, in the folder that was the root before.

        Raises:
            StorageRefusedError: A folder has the name, or the root is another folder now.
        """
        self._folder.check()
        try:
            status = os.stat(path)
        except OSError:
            return False  # The attempt to create it reports what is wrong.
        if stat.S_ISDIR(status.st_mode):
            raise StorageRefusedError(f"Cannot create {path}: a folder has this name.")
        return True

    def _flush_folders(self, path: str) -> None:
        """Flush the names of the folders of an object, unless this store has done so."""
        try:
            self._ensure_folder(os.path.dirname(path))
        except FileNotFoundError:
            pass  # The object is deleted again, with its folder: the flush of its name reports that.
        except OSError as error:
            raise map_sync_error(error, path) from error

    def _publish(self, path: str, data: bytes) -> bool:
        """Write the bytes to a temporary file, and link it to the name; return False if another writer was faster."""
        temporary_path = self._write_temporary(path, data)
        try:
            os.link(temporary_path, path)
        except FileExistsError as error:
            if os.path.isdir(path):
                raise StorageRefusedError(f"Cannot create {path}: a folder has this name.") from error
            return False
        except OSError as error:
            if error.errno is None:
                raise  # Not of the system: a signal handler has raised it, perhaps after the link was made.
            raise map_link_error(error, path) from error
        finally:
            _unlink_quietly(temporary_path)
        return True

    def _write_temporary(self, path: str, data: bytes) -> str:
        """Write the bytes to a new temporary file beside ``path`` and flush it; removes the file on failure."""
        folder = os.path.dirname(path)
        temporary_path = self._temporary_in(folder)
        self._folder.check()
        try:
            descriptor = self._create_in(folder, temporary_path)
        except OSError as error:
            raise map_os_error(error, "write", path) from error
        try:
            try:
                _write_all(descriptor, data)
                fsync_file(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            _unlink_quietly(temporary_path)
            raise map_os_error(error, "write", path) from error
        except BaseException:
            _unlink_quietly(temporary_path)
            raise
        return temporary_path

    def _create_in(self, folder: str, temporary_path: str) -> int:
        """Create a temporary file, and its folder if there is none."""
        for _ in range(_RACES):
            with contextlib.suppress(FileNotFoundError):
                return self._create_once(folder, temporary_path)
            # A deletion has removed the empty folder, or one above it, after we made it or found it.
            self._folder.check()
            self._durable_folders.clear()
        return self._create_once(folder, temporary_path)

    def _create_once(self, folder: str, temporary_path: str) -> int:
        self._ensure_folder(folder)
        self._folder.check()  # If this is the first write, it has made the folder, and remembers it.
        return _create_file(temporary_path)

    def _ensure_folder(self, folder: str) -> None:
        """Create the folder and its parents, and flush their names, once per store and folder.

        The parents of an existing folder inside the root are flushed, too: the process that created the folder may
        have crashed before its flush.
        """
        if folder in self._durable_folders:
            return
        is_inside_root = folder == self.root or folder.startswith(f"{self.root}/")
        if not is_inside_root and folder not in self._unflushed_folders and os.path.isdir(folder):
            return  # An existing folder above the root does not belong to this store: it is not flushed.
        parent = os.path.dirname(folder)
        if parent != folder:
            self._ensure_folder(parent)
        was_created = self._make_folder(folder)
        if was_created or folder != self.root:
            fsync_folder(parent)
        else:
            _fsync_folder_if_readable(parent)
        self._durable_folders.add(folder)
        self._unflushed_folders.discard(folder)

    def _make_folder(self, folder: str) -> bool:
        """Create a folder; return False if it exists.

        Raises:
            FileNotFoundError: Its parent was removed.
            StorageError: It cannot be created, or its name is that of a file.
        """
        try:
            os.mkdir(folder)
        except FileExistsError:
            if not os.path.isdir(folder):
                raise not_a_folder("write to", folder) from None
            return False
        except FileNotFoundError:
            raise
        except OSError as error:
            raise map_os_error(error, "make the folder", folder) from error
        self._unflushed_folders.add(folder)
        return True

    def _sync_content(self, path: str) -> None:
        """Flush the content of an object, if it exists."""
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                fsync_file(descriptor)
            finally:
                os.close(descriptor)
        except (FileNotFoundError, NotADirectoryError):
            return
        except OSError as error:
            raise map_sync_error(error, path) from error

    def _sync_folder(self, folder: str) -> None:
        """Flush the names in a folder, if it exists."""
        try:
            fsync_folder(folder)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise map_sync_error(error, folder) from error

    def _sync_name(self, path: str) -> None:
        try:
            fsync_folder(os.path.dirname(path))
        except OSError as error:
            raise map_sync_error(error, path) from error

    def _map_read_error(self, error: OSError, path: str) -> StorageError:
        if isinstance(error, NotADirectoryError) and os.path.exists(self.root) and not os.path.isdir(self.root):
            return not_a_folder("read", self.root)
        if isinstance(error, (FileNotFoundError, NotADirectoryError, IsADirectoryError)):
            return ObjectNotFoundError(f"There is no object {path}.")
        return map_os_error(error, "read", path)

    def _list_folder(self, base: str, prefix: str, start_after: str) -> Iterator[ObjectInfo]:
        """Yield the objects below the folder ``base`` (empty, or ending in ``/``) in the order of their full keys.

        A folder sorts as its name plus ``/``: ``a-b`` comes before ``a/b``. Only yielded files cost a stat.
        """
        children: list[tuple[str, os.DirEntry[str], bool]] = []
        try:
            with os.scandir(f"{self.root}/{base}") as entries:
                for entry in entries:
                    name = entry.name
                    if is_temporary(name) or not is_legal_text(name):
                        continue
                    is_folder = entry.is_dir()
                    key = f"{base}{name}/" if is_folder else base + name
                    if key.startswith(prefix) and (key > start_after or (is_folder and start_after.startswith(key))):
                        children.append((key, entry, is_folder))
        except (FileNotFoundError, NotADirectoryError):
            if os.path.exists(self.root) and not os.path.isdir(self.root):
                raise not_a_folder("list", self.root) from None
            return
        except OSError as error:
            raise map_os_error(error, "list", f"{self.root}/{base}") from error
        children.sort(key=lambda child: child[0])
        for key, entry, is_folder in children:
            if is_folder:
                yield from self._list_folder(key, prefix, start_after)
                continue
            try:
                status = entry.stat()
            except FileNotFoundError:
                continue  # Deleted during the listing.
            except OSError as error:
                raise map_os_error(error, "list", entry.path) from error
            yield ObjectInfo(key, status.st_size, status.st_mtime_ns // 1_000_000)


def _create_file(path: str) -> int:
    return os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)


def _write_all(descriptor: int, data: bytes | mmap.mmap) -> None:
    """Write all bytes; pages of a mapped file leave the memory of the process piece by piece."""
    view, position = memoryview(data), 0
    while position < len(view):
        written_bytes = os.write(descriptor, view[position : position + _WRITE_BYTES])
        if isinstance(data, mmap.mmap) and hasattr(data, "madvise"):
            page_start = position // mmap.PAGESIZE * mmap.PAGESIZE
            data.madvise(mmap.MADV_DONTNEED, page_start, position + written_bytes - page_start)
        position += written_bytes


def _unlink_quietly(path: str) -> None:
    # Listings skip a temporary file that cannot be removed, and a later sweep deletes it.
    with contextlib.suppress(OSError):
        os.unlink(path)


def _fsync_folder_if_readable(folder: str) -> None:
    # The folder above the root may belong to another user and be unreadable: then it cannot be flushed.
    with contextlib.suppress(PermissionError):
        fsync_folder(folder)
