"""Writes the files of tables that are no segments: tails and position deletes."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from txnstore.catalog.iceberg.files import DataFile, DeleteFile
from txnstore.catalog.iceberg.location import Location
from txnstore.catalog.writing import topic_writer
from txnstore.chain import keys
from txnstore.connection import Connection
from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Layout
from txnstore.read.readahead import read_ahead
from txnstore.read.rows import Columns
from txnstore.segment.codec import SegmentWriter
from txnstore.segment.schema import OFFSET_FIELD, TIMESTAMP_FIELD
from txnstore.tables.plan import Tail, Trim

#: The columns of position deletes, with Iceberg's reserved field ids.
_POSITION_DELETE_SCHEMA = pa.schema(
    [
        pa.field("file_path", pa.string(), nullable=False, metadata={"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), nullable=False, metadata={"PARQUET:field_id": "2147483545"}),
    ]
)


class FileWriter:
    """Writes the files of one table.

    Args:
        location: The location of the store's objects.
        partitions: The number of partitions that are read together.
    """

    def __init__(self, connection: Connection, location: Location, topic: CatalogTopic, partitions: int) -> None:
        self._connection, self._location, self._topic = connection, location, topic
        self._objects = connection.objects.with_read_cache({topic.name: partitions})
        self._stored_columns = Columns.of_segments(topic, Layout.MERGED)
        self._offset_column = Columns(topic, [OFFSET_FIELD.name])

    def write_tail(self, tail: Tail) -> DataFile | None:
        """Copy rows into a file of the table; None if there are none.

        Costs a GET for each segment that is not in memory, and one PUT. Memory holds a row group.

        Raises:
            CorruptionError: A segment is missing or damaged.
        """
        bounds: list[tuple[int, int, int, int]] = []
        compression = topic_writer(self._topic).compression
        with SegmentWriter(self._stored_columns.schema, "parquet", compression, for_table=True) as writer:
            for table in read_ahead(
                self._objects, self._connection.pool, tail.slices, self._stored_columns, together=True
            ):
                if table.num_rows:
                    offsets = table.column(OFFSET_FIELD.name)
                    bounds.append((offsets[0].as_py(), offsets[-1].as_py(), *_time_range(table)))
                    writer.append(table)
            if not bounds:
                return None
            encoded = writer.finish()
        key = self._put(encoded.data)
        first_offsets, last_offsets, oldest, newest = zip(*bounds, strict=True)
        path = self._location.of(key)
        return DataFile(
            path,
            tail.partition,
            first_offsets[0],
            last_offsets[-1],
            encoded.rows,
            encoded.size,
            min(oldest),
            max(newest),
        )

    def write_deletes(self, trim: Trim) -> DeleteFile | None:
        """Write the positions of the rows of a file below the log start; None if there are none.

        Costs a PUT; and GETs of the offsets, if rows are missing between those that the file has.

        Raises:
            CorruptionError: The file is missing or damaged.
        """
        rows = self._count_rows_below(trim)
        if rows == 0:
            return None
        paths = pa.repeat(pa.scalar(trim.file.path), rows)
        table = pa.table([paths, pa.array(range(rows), pa.int64())], schema=_POSITION_DELETE_SCHEMA)
        sink = pa.BufferOutputStream()
        pq.write_table(
            table,
            sink,
            compression="zstd",
            column_encoding={"pos": "DELTA_BINARY_PACKED"},
            use_dictionary=["file_path"],
        )
        data = sink.getvalue().to_pybytes()
        return DeleteFile(self._location.of(self._put(data)), trim.file.partition, trim.file.path, rows, len(data))

    def _count_rows_below(self, trim: Trim) -> int:
        file, slice_below = trim.file, trim.below
        if file.rows == file.last + 1 - file.first:  # It has every offset of its range.
            return slice_below.limit - file.first
        tables = read_ahead(self._objects, self._connection.pool, [slice_below], self._offset_column)
        return sum(table.num_rows for table in tables)

    def _put(self, data: Any) -> str:
        key = keys.table_data(self._topic.name, self._connection.runtime.new_id())
        self._connection.objects.put(key, data)
        return key


def _time_range(table: pa.Table) -> tuple[int, int]:
    """The smallest and the largest timestamp of rows, in ms."""
    times = table.column(TIMESTAMP_FIELD.name).cast(pa.int64()).to_numpy()
    return int(times.min()), int(times.max())
