"""How a merge or a clean divides its memory limit."""

from __future__ import annotations

from dataclasses import dataclass

from txnstore.segment import codec

#: The least memory in bytes with which a clean runs, and the default.
MIN_MEMORY, DEFAULT_MEMORY = 128 << 20, 1 << 30
#: The most bytes of the rows of a row group: a reader of a few rows decodes a whole one, a gateway keeps it encoded.
_ROW_GROUP_BYTES = 16 << 20
#: Below this limit, in bytes, a clean decodes and hashes in its own thread, and DuckDB has one thread: each thread more
#: has rows of its own in memory, and an allocator that keeps what it has freed.
_FEW_THREADS_BELOW = DEFAULT_MEMORY


@dataclass(frozen=True, slots=True)
class Memory:
    """The shares of the parts of a merge or a clean.

    Attributes:
        limit: The memory of all of them in bytes.
    """

    limit: int = DEFAULT_MEMORY

    @property
    def keys(self) -> int:
        """The memory of DuckDB, which finds the newest record of each key, and spills what does not fit."""
        return self.limit // 2

    @property
    def fetched(self) -> int:
        """The bytes that are fetched ahead."""
        return self.limit // 16

    @property
    def rows(self) -> int:
        """The bytes of the rows that are filtered, hashed and encoded at a time: those of a new row group, too."""
        return min(_ROW_GROUP_BYTES, codec.ROW_GROUP_BYTES, self.limit // 16)

    @property
    def few_threads(self) -> bool:
        """Whether less memory counts more than less time."""
        return self.limit < _FEW_THREADS_BELOW
