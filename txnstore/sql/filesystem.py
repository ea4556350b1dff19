"""The file system through which DuckDB reads segments and inspection tables; read-only, registered with fsspec.

DuckDB's own S3 reader is an extension that it downloads, and through s3fs it sends 8 to 9 requests for a file. Here the
chain records the size of every object, so a file costs one GET and no LIST, and the bytes are checked against the
checksum in the chain. Requests go through the store's object store: they are counted and retried, on every storage.

A segment in the Arrow format, which DuckDB cannot read, is converted to Parquet. An inspection table is a Parquet file
that is made when a query first opens it.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol
from weakref import WeakValueDictionary

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.spec import AbstractFileSystem

from txnstore.core.log.model import Segment
from txnstore.core.model import TopicPartition
from txnstore.errors import TxnStoreError
from txnstore.read.reader import fetch
from txnstore.segment.codec import decode
from txnstore.storage.base import ObjectStore
from txnstore.threads import ForkLock, Task

PROTOCOL = "txnseg"
#: The maximum size of unused files in a cache, in bytes.
CACHE_BYTES = 256 << 20
#: The modification time of every file: files never change, so it is a constant.
_MODIFIED = datetime(2000, 1, 1, tzinfo=UTC)


class VirtualFile(Protocol):
    """A file that is loaded on demand.

    Attributes:
        size: The size in bytes; None if only loading the file can tell it.
    """

    @property
    def size(self) -> int | None: ...

    def load(self) -> bytes: ...


@dataclass(frozen=True, slots=True)
class SegmentObject:
    """A segment of the store as a Parquet file; loading costs one GET and checks the bytes."""

    objects: ObjectStore
    tp: TopicPartition
    segment: Segment

    @property
    def size(self) -> int | None:
        return self.segment.size if self.segment.format == "parquet" else None

    def load(self) -> bytes:
        data = fetch(self.objects, self.tp, self.segment)
        if self.segment.format == "parquet":
            return data
        return parquet_bytes(decode(data, self.segment.format, key=self.segment.key))


@dataclass(frozen=True, slots=True)
class TableFile:
    """A table that is computed when it is first read."""

    make: Callable[[], pa.Table]

    @property
    def size(self) -> int | None:
        return None

    def load(self) -> bytes:
        return parquet_bytes(self.make())


def parquet_bytes(table: pa.Table) -> bytes:
    """Encode a table as Parquet, uncompressed, because it never leaves this process."""
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="none", use_dictionary=False)
    return sink.getvalue()


class _Content:
    """The bytes of a file, in an object that supports weak references."""

    __slots__ = ("__weakref__", "data")

    def __init__(self, data: bytes) -> None:
        self.data = data


class ContentCache:
    """A cache of file contents.

    Concurrent reads of a file load it once. Content in use is always kept; of unused content, the least recently used
    is evicted first. Thread-safe.

    Args:
        bound: The maximum size of unused content, in bytes.
    """

    def __init__(self, bound: int = CACHE_BYTES) -> None:
        self._bound = bound
        self._lock = ForkLock()
        self._recent: OrderedDict[str, _Content] = OrderedDict()
        self._used: WeakValueDictionary[str, _Content] = WeakValueDictionary()
        self._loading: dict[str, Task[_Content]] = {}
        self._bytes = 0

    def get(self, path: str, load: Callable[[], bytes]) -> _Content:
        """Return the content of a file, loaded with ``load`` if it is not cached.

        An exception of ``load`` is raised in all threads that wait for the file, and is not cached.
        """
        while True:
            with self._lock.own:
                content = self._used.get(path)
                if content is not None:
                    self._keep(path, content)
                    return content
                task = self._loading.get(path)
                if task is None or task.done():
                    task = self._loading[path] = Task(lambda: _Content(load()))
            # Whoever comes first runs it. If an interrupt ended the load of another thread, it is done again.
            mine = task.run()
            error = task.exception()
            if mine or error is None or isinstance(error, Exception):
                break
        with self._lock.own:
            if self._loading.get(path) is task:
                del self._loading[path]
            if error is None:
                content = self._used[path] = task.result()
                self._keep(path, content)
        return task.result()

    def _keep(self, path: str, content: _Content) -> None:
        if path not in self._recent:
            self._bytes += len(content.data)
        self._recent[path] = content
        self._recent.move_to_end(path)
        while self._bytes > self._bound and self._recent:
            _, dropped = self._recent.popitem(last=False)
            self._bytes -= len(dropped.data)


class SegmentFileSystem(AbstractFileSystem):  # type: ignore[misc] # fsspec has no types
    """The files of one database, by their path below ``txnseg://``. Thread-safe.

    Attributes:
        damage: The last error of the store in a read; DuckDB reports only its text.
        owner: An object that lives as long as the file system, which the database owns.
    """

    protocol = PROTOCOL
    cachable = False

    def __init__(self, cache: ContentCache | None = None) -> None:
        super().__init__()
        self._cache = cache or ContentCache()
        self._files: dict[str, VirtualFile] = {}
        self._before: Mapping[str, VirtualFile] = {}
        self.damage: TxnStoreError | None = None
        self.owner: object = None

    def replace(self, files: Mapping[str, VirtualFile]) -> None:
        """Replace all files; the previous ones stay readable for queries that still run."""
        self._files, self._before = dict(files), self._files

    def add(self, files: Mapping[str, VirtualFile]) -> None:
        """Add files."""
        self._files.update(files)

    def content(self, path: str) -> _Content:
        """Return the bytes of a file; an error of the store is also stored in ``damage``."""
        file = self._file(path)
        try:
            return self._cache.get(path, file.load)
        except TxnStoreError as error:
            self.damage = error
            raise

    def size_of(self, path: str) -> int:
        """Return the size of a file in bytes; loads the file if its size is not known."""
        size = self._file(path).size
        return len(self.content(path).data) if size is None else size

    def _file(self, path: str) -> VirtualFile:
        file = self._files.get(path) or self._before.get(path)
        if file is None:
            msg = f"{path} is not a file of this connection's snapshot"
            raise FileNotFoundError(msg)
        return file

    # Called by DuckDB -------------------------------------------------------------------------------------------------

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix(f"{PROTOCOL}://")

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        name = self._strip_protocol(path)
        return {"name": name, "size": self.size_of(name), "type": "file"}

    def glob(self, path: str, **_: Any) -> list[str]:
        name = self._strip_protocol(path)
        return [name] if name in self._files or name in self._before else []

    def exists(self, path: str, **_: Any) -> bool:
        return bool(self.glob(path))

    def isfile(self, path: str) -> bool:
        return bool(self.glob(path))

    def isdir(self, path: str) -> bool:
        return False

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        return []

    def modified(self, path: str) -> datetime:
        return _MODIFIED

    def _open(self, path: str, mode: str = "rb", *_: Any, **__: Any) -> io.RawIOBase:
        if mode != "rb":
            msg = f"{path} is read-only"
            raise PermissionError(msg)
        return _Reader(self, self._strip_protocol(path))


class _Reader(io.RawIOBase):
    """An open file. The first read loads its bytes; they stay in memory until it is closed."""

    def __init__(self, files: SegmentFileSystem, path: str) -> None:
        self._files = files
        self._path = path
        self._content: _Content | None = None
        self._position = 0

    def read(self, size: int = -1) -> bytes:
        if self._content is None:
            self._content = self._files.content(self._path)
        data = self._content.data
        limit = len(data) if size is None or size < 0 else self._position + size
        piece = data[self._position : limit]
        self._position += len(piece)
        return piece

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_CUR:
            offset += self._position
        elif whence == io.SEEK_END:
            offset += self._files.size_of(self._path)
        self._position = offset
        return offset

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._content = None
        super().close()
