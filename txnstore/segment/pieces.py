"""The bytes of a segment, opened to be read piece by piece: a row group of Parquet, a record batch of Arrow IPC.

A merged segment may be larger than memory once it is decoded; its pieces are not. Decoding a piece is safe in any
thread and keeps to that thread, so that many pieces are decoded at once without a pool below the pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from txnstore.errors import UnsupportedFormatError
from txnstore.segment.schema import OFFSET_FIELD


class SegmentFile(Protocol):
    """A segment that is open: its columns, the rows of each piece, and the pieces."""

    @property
    def columns(self) -> list[str]:
        """The names of the columns that it holds."""
        ...

    @property
    def rows(self) -> list[int]:
        """How many rows each piece has."""
        ...

    def offset_range(self, piece: int) -> tuple[int, int] | None:
        """The smallest and the largest ``_offset`` of a piece where that is known without decoding it."""
        ...

    def read(self, piece: int, columns: Sequence[str]) -> pa.Table:
        """These columns of a piece; names that the segment does not hold are left out."""
        ...


def open_segment(data: bytes, fmt: str) -> SegmentFile:
    """Open the bytes of a segment of format ``parquet`` or ``arrow``.

    Raises an Arrow error if they are no such thing, and :class:`UnsupportedFormatError` for another format.
    """
    if fmt == "parquet":
        return _Parquet(data)
    if fmt == "arrow":
        return _ArrowIpc(data)
    msg = f"segments of format {fmt!r} cannot be read by this txnstore"
    raise UnsupportedFormatError(msg)


class _Parquet:
    def __init__(self, data: bytes) -> None:
        self._data = data
        file = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False)
        self._metadata = file.metadata
        self.columns: list[str] = list(file.schema_arrow.names)
        self.rows = [self._metadata.row_group(number).num_rows for number in range(self._metadata.num_row_groups)]

    def offset_range(self, piece: int) -> tuple[int, int] | None:
        group = self._metadata.row_group(piece)
        for number in range(group.num_columns):
            column = group.column(number)
            if column.path_in_schema == OFFSET_FIELD.name:
                statistics = column.statistics
                if statistics is None or not statistics.has_min_max:
                    return None
                return statistics.min, statistics.max
        return None

    def read(self, piece: int, columns: Sequence[str]) -> pa.Table:
        held = [name for name in columns if name in self.columns]
        # One file object is for one thread at a time; making another costs little, because the footer is known.
        file = pq.ParquetFile(pa.BufferReader(self._data), metadata=self._metadata, pre_buffer=False)
        return file.read_row_group(piece, columns=held, use_threads=False)


class _ArrowIpc:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.columns: list[str] = list(pa.ipc.open_file(pa.BufferReader(data)).schema.names)
        # One column tells the rows; the others may be compressed, and opening is not the time to unpack them.
        file = self._open([0])
        self.rows = [file.get_batch(number).num_rows for number in range(file.num_record_batches)]

    def offset_range(self, piece: int) -> tuple[int, int] | None:
        return None

    def read(self, piece: int, columns: Sequence[str]) -> pa.Table:
        held = [self.columns.index(name) for name in columns if name in self.columns]
        batch = self._open(held or [0]).get_batch(piece)
        table = pa.Table.from_batches([batch])
        return table if held else table.select([])

    def _open(self, fields: list[int]) -> Any:
        options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
        return pa.ipc.open_file(pa.BufferReader(self._data), options=options)
