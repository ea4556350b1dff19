"""The streaming source: Spark's interface to a :class:`~txnstore.spark.streams.stream.Stream`.

Spark asks one process of the driver for offsets, as long as the query runs, and reads in tasks with pickled copies. So
the stream is opened by the first question for an offset, and copies do not contain it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from txnstore.errors import SchemaMismatchError, TxnStoreError
from txnstore.spark.failures import line_first
from txnstore.spark.options import Location, StreamOptions
from txnstore.spark.reads.planning import SliceGroup
from txnstore.spark.reads.reader import read_group, target_schema
from txnstore.spark.stores import open_reader
from txnstore.spark.streams import positions
from txnstore.spark.streams.stream import Stream
from txnstore.spark.versions import (
    HAS_ADMISSION_CONTROL,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from txnstore.spark.workers import Sent

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

    from txnstore.connection import Connection


class StreamPartition(InputPartition):
    """The slices that one task of a micro-batch reads, their store, and the columns as Spark expects them."""

    def __init__(self, group: SliceGroup, location: Location, schema: pa.Schema) -> None:
        super().__init__(None)
        self.group, self.location, self.schema = group, location, schema


@line_first
class RefusedStreamReader(DataSourceStreamReader):
    """A stream with wrong options: the first question for offsets raises what is wrong.

    If ``streamReader`` raised it, Spark would report an ``UnboundLocalError`` of its own instead: it stops a reader
    that it does not have.
    """

    def __init__(self, error: TxnStoreError) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Raise the error."""
        raise self._error

    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:  # noqa: N802 - Spark's names
        """Raise the error."""
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Raise the error."""
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Raise the error."""
        raise self._error


@line_first
class TxnStoreStreamReader(Sent, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics as a stream.

    Args:
        schema: The columns that the query requests.
    """

    def __init__(self, options: StreamOptions, schema: StructType) -> None:
        self._options, self._schema = options, schema
        self._opened: tuple[Connection, Stream] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the open stream: a task reads the slices that it is given."""
        return {**self.__dict__, "_opened": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The position before the first micro-batch."""
        return self._stream.initial_position().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """The limit of each micro-batch: ``maxOffsetsPerTrigger``."""
        return ReadAllAvailable() if self._options.max_offsets is None else ReadMaxRows(self._options.max_offsets)

    def latestOffset(self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """The next micro-batch; ``start`` itself if there is nothing new.

        Spark 4.0 and 4.1 give neither a start nor a limit; the stream then continues from what it has planned itself.
        """
        if start is None:
            return self._stream.next_without_start().to_json()
        max_offsets = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        position = positions.parse(start)
        next_position = self._stream.position_after(position, max_offsets)
        return start if next_position == position else next_position.to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """The ends of the partitions, for the progress of the query."""
        return positions.limits_json(self._stream.limits())

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Read no further than what exists now."""
        self._stream.stop_at_current_end()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The tasks of a micro-batch. Checks that the topics still have the columns of the query."""
        plan = self._stream.plan if HAS_ADMISSION_CONTROL else self._stream.plan_without_start
        groups = plan(positions.parse(start), positions.parse(end))
        if not groups:
            return []
        try:
            schema = target_schema(self._stream.view, self._schema, self._stream.read_options)
        except SchemaMismatchError as error:
            msg = f"{error}. If the topic has changed, start the query again, with the same checkpointLocation"
            raise SchemaMismatchError(msg) from None
        # Tasks may have another working directory, so they need the store's absolute URL.
        location = replace(self._options.read.location, url=self._connection.url)
        return [StreamPartition(group, location, schema) for group in groups]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a group as record batches with exactly the schema that Spark expects."""
        if isinstance(partition, StreamPartition):
            yield from read_group(partition.location, partition.group, partition.schema)

    def commit(self, end: dict[str, Any]) -> None:
        """Spark has committed the micro-batch: the group of the stream follows."""
        self._stream.commit(positions.parse(end))

    def stop(self) -> None:
        """Release the connection."""
        if self._opened is not None:
            self._opened[0].close()
            self._opened = None

    @property
    def _stream(self) -> Stream:
        return self._open()[1]

    @property
    def _connection(self) -> Connection:
        return self._open()[0]

    def _open(self) -> tuple[Connection, Stream]:
        if self._opened is None:
            connection = open_reader(self._options.read.location)
            self._opened = connection, Stream(connection, self._options)
        return self._opened
