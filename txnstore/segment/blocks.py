"""Checksums of the blocks of a large segment: a part of it can be read and checked without the rest.

The metadata in the footer of a large Parquet file holds a CRC-32 for each block of the bytes before the footer, and the
chain records the size and the SHA-256 of the footer. So every byte that a reader fetches is checked, whatever part of
the file it needs. See docs/format.md.
"""

from __future__ import annotations

import base64
import json
import zlib
from array import array
from dataclasses import dataclass
from sys import byteorder

#: Segments at least this large, in bytes before the footer, have block checksums.
BLOCKS_FROM_BYTES = 1 << 20
#: The size of a block in bytes: a column of a row group is a few of them.
BLOCK_BYTES = 128 << 10
#: The key of the checksums in the footer's metadata.
BLOCKS_KEY = b"txnstore.blocks"


class BlockSums:
    """Computes the checksums of bytes that are written in order."""

    def __init__(self) -> None:
        self._sums = array("I")
        self._current = 0
        self._filled = 0

    def update(self, data: bytes | memoryview) -> None:
        """Add the next bytes."""
        view = memoryview(data)
        while view:
            piece = view[: BLOCK_BYTES - self._filled]
            self._current = zlib.crc32(piece, self._current)
            self._filled += len(piece)
            view = view[len(piece) :]
            if self._filled == BLOCK_BYTES:
                self._sums.append(self._current)
                self._current = self._filled = 0

    def to_text(self) -> str:
        """Return the checksums of all bytes so far, as the footer stores them."""
        sums = array("I", self._sums)
        if self._filled:
            sums.append(self._current)
        if byteorder == "big":
            sums.byteswap()
        return json.dumps({"size": BLOCK_BYTES, "crc32": base64.b64encode(sums.tobytes()).decode()})


@dataclass(frozen=True, slots=True)
class Blocks:
    """The checksums of the bytes before a footer.

    Attributes:
        size: The size of a block in bytes; the last one may be shorter.
        limit: The number of bytes that have checksums.
        sums: The CRC-32 of each block.
    """

    size: int
    limit: int
    sums: array[int]

    @classmethod
    def from_text(cls, text: bytes, limit: int) -> Blocks:
        """Read the checksums of ``limit`` bytes.

        Raises:
            ValueError: The text is not that of :meth:`BlockSums.to_text`, or it is of another number of bytes.
        """
        try:
            document = json.loads(text)
            size = document["size"]
            sums = array("I", base64.b64decode(document["crc32"], validate=True))
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            msg = f"the checksums of its blocks cannot be read: {error!r}"
            raise ValueError(msg) from error
        if byteorder == "big":
            sums.byteswap()
        if not isinstance(size, int) or size < 1 or len(sums) != -(-limit // size):
            msg = f"it has {len(sums)} checksums of blocks of {size} bytes for {limit} bytes"
            raise ValueError(msg)
        return cls(size, limit, sums)

    def around(self, start: int, end: int) -> tuple[int, int]:
        """Return the bounds of the blocks that hold the bytes ``[start, end)``."""
        return start // self.size * self.size, min(self.limit, -(-end // self.size) * self.size)

    def find_damage(self, start: int, data: bytes | memoryview) -> tuple[int, int] | None:
        """Return the range of the first block whose bytes do not have its checksum; None if all have.

        Args:
            start: The place of ``data``, which begins and ends with a block.
        """
        view = memoryview(data)
        for offset in range(0, len(view), self.size):
            block = view[offset : offset + self.size]
            if zlib.crc32(block) != self.sums[(start + offset) // self.size]:
                return start + offset, start + offset + len(block)
        return None
