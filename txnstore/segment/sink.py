"""Keeps the bytes of a segment while it is written: in memory, and from a size on in a temporary file.

The memory is mapped, not allocated: what the C library allocates for some MB it keeps, once for each thread that wrote.
"""

from __future__ import annotations

import hashlib
import io
import mmap
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from txnstore.errors import NoSpaceError
from txnstore.segment.blocks import BlockSums

#: More bytes than this are in a file.
MEMORY_BYTES = 32 << 20


class SegmentSink(io.RawIOBase):
    """A file to write; computes the hash of its bytes and the checksums of its blocks.

    Writing, and :meth:`content`, raise :class:`~txnstore.errors.NoSpaceError` if there is no space left.

    Args:
        memory: More bytes than this are in a file, if it is less than :data:`MEMORY_BYTES`.

    Attributes:
        blocks: The checksums of the blocks written so far.
        sha256: The hash of the bytes written so far.
    """

    def __init__(self, memory: int | None = None) -> None:
        super().__init__()
        self._max_memory = MEMORY_BYTES if memory is None else min(memory, MEMORY_BYTES)
        self._buffer: mmap.mmap | None = None
        self._file: Any = None
        self._size = 0
        self.blocks = BlockSums()
        self.sha256 = hashlib.sha256()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Keep bytes in memory, beyond its bound in a file, and add them to the hash and the blocks."""
        if self.closed:
            raise ValueError("write to a closed segment")
        view = memoryview(data)
        if self._file is None and self._size + len(view) > self._max_memory:
            self._move_to_file()
        if self._file is None:
            if self._buffer is None:  # Its pages take memory when they are written.
                self._buffer = mmap.mmap(-1, max(1, self._max_memory), flags=mmap.MAP_PRIVATE)
            self._buffer[self._size : self._size + len(view)] = view
        else:
            with _report_full_disk():
                self._file.write(view)
        self.blocks.update(view)
        self.sha256.update(view)
        self._size += len(view)
        return len(view)

    def _move_to_file(self) -> None:
        with _report_full_disk():
            self._file = tempfile.TemporaryFile(prefix="txnstore-segment-")  # noqa: SIM115 - closed with the sink
            self._file.write(self._written())
        self._buffer = None

    def _written(self) -> memoryview:
        """The bytes in memory."""
        return memoryview(b"" if self._buffer is None else self._buffer)[: self._size].toreadonly()

    def tell(self) -> int:
        return self._size

    def content(self) -> memoryview | mmap.mmap:
        """Return all bytes, without a copy: a mapped file if they are in a file. Valid after the sink is closed."""
        if self._file is None:
            return self._written()
        with _report_full_disk():
            self._file.flush()
            return mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)

    def close(self) -> None:
        if self._file is not None and not self.closed:
            with suppress(OSError):  # It writes what is buffered, which may find no space; the file is discarded.
                self._file.close()
        self._buffer = None
        super().close()


@contextmanager
def _report_full_disk() -> Iterator[None]:
    """Name the folder in the error if there is no space."""
    try:
        yield
    except OSError as error:
        folder = tempfile.tempdir or "of the system"  # None if there is none that can be written to.
        msg = (
            f"a segment cannot be written to the temporary folder {folder}: {error}. Free space, or set TMPDIR to "
            "another folder"
        )
        raise NoSpaceError(msg) from error
