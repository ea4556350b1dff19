"""The open files that DuckDB reads through txnstore.

Threads of a query share an open file: each one seeks, and then reads. So each thread has a position of its own.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from typing import Protocol

from txnstore.read.ranged import RangedObject
from txnstore.segment.blocks import BLOCK_BYTES
from txnstore.sql.content import Content


class Contents(Protocol):
    """Where the bytes of files come from."""

    def content(self, path: str) -> Content:
        """The bytes of a file."""
        ...

    def part(self, path: str, load: Callable[[], bytes]) -> Content:
        """The bytes of a part of a file, loaded if they are not kept; ``path`` names the part."""
        ...

    def size_of(self, path: str) -> int:
        """The size of a file in bytes."""
        ...


class OpenFile(io.RawIOBase):
    """A read-only file with a position for each thread; what was read last stays in memory until it is closed.

    Args:
        path: Names the file in ``contents``.
        parts: The parts of a large segment, of which each read fetches what it needs; None: the first read loads the
            whole file.
    """

    def __init__(self, contents: Contents, path: str, parts: RangedObject | None = None) -> None:
        super().__init__()
        self._contents = contents
        self._path = path
        self._parts = parts
        self._positions = threading.local()
        self._known_size: int | None = None
        #: What was read last, and its place in the file.
        self._last_read: tuple[int, Content] | None = None

    @property
    def _size(self) -> int:
        if self._known_size is None:
            self._known_size = self._contents.size_of(self._path)
        return self._known_size

    def read(self, size: int | None = -1) -> bytes:
        start, end = self.tell(), self._size
        if size is not None and size >= 0:
            end = min(end, start + size)
        piece = self._read_range(start, end) if start < end else b""
        self._positions.current = start + len(piece)
        return piece

    def _read_range(self, start: int, end: int) -> bytes:
        last_read = self._last_read
        if last_read is None or not last_read[0] <= start <= end <= last_read[0] + len(last_read[1].data):
            last_read = self._last_read = self._part(start, end)
        first, content = last_read
        return content.data[start - first : end - first]

    def _part(self, start: int, end: int) -> tuple[int, Content]:
        """What holds the bytes ``[start, end)``, with its place: blocks, the footer, or the whole file."""
        parts = self._parts
        if parts is None:
            return 0, self._contents.content(self._path)
        if start >= parts.footer_start:
            return parts.footer_start, self._contents.part(f"{self._path}#footer", lambda: parts.footer().data)
        if end > parts.footer_start:  # DuckDB opens a file with its last 16 KiB.
            first = start // BLOCK_BYTES * BLOCK_BYTES
            return first, self._contents.part(f"{self._path}#{first}-", lambda: parts.tail(first))
        first, limit = parts.around(start, end)
        return first, self._contents.part(f"{self._path}#{first}-{limit}", lambda: parts.fetch([(first, limit)])[first])

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_CUR:
            offset += self.tell()
        elif whence == io.SEEK_END:
            offset += self._size
        self._positions.current = offset
        return offset

    def tell(self) -> int:
        position: int = getattr(self._positions, "current", 0)
        return position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        self._last_read = None
        super().close()
