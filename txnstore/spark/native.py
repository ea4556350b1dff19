"""Reads a topic with Spark's own Parquet reader: plans the files, and derives the columns that files do not contain.

A segment belongs to one transaction, so the plan excludes aborted and open data by excluding files. No filter is
needed, and Spark prunes columns and row groups as with any Parquet files. The offset of a row is the base offset of its
batch plus its row number in the file, unless a compaction has stored the offsets.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from txnstore.core.catalog.model import Topic
from txnstore.core.log.visibility import Slice
from txnstore.read.plan import IsolationLevel
from txnstore.read.reader import Projection
from txnstore.scan import Scan
from txnstore.segment.schema import RESERVED_FIELDS
from txnstore.spark import types
from txnstore.spark.options import Location, read_options
from txnstore.spark.stores import open_reader

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession

    from txnstore.scan import Bound
    from txnstore.snapshot import Snapshot

_LOG = logging.getLogger(__name__)

_RESERVED = {field.name for field in RESERVED_FIELDS}
#: The metadata of up to this many files is a literal map, which is free if no column needs it. A lookup in the map is
#: linear, so the metadata of more files is a small table that is joined.
_MAP_FILES = 32
#: Helper columns. Their names are reserved (see ``is_reserved``), so no topic has such a column.
_FILE, _ROW = "_topic_file", "_topic_row"


@dataclass(frozen=True, slots=True)
class File:
    """A segment with the metadata that derives the columns of its rows.

    Attributes:
        name: The file name.
        partition: The partition.
        base: The offset of the first row; None if the offsets are stored in the file.
        low: The first offset of the read.
        high: The offset after the last one of the read.
        cut: Whether some rows of the file are outside ``[low, high)``.
        default_ms: The ``_timestamp`` of rows without one, in milliseconds.
    """

    name: str
    partition: int
    base: int | None
    low: int
    high: int
    cut: bool
    default_ms: int


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
) -> DataFrame:
    """Implements :func:`txnstore.spark.read`."""
    location = Location(url, dict(storage_options or {}))
    with open_reader(location) as connection:
        scan = Scan(connection, topic, isolation, partitions, start, end, columns, snapshot=snapshot)
        slices = scan.plan()
        location = replace(location, url=connection.url)
    projection = Projection(scan.topic, columns)
    schema = types.spark_schema(projection.schema)
    if not slices:
        return spark.createDataFrame([], types.ddl(schema))
    root = _root(spark, location)
    files = _files(slices, projection) if root is not None and _is_readable(projection, slices) else None
    if root is None or files is None:
        _LOG.info("Spark's Parquet reader cannot read these files; using format txnstore", extra={"topic": topic})
        return _format(spark, location, scan, slices, isolation)
    return _Frames(spark, root, projection, schema).read(files)


# What Spark can read --------------------------------------------------------------------------------------------------


def _root(spark: SparkSession, location: Location) -> str | None:
    """The URL of the store's root for Spark; None if Spark cannot read it."""
    if not hasattr(spark, "_jvm"):
        return None  # Spark Connect: its server may see other files than this process.
    if set(location.url) & set("*?[]{}\\"):
        return None  # Spark would interpret the path as a glob pattern.
    if location.url.startswith("file://"):
        return unquote(location.url)  # A path of Hadoop is not percent-encoded.
    if location.url.startswith("s3://") and not location.storage_options and _has_s3a(spark):
        return "s3a://" + location.url.removeprefix("s3://")
    return None


def _has_s3a(spark: Any) -> bool:
    from py4j.protocol import Py4JJavaError

    loader = spark._jvm.java.lang.Thread.currentThread().getContextClassLoader()  # noqa: SLF001 - There is no public way.
    try:
        loader.loadClass("org.apache.hadoop.fs.s3a.S3AFileSystem")
    except Py4JJavaError:
        return False
    return True


def _is_readable(projection: Projection, slices: Sequence[Slice]) -> bool:
    """Whether Spark's reader gives the same values for all columns as txnstore's."""
    if any(part.batch.segment.format != "parquet" for part in slices):
        return False
    column = projection.time_column
    if column is None or "_timestamp" not in projection.columns:
        return True
    # A timestamp without a zone is UTC in txnstore, but in the session's time zone in Spark's casts.
    return types.type_name(_stored(projection.topic).field(column).type) in ("timestamp", "bigint")


def _stored(topic: Topic) -> pa.Schema:
    """The topic's declared columns with Spark's types."""
    import pyarrow as pa

    everything = types.spark_schema(Projection(topic).schema)
    return pa.schema([field for field in everything if field.name not in _RESERVED])


def _files(slices: Sequence[Slice], projection: Projection) -> dict[str, File] | None:
    """The files by key; None if a file contains several batches, so that its rows have no single base offset."""
    files: dict[str, File] = {}
    for part in slices:
        batch, segment = part.batch, part.batch.segment
        if segment.key in files or batch.records != segment.rows:
            return None
        files[segment.key] = File(
            name=segment.key.rpartition("/")[2],
            partition=part.tp.partition,
            base=None if segment.explicit_offsets else batch.base_offset,
            low=part.start,
            high=part.limit,
            cut=not part.whole,
            default_ms=projection.default_timestamp(part),
        )
    return files


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
    }
    for name, value in location.storage_options.items():
        options[f"storage.{name}"] = value if isinstance(value, str) else json.dumps(value)
    read_options({"path": location.url, **options})
    return spark.read.format("txnstore").options(**options).load(location.url)


# The frames -----------------------------------------------------------------------------------------------------------


class _Frames:
    """Builds one frame per kind of file (whole or cut, offsets derived or stored) and unites them."""

    def __init__(self, spark: SparkSession, root: str, projection: Projection, schema: pa.Schema) -> None:
        self._spark, self._root = spark, root
        self._projection, self._schema = projection, schema

    def read(self, files: Mapping[str, File]) -> DataFrame:
        """Read all files as one frame."""
        kinds: dict[tuple[bool, bool], dict[str, File]] = {}
        for key, file in files.items():
            kinds.setdefault((file.base is None, file.cut), {})[key] = file
        frames = [self._frame(kind, explicit=explicit, cut=cut) for (explicit, cut), kind in sorted(kinds.items())]
        return reduce(lambda one, other: one.union(other), frames)

    def _frame(self, files: Mapping[str, File], *, explicit: bool, cut: bool) -> DataFrame:
        import pyarrow as pa
        from pyspark.sql import functions as F  # noqa: N812 - its usual name

        stored = list(_stored(self._projection.topic))
        if explicit:
            stored += [field for field in RESERVED_FIELDS if field.name in ("_offset", "_timestamp")]
        paths = [f"{self._root}/{key}" for key in files]
        frame = self._spark.read.schema(types.ddl(types.spark_schema(pa.schema(stored)))).parquet(*paths)
        frame = frame.select("*", F.col("_metadata.file_name").alias(_FILE), F.col("_metadata.row_index").alias(_ROW))
        frame, known = self._known(frame, list(files.values()), cut=cut)
        offset = F.col("_offset") if explicit else known("base") + F.col(_ROW)
        if cut:
            frame = frame.where((offset >= known("low")) & (offset < known("high")))
        derived: dict[str, Callable[[], Column]] = {
            "_topic": lambda: F.lit(self._projection.topic.name),
            "_partition": lambda: known("partition").cast("int"),
            "_offset": lambda: offset,
            "_timestamp": lambda: self._timestamp(known("default_ms"), explicit=explicit),
        }
        return frame.select(
            *(
                (derived[name]() if name in derived else F.col(types.quoted(name))).alias(name)
                for name in self._schema.names
            ),
        )

    def _known(
        self, frame: DataFrame, files: Sequence[File], *, cut: bool
    ) -> tuple[DataFrame, Callable[[str], Column]]:
        """The frame, and a function that gives the metadata of each row's file as a column."""
        from pyspark.sql import functions as F  # noqa: N812 - its usual name

        if len(files) <= _MAP_FILES:

            def look_up(name: str) -> Column:
                pairs = [F.lit(value) for file in files for value in (file.name, getattr(file, name))]
                return F.element_at(F.create_map(*pairs), F.col(_FILE)).cast("bigint")

            return frame, look_up
        if not cut and not {"_partition", "_offset", "_timestamp"} & set(self._schema.names):
            return frame, lambda name: F.lit(None)
        rows = [(file.name, file.partition, file.base, file.low, file.high, file.default_ms) for file in files]
        numbers = ", ".join(f"{_FILE}_{name} bigint" for name in ("partition", "base", "low", "high", "default_ms"))
        table = self._spark.createDataFrame(rows, f"{_FILE} string, {numbers}")
        return frame.join(F.broadcast(table), _FILE), lambda name: F.col(f"{_FILE}_{name}")

    def _timestamp(self, default_ms: Column, *, explicit: bool) -> Column:
        """The ``_timestamp``: stored by a compaction, else from the topic's time column, else that of the batch."""
        from pyspark.sql import functions as F  # noqa: N812 - its usual name

        moments = [F.col("_timestamp")] if explicit else []
        column = self._projection.time_column
        if column is not None and not explicit:
            moment = F.col(types.quoted(column))
            is_number = types.type_name(_stored(self._projection.topic).field(column).type) == "bigint"
            moments.append(F.timestamp_millis(moment) if is_number else F.date_trunc("millisecond", moment))
        return F.coalesce(*moments, F.timestamp_millis(default_ms))
