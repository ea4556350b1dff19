"""Encodes Arrow tables as segments, and decodes segments.

There are two formats of objects: ``parquet``, which all engines read, and ``arrow`` (the Arrow IPC *file* format),
which is the fastest to write and read. A segment in an entry is an Arrow IPC *stream*: ``arrow_stream``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.types as pt

from txnstore.core.log.model import Segment
from txnstore.errors import CorruptionError, InvalidConfigError, StorageRefusedError
from txnstore.segment.blocks import BLOCKS_FROM_BYTES, BLOCKS_KEY
from txnstore.segment.parquet import ZSTD_LEVEL, parquet_writer
from txnstore.segment.pieces import open_segment
from txnstore.segment.sink import SegmentSink

#: The compressions of each format: our names and those of pyarrow.
COMPRESSIONS: dict[str, dict[str, str | None]] = {
    "parquet": {"zstd": "zstd", "lz4": "lz4", "snappy": "snappy", "gzip": "gzip", "none": None},
    "arrow": {"zstd": "zstd", "lz4": "lz4", "none": None},
}
#: Rows per row group (Parquet) or record batch (Arrow).
ROW_GROUP_ROWS = 128 * 1024
#: The maximum size of a row group in bytes before compression.
ROW_GROUP_BYTES = 64 << 20

#: The least size in bytes of a row group that ends where a part ends: a smaller one costs more to write than to skip.
#: Of 128 KiB each, row groups take twice the time to write.
_PART_BYTES = 256 << 10

#: The bytes of the last offset of a column, which :attr:`pyarrow.ChunkedArray.nbytes` leaves out.
_LAST_OFFSET = {pa.binary(): 4, pa.string(): 4, pa.large_binary(): 8, pa.large_string(): 8}

#: The exceptions that pyarrow raises for damaged bytes.
_DAMAGE = (pa.ArrowException, OSError, ValueError, KeyError, IndexError)


@dataclass(frozen=True, slots=True)
class EncodedSegment:
    """The bytes of a segment with the metadata that the chain records.

    Attributes:
        data: The bytes of the object: ``bytes`` of a small segment, a ``memoryview`` of a larger one, and an ``mmap``
            of a temporary file if they are many.
        format: ``"parquet"``, ``"arrow"`` or ``"arrow_stream"``.
        rows: The number of rows.
        sha256: The hex SHA-256 of ``data``.
        footer_size: The size of the footer in bytes, if it holds block checksums; else None.
        footer_sha256: The hex SHA-256 of that footer.
    """

    data: Any = field(repr=False)
    format: str
    rows: int
    sha256: str
    footer_size: int | None = None
    footer_sha256: str | None = None

    @property
    def size(self) -> int:
        """The number of bytes."""
        return len(self.data)

    def segment(self, key: str, explicit_offsets: bool = False) -> Segment:
        """Describe this segment for the chain, stored under ``key``."""
        footer = self.footer_size, self.footer_sha256
        return Segment(key, self.format, self.size, self.sha256, self.rows, explicit_offsets, *footer)


def check_format(fmt: str, compression: str) -> None:
    """Raise :class:`InvalidConfigError` for an unknown format, or a compression that the format does not support."""
    if fmt not in COMPRESSIONS:
        raise InvalidConfigError(f"segment.format {fmt!r} is not one of {', '.join(COMPRESSIONS)}")
    if compression not in COMPRESSIONS[fmt]:
        names = ", ".join(COMPRESSIONS[fmt])
        raise InvalidConfigError(f"compression.type {compression!r} does not go with {fmt}; {fmt} supports {names}")


def min_row_groups(rows: int, size: int) -> int:
    """Return the least number of row groups for this number of rows, which take ``size`` bytes."""
    return max(1, -(-rows // ROW_GROUP_ROWS), -(-size // ROW_GROUP_BYTES))


def encode_stream(table: pa.Table) -> EncodedSegment:
    """Encode a small table as an Arrow IPC stream without compression.

    It has its schema (some 400 bytes), so that it can be read alone. Compression takes 15 times as long.
    """
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        for batch in _own_rows(table).to_batches():
            writer.write_batch(batch)
    data = sink.getvalue().to_pybytes()
    return EncodedSegment(data, "arrow_stream", table.num_rows, hashlib.sha256(data).hexdigest())


def encode(
    table: pa.Table,
    fmt: str = "parquet",
    compression: str = "zstd",
    row_group_rows: int = ROW_GROUP_ROWS,
    *,
    parts: Sequence[int] = (),
) -> EncodedSegment:
    """Encode the table as one segment.

    Args:
        table: The rows.
        fmt: ``"parquet"`` or ``"arrow"``.
        compression: A key of :data:`COMPRESSIONS` for this format.
        row_group_rows: The maximum number of rows per row group.
        parts: The numbers of rows of parts that are read alone: a row group ends where a part ends, if it has about
            256 KiB, so that a reader of one decodes little more.

    Raises:
        InvalidConfigError: The format or compression is unknown.
    """
    with SegmentWriter(table.schema, fmt, compression, row_group_rows) as writer:
        min_part_rows = _PART_BYTES * table.num_rows // max(1, table.nbytes) if len(parts) > 1 else table.num_rows
        first = end = 0
        for rows in parts:
            end += rows
            if end - first > min_part_rows:
                writer.append(table.slice(first, end - first))
                writer.end_row_group()
                first = end
        writer.append(table.slice(first))
        return writer.finish()


def decode(
    data: Any,
    fmt: str,
    columns: Sequence[str] | None = None,
    first_row: int = 0,
    rows: int | None = None,
    key: str = "",
) -> pa.Table:
    """Decode the rows ``[first_row, first_row + rows)`` of a segment; by default all.

    Args:
        data: Bytes, or an Arrow buffer such as a memory-mapped file.
        fmt: ``"parquet"``, ``"arrow"`` or ``"arrow_stream"``.
        columns: The columns to read, in this order; None for all. Columns that the segment does not have are left out,
            because the topic may have gained them later.
        first_row: The first row, from 0.
        rows: The number of rows; None for all up to the end.
        key: The key of the segment, for messages.

    Raises:
        CorruptionError: The bytes cannot be read, or the segment has too few rows.
    """
    pieces = list(decode_pieces(data, fmt, columns, first_row, rows, key))
    if pieces[0].num_columns == 0:
        # A table without columns has no number of rows: it comes from a column that is dropped again.
        return pa.table({"row": pa.nulls(sum(piece.num_rows for piece in pieces))}).select([])
    return pieces[0] if len(pieces) == 1 else pa.concat_tables(pieces)


def decode_pieces(
    data: Any,
    fmt: str,
    columns: Sequence[str] | None = None,
    first_row: int = 0,
    rows: int | None = None,
    key: str = "",
) -> Iterator[pa.Table]:
    """Decode as :func:`decode`, but yield a table per row group, at least one, so that one is in memory."""
    try:
        file = open_segment(data, fmt)
        if columns is None:
            selected = order = list(file.columns)
        else:
            selected = [name for name in file.columns if name in columns]  # A file is read in its own order.
            order = [name for name in columns if name in selected]
        total = sum(file.rows)
        limit = total if rows is None else first_row + rows
        if total < limit:
            msg = f"{key or 'a segment'} has {total} rows; expected at least {limit}"
            raise CorruptionError(msg)
        pieces = list(_pieces_of_range(file.rows, first_row, limit))
        if not pieces:
            pieces = [(0, 0, 0)]  # An empty table has the types of the columns.
        for number, start, end in pieces:
            yield file.read(number, selected).select(order).slice(start, end - start)
    except _DAMAGE as error:
        raise _corruption_error(key, fmt, error) from error


def _pieces_of_range(piece_rows: Sequence[int], first: int, limit: int) -> Iterator[tuple[int, int, int]]:
    """Return the pieces that have rows of ``[first, limit)``: the number of each, and the range of its rows in it."""
    piece_first = 0
    for number, count in enumerate(piece_rows):
        piece_limit = piece_first + count
        if piece_first < limit and piece_limit > first:
            yield number, max(first - piece_first, 0), min(limit - piece_first, count)
        piece_first = piece_limit


class SegmentWriter:
    """Writes one segment incrementally; keeps one row group and up to 32 MiB of encoded bytes in memory.

    The encoded bytes of a larger segment are in a file in the temporary folder of the system.

    Use it as a context manager, or call :meth:`finish` or :meth:`close` at the end.

    Args:
        schema: The schema of the segment.
        fmt: ``"parquet"`` or ``"arrow"``.
        compression: A key of :data:`COMPRESSIONS` for this format.
        row_group_rows: The maximum number of rows per row group.
        row_group_bytes: The maximum size of a row group in bytes before compression, and of the encoded bytes that are
            not in a file; None: :data:`ROW_GROUP_BYTES`, and 32 MiB.
        for_table: Iceberg tables may use it; see :func:`txnstore.segment.parquet.parquet_writer`.
    """

    def __init__(
        self,
        schema: pa.Schema,
        fmt: str = "parquet",
        compression: str = "zstd",
        row_group_rows: int = ROW_GROUP_ROWS,
        row_group_bytes: int | None = None,
        *,
        for_table: bool = False,
    ) -> None:
        check_format(fmt, compression)
        self._schema = schema
        self._format = fmt
        self._compression = COMPRESSIONS[fmt][compression]
        self._row_group_rows = row_group_rows
        self._for_table = for_table
        self._row_group_bytes = row_group_bytes if row_group_bytes is not None else ROW_GROUP_BYTES
        self._memory = row_group_bytes
        self._sink: Any = None
        self._size = 0
        self._writer: Any = None
        self._closed = False
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._pending_bytes = 0
        self.rows = 0

    @property
    def size(self) -> int:
        """The bytes written so far, without the rows of the incomplete row group."""
        return self._size if self._sink is None or self._sink.closed else int(self._sink.tell())

    def append(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Add rows. Raises ``ValueError`` if their schema is not that of the writer."""
        table = pa.table(rows) if isinstance(rows, pa.RecordBatch) else rows
        if table.schema != self._schema:
            raise ValueError(f"rows of schema {table.schema}; the segment has {self._schema}")
        self._pending.append(table)
        self._pending_rows += table.num_rows
        self._pending_bytes += table.nbytes
        self.rows += table.num_rows
        if self._pending_rows >= self._group_rows():
            self._write_pending(whole_groups=True)

    def end_row_group(self, min_bytes: int = 0) -> None:
        """End the row group, or record batch, here, if its rows have ``min_bytes``: the next ones begin another."""
        if self._pending_rows and self._pending_bytes >= min_bytes:
            self._write_pending(whole_groups=False, is_end=False)

    def finish(self) -> EncodedSegment:
        """Close the segment and return its bytes."""
        if self._closed:
            raise ValueError("the segment is closed")
        if self._pending_rows or self._writer is None:
            self._write_pending(whole_groups=False)
        encoded = self._finish_sink() if isinstance(self._sink, SegmentSink) else self._finish_buffer()
        self._size = encoded.size
        return encoded

    def _finish_buffer(self) -> EncodedSegment:
        self._writer.close()
        data = self._sink.getvalue().to_pybytes()
        return EncodedSegment(data, self._format, self.rows, hashlib.sha256(data).hexdigest())

    def _finish_sink(self) -> EncodedSegment:
        """End what was not small enough for one write; a large Parquet file gets the checksums of its blocks."""
        sink, footer_start = self._sink, self._sink.tell()
        has_blocks = self._format == "parquet" and footer_start >= BLOCKS_FROM_BYTES
        if has_blocks:
            self._writer.add_key_value_metadata({BLOCKS_KEY: sink.blocks.to_text()})
        self._writer.close()
        data, sha256 = sink.content(), sink.sha256.hexdigest()
        if not has_blocks:
            return EncodedSegment(data, self._format, self.rows, sha256)
        footer = data[footer_start:]
        return EncodedSegment(data, self._format, self.rows, sha256, len(footer), hashlib.sha256(footer).hexdigest())

    def close(self) -> None:
        """Discard the segment unless it is finished."""
        self._closed = True
        self._pending.clear()
        if self._writer is not None:
            # Close the writer before the sink: the writer writes a footer when it is collected.
            with suppress(*_DAMAGE, StorageRefusedError):
                self._writer.close()
            self._sink.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _group_rows(self) -> int:
        """Return the number of rows of the next row group."""
        if self._pending_bytes <= self._row_group_bytes:
            return self._row_group_rows
        return max(1, min(self._row_group_rows, self._row_group_bytes * self._pending_rows // self._pending_bytes))

    def _write_pending(self, whole_groups: bool, *, is_end: bool = True) -> None:
        """Write the pending rows; with ``whole_groups``, keep those that do not fill a row group.

        ``is_end``: no more rows follow, if none are kept.
        """
        group_rows = self._group_rows()
        tables = self._pending or [self._schema.empty_table()]
        table = tables[0] if len(tables) == 1 else pa.concat_tables(tables)
        kept_rows = table.num_rows % group_rows if whole_groups else 0
        self._pending = [table.slice(table.num_rows - kept_rows)] if kept_rows else []
        self._pending_rows = kept_rows
        self._pending_bytes = self._pending[0].nbytes if kept_rows else 0
        if kept_rows:
            table = table.slice(0, table.num_rows - kept_rows)
        if self._writer is None:
            # A segment that is written whole, and is small, needs no file and no checksums of blocks.
            is_small = is_end and not whole_groups and table.nbytes < BLOCKS_FROM_BYTES
            self._sink = pa.BufferOutputStream() if is_small else SegmentSink(self._memory)
            self._writer = self._open_writer(table, is_small)
        if self._format == "parquet":
            self._writer.write_table(table, row_group_size=group_rows)
        else:
            self._write_batches(table, group_rows)

    def _write_batches(self, table: pa.Table, rows: int) -> None:
        """Write the rows as record batches; at least one, so that a segment without rows has its columns."""
        for start in range(0, max(1, table.num_rows), rows):
            group = _own_rows(table.slice(start, rows))
            for batch in group.to_batches() or [pa.RecordBatch.from_pylist([], self._schema)]:
                self._writer.write_batch(batch)

    def _open_writer(self, first_rows: pa.Table, is_small: bool) -> Any:
        codec = self._compression
        if self._format == "arrow":
            level = ZSTD_LEVEL if codec == "zstd" else None
            options = pa.ipc.IpcWriteOptions(compression=pa.Codec(codec, level) if codec else None)
            return pa.ipc.new_file(self._sink, self._schema, options=options)
        return parquet_writer(self._sink, self._schema, first_rows, codec, small=is_small, for_table=self._for_table)


def _own_rows(table: pa.Table) -> pa.Table:
    """The rows in one chunk per column, in buffers without bytes of other rows.

    Arrow IPC writes the buffers of a slice with up to 63 bytes of its neighbours, which may be rows of other topics.
    """
    table = table.combine_chunks()
    for index, column in enumerate(table.columns):
        has_spare_bytes = column.get_total_buffer_size() > column.nbytes + _LAST_OFFSET.get(column.type, 0)
        if has_spare_bytes or _may_hide_spare_bytes(column):
            table = table.set_column(index, table.schema.field(index), _own_values(column))
    return table


def _may_hide_spare_bytes(column: pa.ChunkedArray) -> bool:
    """Whether sizes do not show them: the last byte may have spare bits, and two fields may share a buffer."""
    if pt.is_list(column.type) and column.null_count == len(column):  # As the headers of most records.
        return any(len(chunk.values) for chunk in column.chunks)
    return bool(pt.is_boolean(column.type) or pt.is_nested(column.type))


def _own_values(column: pa.ChunkedArray) -> pa.Array:
    if column.null_count == len(column):  # Those of a nested type may have hidden values.
        return pa.nulls(len(column), column.type)
    return pa.concat_arrays([*column.chunks, pa.array([], column.type)])


def check_size(key: str, length: int, size: int) -> None:
    """Raise :class:`CorruptionError` if an object has not the ``size`` in bytes that the chain recorded."""
    if length < size:
        raise CorruptionError(f"{key} is truncated: it has {length:,} bytes; expected {size:,}")
    if length > size:
        raise CorruptionError(f"{key} is too long: it has {length:,} bytes; expected {size:,}")


def verify_checksum(key: str, data: Any, sha256: str, size: int) -> None:
    """Raise :class:`CorruptionError` if the bytes differ from the size and hash that the chain recorded."""
    check_size(key, len(data), size)
    digest = hashlib.sha256(data).hexdigest()
    if digest != sha256:
        raise CorruptionError(f"{key} was altered: its SHA-256 is {digest}; expected {sha256}")


def _corruption_error(key: str, fmt: str, error: Exception) -> CorruptionError:
    return CorruptionError(f"{key or 'a segment'} cannot be read as {fmt}: {error}")
