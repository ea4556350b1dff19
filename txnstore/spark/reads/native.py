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
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

from txnstore.core.catalog.model import CatalogTopic
from txnstore.core.log.model import Batch
from txnstore.core.log.visibility import Slice
from txnstore.read.expired import expirations
from txnstore.read.plan import IsolationLevel
from txnstore.read.readahead import most_fetches
from txnstore.read.reader import Projection, read_together
from txnstore.read.sharing import SharedSegments
from txnstore.scan import Scan
from txnstore.segment.schema import RESERVED_FIELDS
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

_RESERVED = {field.name for field in RESERVED_FIELDS}
#: The driver reads shared segments up to this size in total; of more, tasks read all segments with format txnstore.
_SHARED_BYTES = 64 << 20
#: Where Spark gives the number of a row in its file. A column of this name would hide it.
_HIDDEN = "_metadata"


@dataclass(frozen=True, slots=True)
class NativeFile:
    """A segment with the metadata that derives the columns of its rows.

    Attributes:
        key: The key.
        size: The size in bytes.
        partition: The partition.
        base: The offset of the first row; 0 if the offsets are stored in the file.
        low: The first offset of the read.
        high: The offset after the last one of the read.
        default_ms: The ``_timestamp`` of rows without one, in milliseconds.
    """

    key: str
    size: int
    partition: int
    base: int
    low: int
    high: int
    default_ms: int


class Kind(NamedTuple):
    """What the columns of a file are derived from.

    Attributes:
        explicit: The offsets and times are stored in it.
        cut: Some of its rows are outside ``[low, high)``.
        timed: The event times are in the topic's column; else they are stored, or all of them are ``default_ms``.
        settled: The partitions are stored in it.
    """

    explicit: bool
    cut: bool
    timed: bool
    settled: bool


Kinds = Mapping[Kind, Sequence[NativeFile]]


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
        projection = Projection(scan.topic, columns)
        schema = types.spark_schema(projection.schema)
        if not slices:
            return spark.createDataFrame([], types.ddl(schema))
        shared = [part for part in slices if part.batch.shared]
        files = [part for part in slices if not part.batch.shared]
        few = _stored_bytes(shared) <= _SHARED_BYTES
        frames = _frames(spark, location, projection, schema, files) if few else None
        if frames is not None and shared:
            with expirations(lambda: connection):
                rows = [*types.to_batches(_shared_rows(connection, shared, projection), schema)]
            frames.append(_local(spark, rows, schema))
    if frames is None:
        _LOG.info("Spark's Parquet reader cannot read these files; using format txnstore", extra={"topic": topic})
        return _format(spark, location, scan, slices, isolation)
    return reduce(lambda one, other: one.union(other), frames)


# Rows that the driver reads -------------------------------------------------------------------------------------------


def _stored_bytes(slices: Sequence[Slice]) -> int:
    """The size of the segments of some slices: what a reader of them transfers, whatever their shares are."""
    return sum({part.batch.segment.key: part.batch.segment.size for part in slices}.values())


def _shared_rows(connection: Connection, slices: Sequence[Slice], projection: Projection) -> Iterator[pa.Table]:
    """The rows of shared segments, each of which is fetched and decoded once; some segments at a time."""
    segments = SharedSegments(connection.objects, lambda: connection.pool, 0)
    by_segment: dict[str, list[Slice]] = {}
    for part in slices:
        by_segment.setdefault(part.batch.segment.key, []).append(part)
    groups, most = list(by_segment.values()), most_fetches(connection.objects)
    for first in range(0, len(groups), most):
        parts = [part for group in groups[first : first + most] for part in group]
        yield read_together(segments.open(parts, projection), projection)


def _local(spark: SparkSession, rows: Sequence[pa.RecordBatch], schema: pa.Schema) -> DataFrame:
    """A frame of rows that the driver has read: those of segments that Spark cannot read as files."""
    import pyarrow as pa
    from pyspark.sql.types import StructType

    create: Callable[..., DataFrame] = spark.createDataFrame  # Its annotations do not mention tables of Arrow.
    return create(pa.Table.from_batches(rows, schema), StructType.fromDDL(types.ddl(schema)))


# What Spark can read --------------------------------------------------------------------------------------------------


def _is_readable(projection: Projection, slices: Sequence[Slice]) -> bool:
    """Whether Spark's reader gives the same values for all columns as txnstore's."""
    if any(part.batch.segment.format != "parquet" for part in slices):
        return False
    stored = _stored(projection.topic)
    if any(name.lower() == _HIDDEN for name in stored.names):
        return False
    if "_timestamp" not in projection.columns:
        return True
    # A timestamp without a zone is UTC in txnstore, but in the session's time zone in Spark's casts.
    columns = set(filter(None, (_time_column(part.batch, projection) for part in slices)))
    return all(types.type_name(stored.field(column).type) in ("timestamp", "bigint") for column in columns)


def _time_column(batch: Batch, projection: Projection) -> str | None:
    """The column from which the event times of a batch are derived; None if they are stored, or all the same."""
    return None if batch.segment.explicit_offsets else projection.time_column_of(batch)


def _stored(topic: CatalogTopic) -> pa.Schema:
    """The topic's declared columns with Spark's types."""
    import pyarrow as pa

    everything = types.spark_schema(Projection(topic).schema)
    return pa.schema([field for field in everything if field.name not in _RESERVED])


def _kinds(slices: Sequence[Slice], projection: Projection) -> Kinds | None:
    """The files; None if a file contains several batches, so that its rows have no single base offset."""
    kinds: dict[Kind, list[NativeFile]] = {}
    keys: set[str] = set()
    settled: dict[str, int] = {}
    for part in slices:
        batch, segment = part.batch, part.batch.segment
        if segment.explicit_offsets and not batch.alone and part.whole:
            # The rows of several partitions, which are stored with them: the file is read if all of them are.
            settled[segment.key] = settled.get(segment.key, 0) + batch.records
            if settled[segment.key] < segment.rows:
                continue
            del settled[segment.key]
        elif segment.key in keys or batch.records != segment.rows:
            return None
        keys.add(segment.key)
        file = NativeFile(
            key=segment.key,
            size=segment.size,
            partition=part.tp.partition,
            base=0 if segment.explicit_offsets else batch.base_offset,
            low=part.start,
            high=part.limit,
            default_ms=projection.timestamp_range(part)[1],
        )
        timed = _time_column(batch, projection) is not None
        kinds.setdefault(Kind(segment.explicit_offsets, not part.whole, timed, not batch.alone), []).append(file)
    return None if settled else kinds


def _format(spark: SparkSession, location: Location, scan: Scan, slices: Sequence[Slice], isolation: str) -> DataFrame:
    """Read the same slices with ``format("txnstore")``."""
    bounds: dict[str, list[int]] = {}
    for part in slices:
        low, high = bounds.get(str(part.tp.partition), [part.start, part.limit])
        bounds[str(part.tp.partition)] = [min(low, part.start), max(high, part.limit)]
    options = {
        "topic": scan.topic.name,
        "columns": json.dumps(scan.schema.names),
        "isolation": isolation,
        "partitions": ",".join(bounds),
        "startingOffsets": json.dumps({partition: low for partition, (low, _) in bounds.items()}),
        "endingOffsets": json.dumps({partition: high for partition, (_, high) in bounds.items()}),
        "snapshot": ",".join(map(str, scan.snapshot.heads)),
    }
    for name, value in location.storage_options.items():
        options[f"storage.{name}"] = value if isinstance(value, str) else json.dumps(value)
    if location.principal is not None:
        options["principal"] = location.principal
    read_options({"path": location.url, **options})
    return spark.read.format("txnstore").options(**options).load(location.url)


# The frames -----------------------------------------------------------------------------------------------------------


def _frames(
    spark: SparkSession, location: Location, projection: Projection, schema: pa.Schema, slices: Sequence[Slice]
) -> list[DataFrame] | None:
    """The frames of segments that Spark reads as files; None if it cannot. Reads none of them."""
    if not slices:
        return []
    kinds = _kinds(slices, projection) if _is_readable(projection, slices) else None
    root = root_for_spark(spark, location, slices[0].batch.segment) if kinds is not None else None
    return _Frames(spark, root, projection, schema).read(kinds) if kinds is not None and root is not None else None


class _Frames:
    """Builds one frame per kind of file: whole or cut, offsets derived or stored."""

    def __init__(self, spark: SparkSession, root: str, projection: Projection, schema: pa.Schema) -> None:
        self._spark, self._root = spark, root
        self._projection, self._schema = projection, schema

    def read(self, kinds: Kinds) -> list[DataFrame] | None:
        """The frames of all files; None if this Spark cannot be given a list of files."""
        frames = [self._frame(kind, kinds[kind]) for kind in sorted(kinds)]
        readable = [frame for frame in frames if frame is not None]
        return readable if len(readable) == len(frames) else None

    def _frame(self, kind: Kind, files: Sequence[NativeFile]) -> DataFrame | None:
        import pyarrow as pa

        stored = list(_stored(self._projection.topic))
        if kind.explicit:
            names_stored = {"_offset", "_timestamp", *(["_partition"] if kind.settled else [])}
            stored += [field for field in RESERVED_FIELDS if field.name in names_stored]
        listed = [ListedFile(f"{self._root}/{quote(file.key)}", file.size) for file in files]
        frame = read_listed(self._spark, types.ddl(types.spark_schema(pa.schema(stored))), listed)
        if frame is None:
            return None

        def of_file(name: str) -> str:
            return _by_file([getattr(file, name) for file in files])

        offset = _of_row("_offset") if kind.explicit else f"{of_file('base')} + _metadata.row_index"
        if kind.cut:
            low, high = of_file("low"), of_file("high")
            frame = frame.where(f"{offset} >= {low} AND {offset} < {high}")
            if kind.explicit:  # Spark cannot skip row groups by the condition above.
                frame = frame.where(f"_offset IS NULL OR _offset >= {low} AND _offset < {high}")
        derived: dict[str, Callable[[], str]] = {
            "_topic": lambda: f"'{self._projection.topic.name}'",
            "_partition": lambda: _of_row("_partition") if kind.settled else f"int({of_file('partition')})",
            "_offset": lambda: offset,
            "_timestamp": lambda: self._timestamp(of_file("default_ms"), kind),
        }
        # As text it takes one call of the JVM; as objects, each function and each literal takes some.
        names = self._schema.names
        plain = not kind.explicit and not any(_is_float(field) for field in stored)
        everything = [field.name for field in stored] if plain else []
        rest = len(names) - len(everything)
        chosen = ["*"] if everything and names[rest:] == everything else []  # One call for all of them, too.
        return frame.selectExpr(
            [
                f"{derived[name]()} AS {name}" if name in derived else _column(self._schema.field(name))
                for name in (names[:rest] if chosen else names)
            ]
            + chosen
        )

    def _timestamp(self, default_ms: str, kind: Kind) -> str:
        """The ``_timestamp``: stored by a compaction, else from the topic's time column, else that of the batch."""
        default, column = f"timestamp_millis({default_ms})", self._projection.time_column
        if kind.explicit:
            return f"coalesce(_timestamp, {default})"
        if column is None or not kind.timed:
            return default
        is_number = types.type_name(_stored(self._projection.topic).field(column).type) == "bigint"
        moment = types.quoted(column)
        event_time = f"timestamp_millis({moment})" if is_number else f"date_trunc('MILLISECOND', {moment})"
        return f"coalesce({event_time}, {default})"


def _is_float(field: pa.Field) -> bool:
    return types.type_name(field.type) in ("float", "double")


def _column(field: pa.Field) -> str:
    """A stored column.

    A segment may have statistics of floats, which do not count NaN; of Spark's filters, those on an expression skip no
    row groups. This one gives each value back, -0.0 and NaN too.
    """
    name = types.quoted(field.name)
    return f"-(-{name}) AS {name}" if _is_float(field) else name


def _of_row(name: str) -> str:
    """A column that a merge stores. A file without it is damage, and must not give nulls, nor lose its rows."""
    return f"coalesce({name}, raise_error(concat('a merged segment has no {name}: ', _metadata.file_path)))"


def _by_file(numbers: Sequence[int]) -> str:
    """The number of each row's file: looked up in an array, which is one literal in the plan, whatever its length."""
    if len(set(numbers)) == 1:
        return f"bigint({numbers[0]})"
    return f"get(cast(split('{','.join(map(str, numbers))}', ',') AS array<bigint>), {FILE_NUMBER})"
