"""Arrow tables as the bytes of a segment, and back.

Two formats: ``parquet``, which everything reads, and ``arrow`` (the Arrow IPC *file* format), which costs least to
write and to read. How Parquet is written was measured: zstd at level 1; integers and times as deltas (an ``_offset``
column takes almost nothing); a dictionary only where a sample of the values repeats; statistics but for long values.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from txnstore.core.model import Segment
from txnstore.errors import CorruptionError, InvalidConfigError
from txnstore.segment.pieces import open_segment

#: The compressions of each format under our names, and what pyarrow calls them.
COMPRESSIONS: dict[str, dict[str, str | None]] = {
    "parquet": {"zstd": "zstd", "lz4": "lz4", "snappy": "snappy", "gzip": "gzip", "none": None},
    "arrow": {"zstd": "zstd", "lz4": "lz4", "none": None},
}
#: Rows of a row group (of a record batch in an Arrow file).
ROW_GROUP_ROWS = 128 * 1024

#: A row group of wide rows is closed at this size, in bytes before compression.
_ROW_GROUP_BYTES = 64 << 20
#: What zstd level 1 leaves, higher levels do not pay for (field measurements).
_ZSTD_LEVEL = 1
#: Values longer than this on average get neither statistics nor a dictionary.
_SHORT = 64
#: Tables with fewer rows get no dictionary: it costs more time than it saves bytes.
_DICTIONARY_ROWS = 1000
#: Values looked at to see whether a column repeats itself.
_SAMPLE = 8192
#: What pyarrow raises for bytes that are not what they should be.
_DAMAGE = (pa.ArrowException, OSError, ValueError, KeyError, IndexError)


@dataclass(frozen=True, slots=True)
class EncodedSegment:
    """The bytes of a segment with what the chain records of them; ``sha256`` is the hex digest of all bytes."""

    data: bytes = field(repr=False)
    format: str
    rows: int
    sha256: str

    @property
    def size(self) -> int:
        """The number of bytes."""
        return len(self.data)

    def segment(self, key: str, explicit_offsets: bool = False) -> Segment:
        """The segment as the chain knows it, once its bytes are stored under ``key``."""
        return Segment(key, self.format, self.size, self.sha256, self.rows, explicit_offsets)


def check_format(fmt: str, compression: str) -> None:
    """Refuse a format or a compression that no segment can have with an :class:`InvalidConfigError`."""
    if fmt not in COMPRESSIONS:
        raise InvalidConfigError(f"segment.format {fmt!r} is not one of {', '.join(COMPRESSIONS)}")
    if compression not in COMPRESSIONS[fmt]:
        known = ", ".join(COMPRESSIONS[fmt])
        raise InvalidConfigError(f"compression.type {compression!r} does not go with {fmt}, which knows: {known}")


def encode(
    table: pa.Table,
    fmt: str = "parquet",
    compression: str = "zstd",
    row_group_rows: int = ROW_GROUP_ROWS,
) -> EncodedSegment:
    """The whole table as one segment."""
    with SegmentWriter(table.schema, fmt, compression, row_group_rows) as writer:
        writer.append(table)
        return writer.finish()


def decode(
    data: Any,
    fmt: str,
    columns: Sequence[str] | None = None,
    first_row: int = 0,
    rows: int | None = None,
    key: str = "",
) -> pa.Table:
    """The rows ``[first_row, first_row + rows)`` of a segment; all by default.

    ``data``: bytes or an Arrow buffer (a memory-mapped file). ``columns``: only these, in this order; a column that
    the segment does not have is left out, because it may be younger than the segment. Bytes that cannot be read, or
    too few rows, are a :class:`CorruptionError` that names ``key``.
    """
    pieces = list(decode_pieces(data, fmt, columns, first_row, rows, key))
    if pieces[0].num_columns == 0:
        # Columns that are not there cannot tell how many rows they have.
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
    """What :func:`decode` gives, piece by piece, so that one row group is in memory at a time; at least one table."""
    try:
        file = open_segment(data, fmt)
        wanted = [name for name in file.columns if columns is None or name in columns]
        order = wanted if columns is None else [name for name in columns if name in wanted]
        limit = sum(file.rows) if rows is None else first_row + rows
        if sum(file.rows) < limit:
            msg = f"{key or 'a segment'} holds {sum(file.rows)} rows; expected at least {limit}"
            raise CorruptionError(msg)
        pieces = [
            (number, max(0, first_row - at), min(count, limit - at))
            for number, (at, count) in enumerate(zip(_starts(file.rows), file.rows, strict=True))
            if at < limit and at + count > first_row
        ]
        for number, start, end in pieces or [(0, 0, 0)]:
            yield file.read(number, wanted).select(order).slice(start, end - start)
    except _DAMAGE as error:
        raise _damaged(key, fmt, error) from error


def _starts(rows: Sequence[int]) -> list[int]:
    """The number of the first row of each piece."""
    return [0, *accumulate(rows)][:-1]


class SegmentWriter:
    """Writes one segment batch by batch: in memory are its encoded bytes and one row group.

    Use it as a context manager, or call :meth:`finish` or :meth:`close` in the end.
    """

    def __init__(
        self,
        schema: pa.Schema,
        fmt: str = "parquet",
        compression: str = "zstd",
        row_group_rows: int = ROW_GROUP_ROWS,
    ) -> None:
        check_format(fmt, compression)
        self._schema = schema
        self._format = fmt
        self._compression = COMPRESSIONS[fmt][compression]
        self._row_group_rows = row_group_rows
        self._sink = pa.BufferOutputStream()
        self._size = 0
        self._writer: Any = None
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._pending_bytes = 0
        self.rows = 0

    @property
    def size(self) -> int:
        """The bytes written so far; the rows of the row group that is being filled are not in it yet."""
        return self._size if self._sink.closed else int(self._sink.tell())

    def append(self, rows: pa.Table | pa.RecordBatch) -> None:
        """Add rows, which must have the schema of the writer."""
        table = pa.table(rows) if isinstance(rows, pa.RecordBatch) else rows
        if table.schema != self._schema:
            raise ValueError(f"rows of schema {table.schema}; the segment has {self._schema}")
        self._pending.append(table)
        self._pending_rows += table.num_rows
        self._pending_bytes += table.nbytes
        self.rows += table.num_rows
        if self._pending_rows >= self._group_rows():
            self._flush(whole_groups=True)

    def finish(self) -> EncodedSegment:
        """Close the segment and hand over its bytes."""
        if self._pending_rows or self._writer is None:
            self._flush(whole_groups=False)
        self._writer.close()
        data = self._sink.getvalue().to_pybytes()
        self._size = len(data)
        return EncodedSegment(data, self._format, self.rows, hashlib.sha256(data).hexdigest())

    def close(self) -> None:
        """Forget everything that was written, unless it was finished."""
        self._pending.clear()
        if self._writer is not None:
            # First the writer: it would still want to write its footer when it is collected.
            with suppress(*_DAMAGE):
                self._writer.close()
        self._sink.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _group_rows(self) -> int:
        """The rows of the next row group."""
        if self._pending_bytes <= _ROW_GROUP_BYTES:
            return self._row_group_rows
        return max(1, min(self._row_group_rows, _ROW_GROUP_BYTES * self._pending_rows // self._pending_bytes))

    def _flush(self, whole_groups: bool) -> None:
        """Write what is pending, but for the rows that do not fill a row group if only whole ones are wanted."""
        rows = self._group_rows()
        pending = self._pending or [self._schema.empty_table()]
        table = pending[0] if len(pending) == 1 else pa.concat_tables(pending)
        rest = table.num_rows % rows if whole_groups else 0
        self._pending = [table.slice(table.num_rows - rest)] if rest else []
        self._pending_rows = rest
        self._pending_bytes = self._pending[0].nbytes if rest else 0
        if rest:
            table = table.slice(0, table.num_rows - rest)
        if self._writer is None:
            self._writer = self._open(table)
        if self._format == "parquet":
            self._writer.write_table(table, row_group_size=rows)
        else:
            self._write_batches(table, rows)

    def _write_batches(self, table: pa.Table, rows: int) -> None:
        """Write the rows as record batches; at least one, so that no rows are a piece with its columns, too."""
        for start in range(0, max(1, table.num_rows), rows):
            group = _compact(table.slice(start, rows))
            for batch in group.to_batches() or [pa.RecordBatch.from_pylist([], self._schema)]:
                self._writer.write_batch(batch)

    def _open(self, first: pa.Table) -> Any:
        level = _ZSTD_LEVEL if self._compression == "zstd" else None
        if self._format == "arrow":
            codec = pa.Codec(self._compression, level) if self._compression else None
            return pa.ipc.new_file(self._sink, self._schema, options=pa.ipc.IpcWriteOptions(compression=codec))
        return pq.ParquetWriter(
            self._sink,
            self._schema,
            compression=self._compression or "none",
            compression_level=level,
            **_parquet_encodings(first),
        )


def _parquet_encodings(table: pa.Table) -> dict[str, Any]:
    """How each column is encoded, decided by its type and a sample of its values."""
    deltas, dictionaries, statistics = {}, [], []
    for column, name in zip(table.columns, table.column_names, strict=True):
        if pt.is_integer(column.type) or pt.is_timestamp(column.type) or pt.is_date32(column.type):
            deltas[name] = "DELTA_BINARY_PACKED"
            statistics.append(name)
        elif _is_variable(column.type):
            if column.nbytes <= _SHORT * max(1, len(column)):
                statistics.append(name)
                if _repeats(column):
                    dictionaries.append(name)
        elif not pt.is_nested(column.type):
            statistics.append(name)
    return {
        "column_encoding": deltas or None,
        "use_dictionary": dictionaries or False,
        "write_statistics": statistics or False,
    }


def _compact(table: pa.Table) -> pa.Table:
    """The rows in one chunk a column, without what lies around a slice of a nested column.

    Arrow IPC cuts plain columns to their slice, but writes the children of nested ones as a whole.
    """
    table = table.combine_chunks()
    for index, column in enumerate(table.columns):
        if pt.is_nested(column.type):
            whole = column.take(pa.arange(0, table.num_rows))
            table = table.set_column(index, table.schema.field(index), whole)
    return table


def _is_variable(data_type: pa.DataType) -> bool:
    return bool(
        pt.is_string(data_type)
        or pt.is_large_string(data_type)
        or pt.is_binary(data_type)
        or pt.is_large_binary(data_type)
    )


def _repeats(column: Any) -> bool:
    """Whether at most half of the values of a sample, taken from all over the column, are different ones."""
    if len(column) < _DICTIONARY_ROWS:
        return False
    step = max(1, len(column) // _SAMPLE)
    sample = column.take(pa.arange(0, len(column), step)) if step > 1 else column
    return bool(pc.count_distinct(sample).as_py() * 2 <= len(sample))


def verify_checksum(key: str, data: Any, sha256: str, size: int) -> None:
    """Refuse bytes that are not those that the chain recorded; :class:`CorruptionError` tells what differs."""
    length = len(data)
    if length < size:
        raise CorruptionError(f"{key} is truncated: it has {length:,} bytes; expected {size:,}")
    if length > size:
        raise CorruptionError(f"{key} is longer than it was written: it has {length:,} bytes; expected {size:,}")
    found = hashlib.sha256(data).hexdigest()
    if found != sha256:
        raise CorruptionError(f"{key} was altered: its SHA-256 is {found}; expected {sha256}")


def _damaged(key: str, fmt: str, error: Exception) -> CorruptionError:
    return CorruptionError(f"{key or 'a segment'} cannot be read as {fmt}: {error}")
