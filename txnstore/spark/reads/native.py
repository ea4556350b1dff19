"""Reads a topic with Spark's own Parquet reader: plans the files, and derives the columns that files do not contain.

A segment belongs to one transaction, so the plan excludes aborted and open data by excluding files. No filter is
needed, and Spark prunes columns and row groups as with any Parquet files. The offset of a row is the base offset of its
batch plus its row number in the file, unless a compaction has stored the offsets. Spark is given the list of the files
(:mod:`txnstore.spark.reads.listing`), so it does not look for them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from txnstore.core.log.model import Layout
from txnstore.core.log.slices import Slice
from txnstore.read.expired import expirations
from txnstore.read.plan import IsolationLevel
from txnstore.read.readahead import max_fetches
from txnstore.read.rows import (
    LIMIT,
    START,
    Ability,
    Columns,
    Constant,
    EventTime,
    Group,
    PerFile,
    RowOffset,
    RowPlan,
    Stored,
    Value,
)
from txnstore.read.sharing import SharedSegments
from txnstore.scan import Scan
from txnstore.segment.schema import OFFSET_FIELD, TIMESTAMP_FIELD
from txnstore.spark import types
from txnstore.spark.options import Location, read_options
from txnstore.spark.reads.listing import FILE_NUMBER, ListedFile, read_listed
from txnstore.spark.reads.s3a import root_for_spark
from txnstore.spark.stores import open_reader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from txnstore.connection import Connection
    from txnstore.scan import Bound
    from txnstore.snapshot import Snapshot

_LOG = logging.getLogger(__name__)

#: What Spark reads as files.
_FILES = Ability()
#: The driver reads shared segments up to this size in total; of more, tasks read all segments with format txnstore.
_SHARED_BYTES = 64 << 20
#: Where Spark gives the number of a row in its file. A column of this name would hide it.
_HIDDEN = "_metadata"


def read_native(
    spark: SparkSession,
    url: str,
    topic: str,
    *,
    columns: Sequence[str] | None,
    isolation: IsolationLevel,
    partitions: Sequence[int] | None,
    start: Bound,
    end: Bound,
    storage_options: Mapping[str, Any] | None,
    snapshot: Snapshot | None,
    principal: str | None = None,
) -> DataFrame:
    """Implements :func:`txnstore.spark.read`."""
    location = Location(url, dict(storage_options or {}), principal)
    with open_reader(location) as connection:
        scan = Scan(connection, topic, isolation, partitions, start, end, columns, snapshot=snapshot)
        slices = scan.plan()
        location = replace(location, url=connection.url)
        selected_columns = Columns(scan.topic, columns)
        schema = types.spark_schema(selected_columns.schema)
        if not slices:
            return spark.createDataFrame([], types.ddl(schema))
        files, other_rows = RowPlan(selected_columns, tuple(slices)).split(_FILES)
        is_small = (
            all(part.batch.shared for part in other_rows.slices) and _stored_bytes(other_rows.slices) <= _SHARED_BYTES
        )
        frames = _file_frames(spark, location, files, schema) if is_small else None
        if frames is not None and other_rows.slices:
            with expirations(lambda: connection):
                rows = [*types.to_batches(_shared_rows(connection, other_rows), schema)]
            frames.append(_local_frame(spark, rows, schema))
    if frames is None:
        _LOG.info("Spark's Parquet reader cannot read these files; using format txnstore", extra={"topic": topic})
        return _read_by_format(spark, location, scan, slices, isolation)
    return reduce(lambda frame, other: frame.union(other), frames)


# Rows that the driver reads -------------------------------------------------------------------------------------------


def _stored_bytes(slices: Sequence[Slice]) -> int:
    """Return the size of the segments of slices: a reader transfers them whole."""
    return sum({part.batch.segment.key: part.batch.segment.size for part in slices}.values())


def _shared_rows(connection: Connection, plan: RowPlan) -> Iterator[pa.Table]:
    """Yield the rows of shared segments, each fetched and decoded once; some segments at a time."""
    segments = SharedSegments(connection.objects, lambda: connection.pool, 0)
    by_segment: dict[str, list[Slice]] = {}
    for part in plan.slices:
        by_segment.setdefault(part.batch.segment.key, []).append(part)
    groups = list(by_segment.values())
    batch_size = max_fetches(connection.objects)
    for first_index in range(0, len(groups), batch_size):
        parts = [part for group in groups[first_index : first_index + batch_size] for part in group]
        yield segments.read(parts, plan.columns)


def _local_frame(spark: SparkSession, rows: Sequence[pa.RecordBatch], schema: pa.Schema) -> DataFrame:
    """Return a frame of rows that the driver has read, of segments that Spark cannot read as files."""
    import pyarrow as pa
    from pyspark.sql.types import StructType

    create: Callable[..., DataFrame] = spark.createDataFrame  # Its annotations do not mention tables of Arrow.
    return create(pa.Table.from_batches(rows, schema), StructType.fromDDL(types.ddl(schema)))


# What Spark can read --------------------------------------------------------------------------------------------------


def _is_readable(columns: Columns, groups: Sequence[Group]) -> bool:
    """Whether Spark's reader gives the same values for all columns as txnstore's."""
    if any(name.lower() == _HIDDEN for name in columns.topic_fields.names):
        return False
    # Of a file of several batches all rows are visible, or Spark reads none of them.
    return not any(group.layout is Layout.MERGED_SHARED and group.cut for group in groups) and all(
        _is_readable_time(columns, group.values[TIMESTAMP_FIELD.name]) for group in groups
    )


def _is_readable_time(columns: Columns, value: Value) -> bool:
    """Whether Spark reads a time as txnstore: one without a zone is UTC here, but of the session in Spark's casts."""
    if TIMESTAMP_FIELD.name not in columns.names or not isinstance(value, EventTime) or value.name is None:
        return True
    return _spark_type_name(columns.topic_fields.field(value.name)) in ("timestamp", "bigint")


def _read_by_format(
    spark: SparkSession, location: Location, scan: Scan, slices: Sequence[Slice], isolation: str
) -> DataFrame:
    """Read the same slices with ``format("txnstore")``."""
    bounds: dict[str, list[int]] = {}
    for part in slices:
        first_offset, limit = bounds.get(str(part.tp.partition), [part.start, part.limit])
        bounds[str(part.tp.partition)] = [min(first_offset, part.start), max(limit, part.limit)]
    options = {
        "topic": scan.topic.name,
        "columns": json.dumps(scan.schema.names),
        "isolation": isolation,
        "partitions": ",".join(bounds),
        "startingOffsets": json.dumps({partition: first_offset for partition, (first_offset, _) in bounds.items()}),
        "endingOffsets": json.dumps({partition: limit for partition, (_, limit) in bounds.items()}),
        "snapshot": ",".join(map(str, scan.snapshot.heads)),
    }
    for name, value in location.storage_options.items():
        options[f"storage.{name}"] = value if isinstance(value, str) else json.dumps(value)
    if location.principal is not None:
        options["principal"] = location.principal
    read_options({"path": location.url, **options})
    return spark.read.format("txnstore").options(**options).load(location.url)


# The frames -----------------------------------------------------------------------------------------------------------


def _file_frames(spark: SparkSession, location: Location, plan: RowPlan, schema: pa.Schema) -> list[DataFrame] | None:
    """Return frames of the segments that Spark reads as files; None if it cannot. Reads none of them."""
    if not plan.slices:
        return []
    groups = plan.groups()
    is_readable = _is_readable(plan.columns, groups)
    root = root_for_spark(spark, location, plan.slices[0].batch.segment) if is_readable else None
    if root is None:
        return None
    frames = [_FileFrame(plan.columns, schema, group).read(spark, root) for group in groups]
    read_frames = [frame for frame in frames if frame is not None]
    return read_frames if len(read_frames) == len(frames) else None


class _FileFrame:
    """Builds one frame from files that are read in the same way."""

    def __init__(self, columns: Columns, schema: pa.Schema, group: Group) -> None:
        self._columns, self._schema, self._group = columns, schema, group

    def read(self, spark: SparkSession, root: str) -> DataFrame | None:
        """Return the frame; None if this Spark cannot be given a list of files."""
        group = self._group
        stored_schema = types.spark_schema(self._columns.stored(self._group.layout))
        segments = [file.segment for file in group.files]
        listed_files = [ListedFile(f"{root}/{quote(segment.key)}", segment.size) for segment in segments]
        frame = read_listed(spark, types.ddl(stored_schema), listed_files)
        if frame is None:
            return None
        if group.cut:
            offset = self._expression(OFFSET_FIELD.name)
            start = self._per_file(START)
            limit = self._per_file(LIMIT)
            frame = frame.where(f"{offset} >= {start} AND {offset} < {limit}")
            if group.layout is not Layout.APPENDED:  # Spark cannot skip row groups by the condition above.
                frame = frame.where(f"_offset IS NULL OR _offset >= {start} AND _offset < {limit}")
        # As text it takes one call of the JVM; as objects, each function and each literal takes some.
        names = self._schema.names
        is_plain = group.layout is Layout.APPENDED and not any(map(_is_float, stored_schema))
        other_count = len(names) - len(stored_schema)
        if is_plain and names[other_count:] == stored_schema.names:  # One call for all of them, too.
            return frame.selectExpr([*map(self._named_expression, names[:other_count]), "*"])
        return frame.selectExpr([*map(self._named_expression, names)])

    def _named_expression(self, name: str) -> str:
        return f"{self._expression(name)} AS {types.quoted_name(name)}"

    def _expression(self, name: str) -> str:
        """Return the SQL expression of a column, by the source of its value."""
        match self._group.values[name]:
            case Constant(text):
                return f"'{text}'"
            case PerFile() as number:
                return f"int({self._per_file(number)})"
            case RowOffset(origin):
                return f"{self._per_file(origin)} + _metadata.row_index"
            case EventTime(column, default):
                return self._event_time(column, default)
            case Stored(column, required):
                return _required_column(column) if required else _stored_column(self._schema.field(column))

    def _event_time(self, name: str | None, default: PerFile) -> str:
        """Return the SQL of an event time: that of the column; where it is null, that of the file."""
        default_time = f"timestamp_millis({self._per_file(default)})"
        if name is None:
            return default_time
        moment = types.quoted_name(name)
        is_number = _spark_type_name(self._columns.topic_fields.field(name)) == "bigint"
        event_time = f"timestamp_millis({moment})" if is_number else f"date_trunc('MILLISECOND', {moment})"
        return f"coalesce({event_time}, {default_time})"

    def _per_file(self, number: PerFile) -> str:
        """Return an expression for the number of each row's file: an array is one literal, however long."""
        numbers = self._group.numbers(number)
        if len(set(numbers)) == 1:
            return f"bigint({numbers[0]})"
        return f"get(cast(split('{','.join(map(str, numbers))}', ',') AS array<bigint>), {FILE_NUMBER})"


def _spark_type_name(field: pa.Field) -> str:
    """Return the name of Spark's type for a column of a topic."""
    import pyarrow as pa

    return types.type_name(types.spark_schema(pa.schema([field])).field(0).type)


def _is_float(field: pa.Field) -> bool:
    return types.type_name(field.type) in ("float", "double")


def _stored_column(field: pa.Field) -> str:
    """Return the expression of a stored column.

    A segment may have statistics of floats, which do not count NaN; of Spark's filters, those on an expression skip no
    row groups. This one gives each value back, -0.0 and NaN too.
    """
    name = types.quoted_name(field.name)
    return f"-(-{name})" if _is_float(field) else name


def _required_column(name: str) -> str:
    """Return a column that a merge stores; a file without it is damage, and must not give nulls or lose rows."""
    return f"coalesce({name}, raise_error(concat('a merged segment has no {name}: ', _metadata.file_path)))"
