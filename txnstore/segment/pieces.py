"""Reads a segment piece by piece; a piece is a row group (Parquet) or a record batch (Arrow IPC).

A decoded segment may be larger than memory; a piece is not. Each piece is decoded in the calling thread only, so that
the caller's thread pool controls the concurrency.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from txnstore.errors import UnsupportedFormatError
from txnstore.segment.schema import OFFSET_FIELD


class SegmentFile(Protocol):
    """An open segment. Thread-safe."""

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        ...

    @property
    def rows(self) -> list[int]:
        """The number of rows of each piece."""
        ...

    def offset_range(self, piece: int) -> tuple[int, int] | None:
        """Return the smallest and the largest ``_offset`` of a piece; None if only decoding could find them."""
        ...

    def read(self, piece: int, columns: Sequence[str]) -> pa.Table:
        """Decode these columns of a piece; ignores names that the segment does not have."""
        ...


def open_segment(data: bytes, fmt: str) -> SegmentFile:
    """Open the bytes of a segment.

    Args:
        data: The bytes, or an Arrow buffer.
        fmt: ``"parquet"``, ``"arrow"`` or ``"arrow_stream"``.

    Raises:
        UnsupportedFormatError: Another format.
        pyarrow.ArrowException: The bytes are not of this format.
    """
    if fmt == "parquet":
        return ParquetSegment(data)
    if fmt == "arrow":
        return _ArrowIpc(data)
    if fmt == "arrow_stream":  # Small, and not compressed.
        return DecodedSegment(pa.ipc.open_stream(pa.py_buffer(data)).read_all())
    msg = f"this txnstore cannot read segments of format {fmt!r}; it reads parquet, arrow and arrow_stream"
    raise UnsupportedFormatError(msg)


class ParquetSegment:
    """A Parquet file; a piece is a row group.

    Args:
        data: The bytes, or an Arrow buffer.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        file = pq.ParquetFile(pa.BufferReader(data), pre_buffer=False)
        self.footer = ParquetFooter(file)
        self.columns, self.rows = self.footer.columns, self.footer.rows
        # A ParquetFile is not thread-safe: a read takes one that no other read uses, or opens another.
        self._free_files = [file]

    def offset_range(self, piece: int) -> tuple[int, int] | None:
        """Return the smallest and the largest ``_offset`` of a row group, by its statistics."""
        return self.footer.offset_range(piece)

    def read(self, piece: int, columns: Sequence[str]) -> pa.Table:
        """Decode these columns of a row group; ignores names that the segment does not have."""
        try:
            file = self._free_files.pop()
        except IndexError:
            file = self.footer.open(pa.BufferReader(self._data))
        table = self.footer.read(file, piece, columns)
        self._free_files.append(file)
        return table


class ParquetFooter:
    """The footer of a Parquet file.

    Args:
        file: The open file, of which only the footer has been read.

    Attributes:
        columns: The names of the columns.
        rows: The number of rows of each row group.
        metadata: The file's own metadata.
    """

    def __init__(self, file: pq.ParquetFile) -> None:
        self._metadata = file.metadata
        self.metadata: Mapping[bytes, bytes] = file.metadata.metadata or {}
        self.columns: list[str] = list(file.schema_arrow.names)
        self.rows = [self._metadata.row_group(number).num_rows for number in range(self._metadata.num_row_groups)]

    def offset_range(self, piece: int) -> tuple[int, int] | None:
        """Return the smallest and the largest ``_offset`` of a row group, by its statistics."""
        group = self._metadata.row_group(piece)
        for number in range(group.num_columns):
            column = group.column(number)
            if column.path_in_schema == OFFSET_FIELD.name:
                statistics = column.statistics
                if statistics is None or not statistics.has_min_max or not isinstance(statistics.min, int):
                    return None
                return statistics.min, statistics.max
        return None

    def byte_ranges(self, piece: int, columns: Sequence[str]) -> list[tuple[int, int]]:
        """Return the first byte and the end of each of these columns in a row group, in file order."""
        group = self._metadata.row_group(piece)
        ranges = []
        for number in range(group.num_columns):
            column = group.column(number)
            # A nested column is stored as several, whose paths begin with its name; a name may contain dots itself.
            if any(column.path_in_schema == name or column.path_in_schema.startswith(f"{name}.") for name in columns):
                first = min(column.data_page_offset, column.dictionary_page_offset or column.data_page_offset)
                ranges.append((first, first + column.total_compressed_size))
        return sorted(ranges)

    def open(self, source: Any) -> pq.ParquetFile:
        """Open a file with the bytes that will be read; cheap, because the footer is already parsed."""
        return pq.ParquetFile(source, metadata=self._metadata, pre_buffer=False)

    def read(self, file: pq.ParquetFile, piece: int, columns: Sequence[str]) -> pa.Table:
        """Decode these columns of a row group; ignores names that the file does not have."""
        known_names = [name for name in columns if name in self.columns]
        # Looking the columns up takes a tenth of the time of a small segment.
        is_all = len(known_names) == len(self.columns)
        return file.read_row_group(piece, columns=None if is_all else known_names, use_threads=False)


class DecodedSegment:
    """A small segment whose rows are in memory, as one piece.

    Args:
        table: Its rows.
    """

    def __init__(self, table: pa.Table) -> None:
        self.table = table
        self.columns: list[str] = table.column_names
        self.rows = [table.num_rows]

    def offset_range(self, piece: int) -> tuple[int, int] | None:
        """Return None: the rows have their offsets."""
        return None

    def read(self, piece: int, columns: Sequence[str]) -> pa.Table:
        """Return these columns; ignores names that the segment does not have."""
        if columns == self.columns:
            return self.table
        return self.table.select([name for name in columns if name in self.columns])


class _ArrowIpc:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.columns: list[str] = list(pa.ipc.open_file(pa.BufferReader(data)).schema.names)
        # The first column gives the numbers of rows without decompressing the others.
        file = self._open([0])
        self.rows = [file.get_batch(number).num_rows for number in range(file.num_record_batches)]

    def offset_range(self, piece: int) -> tuple[int, int] | None:
        return None

    def read(self, piece: int, columns: Sequence[str]) -> pa.Table:
        fields = [self.columns.index(name) for name in columns if name in self.columns]
        batch = self._open(fields or [0]).get_batch(piece)
        table = pa.Table.from_batches([batch])
        return table if fields else table.select([])

    def _open(self, fields: list[int]) -> Any:
        options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
        return pa.ipc.open_file(pa.BufferReader(self._data), options=options)
