"""Scans: read a topic, or a part of it, in one snapshot as Arrow data."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from txnstore import compute as pc
from txnstore.connection import Connection
from txnstore.core.authorization.rights import read_topics
from txnstore.core.blocked import BlockedPartition, blocked_partitions
from txnstore.core.log.slices import Slice
from txnstore.core.log.visibility import visible_slices
from txnstore.core.model import Isolation, TopicPartition
from txnstore.core.view import View
from txnstore.errors import InvalidConfigError, OffsetOutOfRangeError, SchemaMismatchError
from txnstore.read.blocked import warn_blocked
from txnstore.read.expired import expirations
from txnstore.read.plan import IsolationLevel, find_partitions
from txnstore.read.readahead import read_ahead
from txnstore.read.rows import Columns
from txnstore.snapshot import Snapshot, check_snapshot
from txnstore.threads import load
from txnstore.validation import check_choice, check_integer

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl

#: An offset for all partitions, or one per partition for some of them.
Bound = int | Mapping[int, int] | None


class Scan:
    """A part of a topic in one snapshot, ordered by partition, then offset. Creating it reads no data.

    It can be read as often as needed, with the same result. It speaks the Arrow C stream protocol, so
    ``pa.table(scan)`` and DuckDB accept it; :meth:`to_polars` gives a frame of Polars. Segments are fetched and decoded
    in parallel ahead of the reader, within a bounded window.

    Args:
        connection: The connection to the store.
        topic: The topic.
        isolation: ``"read_committed"`` or ``"read_uncommitted"`` (``isolation.level``).
        partitions: The numbers of the partitions to read; None: all.
        start: The first offset, for all partitions or by partition; None: the log start.
        end: The offset to end before, for all partitions or by partition; cut to the log.
        columns: Exactly these columns, in this order; None: ``_topic, _partition, _offset, _timestamp``, then all
            columns of the topic.
        filter: A ``pyarrow.compute`` expression over any columns of a read; only rows that match are returned.
        snapshot: The snapshot to read; None: a new one, which takes one GET per chain. Transactions past their timeout
            that hold back records of these partitions are aborted for it, unless the store is read_only.

    Raises:
        UnknownTopicOrPartitionError: There is no such topic or partition.
        OffsetOutOfRangeError: A bound is below 0, a start is above its end, or below the log start: its records were
            deleted.
        InvalidConfigError: There are no columns in ``columns``, or the snapshot is one of another store.
        SchemaMismatchError: A column does not exist, or the filter does not fit the columns.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        isolation: IsolationLevel = "read_committed",
        partitions: Iterable[int] | None = None,
        start: Bound = None,
        end: Bound = None,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        snapshot: Snapshot | None = None,
    ) -> None:
        self._isolation = check_choice("isolation", isolation, Isolation)
        self._connection = connection
        view = check_snapshot(snapshot, connection.store_id).view if snapshot is not None else connection.view()
        self._partitions = find_partitions(view, topic, partitions)
        if snapshot is not None:
            connection.refresh_rules()
        connection.check_rights(read_topics([topic]))
        self._start = _bounds_of(view, topic, "start", start)
        self._end = _bounds_of(view, topic, "end", end)
        self._check_bounds(view)
        if snapshot is None and self._isolation is Isolation.READ_COMMITTED:
            view = connection.unblocked(view, self._partitions, self._start, self._end)
        self.snapshot = snapshot if snapshot is not None else Snapshot(view, connection.store_id)
        self.topic = view.find_topic(topic)
        self._columns = Columns(self.topic, _check_not_empty(columns))
        self._filter = filter
        self._reading = self._columns
        if filter is not None:
            names = _with_columns_of_filter(Columns(self.topic).schema, self._columns.names, filter)
            self._reading = Columns(self.topic, names)
        warn_blocked(connection, self.blocked(), None if snapshot is None else view)

    def _check_bounds(self, view: View) -> None:
        """Refuse a start below the log start, whose records were deleted, or after the end."""
        for tp in self._partitions:
            start, end = self._start.get(tp), self._end.get(tp)
            log_start = view.find_partition(tp).log_start
            if start is not None and start < log_start:
                msg = (
                    f"a scan cannot start at offset {start} of {tp}: the records of {tp} below offset {log_start} were "
                    "deleted (retention, or delete_records); without a start it begins there"
                )
                raise OffsetOutOfRangeError(msg)
            if start is not None and end is not None and start > end:
                msg = f"a scan of {tp} cannot start at offset {start} and end at {end}, before it"
                raise OffsetOutOfRangeError(msg)

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the results, also without rows."""
        return self._columns.schema

    def blocked(self) -> tuple[BlockedPartition, ...]:
        """The partitions in which the scan leaves out committed records, because they wait for an open transaction.

        Only records between ``start`` and ``end`` are counted. Empty for ``read_uncommitted``.
        """
        if self._isolation is Isolation.READ_UNCOMMITTED:
            return ()
        return blocked_partitions(self.snapshot.view, self._partitions, self._start, self._end)

    def plan(self) -> list[Slice]:
        """The slices of segments to read, in order: decided from the chain alone, without aborted data (CON-02).

        Slices that the filter excludes by their offsets or timestamps are left out.
        """
        slices = [part for tp in self._partitions for part in self._visible_slices(self.snapshot.view, tp)]
        return slices if self._filter is None else _prune_slices(slices, self._filter, self._columns)

    def _visible_slices(self, view: View, tp: TopicPartition) -> list[Slice]:
        return visible_slices(tp, view.find_partition(tp), self._isolation, self._start.get(tp), self._end.get(tp))

    def to_tables(self) -> Generator[pa.Table]:
        """The result with bounded memory: in tables of a row group at most, or of some small neighbouring segments."""
        objects = self._connection.objects.with_read_cache({self.topic.name: len(self._partitions)})
        tables = read_ahead(objects, self._connection.pool, self.plan(), self._reading)
        with expirations(lambda: self._connection):
            if self._filter is None:
                yield from tables  # No table is kept here while the next one is awaited.
                return
            for table in tables:
                matches = table.filter(self._filter)
                if matches.num_rows:
                    yield matches.select(self._columns.names)

    def to_reader(self) -> pa.RecordBatchReader:
        """The result as a stream of record batches; segments are fetched while it is read."""
        batches = (batch for table in self.to_tables() for batch in table.to_batches())
        return pa.RecordBatchReader.from_batches(self.schema, batches)

    def to_table(self) -> pa.Table:
        """The whole result in memory."""
        return pa.concat_tables([self.schema.empty_table(), *self.to_tables()])

    def to_pandas(self, **options: Any) -> pd.DataFrame:
        """The whole result as a pandas DataFrame; ``options`` are those of ``pyarrow.Table.to_pandas``.

        Integers beside nulls become ``float64``, as in pandas, which rounds those above 2**53. The option
        ``integer_object_nulls=True`` keeps them, as does ``types_mapper={pa.int64(): pd.Int64Dtype()}.get``.

        Raises:
            InvalidConfigError: pandas is not installed.
        """
        _import_engine("pandas")
        return self.to_table().to_pandas(**options)

    def to_polars(self) -> pl.DataFrame:
        """The whole result as a polars DataFrame.

        Raises:
            InvalidConfigError: polars is not installed.
        """
        return _import_engine("polars").from_arrow(self.to_table())

    def to_duckdb(self, con: duckdb.DuckDBPyConnection, name: str | None = None) -> duckdb.DuckDBPyRelation:
        """A DuckDB relation that reads the scan whenever it is evaluated.

        Args:
            con: The DuckDB connection.
            name: Also register the scan as a view of this name.
        """
        if name is None:
            return con.from_arrow(self)
        con.register(name, self)
        return con.table(name)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The result as an Arrow C stream; each call begins a new stream."""
        return self.to_reader().__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"<txnstore.Scan of {self.topic.name!r}, {self._isolation}, {self.snapshot!r}>"


def _check_not_empty(columns: Sequence[str] | None) -> Sequence[str] | None:
    if columns is None or isinstance(columns, str):
        return columns  # A string, which is a sequence of letters, is refused with the names of the columns.
    names = [*columns]
    if not names:
        msg = "columns is empty: name at least one column, such as _offset; without columns a scan has all of them"
        raise InvalidConfigError(msg)
    return names


def _bounds_of(view: View, topic: str, option: str, value: Bound) -> dict[TopicPartition, int]:
    """Return a bound as an offset for each partition that has one."""
    if value is None:
        return {}
    bounds = value if isinstance(value, Mapping) else dict.fromkeys(range(view.topics[topic].partitions), value)
    result = {}
    for number, offset in bounds.items():
        tp = TopicPartition(topic, number)
        view.find_partition(tp)
        result[tp] = check_integer(f"{option} of {tp}", offset)
        if result[tp] < 0:
            msg = f"{option} of {tp} must be an offset of at least 0, not {offset}"
            raise OffsetOutOfRangeError(msg)
    return result


def _with_columns_of_filter(schema: pa.Schema, columns: Sequence[str], expression: Any) -> list[str]:
    """Return the columns of the result, then those that only the filter needs. Checks the filter.

    Arrow has no call for the columns of an expression, but it refuses to bind one to a schema without them.
    """
    try:
        schema.empty_table().filter(expression)
    except (pa.ArrowException, TypeError, ValueError) as error:
        msg = f"the filter does not fit the columns of the topic: {error}"
        raise SchemaMismatchError(msg) from error
    return [
        *columns,
        *(name for name in schema.names if name not in columns and _needs_column(expression, name, schema)),
    ]


def _needs_column(expression: Any, column: str, schema: pa.Schema) -> bool:
    """Whether an expression needs a column: a table without it cannot evaluate it."""
    without = schema.remove(schema.get_field_index(column))
    try:
        without.empty_table().filter(expression)
    except pa.ArrowException:
        return True
    return False


def _prune_slices(slices: list[Slice], expression: Any, columns: Columns) -> list[Slice]:
    """Return the slices that the filter may match, by the ranges of offsets and timestamps in the chain.

    Arrow simplifies the filter with these ranges as guarantees; no file is opened.
    """
    load("pyarrow.dataset")
    load("pyarrow.fs")
    import pyarrow.dataset as ds
    from pyarrow import fs

    everything = Columns(columns.topic).schema
    moment = everything.field("_timestamp").type
    offset, partition, timestamp = ds.field("_offset"), ds.field("_partition"), ds.field("_timestamp")
    guarantees = []
    for part in slices:
        first, last = (pa.scalar(value, moment) for value in part.time_range)
        guarantees.append(
            (partition == pa.scalar(part.tp.partition, pa.int32()))
            & (offset >= part.start)
            & (offset < part.limit)
            & (timestamp >= first)
            & (timestamp <= last),
        )
    dataset = ds.FileSystemDataset.from_paths(
        [str(number) for number in range(len(slices))],
        schema=everything,
        format=ds.ParquetFileFormat(),
        filesystem=fs.LocalFileSystem(),
        partitions=guarantees,
    )
    return [slices[int(fragment.path)] for fragment in dataset.get_fragments(filter=expression)]


def _import_engine(name: str) -> Any:
    """Import a library that reads Arrow tables; an error names what works without it."""
    import importlib

    load(name)
    try:
        return importlib.import_module(name)
    except ImportError as error:
        msg = f"{name} is not installed: install it, or use to_table() or to_reader()"
        raise InvalidConfigError(msg) from error
