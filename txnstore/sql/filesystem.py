"""The file system through which DuckDB reads segments and inspection tables; read-only, registered with fsspec.

DuckDB's own S3 reader is an extension that it downloads, and through s3fs it sends 8 to 9 requests for a file. Here the
chain records the size of every object, so a file costs one GET and no LIST, and the bytes are checked against the
checksum in the chain; of a large file only the parts that a query reads are fetched. Requests go through the store's
object store: they are counted and retried, on every storage.

A path is no right: a database reads the files that were added for its views, and no other one, whatever path a query
names. The path of a segment contains its size and its hashes, so that equal paths have equal bytes. DuckDB asks for the
files of a path when it binds a query. For a segment in a local folder the answer is the path of the file there, after
its checksum was compared: DuckDB then reads the file itself. Without external access DuckDB may not open that path, so
it reads the file through this file system, as it does on other storage.

A segment in the Arrow format, which DuckDB cannot read, is converted to Parquet. An inspection table is a Parquet file
that is made when a query first opens it; so are the rows of shared segments (:mod:`txnstore.sql.combined_files`).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.spec import AbstractFileSystem

from txnstore.chain.keys import has_segments, partition_in
from txnstore.core.log.model import Segment
from txnstore.core.model import TopicPartition
from txnstore.errors import CorruptionError, TxnStoreError
from txnstore.read.ranged import RangedObject, footer_of, has_footer, may_read_parts
from txnstore.read.reader import fetch
from txnstore.segment.codec import ROW_GROUP_ROWS, decode
from txnstore.segment.schema import OFFSET_FIELD, PARTITION_FIELD, TIMESTAMP_FIELD
from txnstore.sql.access import PROTOCOL, Access
from txnstore.sql.content import Content, ContentCache
from txnstore.sql.files import OpenFile
from txnstore.sql.local import is_intact, local_root
from txnstore.storage.base import ObjectStore

#: For how many calls of :meth:`SegmentFileSystem.add` a file that is not added again can still be read.
GENERATIONS = 128
#: The columns by whose range DuckDB skips row groups of a virtual file: statistics of all take a quarter of its making.
_SKIPPING = [PARTITION_FIELD.name, OFFSET_FIELD.name, TIMESTAMP_FIELD.name]
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


def segment_path(segment: Segment) -> str:
    """The path below ``txnseg://`` of a segment that is an object of its own: hashes and sizes, and the key.

    Raises:
        CorruptionError: The chain describes a footer or a key that no segment can have.
    """
    footer = ""
    if has_footer(segment):
        size, sha256 = footer_of(segment)
        footer = f"-{sha256}-{size}"
    if not has_segments(segment.key):
        msg = f"{segment.key!r} is not the key of a segment"
        raise CorruptionError(msg)
    return f"{segment.sha256}-{segment.size}{footer}/{segment.key}"


@dataclass(frozen=True, slots=True)
class SegmentObject:
    """A segment of the store as a Parquet file; loading costs one GET and checks the bytes."""

    objects: ObjectStore
    described: Segment

    @property
    def size(self) -> int | None:
        return self.described.size if self.is_parquet else None

    @property
    def is_parquet(self) -> bool:
        """Whether the object is a Parquet file."""
        return self.described.format == "parquet"

    @property
    def _partition(self) -> TopicPartition:
        return partition_in(self.described.key)

    def load(self) -> bytes:
        segment = self.described
        data = fetch(self.objects, self._partition, segment)
        return data if self.is_parquet else parquet_bytes(decode(data, segment.format, key=segment.key))

    def parts(self) -> RangedObject | None:
        """The segment to be read by parts; None if it is read whole."""
        segment = self.described
        return RangedObject(self.objects, self._partition, segment) if may_read_parts(segment) else None


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
    sink = pa.BufferOutputStream()
    options = {"compression": "none", "use_dictionary": False, "write_statistics": _SKIPPING}
    pq.write_table(table, sink, row_group_size=ROW_GROUP_ROWS, **options)
    return bytes(sink.getvalue())


def _copy_without_frames(error: TxnStoreError) -> TxnStoreError:
    """A copy to keep: a traceback has the frames of a query, and these the database, which owns the file system."""
    error_copy = copy(error)
    error_copy.__cause__ = error.__cause__
    return error_copy


class SegmentFileSystem(AbstractFileSystem):  # type: ignore[misc] # fsspec has no types
    """The files of one database, by their path below ``txnseg://``: those that were added. Thread-safe.

    Args:
        access: What the database may read.
        cache: The contents of files that are read through txnstore.

    Attributes:
        access: What the database may read.
        owner: An object that lives as long as the file system, which the database owns.
    """

    protocol = PROTOCOL
    cachable = False

    def __init__(self, objects: ObjectStore, access: Access, cache: ContentCache | None = None) -> None:
        super().__init__()
        self.access = access
        #: The folder of a local store, whose files DuckDB reads itself; None for other storage.
        self._root = local_root(objects)
        self._cache = cache or ContentCache()
        #: The files by their paths, each with the number of the last call of :meth:`add` that had it; those of
        #: :meth:`keep` are of all calls.
        self._files: dict[str, tuple[VirtualFile, float]] = {}
        self._calls = 0
        #: The paths of topics that cannot be shown, with the error that a read of one raises.
        self._refused: dict[str, TxnStoreError] = {}
        #: Its attribute ``active`` is true in a thread that creates views.
        self._planning = threading.local()
        self._damage: TxnStoreError | None = None
        self.owner: object = None

    def add(self, files: Mapping[str, VirtualFile]) -> None:
        """Add files. Those of :data:`GENERATIONS` calls before stay, for queries that still run."""
        self._calls += 1
        self._drop_files_before(self._calls - GENERATIONS + 1)
        self._files.update((path, (file, self._calls)) for path, file in files.items())

    def keep(self, files: Mapping[str, VirtualFile]) -> None:
        """Add files that stay as long as the file system."""
        self._files.update((path, (file, math.inf)) for path, file in files.items() if path not in self._files)

    def forget_earlier(self) -> None:
        """Drop the files that were added before the last call of :meth:`add`: the rules have changed since."""
        self._drop_files_before(self._calls)

    def _drop_files_before(self, call: int) -> None:
        self._files = {path: added for path, added in self._files.items() if added[1] >= call}

    def refuse(self, refused: Iterable[tuple[str, TxnStoreError]]) -> None:
        """Raise an error for each query that reads one of these paths."""
        self._refused.update((path, _copy_without_frames(reason)) for path, reason in refused)

    @contextmanager
    def planning(self) -> Iterator[None]:
        """Check no files in this thread: views are created, and a query that reads them checks their files."""
        self._planning.active = True
        try:
            yield
        finally:
            self._planning.active = False

    def take_damage(self) -> TxnStoreError | None:
        """The last error of the store in a read, of which DuckDB reports only the text; it is kept no longer."""
        damage, self._damage = self._damage, None
        return damage

    @contextmanager
    def _noting_damage(self) -> Iterator[None]:
        """Note why a call of DuckDB failed."""
        try:
            yield
        except TxnStoreError as error:
            self._damage = _copy_without_frames(error)
            raise

    def content(self, path: str) -> Content:
        """Return the bytes of a file; an error of the store is noted."""
        with self._noting_damage():
            return self._cache.get(path, self._file_at(path).load)

    def part(self, path: str, load: Callable[[], bytes]) -> Content:
        """Return the bytes of a part of a file, like :meth:`content`; ``path`` names the part."""
        with self._noting_damage():
            return self._cache.get(path, load)

    def size_of(self, path: str) -> int:
        """Return the size of a file in bytes; loads the file if its size is not known."""
        size = self._file_at(path).size
        return len(self.content(path).data) if size is None else size

    def segments(self) -> list[SegmentObject]:
        """The segments of the last call of :meth:`add`."""
        files = [file for file, call in list(self._files.values()) if call == self._calls]
        return [file for file in files if isinstance(file, SegmentObject)]

    def _segment_at(self, path: str) -> SegmentObject | None:
        file, _ = self._files.get(path, (None, 0))
        return file if isinstance(file, SegmentObject) else None

    def _file_at(self, path: str) -> VirtualFile:
        try:
            return self._files[path][0]
        except KeyError:
            msg = f"{path} is not a file of this connection's snapshot"
            raise FileNotFoundError(msg) from None

    def _path_to_read(self, path: str) -> str | None:
        """The path at which DuckDB reads a file: of a file in a local folder, or the given one. None: there is no file.

        Raises:
            CorruptionError: A segment in a local folder differs from its description in the chain.
        """
        if path in self._refused:
            if not self._is_planning:
                raise _copy_without_frames(self._refused[path])
            return path
        local_path = self._local_file(path)
        if local_path is not None:
            return local_path if self.access.external else path
        return path if path in self._files else None

    @property
    def is_local(self) -> bool:
        """Whether the segments are files in a local folder."""
        return self._root is not None

    @property
    def _is_planning(self) -> bool:
        return getattr(self._planning, "active", False)

    def _local_file(self, path: str) -> str | None:
        """The local file with the bytes of a segment, after a check of its bytes; None if there is none."""
        segment = self._segment_at(path) if self._root is not None else None
        if segment is None or not segment.is_parquet:
            return None
        described = segment.described
        local_path = f"{self._root}/{described.key}"
        if (
            self.access.checksums
            and not self._is_planning
            and not is_intact(local_path, described.sha256, described.size)
        ):
            segment.load()  # Raises the error that says what is wrong, unless the file is right by now.
        return local_path

    # Called by DuckDB -------------------------------------------------------------------------------------------------

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix(f"{PROTOCOL}://")

    def unstrip_protocol(self, name: str) -> str:
        return name if name.startswith("/") else f"{PROTOCOL}://{self._strip_protocol(name)}"

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        name = self._strip_protocol(path)
        return {"name": name, "size": self.size_of(name), "type": "file"}

    def glob(self, path: str, **_: Any) -> list[str]:
        with self._noting_damage():
            located = self._path_to_read(self._strip_protocol(path))
        return [] if located is None else [located]

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

    def _open(self, path: str, mode: str = "rb", *_: Any, **__: Any) -> OpenFile:
        if mode != "rb":
            msg = f"{path} is read-only"
            raise PermissionError(msg)
        name = self._strip_protocol(path)
        segment = self._segment_at(name)
        return OpenFile(self, name, None if segment is None else segment.parts())
