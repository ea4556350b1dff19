"""A file of which only parts are in memory."""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Mapping


class PartialFile(io.RawIOBase):
    """A read-only file of ``size`` bytes with the bytes of ``parts``, by their place; parts do not overlap.

    A read of other bytes raises ``OSError``.
    """

    def __init__(self, size: int, parts: Mapping[int, bytes]) -> None:
        super().__init__()
        self._size = size
        self._parts = parts
        self._starts = sorted(parts)
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        start = self._position
        end = self._size if size is None or size < 0 else min(self._size, start + size)
        if start >= end:
            return b""
        index = bisect_right(self._starts, start) - 1
        first = self._starts[index] if index >= 0 else self._size
        part = self._parts.get(first, b"")
        if index < 0 or end > first + len(part):
            msg = f"the bytes {start} to {end} were not fetched"
            raise OSError(msg)
        self._position = end
        return part[start - first : end - first]
